"""A finished or live run: windows, energies, devices, spans, points, tables."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from everywatt.api.power import device_table
from everywatt.core.clocks import NS, length_s, union, without
from everywatt.core.config import resolve
from everywatt.core.energy import SHARED, Energy, combine, total
from everywatt.core.errors import RunNotFound, TapeError, UsageError
from everywatt.core.format import format_duration
from everywatt.core.jsonio import declared, document
from everywatt.core.spans import Point, Span
from everywatt.energy.quality import quality
from everywatt.energy.sources import Source, addable, scope_of, sources
from everywatt.energy.window import drift_ratio, source_energies, windows_energy, windows_joules
from everywatt.ledger.idle import Idle, net_energy, sum_levels
from everywatt.ledger.levels import idle_levels
from everywatt.recorder.request import model_file
from everywatt.tape.mending import at_rest, empty_spool, seal_left
from everywatt.tape.reader import Tape
from everywatt.tape.run_store import existing_home, find_run, run_argument, segments

if TYPE_CHECKING:
    from everywatt.ledger.owners import Ledger

IDLE_ROLE = "idle"
SAME_CLOCK_NS = 5 * NS  # clocks that were zero at instants so close are one; UTC may have been set a little
BASELINE = "method watts spread_w duration_s busy"  # what a run's JSON has of its idle level
LEDGER_OWNERS = 50  # in a run's JSON; the rest of them are one sum
# Verbs with an option --idle of their own: they need no `everywatt run --idle` around them.
HAVE_IDLE = {"compare", "sweep", "bench", "stress"}
COUNTED_ONCE = "runs were recorded beside each other on the same devices; the time that they share counts once"


class Run:
    """One run: its tapes, opened read-only. Every figure is a query and can be repeated with another window.

    >>> run = everywatt.load("last")                         # doctest: +SKIP
    >>> run.energy(), run.energy(span="epoch"), run.energy(between=(0.0, 2.5))   # doctest: +SKIP
    """

    def __init__(self, path: Path, tapes: Sequence[Tape], trouble: Sequence[str] = ()) -> None:
        self.path = path
        self.tapes = tuple(tapes)
        self._trouble = tuple(trouble)
        self._known: dict[Path, tuple[Span, ...]] = {}
        self._levels: tuple[tuple[tuple[int, int], ...], list[dict[str, Idle]]] | None = None

    @property
    def name(self) -> str:
        """The run's name: its folder, or its file without the ending."""
        return self.path.stem if self.path.is_file() else self.path.name

    @property
    def reference(self) -> str:
        """The run as a word of a command: its name where it is in the folder of runs, else its path."""
        return run_argument(self.path, existing_home(resolve().home))

    @property
    def meta(self) -> dict[str, Any]:
        """Host, versions, command, git state, tags, note: as recorded at the start."""
        return dict(self.tapes[0].meta)

    @property
    def shared_with(self) -> list[str]:
        """Runs of other programs that recorded the same devices meanwhile, such as ranks of one node."""
        return list(dict.fromkeys(str(name) for tape in self.tapes for name in tape.meta.get("shared_with") or ()))

    @property
    def spans(self) -> list[Span]:
        """All spans of all segments, in order of their start; a span that two segments share appears once."""
        return list(self._known_spans(self.tapes).values())

    def know_spans(self, spans: Sequence[Span], tapes: Sequence[Path]) -> None:
        """Add the spans that the program knows: those on `tapes` may lack some, or their ends, after a full disk."""
        self._known |= dict.fromkeys(tapes, tuple(spans))

    def _known_spans(self, tapes: Sequence[Tape]) -> dict[str, Span]:
        seen: dict[str, Span] = {}
        for tape in tapes:
            for span in (*tape.spans(), *self._known.get(tape.path, ())):
                if span.id not in seen or seen[span.id].end_ns is None:
                    seen[span.id] = span
        return seen

    @property
    def points(self) -> list[Point]:
        """Values that the program logged."""
        return [point for tape in self.tapes for point in tape.points()]

    @property
    def started(self) -> datetime:
        """When the first segment began, UTC."""
        return datetime.fromtimestamp(self.tapes[0].to_utc_ns(self.tapes[0].extent_ns()[0]) / NS, UTC)

    @property
    def trouble(self) -> list[str]:
        """Sentences about what is missing or damaged."""
        named = ((tape.path.name, text) for tape in self.tapes for text in tape.trouble)
        return [*self._trouble, *(text if text.startswith(name) else f"{name}: {text}" for name, text in named)]

    def energy(
        self, span: str | Span | None = None, *, between: tuple[float, float] | None = None, device: str | None = None
    ) -> Energy:
        """Joules of the run, of a span (by name, id or value), or between two times in seconds after the start.

        Spans of one name are taken together; time in several of them counts once. `device` asks for one part, e.g.
        `gpu.0`, also for one that is not in the total, e.g. `cpu.0 core` or `psys`.
        """
        figures, seconds = [], []
        for tape, windows in zip(self.tapes, self._windows(span, between), strict=True):
            found = sources(tape)
            if windows:
                energy = self._asked(found, windows, device)
                notes = self._drift_notes(tape, found, windows, device)
                energy = replace(energy, notes=(*energy.notes, *notes))
                seconds.append(length_s(windows))
                if device is None and self._lacks_devices(tape, found):
                    energy = replace(energy, coverage=0.0)
                figures.append((tape.host, energy))
        if not figures:
            return Energy.refuse("nothing was recorded in that window")
        combined = combine(figures, seconds)
        if others := len(self.shared_with):
            programs = "another program" if others == 1 else f"{others} other programs"
            note = f"{programs}{SHARED}: this energy is theirs as well, so count it once"
            combined = replace(combined, notes=(*combined.notes, note))
        return combined

    def _lacks_devices(self, tape: Tape, found: Sequence[Source]) -> bool:
        """Whether another segment of the same recording measures devices that this one does not."""
        recording = self._recording_of(tape)
        everything = {source.label for one in recording if one is not tape for source in sources(one)}
        return not everything <= {source.label for source in found}

    def _asked(self, found: list[Source], windows: Sequence[tuple[int, int]], device: str | None) -> Energy:
        if device is None:
            return windows_energy(found, windows, notes=self.trouble)
        chosen = [source for source in found if source.label == device]
        if not chosen:
            known = sorted({source.label for tape in self.tapes for source in sources(tape)})
            if device in known:  # a segment that was recorded without it
                return Energy.refuse(f"{device} was not recorded")
            raise UsageError(
                f"This run has no device '{device}' that measures energy; it has: {', '.join(known) or 'none'}."
            )
        return source_energies(chosen[0], windows)

    def _drift_notes(
        self, tape: Tape, found: Sequence[Source], windows: Sequence[tuple[int, int]], device: str | None
    ) -> list[str]:
        """A sentence for each model that no longer fits the sensor beside it, with the command that adapts it."""
        notes = []
        for source in found:
            if device in (None, source.label) and (ratio := drift_ratio(source, windows)) is not None:
                file, installed = tape.meta.get("model_file"), model_file(resolve().options)
                model = "" if file in (None, installed) else f" {shlex.quote(str(file))}"
                notes.append(
                    f"{source.label}: the model has drifted: measured power is {ratio:.2f} times what it says; to "
                    f"adapt it: everywatt model install{model} --against {self.reference}"
                )
        return notes

    def energy_net(self, span: str | Span | None = None, *, between: tuple[float, float] | None = None) -> Energy:
        """Energy above idle: gross minus idle power over the same time. Refused where idle was not observed."""
        figures, seconds = [], []
        for tape, levels, windows in zip(self.tapes, self._idle_levels(), self._windows(span, between), strict=True):
            if windows:
                gross = windows_energy(sources(tape), windows)
                seconds.append(length_s(windows))
                net = net_energy(gross, levels, seconds[-1])
                if net.joules is None:
                    return net if gross.joules is None else replace(net, refused=f"{net.refused}; {self.how_to_idle()}")
                figures.append((tape.host, net))
        return combine(figures, seconds) if figures else Energy.refuse("nothing was recorded in that window")

    def how_to_idle(self) -> str:
        """What to do for an idle level that is accepted."""
        words = [str(word) for word in self.meta.get("command") or ()]
        if self.meta.get("imported_from") or words[:2] == ["everywatt", "attach"]:  # neither can be recorded again
            assumed_w = sum(idle.watts for levels in self._idle_levels() for idle in levels.values())
            example = f"{assumed_w:.1g}" if 0 < assumed_w < 10 else f"{assumed_w:.0f}" if assumed_w else "35"
            return f"if you know it, for example: everywatt ledger {self.reference} --baseline {example}W"
        alone = Path(words[0]).name if len(words) == 1 else ""
        if alone.startswith(("python", "ipython")) or "ipykernel_launcher" in words:  # a session: no command repeats it
            return "stop other programs, and begin with 10 s of idle time in the same everywatt.Meter"
        command = shlex.join(words)
        typed = command and "\n" not in command and not (words[0] == "everywatt" and {*words[1:2]} & HAVE_IDLE)
        example = f": everywatt run --idle 10s -- {command}" if typed else " with --idle 10s"
        return f"stop other programs and record again{example}"

    def ledger(
        self,
        by: str = "process",
        *,
        span: str | Span | None = None,
        between: tuple[float, float] | None = None,
        idle_policy: str = "separate",
        baseline: float | Mapping[str, float] | None = None,
    ) -> Ledger:
        """Every joule of the run (of a span, or between two times) with its owner, in whole microjoules that add up.

        `by` is process, container, user, job, span or device. `idle_policy` is separate, by-allocation or by-use.
        `baseline` is idle power in watts, of all devices together or by device; without it idle is found on the tape.
        """
        from everywatt.ledger.build import ledger

        windows = self._windows(span, between)
        return ledger(self.tapes, windows, by, idle_policy=idle_policy, baseline=baseline, notes=self.trouble)

    @property
    def baseline(self) -> Idle | None:
        """The idle level that net figures use, of all devices together; None where it was not observed."""
        levels = self._idle_levels()[0]
        return sum_levels(levels) if all(idle.observed for idle in levels.values()) else None

    def _idle_levels(self) -> list[dict[str, Idle]]:
        """Idle of the devices of each tape, found again when a tape has grown."""
        versions = tuple(tape.version for tape in self.tapes)
        if self._levels is None or self._levels[0] != versions:
            self._levels = versions, idle_levels(self.tapes)
        return self._levels[1]

    def energies(
        self, starts_s: npt.ArrayLike, ends_s: npt.ArrayLike, *, device: str | None = None
    ) -> npt.NDArray[np.float64]:
        """Joules of many windows at once (seconds after the start), without intervals: fast, for analysis."""
        if len(self.tapes) != 1:
            raise UsageError("energies() works on one tape; load the file of a segment.")
        tape = self.tapes[0]
        origin = tape.extent_ns()[0]
        starts, ends = (
            origin + np.rint(np.asarray(side, dtype=np.float64) * NS).astype(np.int64) for side in (starts_s, ends_s)
        )
        chosen = addable(sources(tape)) if device is None else [s for s in sources(tape) if s.label == device]
        if not chosen:
            raise UsageError(f"This run has no device '{device}' that measures energy.")
        return windows_joules(chosen, starts, ends)

    @property
    def duration_s(self) -> float:
        """Seconds that the run's own windows cover, without gaps between segments; hosts at one time count once."""
        found = self.windows()
        pairs = zip(self.tapes, found, strict=True) if len({tape.host for tape in self.tapes}) > 1 else ()
        utc = [(tape.to_utc_ns(start), tape.to_utc_ns(end)) for tape, own in pairs for start, end in own]
        return sum(map(length_s, found)) - (length_s(utc) - length_s(union(utc)))

    def windows(self) -> list[list[tuple[int, int]]]:
        """For each tape the disjoint windows (ns on its clock) that the run's own figures cover: without `--idle`."""
        return self._windows(None, None)

    def _windows(self, span: str | Span | None, between: tuple[float, float] | None) -> list[list[tuple[int, int]]]:
        """For each tape, the disjoint windows that are asked for."""
        if between is not None:
            if span is not None:
                raise UsageError("A span and a window cannot be combined.")
            return self._counted_once([self._between(tape, *between) for tape in self.tapes])
        found = self._counted_once([self._spans_of(tape, span) for tape in self.tapes])
        if span is not None and not any(found):
            name = span.name if isinstance(span, Span) else span
            known = ", ".join(sorted({s.name for s in self.spans})) or "none"
            raise UsageError(f"This run has no span '{name}'; it has: {known}.")
        return found

    def _counted_once(self, windows: list[list[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
        """The windows without time that another tape of the same devices answers for already.

        Several programs may have appended to a run at once.
        """
        found: list[list[tuple[int, int]]] = []
        for tape, own in zip(self.tapes, windows, strict=True):
            left = own
            for other, taken in zip(self.tapes, found, strict=False):
                if taken and left and taken[0][0] < left[-1][1] and left[0][0] < taken[-1][1] and _alike(tape, other):
                    left = without(left, taken)
            found.append(left)
        return found

    def _between(self, tape: Tape, start_s: float, end_s: float) -> list[tuple[int, int]]:
        if not (math.isfinite(start_s) and math.isfinite(end_s)):
            raise UsageError(f"A window must be two times in seconds, not {start_s} and {end_s}.")
        origin_ns = self.tapes[0].extent_ns()[0]
        start, end = (origin_ns + round(at_s * NS) for at_s in (start_s, end_s))
        if len(self.tapes) > 1:
            # Clocks of several tapes are compared by UTC; of one tape its own clock counts, which nothing sets.
            low, high = self._extent_ns(tape)
            origin_utc = self.tapes[0].to_utc_ns(origin_ns)
            start = max(tape.from_utc_ns(origin_utc + start - origin_ns), low)
            end = min(tape.from_utc_ns(origin_utc + end - origin_ns), high)
        return [(start, end)] if end > start else []

    def _extent_ns(self, tape: Tape) -> tuple[int, int]:
        """The time that this tape answers for.

        A segment that goes on after a recorder that died has its spans from their beginning, which the segment before
        answers for as far as it goes: the time in between was not observed, and nothing is counted twice.
        """
        low, high = tape.extent_ns()
        before = self._before(tape)
        return (low if before is None else min(high, before.extent_ns()[1])), high

    def _before(self, tape: Tape) -> Tape | None:
        """The segment that a tape goes on from, after a recorder that died."""
        name = tape.meta.get("continues")
        return next((one for one in self.tapes if one.path.name == name and one is not tape), None)

    def _recording_of(self, tape: Tape) -> list[Tape]:
        """The segments of one recording: a span may have begun on one of them and ended on another."""
        if len(self.tapes) == 1:
            return [tape]
        first = {one.path: one for one in self.tapes}
        for one in self.tapes:  # a segment comes after the one that it goes on from
            before = self._before(one)
            if before is not None:
                first[one.path] = first[before.path]
        return [one for one in self.tapes if first[one.path] is first[tape.path]]

    def _spans_of(self, tape: Tape, span: str | Span | None) -> list[tuple[int, int]]:
        low, high = self._extent_ns(tape)
        recording = self._recording_of(tape)
        spans = self._known_spans(recording).values()
        if span is None:
            chosen = [s for s in spans if s.parent is None and s.attributes.get("role") != IDLE_ROLE]
            if not chosen:
                return [(low, high)]
        else:
            wanted = span.id if isinstance(span, Span) else span
            chosen = [s for s in spans if s.id == wanted] or [s for s in spans if s.name == wanted]
        windows = []
        for one in chosen:
            start, end = one.start_ns, high if one.end_ns is None else one.end_ns
            if len(recording) > 1:
                # Of what comes after the last rows of all of them nothing was observed, and the last one says so.
                start, end = max(start, low), end if tape is recording[-1] else min(end, high)
            elif len(self.tapes) > 1:
                start = max(start, low)
            if end >= start:
                windows.append((start, end))
        return union(windows)

    def devices(self) -> dict[str, Any]:
        """For each device its energy, power statistics (mean, sd, min, median, max, samples) and facts."""
        return device_table(self.tapes, self._windows(None, None))

    def quality(self) -> dict[str, Any]:
        """Requested and achieved rates, gaps, late ticks, throttling, and the overhead of measuring."""
        return quality(self.tapes)

    def frame(self, channels: Sequence[str] | None = None, *, library: str = "arrow") -> Any:
        """All ticks as a table: `arrow` (pyarrow), `pandas` or `polars`, as requested and installed."""
        from everywatt.tape.exporting import ticks_table

        table = ticks_table(self.tapes, channels)
        if library == "arrow":
            return table
        if library == "pandas":
            return table.to_pandas()
        if library == "polars":
            import polars

            return polars.from_arrow(table)
        raise UsageError(f"'{library}' is not one of arrow, pandas, polars.")

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON form of a run."""
        origin = self.tapes[0].extent_ns()[0]
        spans = self.spans
        return document(
            "run",
            {
                "name": self.name,
                "path": str(self.path),
                "started": self.started.isoformat(),
                "duration_s": self.duration_s,
                "energy": self.energy().to_dict(),
                "energy_net": self.energy_net().to_dict(),
                "baseline": declared(idle, BASELINE) if (idle := self.baseline) else None,
                "devices": self.devices(),
                "ledger": self.ledger().to_dict(top=LEDGER_OWNERS),
                "spans": [self._span_dict(span, origin, len(spans) <= 200) for span in spans],
                "quality": self.quality(),
                "meta": self.meta,
                "trouble": self.trouble,
            },
        )

    def _span_dict(self, span: Span, origin_ns: int, with_energy: bool) -> dict[str, Any]:
        data = declared(span, "id name parent start_s=start_ns duration_s attributes")
        data["start_s"] = (span.start_ns - origin_ns) / NS
        return {**data, "energy": self.energy(span).to_dict()} if with_energy else data

    def __str__(self) -> str:
        return f"{self.name}: {self.energy()} in {format_duration(self.duration_s)}"

    def __repr__(self) -> str:
        return f"<Run {self.name} at {self.path}>"

    def _repr_html_(self) -> str:
        from html import escape  # only notebooks need it

        head = f"<b>{escape(self.name)}</b> · {escape(format_duration(self.duration_s))}"
        return f"<div>{head}{self.energy()._repr_html_()}</div>"


def sum_runs(runs: Sequence[Run]) -> Energy:
    """The energy of several runs of one scope. Time that runs recorded on one device beside each other counts once."""
    figures: list[Energy] = []
    names = {run.name for run in runs}
    taken: list[tuple[Tape, str, list[tuple[int, int]]]] = []
    for run in runs:
        if not names & set(run.shared_with):
            figures.append(run.energy())
            continue
        for tape, windows in zip(run.tapes, run.windows(), strict=True):
            parts = {}
            for source in addable(sources(tape)):
                before = [
                    done
                    for other, label, done in taken
                    if label == source.label and tape.same_boot(other, SAME_CLOCK_NS)
                ]
                left = without(windows, union([window for done in before for window in done]))
                taken.append((tape, source.label, list(windows)))
                if left:
                    parts[source.label] = windows_energy([source], left)
            if parts:
                figures.append(total(parts, scope=scope_of(addable(sources(tape)))))
    if not figures:
        return Energy.refuse("there are no runs to add up")
    whole = combine([("", figure) for figure in figures])
    return replace(whole, notes=(*whole.notes, COUNTED_ONCE)) if taken and whole.joules is not None else whole


def _alike(tape: Tape, other: Tape) -> bool:
    """Whether two tapes have the same devices of the same host, since the same boot."""
    devices = [{source.label for source in sources(one)} for one in (tape, other)]
    return devices[0] == devices[1] and tape.same_boot(other, SAME_CLOCK_NS)


def _is_path(run: str | Path) -> bool:
    return "/" in str(run) and Path(run).exists()


def load(run: str | Path = "last", *, home: Path | None = None) -> Run:
    """Open a run by name, path or `last`. `Run.trouble` lists what is missing.

    A tape whose recorder was killed is sealed first, and one that it left in the spool is moved to its run.
    """
    if not _is_path(run):
        empty_spool()
    # A path says where it is; settings, which may lie in files to be read, say where names are.
    home = home or (None if _is_path(run) else resolve().home)
    return opened(find_run(run, existing_home(home)), _sealed)


def opened(path: Path, open_tape: Callable[[Path], Tape]) -> Run:
    """The run at a path, whose tapes this function opens. Raises TapeError or RunNotFound."""
    files = segments(path)
    if not files:
        raise RunNotFound(f"{path} contains no tape.", cure="everywatt list")
    tapes, failures = [], []
    for file in files:
        try:
            tape = open_tape(file)
            tape.extent_ns()  # one that holds nothing at all, of a full disk say, tells nothing
            tapes.append(tape)
        except TapeError as error:
            failures.append(error)
    if not tapes:
        raise failures[0]
    # A tape that its recorder opened when the program had gone on without it is not the program's.
    replaced = [tape.meta.get("replaces") for tape in tapes]
    kept = [tape for tape in tapes if tape.path.name not in replaced]
    return Run(path, kept or tapes, [str(error) for error in failures])


def _sealed(file: Path) -> Tape:
    tape = Tape.open(file)
    if not tape.sealable or not at_rest(file):
        return tape
    tape.close()
    seal_left(file)
    return Tape.open(file)
