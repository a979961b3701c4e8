"""Do intervals hold the truth, on every path by which a user gets a figure, and how narrow are they?

    make bench NAME=honesty [DATA=FOLDER] [AGAINST=base]

Figures are asked of the product as a user asks for them. Over devices: cards whose gain, offset, averaging window and
period are drawn from what is known of real ones, each under one of the loads of `product_lab.CASES`; the measured cards
of the model that a card was drawn from say nothing of it. On recordings: every folder below FOLDER (tests/energy/data)
with a log of nvidia-smi, or counters of RAPL, beside a meter.

Coverage is the share of intervals that hold the truth, at 50, 80 and 95 %, and its 95 % interval (Wilson) counted over
cards or recorded seconds, because windows of one card share its error. Width is the median half-width in percent, the
score the interval score (width plus 40 times what sticks out) in percent of the energy, the lower the better.

A path fails below 93 % (cards of which nothing is known: 90 %), and where the interval of its coverage lies above 98 %,
unless its half-width is below 1 %.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks import common
from benchmarks import product_lab as lab
from everywatt.core.clocks import NS
from everywatt.core.stats import wilson

DRIVES_COMMANDS = True  # see _against.py
TESTS = common.HERE.parent / "tests"
DATA, SUPPORT = TESTS / "energy" / "data", TESTS / "support"
LENGTHS_S = (0.25, 1.0, 3.0)
LEAST, LEAST_UNKNOWN, MOST, NARROW_PCT = 0.93, 0.90, 0.98, 1.0
CARDS = 16 * len(lab.CASES)
CARDS_A_LOAD = 57  # each of the 19 measured cards three times
CPUS = {"broadwell": "6/79", "icelake": "6/106"}  # family and model of the recorded servers
CURVES = ("constant:200W", "square:90W,330W,0.7s", "square:90W,330W,7.3s", "sine:210W,120W,11s")  # of an agent's cards
SHORTEST_HALF_S = 6.5  # shorter halves are too little to calibrate on
UNKNOWN, PART_TIME = ", card unknown", ", counter of a part-time sensor"
KINDS = {"": lab.KNOWN_CARDS, UNKNOWN: lab.UNKNOWN_CARDS, PART_TIME: lab.PART_TIME_COUNTERS}
SIMULATED, RECORDED = "simulator", "recordings of real cards"
HEADS = ["", "n", "of", "50 %", "80 %", "95 %", "interval of that", "± % (median)", "score", ""]


@dataclass
class Row:
    """Figures by one path. `units` is how many cards, or seconds of a recording, they are from."""

    answers: lab.Answers
    units: float
    least: float = LEAST

    def add(self, answers: lab.Answers, units: float) -> None:
        self.answers, self.units = self.answers + answers, self.units + units

    @property
    def interval(self) -> tuple[float, float]:
        """Of the coverage at 95 %, counted in units."""
        count = max(1, min(round(self.units), len(self.answers)))
        return wilson(round(self.answers.holds() * count), count)

    @property
    def verdict(self) -> str:
        """Empty where it is honest."""
        if not len(self.answers):
            return "no figure"
        if self.answers.holds() < self.least:
            return f"below {100 * self.least:.0f} %"
        return "too wide" if self.interval[0] > MOST and self.answers.width_pct >= NARROW_PCT else ""

    def cells(self, name: str) -> list[str]:
        if not len(self.answers):
            return [name, "0", *[""] * 7, self.verdict]
        low, high = (100 * end for end in self.interval)
        levels = [f"{100 * self.answers.holds(level):.1f}" for level in (0.5, 0.8, 0.95)]
        width, score = f"{self.answers.width_pct:.2f}", f"{self.answers.score_pct:.1f}"
        return [name, str(len(self.answers)), f"{self.units:.0f}", *levels, f"{low:.1f} … {high:.1f}", width, score,
                self.verdict]  # fmt: skip


Rows = dict[str, Row]


def _add(rows: Rows, name: str, answers: lab.Answers, units: float, least: float = LEAST) -> None:
    if name in rows:
        rows[name].add(answers, units)
    else:
        rows[name] = Row(answers, units, least)


def over_devices(cards: int = CARDS, windows: int = 3, kind: str = "", seed: int = 1) -> Rows:
    """By path: drawn cards, one load each in turn."""
    paths: Rows = {}
    least = LEAST_UNKNOWN if kind == UNKNOWN else LEAST
    spans = [(a, a + length) for a, length in zip(np.arange(5.0, 56.0, 2.5), [0.2, 0.5, 2.0] * 7, strict=True)]
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(cards):
            rng = np.random.default_rng((seed, number, list(KINDS).index(kind)))
            case = tuple(lab.CASES)[number % len(lab.CASES)]
            folder = Path(scratch) / str(number)
            folder.mkdir()
            # From one round of loads to the next every load meets another card.
            card = lab.drawn_card(rng, KINDS[kind], number + number // len(lab.CASES))
            recorded = lab.recorded_case(case, card, folder / "run.tape", rng, spans)
            _add(paths, f"Run.energy{kind}", _at_random(recorded, windows, rng), 1, least)
            for path, ask in SPAN_PATHS.items():
                _add(paths, f"{path}{kind}", ask(recorded), 1, least)
    return paths


def by_load(cards: int = CARDS_A_LOAD, kind: str = "", seed: int = 2) -> Rows:
    """`Run.energy` under every load, each by so many drawn cards: of a few, single gains would decide."""
    loads: Rows = {}
    for place, case in enumerate(lab.CASES):
        for number in range(cards):
            rng = np.random.default_rng((seed, place, number, list(KINDS).index(kind)))
            with tempfile.TemporaryDirectory() as scratch:
                card = lab.drawn_card(rng, KINDS[kind], number)
                recorded = lab.recorded_case(case, card, Path(scratch) / "run.tape", rng)
                least = LEAST_UNKNOWN if kind == UNKNOWN else LEAST
                _add(loads, f"{case}{kind}", _at_random(recorded, 3, rng), 1, least)
    return loads


def _at_random(recorded: lab.Recorded, windows: int, rng: np.random.Generator) -> lab.Answers:
    """So many windows of each length."""
    first, *others = (lab.by_windows(recorded, length, windows, rng) for length in LENGTHS_S)
    return sum(others, start=first)


SPAN_PATHS: Mapping[str, Callable[[lab.Recorded], lab.Answers]] = {
    "span": lab.by_spans,
    "ledger by span": lab.by_ledger,
    "batch item": lab.by_items,
    "LLM query": lab.by_queries,
}


def series_read_back(recorded_s: float = 90.0, seed: int = 1, curves: Sequence[str] = CURVES) -> Row:
    """What an agent exports, scraped every 5 s, read back as a run: windows between scrapes and across them."""
    sys.path.insert(0, str(SUPPORT))
    from virtual_world import VirtualWorld

    from everywatt.api.run import load
    from everywatt.fleet.imports import targets, write_run
    from everywatt.fleet.query import Series

    rng = np.random.default_rng(seed)
    row: Row | None = None
    for curve in curves:
        with tempfile.TemporaryDirectory() as name, VirtualWorld(Path(name), gpu=curve, board=curve) as world:
            agent = world.agent()
            series: dict[str, Series] = {}
            start_ns = world.now_ns
            while world.now_ns < start_ns + recorded_s * NS:
                world.sleep(5.0)
                for key, (value, at_ms) in agent.values().items():
                    metric, _, labels = key.partition("{")
                    pairs = dict(pair.split("=", 1) for pair in labels.rstrip("}").split(",") if pair)
                    told = {label: text.strip('"') for label, text in pairs.items()} | {"instance": "n:1", "job": "x"}
                    now_ms = (world.time.utc_ns() if at_ms is None else at_ms * 10**6) // 10**6
                    series.setdefault(key, Series(metric, told, array("q"), array("d"))).add(now_ms, value)
            agent.end()
            utc_ns = world.time.utc_ns() - world.now_ns
            run = load(write_run(Path(name) / "back", targets(series.values())[0], "http://store", {}))
            tape = run.tapes[0]
            first_ns, last_ns = (tape.to_utc_ns(at) - utc_ns for at in tape.extent_ns())
            for device, truth in (("gpu.0", "gpu"), ("gpu.1", "board")):
                seconds = (last_ns - first_ns) / NS
                starts = rng.uniform(0.05, 0.5, 25) * seconds
                ends = starts + rng.uniform(0.05, 0.4, 25) * seconds
                figures = [run.energy(between=(a, b), device=device) for a, b in zip(starts, ends, strict=True)]
                true = [
                    world.machine.energy_j(truth, first_ns + round(a * NS), first_ns + round(b * NS))
                    for a, b in zip(starts, ends, strict=True)
                ]
                answers = lab.Answers.of(true, figures)
                row = Row(answers, recorded_s / 5) if row is None else row
                if row.answers is not answers:
                    row.add(answers, recorded_s / 5)
    assert row is not None
    return row


def modelled(machines: int = 24, seed: int = 1) -> Row:
    """Windows of watts that a fitted model gives as a sensor, over machines; the load is not the one it learnt from."""
    row = Row(lab.Answers.of((), ()), machines)
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(machines):
            rng = np.random.default_rng((seed, number))
            recorded = lab.modelled(Path(scratch) / f"{number}.tape", rng)
            for length_s in (5.0, 30.0, 120.0):
                row.add(lab.by_windows(recorded, length_s, 3, rng), 0)
    return row


def slurm_jobs(nodes: int = 60, seed: int = 1) -> Row:
    """Jobs that share a node's CPUs, as the node books them: above idle, by CPU time. A CPU in use draws 15 W more."""
    sys.path.insert(0, str(SUPPORT))
    from machines import Process, write_machine

    from everywatt.api.run import load
    from everywatt.slurm.node import booking
    from everywatt.slurm.node.node_jobs import NodeJob
    from everywatt.slurm.node.state import Account, record

    length, answers = 90, []
    for number in range(nodes):
        rng = np.random.default_rng((seed, number))
        starts = rng.integers(12, 40, 3)
        ends = starts + rng.integers(10, 45, 3)
        use = np.zeros((3, length))
        for job, (start, end) in enumerate(zip(starts, ends, strict=True)):
            use[job, start:end] = rng.uniform(0.1, 1.0, end - start)
        working = [
            Process(100 + job, use[job].tolist(), int(starts[job]), int(ends[job]),
                    extra={"uid": 0, "cgroup": f"/slurm/uid_0/job_{1 + job}/step_0"})
            for job in range(3)
        ]  # fmt: skip
        watts = 40.0 + 15.0 * use.sum(axis=0)
        with tempfile.TemporaryDirectory() as scratch:
            path = write_machine(Path(scratch) / "n.tape", {"cpu.0": watts.tolist()}, working, seconds=length,
                                 everything=True)  # fmt: skip
            tape = load(path).tapes[0]
            begin_s = tape.to_utc_ns(tape.extent_ns()[0]) / NS
            jobs = [
                NodeJob(1 + job, 0, begin_s + int(starts[job]), begin_s + int(ends[job]), node="n", cpus=1.0)
                for job in range(3)
            ]
            accounts: dict[str, Account] = {}
            booking.book(tape, "n", jobs, accounts, begin_s, begin_s + length, {})
        rows = [record(job, accounts.get(job.key), {"cpu.0": ("package", "rapl")}, "cpu") for job in jobs]
        kept = [n for n, row in enumerate(rows) if row.energy_uj is not None]
        figures = [[getattr(rows[n], name) / 1e6 for n in kept] for name in ("energy_uj", "low_uj", "high_uj")]
        answers.append(lab.Answers(15.0 * use.sum(axis=1)[kept], *map(np.array, figures)))
    row = Row(answers[0], nodes)
    for one in answers[1:]:
        row.add(one, 0)
    return row


