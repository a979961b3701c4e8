"""Whose joules they were: shares of a package between two programs, beside what each draws alone.

    make bench NAME=attribution DATA=FOLDER

FOLDER has one folder for each machine, here or in `evidence/attribution_truth`, with `alone.csv` and `together.csv`:
package watts of programs by threads, alone (`program`, `threads`, `package_w`) and together (`a`, `a_threads`, `b`,
`b_threads`, perhaps `c` …, `package_w`). A group that is capped has as many threads as it may use CPUs (`1.5`).
`with_HT` in the folder's name says that two threads share a core. If known, there are the cycles of each and what
Scaphandre and PowerAPI charged it
(davidson-consulting/software-energy-model-evaluation). For each pair a tape is written, with the CPU time
that its threads had, and `Run.ledger` is asked. The truth of a share is
(alone_a − wake) / (alone_a + alone_b − 2·wake): waking the package costs the same whoever does it.

A folder with `*_v_*_vms.csv.gz` has programs in virtual machines: the package's counter and the CPU time of each
guest's program, alone and side by side. Guests that together want more CPUs than there are get them in proportion.
There the package is awake with any guest, so idle stands for wake-up power.

Scaphandre's shares on the machine with hyper-threading err less than CPU time by luck: its list lacks up to two
processes of the second program where that has 32, and so gives more to the first, which is the smaller one.
"""

from __future__ import annotations

import csv
import gzip
import math
import statistics
import string
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
OURS = "everywatt"
COVERED = 0.93
# Most of the median half-width, in points of the share, by whether two threads share a core.
WIDTHS = {1: 8.0, 2: 14.0}
TOGETHER, VMS = "together.csv", "*_v_*_vms.csv.gz"
BUSY = 0.5  # a program works while it keeps so much of a CPU busy


@dataclass(frozen=True)
class Machine:
    """What is known of a machine from its programs alone."""

    name: str
    cpus: int
    threads_per_core: int
    idle_w: float
    wake_w: float
    alone_w: Mapping[tuple[str, float], float]


@dataclass(frozen=True)
class Pair:
    """Programs side by side: the true share of the first, what others say, and what a recorder would have seen.

    Of each second: the joules of the package, and the CPU seconds of each program.
    """

    true: float
    said: Mapping[str, float]
    names: Sequence[str]
    joules: Sequence[float]
    cpu_s: Sequence[Sequence[float]]


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
        found = sorted({path.parent for name in (TOGETHER, VMS) for path in base.glob(f"*/{name}")})
        if found or any(any(base.glob(name)) for name in (TOGETHER, VMS)):
            yield from found or [base]
            return


def _number(row: Mapping[str, str], column: str) -> float:
    """A number of a table; NaN where it was not recorded."""
    return float(row.get(column) or "nan")


