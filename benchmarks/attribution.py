"""Whose joules they were: shares of a package between two programs, beside what each draws alone.

    make bench NAME=attribution DATA=FOLDER

FOLDER has one folder for each machine, here or in `evidence/attribution_truth`, with `alone.csv` and `together.csv`:
package watts of programs by threads, alone and in pairs, with the cycles of each and what Scaphandre and PowerAPI
charged it (davidson-consulting/software-energy-model-evaluation). For each pair a tape is written, with the CPU time
that its threads had, and `Run.ledger` is asked. The truth of a share is
(alone_a − wake) / (alone_a + alone_b − 2·wake): waking the package costs the same whoever does it.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import everywatt
from benchmarks.common import OUT, data_folder, say, verdict
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.core.clocks import NS, Anchor
from everywatt.core.stats import wilson
from everywatt.tape.writer import TapeWriter

START_NS = 1_000 * NS
IDLE_S, BUSY_S = 10, 20
LITTLE = 0.26  # of the watts that the first thread wakes, where nobody wrote down what the machine draws at rest
COVERED = 0.93
# Most of the median half-width, in points of the share, by whether two threads share a core.
WIDTHS = {1: 8.0, 2: 14.0}


@dataclass(frozen=True)
class Machine:
    """What is known of a machine from its programs alone."""

    name: str
    cpus: int
    threads_per_core: int
    idle_w: float
    wake_w: float
    alone_w: Mapping[tuple[str, int], float]


@dataclass(frozen=True)
class Found:
    """One pair: the true share of the first program, what a method said, and the half-width of our interval."""

    true: float
    said: Mapping[str, float]
    held: bool
    half: float


def machines(folder: Path) -> Iterator[Path]:
    """The folders of machines below a folder of recordings."""
    for base in (folder / "evidence" / "attribution_truth", folder / "attribution_truth", folder):
        found = sorted(path.parent for path in base.glob("*/together.csv")) if base.is_dir() else []
        if found or (base / "together.csv").is_file():
            yield from found or [base]
            return


def read_machine(folder: Path) -> Machine:
    """Idle and wake-up power, and what each program draws alone."""
    alone = {}
    with (folder / "alone.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            alone[row["program"], int(row["threads"])] = float(row["package_w"])
    idle_w = alone.pop(("idle", 0), None)
    cpus = max(threads for _, threads in alone)
    # Power rises in proportion to threads while there are few: where those lines begin is the package awake.
    few = max(cpus // 8, 6)
    begins = []
    for program in {program for program, _ in alone}:
        points = [(threads, watts) for (name, threads), watts in alone.items() if name == program and threads <= few]
        begins.append(float(np.polyfit(*zip(*points, strict=True), 1)[1]))
    wake_w = statistics.median(begins)
    paired = 2 if "with_HT" in folder.name else 1
    return Machine(folder.name, cpus, paired, LITTLE * wake_w if idle_w is None else idle_w, wake_w, alone)


def pairs(folder: Path, machine: Machine) -> Iterator[tuple[float, dict[str, float], Mapping[str, str]]]:
    """For each pair the true share of its first program, what others said, and its row."""
    with (folder / "together.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            both = [(row[side], int(row[f"{side}_threads"])) for side in "ab"]
            above = [machine.alone_w[one] - machine.wake_w for one in both if one in machine.alone_w]
            if len(above) < 2 or min(above) <= 0:
                continue
            said = {}
            for name, columns in (
                ("CPU time", ("a_threads", "b_threads")),
                ("cycles", ("a_cycles", "b_cycles")),
                ("Scaphandre", ("scaphandre_a_w", "scaphandre_b_w")),
                ("PowerAPI", ("powerapi_a_w", "powerapi_b_w")),
            ):
                amounts = [float(row[column] or "nan") for column in columns]
                if sum(amounts) > 0:
                    said[name] = amounts[0] / sum(amounts)
            yield above[0] / sum(above), said, row


def write_tape(path: Path, machine: Machine, row: Mapping[str, str]) -> Path:
    """The machine at rest, then with both programs, as a recorder would have seen it."""
    host = {"name": machine.name, "cpus": machine.cpus, "threads_per_core": machine.threads_per_core}
    writer = TapeWriter(path, {"host": host, "period_s": 1.0})
    writer.anchor(Anchor(START_NS, START_NS, START_NS, 0))
    # Gain 0: how well the package is measured is not what is tried here.
    package = Channel(
        "cpu.0.package.energy", "J", Kind.COUNTER, "cpu.0", Domain.PACKAGE, 1e-6,
        facts=Facts(period_s=0.001, quantum=1e-6, max_w=1000.0, gain_pct=0.0, offset_w=0.0),
    )  # fmt: skip
    power = writer.add_group(GroupInfo("rapl.cpu.0", "rapl", "cpu.0", (package,)), 1.0)
    times = tuple(
        Channel(f"host.{name}", "s", Kind.COUNTER, "host", facts=Facts(period_s=0.01, quantum=0.01))
        for name in ("cpu_time", "idle_time")
    )
    use = writer.add_group(GroupInfo("use.host", "use", "host", times), 1.0)
    processes = writer.add_group(GroupInfo("use.processes", "use", "host", (), table=True), 1.0)
    threads = [int(row["a_threads"]), int(row["b_threads"])]
    busy = min(sum(threads), machine.cpus)
    rates = [busy * count / sum(threads) for count in threads]
    joules = 0.0
    for second in range(IDLE_S + BUSY_S + 1):
        at_ns, busy_s = START_NS + second * NS, max(second - IDLE_S, 0)
        writer.append(power, [Row(at_ns, at_ns, at_ns, (round(joules * 1e6),))])
        host_s = (busy * busy_s, machine.cpus * second - busy * busy_s)
        writer.append(use, [Row(at_ns, at_ns, at_ns, host_s)])
        table = [
            {
                "pid": 100 + place,
                "start": 17,
                "ppid": 1,
                "name": row["ab"[place]],
                "cpu_s": rate * busy_s,
                "rss_bytes": 1,
            }
            for place, rate in enumerate(rates)
        ]
        writer.append_table(processes, at_ns, table)
        joules += machine.idle_w if second < IDLE_S else float(row["package_w"])
    writer.flush()
    return writer.seal()


def ask(machine: Machine, true: float, said: dict[str, float], row: Mapping[str, str], folder: Path) -> Found:
    """What the ledger says of a pair."""
    path = write_tape(folder / "pair.tape", machine, row)
    run = everywatt.load(path)
    owed = {entry.details.get("pid"): entry for entry in run.ledger(by="process").entries}
    both = [owed[pid].energy for pid in (100, 101)]
    whole_j = sum(energy.value for energy in both)
    first = both[0]
    path.unlink()
    held = first.low <= true * whole_j <= first.high
    return Found(true, {"everywatt": first.value / whole_j, **said}, held, (first.high - first.low) / 2 / whole_j)


def main(quick: bool) -> None:
    """Print, for each machine, how far off shares are, and how often our interval holds the true one."""
    folder = data_folder()
    found = list(machines(folder)) if folder is not None else []
    if not found:
        say("There is no folder with alone.csv and together.csv: name the recordings with DATA=FOLDER.")
    for path in found:
        machine = read_machine(path)
        rows = list(pairs(path, machine))
        with tempfile.TemporaryDirectory() as place:
            tried = [ask(machine, *one, Path(place)) for one in rows[:: 20 if quick else 1]]
        _print(machine, tried)


def _print(machine: Machine, tried: list[Found]) -> None:
    rows, best = [], []
    for name in dict.fromkeys(name for one in tried for name in one.said):
        errors = [100 * abs(one.said[name] - one.true) for one in tried if name in one.said]
        mean, most = statistics.fmean(errors), float(np.percentile(errors, 95))
        rows.append([name, str(len(errors)), f"{mean:.2f}", f"{most:.2f}"])
        best.append(mean)
    wakes = f"{machine.cpus} CPUs, wakes from {machine.idle_w:.0f} to {machine.wake_w:.0f} W"
    title = f"{machine.name}: error of shares in points ({wakes})"
    OUT.table(["method", "pairs", "mean", "p95"], rows, right=(1, 2, 3), title=title)
    held = sum(one.held for one in tried)
    low, high = wilson(held, len(tried))
    half = 100 * statistics.median(one.half for one in tried)
    widest = WIDTHS[machine.threads_per_core]
    OUT.text(f"intervals hold {held / len(tried):.1%} ({low:.1%} … {high:.1%}): {verdict(COVERED, held / len(tried))}")
    OUT.text(f"median half-width {half:.1f} points of {widest:g}: {verdict(half, widest)}")
    mean, least = round(best[0], 2), round(min(best[1:]), 2)
    OUT.text(f"mean error {mean} points, best of the others {least}: {verdict(mean, least)}\n")