def cards_of(data: Path) -> list[Path]:
    """Folders with a log of nvidia-smi beside a meter."""
    return sorted(p.parent for p in data.rglob("meter.csv.gz") if any(p.parent.glob("nvidia_smi.csv*")))


def imports(data: Path, count: int = 300, seed: int = 1, only: str = "") -> Rows:
    """Logs of real cards: their name told, not told, or of no table; and calibrated."""
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        for folder in (one for one in cards_of(data) if only in one.name):
            card, mine = lab.card_of(folder)
            ways: dict[str, dict[str, object]] = {
                "named": {"card": card},
                "not named": {},
                "unknown card": {"card": "Z9"},
            }
            with lab.left_out(mine):
                found = {
                    way: lab.imported(folder, Path(scratch) / f"{folder.name}-{way}.tape", **options)
                    for way, options in ways.items()
                }
                found |= calibrated(folder, card, Path(scratch) / folder.name)
            for way, recorded in found.items():
                for length in LENGTHS_S:
                    answers = lab.by_windows(recorded, length, count, np.random.default_rng(seed))
                    seconds = recorded.span_s[1] - recorded.span_s[0]
                    least = LEAST_UNKNOWN if way == "unknown card" else LEAST
                    _add(rows, f"import, {way}: {folder.name} {length:g} s", answers, seconds / length, least)
    return rows