def read_machine(folder: Path) -> Machine | None:
    """Idle and wake-up power, and what each program draws alone; None where those do not follow from the table."""
    alone = {}
    with (folder / "alone.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if np.isfinite(watts := _number(row, "package_w")):
                alone[row["program"], float(row["threads"])] = watts
    idle_w = alone.pop(("idle", 0), None)
    cpus = math.ceil(max((threads for _, threads in alone), default=0.0))
    # Power rises in proportion to threads while there are few: where those lines begin is the package awake.
    few = max(cpus // 8, 6)
    begins = []
    for program in {program for program, _ in alone}:
        points = [(threads, watts) for (name, threads), watts in alone.items() if name == program and threads <= few]
        if len(points) > 1:
            begins.append(float(np.polyfit(*zip(*points, strict=True), 1)[1]))
    wake_w = statistics.median(begins) if begins else idle_w
    if wake_w is None or not alone:
        return None
    paired = 2 if "with_HT" in folder.name else 1
    return Machine(folder.name, cpus, paired, LITTLE * wake_w if idle_w is None else idle_w, wake_w, alone)


def pairs(folder: Path, machine: Machine) -> Iterator[Pair]:
    """All pairs, and larger sets, of programs that were alone, too."""
    with (folder / "together.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            sides = [side for side in string.ascii_lowercase if row.get(side) and row.get(f"{side}_threads")]
            together = [(row[side], float(row[f"{side}_threads"])) for side in sides]
            above = [machine.alone_w[one] - machine.wake_w for one in together if one in machine.alone_w]
            package_w = _number(row, "package_w")
            if len(above) < max(len(sides), 2) or min(above) <= 0 or not np.isfinite(package_w):
                continue
            said = {}
            for name, column in (
                ("CPU time", "{}_threads"),
                ("cycles", "{}_cycles"),
                ("Scaphandre", "scaphandre_{}_w"),
                ("PowerAPI", "powerapi_{}_w"),
            ):
                amounts = [_number(row, column.format(side)) for side in sides]
                if sum(amounts) > 0:
                    said[name] = amounts[0] / sum(amounts)
            threads = [threads for _, threads in together]
            busy = min(sum(threads), machine.cpus)
            rates = [busy * own / sum(threads) for own in threads]
            names = [name for name, _ in together]
            yield Pair(above[0] / sum(above), said, names, [package_w] * BUSY_S, [rates] * BUSY_S)


def _series(path: Path, keep: str = "") -> dict[str, np.ndarray]:
    """Columns of numbers of a recording of VMs, by VM: of `program` rows only, or of all where there are no VMs."""
    found: dict[str, list[list[float]]] = {}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row.get("group", keep) == keep:
                name = row.get("vm", "")
                value = float(row["cpu_clock_ns"]) / NS if name else float(row["package_j"])
                found.setdefault(name, []).append([float(row["unix_s"]), value])
    return {name: np.array(rows) for name, rows in found.items()}


def _recording(folder: Path, name: str) -> tuple[np.ndarray, dict[str, np.ndarray], float, float] | None:
    """The package's counter, CPU time of each VM's program, and from when to when all worked; None if they never do."""
    package = _series(folder / f"{name}_energy.csv.gz")[""]
    guests = _series(folder / f"{name}_vms.csv.gz", "program")
    starts, ends = [package[0, 0]], [package[-1, 0]]
    for rows in guests.values():
        working = rows[rows[:, 1] > BUSY, 0]
        starts.append(working.min(initial=np.inf))
        ends.append(working.max(initial=-np.inf))
    start, end = max(starts) + 1, min(ends) - 1  # without the seconds in which one began or ended
    return (package, guests, start, end) if end - start > BUSY_S else None


def _between(rows: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.asarray(np.diff(np.interp(edges, rows[:, 0], rows[:, 1])))


def vm_pairs(folder: Path) -> tuple[Machine, list[Pair]]:
    """The host of some VMs, and all pairs of programs in them that were alone, too."""
    alone: dict[str, list[float]] = {}
    idle, most = [], 0.0
    for path in sorted(folder.glob("*_alone_*_vms.csv.gz")):
        name = path.name.removesuffix("_vms.csv.gz")
        found = _recording(folder, name)
        if found is None:  # the guest's clock was off
            continue
        package, guests, start, end = found
        program, _, size = name.rpartition("_")[0].partition("_alone_")
        watts = float(_between(package, np.array([start, end]))[0]) / (end - start)
        alone.setdefault(f"{program}_{size}", []).append(watts)
        idle.append(float(np.diff(package[-4:, 1]).sum() / np.diff(package[-4:, 0]).sum()))
        most = max(most, *(float(rows[:, 1].max()) for rows in guests.values()))
    alone_w = {(name, 1): statistics.median(watts) for name, watts in alone.items()}
    machine = Machine(folder.name, round(most), 1, min(idle), min(idle), alone_w)
    made = []
    for path in sorted(folder.glob(VMS)):
        name = path.name.removesuffix("_vms.csv.gz")
        found = _recording(folder, name)
        programs = tuple(name.rpartition("_")[0].split("_v_"))
        if found is None or any((program, 1) not in alone_w for program in programs):
            continue
        package, guests, start, end = found
        edges = np.arange(start, end)
        # VMs are named after their programs, or first and second where those are the same.
        order = sorted(guests, key=lambda vm: [vm[:5] != "first", programs[0][:5] != vm[:5]])
        sums = [np.column_stack((guests[vm][:, 0], np.cumsum(guests[vm][:, 1]))) for vm in order]
        used = np.stack([_between(rows, edges) for rows in sums], axis=1)
        used *= np.minimum(machine.cpus / used.sum(axis=1), 1.0)[:, None]
        above = [alone_w[program, 1] - machine.wake_w for program in programs]
        first, second = used.sum(axis=0)
        said = {"CPU time": float(first / (first + second))}
        rates = [(float(a), float(b)) for a, b in used]
        made.append(Pair(above[0] / sum(above), said, programs, _between(package, edges).tolist(), rates))
    return machine, made


def write_tape(path: Path, machine: Machine, pair: Pair) -> Path:
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
    joules, used, seconds = 0.0, np.zeros(len(pair.names)), IDLE_S + len(pair.joules)
    for second in range(seconds + 1):
        at_ns = START_NS + second * NS
        writer.append(power, [Row(at_ns, at_ns, at_ns, (round(joules * 1e6),))])
        busy_s = float(used.sum())
        writer.append(use, [Row(at_ns, at_ns, at_ns, (busy_s, machine.cpus * second - busy_s))])
        table = [
            {"pid": 100 + place, "start": 17, "ppid": 1, "name": name, "cpu_s": float(used[place]), "rss_bytes": 1}
            for place, name in enumerate(pair.names)
        ]
        writer.append_table(processes, at_ns, table)
        if second < seconds:
            joules += machine.idle_w if second < IDLE_S else pair.joules[second - IDLE_S]
            used += 0.0 if second < IDLE_S else pair.cpu_s[second - IDLE_S]
    writer.flush()
    return writer.seal()


def ask(machine: Machine, pair: Pair, folder: Path) -> Found:
    """What the ledger says of a pair."""
    path = write_tape(folder / "pair.tape", machine, pair)
    run = everywatt.load(path)
    owed = {entry.details.get("pid"): entry for entry in run.ledger(by="process").entries}
    first, *others = (owed[100 + place].energy for place in range(len(pair.names)))
    whole_j = first.value + sum(energy.value for energy in others)
    path.unlink()
    held = first.low <= pair.true * whole_j <= first.high
    said = {OURS: first.value / whole_j, **pair.said}
    return Found(pair.true, said, held, (first.high - first.low) / 2 / whole_j)


def main(quick: bool) -> None:
    """Print, for each machine, how far off shares are, and how often our interval holds the true one."""
    folder = data_folder()
    found = list(machines(folder)) if folder is not None else []
    if not found:
        say("There is no folder with alone.csv and together.csv: name the recordings with DATA=FOLDER.")
    for path in found:
        machine: Machine | None
        if any(path.glob(VMS)):
            machine, found_pairs = vm_pairs(path)
        else:
            machine = read_machine(path)
            found_pairs = [] if machine is None else list(pairs(path, machine))[:: 20 if quick else 1]
        if machine is None or not found_pairs:
            say(f"{path.name}: no programs together that were alone, too, with a wake-up or idle power.")
            continue
        with tempfile.TemporaryDirectory() as place:
            tried = [ask(machine, one, Path(place)) for one in found_pairs]
        _print(machine, tried)


def _print(machine: Machine, tried: list[Found]) -> None:
    rows, compared = [], []
    for name in dict.fromkeys(name for one in tried for name in one.said):
        both = [[100 * abs(one.said[by] - one.true) for by in (name, OURS)] for one in tried if name in one.said]
        errors, ours = zip(*both, strict=True)
        rows.append([name, str(len(errors)), f"{statistics.fmean(errors):.2f}", f"{np.percentile(errors, 95):.2f}"])
        if name != OURS:
            compared.append((statistics.fmean(ours), statistics.fmean(errors)))
    wakes = f"{machine.cpus} CPUs, wakes from {machine.idle_w:.0f} to {machine.wake_w:.0f} W"
    title = f"{machine.name}: error of shares in points ({wakes})"
    OUT.table(["method", "pairs", "mean", "p95"], rows, right=(1, 2, 3), title=title)
    held = sum(one.held for one in tried)
    low, high = wilson(held, len(tried))
    half = 100 * statistics.median(one.half for one in tried)
    widest = WIDTHS[machine.threads_per_core]
    OUT.text(f"intervals hold {held / len(tried):.1%} ({low:.1%} … {high:.1%}): {verdict(COVERED, held / len(tried))}")
    OUT.text(f"median half-width {half:.1f} points of {widest:g}: {verdict(half, widest)}")
    # Not all of them said something of every pair: each is compared on its own.
    mean, least = (round(error, 2) for error in max(compared, key=lambda pair: pair[0] - pair[1]))
    OUT.text(f"mean error {mean} points, best of the others {least} on the same pairs: {verdict(mean, least)}\n")
