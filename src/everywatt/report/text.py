"""Runs for a terminal: one in a few lines, lists and sums of runs, and why an interval is as wide as it is."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from everywatt.api.power import mean_w
from everywatt.api.run import COUNTED_ONCE, Run, sum_runs
from everywatt.core.budget import Budget
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_count, format_duration, format_energy, format_percent, format_rounded
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.tables import Cell, Column, Table, columns_of
from everywatt.ledger.owners import OwnerKind
from everywatt.ledger.text import SPECIAL, by_reason, owner_amounts
from everywatt.report.wall import wall_of

if TYPE_CHECKING:
    from everywatt.footprint.carbon import Factors, Footprint
    from everywatt.ledger.owners import Ledger

MAX_SPANS = 12
MAX_OWNERS = 5
SEEN = 0.9995


def summary(run: Run) -> list[str]:
    """The lines that `everywatt run` and `everywatt show` print."""
    energy = run.energy()
    duration_s = run.duration_s
    lines = [*_certain(run, energy, duration_s), _headline(energy), *_parts(run, energy)]
    if energy.joules is not None:
        lines += _wall(run)
        lines += _net(run)
        lines.append(f"  time    {format_duration(duration_s)}{_mean(energy, duration_s)}")
        lines += _owners(run)
    else:
        lines.append(f"  time    {format_duration(duration_s)}")
    lines += _spans(run)
    lines += _meter(run)
    lines += [f"  ! {text}" for text in by_reason(warnings(run, energy), dict(energy.parts))]
    return lines


def watts_text(energy: Energy, mean: float, *watts: float) -> str:
    """Powers of a device, with the digits that the interval of its energy leaves its mean power.

    What gaps may hide is no part of that: it is the mean of the observed time.
    """
    seen = Budget(energy.budget.terms, tuple(bound for bound in energy.budget.bounds if bound.source != "gap"))
    half = sum(replace(energy, budget=seen).sides()) / 2 * mean / energy.joules if energy.joules else 0.0
    return format_rounded("W", half, *watts or (mean,))


def _mean(energy: Energy, duration_s: float) -> str:
    mean = mean_w(energy, duration_s)
    if mean is None:
        return ""
    return f", mean {watts_text(energy, mean)}{' of the observed time' if energy.coverage < SEEN else ''}"


def certain_cpu_s(run: Run, energy: Energy) -> float | None:
    """CPU seconds of the command, or of all trials or items, where their energy is only modelled from them, or refused:
    the kernel counts them, so they are shown first. None elsewhere."""
    known = [span.attributes for span in run.spans if span.attributes.get("role") in ("run", "trial", "item")]
    own = [one for one in known if one["role"] != "run"] or known
    if energy.measured or not own or run.duration_s <= 0:
        return None
    if all("pids" in attributes for attributes in own):  # processes that everywatt did not start
        processes = [entry for entry in run.ledger().entries if entry.owner.kind is OwnerKind.PROCESS]
        return sum(entry.use.get("cpu_s", 0.0) for entry in processes)
    used = [attributes.get("cpu_s") for attributes in own]
    return None if None in used else sum(float(one) for one in used if one is not None)


def _certain(run: Run, energy: Energy, duration_s: float) -> list[str]:
    cpu_s = certain_cpu_s(run, energy)
    if cpu_s is None:
        return []
    busy = f"{cpu_s / duration_s:.2f} CPUs on average"
    return [f"cpu     {format_duration(cpu_s)} of CPU time in {format_duration(duration_s)} ({busy})"]


def _headline(energy: Energy) -> str:
    return f"energy  {energy}" if energy.joules is not None else f"energy  refused: {energy.refused}"


def _parts(run: Run, energy: Energy) -> list[str]:
    if len(energy.parts) < 2 and energy.joules is None:
        return []
    devices = run.devices()
    lines = []
    for name, part in energy.parts:
        power = devices.get(name, {}).get("power") or {}
        detail = ""
        if power.get("mean") is not None:
            # Few readings may lie inside a short run; its mean then follows from the readings around it.
            mean, low, high = power["mean"], power.get("min"), power.get("max")
            span = "" if low is None or high is None or not low <= mean <= high else watts_text(part, mean, low, high)
            words = [f"{watts_text(part, mean)} mean", *([span] if "…" in span else [])]
            detail = f"   {', '.join(words)}, {format_count(power['samples'], 'tick')}"
        label = devices.get(name, {}).get("label") or ""
        lines.append(f"  {name:<7} {format_energy(part)}{detail}{'   ' + label if label else ''}")
    return lines


def _wall(run: Run) -> list[str]:
    """What a meter of the whole saw beside the chips; the two are never added."""
    found = wall_of(run)
    if found is None:
        return []
    rest = f"not explained by the chips: {format_energy(found.unexplained)}"
    if found.share is not None:
        half = sum(found.unexplained.sides()) / 2 / abs(found.wall.value)
        rest += f" ({format_rounded('%', 100 * half, 100 * found.share) if half else format_percent(found.share)})"
    remark = [f"  ! {found.remark}."] if found.remark else []
    return [f"  wall    {format_energy(found.wall)} at the meter; {rest}", *remark]


def _net(run: Run) -> list[str]:
    net, baseline = run.energy_net(), run.baseline
    if net.joules is None or baseline is None:
        return [] if run.energy().joules is None else [f"  net     refused: {net.refused}"]
    length = f", {format_duration(baseline.duration_s)}" if baseline.duration_s else ""
    return [f"  net     {format_energy(net)} above idle ({baseline.where}{length})"]


def _owners(run: Run) -> list[str]:
    """The most expensive owners and the special ones, which add up; nothing where no process was recorded."""
    ledger = run.ledger()
    if not any(entry.owner.kind is OwnerKind.PROCESS for entry in ledger.entries):
        return []
    found = owner_amounts(ledger.entries, min(MAX_OWNERS, with_energy(ledger)))
    width = max(len(amount) for _, amount in found)
    lines = [f"  owner   {amount:<{width}}  {label}" for label, amount in found]
    if run.energy().scope != ledger.total.scope and ledger.total.joules is not None:
        lines.append(f"  ! owners share {ledger.total.scope}, {format_energy(ledger.total)}; the rest is not split")
    return lines


def with_energy(ledger: Ledger) -> int:
    """How many ordinary owners used any energy, or may have: several others are not worth a row each."""
    ordinary = [entry for entry in ledger.entries if entry.owner.kind not in SPECIAL]
    found = sum(entry.microjoules > 0 or (entry.energy.high or 0.0) > 0 for entry in ordinary)
    return found if len(ordinary) - found > 1 else len(ordinary)


def _spans(run: Run) -> list[str]:
    inner = [span for span in run.spans if span.parent is not None]
    if not inner:
        return []
    names = list(dict.fromkeys(span.name for span in inner))
    lines = []
    for name in names[:MAX_SPANS]:
        same = [span for span in inner if span.name == name]
        seconds = sum(span.duration_s or 0.0 for span in same)
        count = f" ×{len(same)}" if len(same) > 1 else ""
        lasted = f" in {format_duration(seconds)}" if any(span.end_ns is not None for span in same) else ""
        if still := sum(span.end_ns is None for span in same):
            lasted += f", {still} of them not ended" if len(same) > 1 else ", not ended"
        lines.append(f"  span    {name}{count}: {format_energy(run.energy(span=name))}{lasted}")
    if len(names) > MAX_SPANS:
        lines.append(f"  span    … and {len(names) - MAX_SPANS} more names")
    return lines


def _meter(run: Run) -> list[str]:
    used = meter_text(run.quality())
    return [f"  meter   {used}"] if used else []


def meter_text(quality: Mapping[str, Any]) -> str:
    """`everywatt itself used 128 ms of CPU time (3.3 % of one core)`, over all tapes; empty where that is not known."""
    costs = [cost for cost in quality["meter"] if cost]
    if not costs:
        return ""
    cpu_s = sum(float(cost.get("cpu_s") or 0.0) for cost in costs)
    lived_s = sum(float(cost.get("seconds") or 0.0) for cost in costs)
    share = f" ({format_percent(cpu_s / lived_s)} of one core)" if lived_s >= 1 else ""
    return f"everywatt itself used {format_duration(cpu_s)} of CPU time{share}"


def warnings(run: Run, energy: Energy, quality: dict[str, Any] | None = None) -> list[str]:
    """Everything that a reader of the figure must know, each once. `quality` where it has been asked for already."""
    found = run.quality() if quality is None else quality
    codes = [span.attributes.get("exit_code") for span in run.spans if span.attributes.get("role") == "run"]
    failed = [f"The command ended with exit code {code}." for code in codes if code]
    return list(dict.fromkeys([*failed, *energy.notes, *found["warnings"], *run.trouble]))


@dataclass(frozen=True, slots=True)
class RunReport:
    """What `everywatt show` prints of a run, with carbon and cost where factors for them are set."""

    run: Run
    footprint: Footprint | None = None

    def to_dict(self) -> dict[str, Any]:
        carbon = {} if self.footprint is None else {"carbon": self.footprint.to_dict()}
        return {**self.run.to_dict(), **carbon}

    def tables(self) -> list[Table]:
        run, meta = self.run, self.run.meta
        host = meta.get("host", {}).get("name")
        lines = [f"{run.name}   {run.started:%Y-%m-%d %H:%M:%S} UTC{f' on {host}' if host else ''}"]
        lines += [f"  command {shown_command(meta['command'])}"] if meta.get("command") else []
        lines += summary(run)
        if self.footprint is not None:
            from everywatt.footprint.carbon import carbon_lines

            lines += carbon_lines(self.footprint)
        lines += [f"  rate    {name}: {_rate(entry)}" for name, entry in run.quality()["groups"].items()]
        if meta.get("tags"):
            lines.append(f"  tags    {_tags(run)}")
        if meta.get("note"):
            lines.append(f"  note    {meta['note']}")
        for point in run.points[-5:]:
            when = (point.at_ns - run.tapes[0].extent_ns()[0]) / 1e9
            value = point.value
            if isinstance(value, float) and not value.is_integer():
                value = f"{value:.6g}"
            lines.append(f"  point   {point.name} = {value} at {format_duration(when)}")
        return [Table.lines(*lines)]


def run_footprint(run: Run, factors: Factors) -> Footprint | None:
    """Carbon, cost and SCI score of a run, None where no factor was given. The finished items of a batch are its
    functional units, where no other number was given."""
    from everywatt.batch.journal import DONE, JOURNAL, read_journal
    from everywatt.footprint.carbon import footprint

    if factors.embodied_g is not None and factors.unit == "run" and (run.path / JOURNAL).is_file():
        done = sum(state.status == DONE for state in read_journal(run.path).states.values())
        factors = replace(factors, units=float(done), unit="item") if done else factors
    return footprint(run, factors)


def shown_command(words: list[str], most: int = 160) -> str:
    """The command on one line, as it could be typed again; cut where it is very long."""
    line = shlex.join(words).replace("\n", "\\n")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _rate(entry: Mapping[str, Any]) -> str:
    """The requested period (imports have none), and the achieved one."""
    period_s, achieved_s = entry["requested_period_s"], entry["achieved_period_s"]
    asked = f"requested {format_duration(period_s)}, " if period_s else ""
    if achieved_s is None:
        return asked + ("one reading" if entry["rows"] == 1 else "no readings")
    return f"{asked}achieved {format_duration(achieved_s)}"


def _tags(run: Run) -> str:
    return ", ".join(f"{key}={value}" for key, value in run.meta.get("tags", {}).items())


_Item = TypeVar("_Item", Path, Run)
_Answer = TypeVar("_Answer")


def readable(
    items: Iterable[_Item], ask: Callable[[_Item], _Answer], warn: Callable[[str], None]
) -> Iterator[tuple[_Item, _Answer]]:
    """What is asked of each run. A file may come from anywhere: one that cannot be read does not hide the others."""
    for item in items:
        try:
            yield item, ask(item)
        except EverywattError as error:
            warn(f"{item.name}: {error}")
        except Exception as error:  # noqa: BLE001
            warn(f"{item.name} cannot be read: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class RunList:
    """Runs with their energies."""

    home: Path
    runs: Sequence[tuple[Run, Energy]]

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                "name": run.name,
                "path": str(run.path),
                "started": run.started.isoformat(),
                "duration_s": run.duration_s,
                **_figure(energy),
                "tags": _tags(run),
            }
            for run, energy in self.runs
        ]
        return {"home": str(self.home), "runs": rows}

    def tables(self) -> list[Table]:
        spare = (Column("SCOPE", spare=1), Column("PROVENANCE", spare=3), Column("TAGS", spare=2))
        columns = (Column("RUN", whole=True), Column("STARTED (UTC)", spare=4), Column("TIME", "s"), "ENERGY", *spare)
        rows: list[list[Cell]] = [
            [
                run.name,
                f"{run.started:%Y-%m-%d %H:%M}",
                run.duration_s,
                _covered(energy),
                energy.scope,
                energy.pedigree,
                _tags(run),
            ]
            for run, energy in self.runs
        ]
        return [Table.of(*columns, rows=rows)]


def _covered(energy: Energy) -> Cell:
    """The figure, with its coverage where it does not cover all: a device may be missing in it."""
    if energy.joules is None or energy.coverage >= SEEN:
        return energy
    return f"{format_energy(energy)} (coverage {format_percent(energy.coverage)})"


def _figure(energy: Energy) -> dict[str, Any]:
    facts = {"energy": energy.to_dict(), "shown": format_energy(energy)}
    return {**facts, "scope": energy.scope, "pedigree": energy.pedigree}


@dataclass(frozen=True, slots=True)
class RunSums:
    """Runs added up: a row for each value of a tag, and for each scope and provenance, which are never added."""

    groups: Sequence[tuple[str, Sequence[Run]]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "sums": [
                {"tag": tag, "runs": len(runs), "duration_s": _seconds(runs), **_figure(sum_runs(runs))}
                for tag, runs in self.groups
            ]
        }

    def tables(self) -> list[Table]:
        if not self.groups:
            return []
        columns = columns_of("TAG, RUNS [], TIME [s], ENERGY, SCOPE, PROVENANCE")
        sums = [(tag, runs, sum_runs(runs)) for tag, runs in self.groups]
        rows: list[list[Cell]] = [
            [tag, len(runs), _seconds(runs), _covered(energy), energy.scope, energy.pedigree]
            for tag, runs, energy in sums
        ]
        notes = [f"! {COUNTED_ONCE}"] if any(COUNTED_ONCE in energy.notes for *_, energy in sums) else []
        return [Table.of(*columns, rows=rows, notes=notes)]


def _seconds(runs: Iterable[Run]) -> float:
    return sum(run.duration_s for run in runs)


def sums_by_tag(runs: Sequence[Run], wanted: str, warn: Callable[[str], None]) -> RunSums:
    """Runs added up by `project`, or those of `project=alpha`. UsageError where that is not a tag."""
    name, given, wished = wanted.partition("=")
    if not name.strip() or (given and not wished.strip()):
        raise UsageError(f"'{wanted}' is not a tag to add up by.", cure="--sum project, or --sum project=alpha")
    key, equals, value = _meant([run.meta.get("tags", {}) for run in runs], wanted).partition("=")
    sums: dict[tuple[str, str, str], list[Run]] = {}
    tagged = [run for run in runs if key in (tags := run.meta.get("tags", {})) and (not equals or tags[key] == value)]
    for run, energy in readable(tagged, Run.energy, warn):
        sums.setdefault((str(run.meta["tags"][key]), energy.scope, energy.pedigree), []).append(run)
    return RunSums([(f"{key}={found}", members) for (found, _, _), members in sums.items()])


def _meant(tags: Sequence[Mapping[str, Any]], wanted: str) -> str:
    """The tag that is asked for. `tag=project` may name a tag with that value, the tag `project`, or a bare word."""
    key, _, rest = wanted.partition("=")
    if key != "tag" or not rest or any("tag" in own for own in tags):
        return wanted
    known = any(rest.partition("=")[0] in own for own in tags)
    return rest if known else f"name={rest}"


CALIBRATED_PCT = 1.5
VISIBLE = 0.02  # a cure that narrows the whole interval by a smaller share is not worth its work
# What is left of an error that cancels (the offset in a net figure) is rounding.
ROUNDING_J = 1e-9


@dataclass(frozen=True, slots=True)
class Cause:
    """One source of error: its 95 % half-width, its share of the variance, and a cure."""

    source: str
    half_width_j: float
    percent: float | None
    meaning: str
    cure: str


_MEANING = {
    "gain": "the gain of the sensor may be wrong, by the same factor in every window",
    "offset": "the offset of the sensor may be wrong, by the same watts all the time",
    "edges": "power between the sensor's last publication and the window's edge is interpolated",
    "aliasing": "the sensor samples only part of the time: a load may alias with it, and one in step looks steady",
    "quantum": "the resolution of the sensor",
    "baseline": "scatter of the idle power",
    "gap": "time without readings",
    "wraps": "the counter may have wrapped more than once",
    "model": "no sensor measures power here: watts are modelled from CPU utilisation",
}


def causes(energy: Energy, duration_s: float) -> list[Cause]:
    """The budget of a figure, widest first."""
    if energy.joules is None:
        return []
    widths = energy.budget.by_source()
    found = []
    for source, width in widths.items():
        width = width if width > ROUNDING_J else 0.0
        percent = 100 * width / abs(energy.joules) if energy.joules else None
        cure = _cure(source, width, energy, duration_s)
        found.append(Cause(source, width, percent, _MEANING.get(source, ""), cure))
    return found


@dataclass(frozen=True, slots=True)
class Why:
    """The budget behind a figure of a run."""

    name: str
    energy: Energy
    budget: Sequence[Cause]

    def to_dict(self) -> dict[str, Any]:
        budget = [asdict(cause) for cause in self.budget]
        return {"name": self.name, "energy": self.energy.to_dict(), "budget": budget}

    def tables(self) -> list[Table]:
        rows: list[list[Cell]] = [
            [c.source, format_rounded("J", c.half_width_j, c.half_width_j), _share(c.percent), c.meaning, c.cure]
            for c in self.budget
        ]
        columns = columns_of("SOURCE, ± (95 %) [J], OF FIGURE [%], DESCRIPTION, HOW TO NARROW IT")
        notes = [f"! {note}" for note in by_reason(self.energy.notes, dict(self.energy.parts))]
        return [Table.lines(str(self.energy)), Table.of(*columns, rows=rows, notes=notes)]


def _share(percent: float | None) -> Cell:
    """Of the figure; what does not matter is not printed to its ninth digit."""
    return None if percent is None else "< 0.01 %" if 0 < percent < 0.01 else percent / 100


def _without(energy: Energy, changed_j: Mapping[str, float], *, bounds_too: bool = True) -> float:
    """The half-width in percent that the figure would have with some sources changed: their terms, and bounds too."""
    widths = energy.budget.by_source()
    left = {name: width / widths[name] for name, width in changed_j.items() if widths.get(name)}
    terms = [term._replace(joules=term.joules * left.get(term.source, 1.0)) for term in energy.budget.terms]
    bounds = [
        bound._replace(below=bound.below * share, above=bound.above * share)
        for bound in energy.budget.bounds
        for share in (left.get(bound.source, 1.0) if bounds_too else 1.0,)
    ]
    return 100 * max(Budget(tuple(terms), tuple(bounds)).sides()) / abs(energy.joules or 1.0)


def _cure(source: str, width_j: float, energy: Energy, duration_s: float) -> str:
    """What would narrow the interval, and to what; nothing where another source hides the effect."""
    joules = abs(energy.joules or 0.0)
    if joules == 0 or (width_j > 0 and _without(energy, {source: 0.0}) > (1 - VISIBLE) * _without(energy, {})):
        return ""
    if source in ("gain", "offset"):
        left_j = CALIBRATED_PCT / 100 * joules / math.sqrt(2)
        if width_j <= left_j:
            return "already small"
        after = _without(energy, {"gain": left_j, "offset": left_j})
        return (
            f"calibrate the sensor against a meter (both to about {CALIBRATED_PCT} %): ± {format_percent(after / 100)}"
        )
    if source == "aliasing" and width_j == 0:
        return "compare with a meter: busy all the time in pulses of the sensor's period looks the same"
    if source == "edges" and width_j == 0:
        return ""
    if source in ("edges", "aliasing"):
        if source == "edges":
            after = _without(energy, {"edges": width_j / 10})
        else:  # what may be missed in the same way all the time is a bound, and grows with time
            after = _without(energy, {"aliasing": width_j / math.sqrt(10)}, bounds_too=False)
            if after > (1 - VISIBLE) * _without(energy, {}):
                return "a longer recording does not narrow it: compare with a meter, and record utilisation"
        return f"measure ten times as long ({format_duration(10 * duration_s)}): ± {format_percent(after / 100)}"
    if source == "baseline":
        after = _without(energy, {"baseline": width_j / 2})
        return f"record idle for four times as long (--idle): ± {format_percent(after / 100)}"
    if source == "model":
        return "a power sensor: everywatt doctor lists those that this machine could have"
    if source in ("gap", "wraps"):
        after = _without(energy, {source: 0.0})
        return f"a recording without gaps: ± {format_percent(after / 100)}"
    return ""