def calibrated(folder: Path, card: str, scratch: Path) -> Iterator[tuple[str, lab.Recorded]]:
    """A recording by a card that `everywatt calibrate` had compared with the meter: in another recording of the card,
    or in the first half of this one."""
    scratch.mkdir()
    siblings = [one for one in folder.parent.glob(f"{folder.name.split('_')[0]}_*") if one != folder]
    for sibling in sorted(one for one in siblings if one in cards_of(folder.parent)):
        with _calibration(sibling, card, scratch / sibling.name) as state:
            if state:
                name = f"calibrated on {sibling.name.split('_')[-1]}"
                yield name, lab.imported(folder, scratch / "whole.tape", card=card, uuid="GPU-1")
    t_s, watts = lab.metered(folder)
    half = len(t_s) // 2
    if t_s[half] - t_s[0] < SHORTEST_HALF_S:
        return
    rows = _smi_rows(folder)
    cut = next(n for n, row in enumerate(rows) if n and _smi_s(row) > t_s[half])
    for name, part, meter in (("first", rows[1:cut], slice(0, half)), ("second", rows[cut:], slice(half, None))):
        (scratch / name).mkdir()
        (scratch / name / "nvidia_smi.csv").write_text("\n".join(", ".join(row) for row in [rows[0], *part]) + "\n")
        lines = "".join(f"{t!r},{w!r}\n" for t, w in zip(t_s[meter].tolist(), watts[meter].tolist(), strict=True))
        with gzip.open(scratch / name / "meter.csv.gz", "wt") as file:
            file.write("unix_s,watts\n" + lines)
    with _calibration(scratch / "first", card, scratch / "half") as state:
        if state:
            second = lab.imported(scratch / "second", scratch / "second.tape", card=card, uuid="GPU-1")
            yield "calibrated on the first half", second


@contextmanager
def _calibration(folder: Path, card: str, scratch: Path) -> Iterator[bool]:
    """While it is open, imports of the card GPU-1 use what a recording of it beside the meter gave; False for none."""
    from click.testing import CliRunner

    from everywatt.cli.calibrate import command
    from everywatt.tape.importing import import_files

    scratch.mkdir()
    (scratch / "meter.csv").write_bytes(gzip.decompress((folder / "meter.csv.gz").read_bytes()))
    of_meter = {"time": "unix_s", "time_format": "s", "values": "watts", "unit": "W", "kind": "gauge"}
    of_meter |= {"device": "meter", "domain": "wall"}
    import_files("csv", [scratch / "meter.csv"], scratch / "meter.tape", of_meter)
    log = next(iter(folder.glob("nvidia_smi.csv*")))
    import_files("nvidia-smi", [log], scratch / "card.tape", {"zone_h": lab.LOG_ZONE_H, "card": card})
    words = ["--from", str(scratch / "card.tape"), "--meter", str(scratch / "meter.tape"), "--uuid", "GPU-1"]
    with mock.patch.dict("os.environ", {"XDG_STATE_HOME": str(scratch / "state")}):
        done = CliRunner().invoke(command, words)
        if done.exit_code:
            common.say(f"{folder.name}: not calibrated: {done.exception}")
        yield not done.exit_code


def _smi_rows(folder: Path) -> list[list[str]]:
    path = next(iter(folder.glob("nvidia_smi.csv*")))
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    rows = list(csv.reader(io.StringIO(text), skipinitialspace=True))
    return [row for row in rows if len(row) == len(rows[0])]


def _smi_s(row: list[str]) -> float:
    from datetime import datetime, timedelta, timezone

    zone = timezone(timedelta(hours=lab.LOG_ZONE_H))
    return datetime.strptime(row[0], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=zone).timestamp()


def dram(data: Path, count: int = 60, seed: int = 1) -> Rows:
    """DRAM counters of real servers beside a meter on the DIMM, through `everywatt import csv`."""
    from everywatt.api.run import load
    from everywatt.tape.importing import import_files

    rows: Rows = {}
    for path in sorted(data.rglob("rapl.csv.gz")):
        folder = path.parent
        cpu = next((model for name, model in CPUS.items() if name in str(folder)), None)
        if cpu is None or not (folder / "meter.csv.gz").exists():
            continue
        with gzip.open(path, "rt") as file:
            counted = list(csv.DictReader(file))
        with gzip.open(folder / "meter.csv.gz", "rt") as file:
            heads = file.readline().strip().split(",")
            meter = np.loadtxt(file, delimiter=",")
        for column in [head for head in heads if head.startswith("dram_socket")]:
            socket = column.removeprefix("dram_socket").removesuffix("_w")
            mine = [row for row in counted if row.get("domain") == "dram" and row.get("socket") == socket]
            if not mine:
                continue
            total = np.cumsum([float(row["joules"]) for row in mine])
            with tempfile.TemporaryDirectory() as scratch:
                log = Path(scratch) / "log.csv"
                lines = (f"{1e9 + float(row['t_s']):.6f},{j:.6f}\n" for row, j in zip(mine, total, strict=True))
                log.write_text("t,joules\n" + "".join(lines))
                options = {"time": "t", "time_format": "s", "values": "joules", "unit": "J", "kind": "counter",
                           "device": f"dram.{socket}", "domain": "dram", "cpu": cpu}  # fmt: skip
                run = load(import_files("csv", [log], Path(scratch) / "run.tape", options))
                first_s = float(mine[0]["t_s"])
                recorded = lab.Recorded(run, *lab.truth_of(meter[:, 0] - first_s, meter[:, heads.index(column)]))
                last_s = min(recorded.span_s[1], float(mine[-1]["t_s"]) - first_s)
                recorded = lab.Recorded(run, recorded.truth, (max(recorded.span_s[0], 0.1), last_s - 0.1))
                answers = lab.by_windows(recorded, 1.0, count, np.random.default_rng(seed))
                name = f"import csv, DRAM: {folder.parent.name.split('_')[0]} socket {socket}"
                _add(rows, name, answers, recorded.span_s[1] - recorded.span_s[0])
    return rows


def _table(title: str, rows: Rows, figure: str = "", kind: str = SIMULATED) -> None:
    cells = [row.cells(name) for name, row in rows.items()]
    common.OUT.table(HEADS, cells, right=range(1, 9), title=title)
    common.OUT.text()
    if figure:
        _keep(figure, common.as_block(HEADS, cells, range(1, 9)), title, kind)


def _keep(name: str, value: str, what: str, kind: str = SIMULATED) -> None:
    common.keep_figure("honesty", name, value, what, kind)


def _keep_figures(paths: Rows, found: Rows) -> None:
    """The figures that pages repeat."""
    asked = paths["Run.energy"]
    _keep("sim-held", f"{100 * asked.answers.holds():.1f} %", "windows whose 95 % interval holds the truth")
    _keep("sim-windows", f"{len(asked.answers):,}", "windows behind sim-held")
    _keep("sim-cards", f"{asked.units:.0f}", "simulated cards behind sim-held")
    _keep("sim-fixed-5", f"{100 * asked.answers.within(0.05):.1f} %", "the same windows, a fixed ± 5 %")
    named, calibrated = (
        {name: row for name, row in found.items() if f"import, {way}" in name} for way in ("named", "calibrated")
    )
    lowest = min(row.answers.holds() for row in (*named.values(), *calibrated.values()))
    what = "lowest coverage of 0.25, 1 and 3 s windows, A100 and RTX 3090 beside a meter, named or calibrated"
    _keep("cards-held", f"{100 * lowest:.1f} %", what, RECORDED)
    for card in ("A100", "RTX3090"):
        row = calibrated.get(f"import, calibrated on step: {card}_square 1 s")
        if row is not None:
            what = f"median half-width of 1 s windows, {card} under a fast square load, calibrated on another recording"
            _keep(f"{card.lower()}-width-1s", f"{row.answers.width_pct:.1f} %", what, RECORDED)
    widths = [row.answers.width_pct for name, row in named.items() if name.endswith(" 1 s")]
    if widths:
        what = "median half-widths of 1 s windows of uncalibrated cards, their model left out of the table"
        _keep("uncalibrated-width-1s", f"{min(widths):.0f} to {max(widths):.0f} %", what, RECORDED)


def widths(data: Path, count: int) -> None:
    """Median half-widths of the recorded cards by the source in BENCH_SOURCE, this tree's or the base's."""
    words = [sys.executable, str(common.HERE / "_widths.py"), str(data), str(count)]
    done = subprocess.run(words, env=common.environment(), capture_output=True, text=True, check=True)
    rows = [[name, f"{width:.3f}"] for name, width in json.loads(done.stdout).items()]
    common.OUT.table(["recording", "± % (median)"], rows, right=(1,), title="Half-widths, not calibrated")


def main(quick: bool = False) -> None:
    """Print the tables; `quick` has an eighth of the cards. In a comparison with the base: half-widths alone."""
    data = common.data_folder() or DATA
    if "BENCH_SOURCE" in os.environ:
        widths(data, 40 if quick else 200)
        return
    paths = over_devices(2 * len(lab.CASES) if quick else CARDS)
    for kind in (UNKNOWN, PART_TIME):
        paths |= over_devices(len(lab.CASES) if quick else 4 * len(lab.CASES), kind=kind)
    loads: Rows = {}
    for kind in KINDS:
        loads |= by_load(2 if quick else CARDS_A_LOAD, kind)
    paths["agent's series, read back"] = series_read_back(30.0 if quick else 90.0)
    paths["Slurm job"] = slurm_jobs(10 if quick else 60)
    paths["modelled"] = modelled(6 if quick else 24)
    _table("By path, over simulated cards and nodes", paths, "honesty-paths")
    _table("Run.energy by load, over simulated cards", loads, "honesty-loads")
    fixed = f"{100 * paths['Run.energy'].answers.within(0.05):.1f} %"
    common.OUT.text(f"Run.energy with a fixed ± 5 % instead would hold {fixed}.\n")
    found = imports(data, 60 if quick else 200)
    _table("Recorded cards beside a meter", found, "honesty-cards", RECORDED)
    _keep_figures(paths, found)
    servers = dram(data)
    if servers:
        _table("Recorded DRAM beside a meter", servers, "honesty-dram", "recordings of real servers")
    failed = [f"{name}: {row.verdict}" for name, row in {**paths, **found, **servers}.items() if row.verdict]
    common.OUT.text("\n".join([f"{len(failed)} rows fail.", *failed]))
