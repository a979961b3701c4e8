"""Comparisons of commands: warm up, then block after block of trials until the question is answered or time is up.

And finished runs beside each other: ratios from their error budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.bench.experiment import Experiment, Show
from everywatt.bench.figures import COLUMNS, FEWEST, Figures, answered, figures, quantity, whole_blocks
from everywatt.bench.trials import (
    Candidate,
    Execute,
    Trial,
    execute,
    from_span,
    run_trial,
    with_energy,
    with_power,
    words_of,
)
from everywatt.bench.verdict import change, of_candidate
from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.energy import Energy, Ratio
from everywatt.core.errors import EverywattError, ScopeError, UsageError
from everywatt.core.format import format_duration, format_percent
from everywatt.core.jsonio import ToDict
from everywatt.core.tables import Cell, Column, Table, cell_text, columns_of, csv_of

LOOK_AGAIN_S = 1.0  # between two looks at the tape: each costs some ms of CPU time on the machine that is measured
MOST_COMMAND = 40  # characters of a command in a table


@dataclass(frozen=True, slots=True)
class Plan:
    """How to compare.

    target    stop when every difference is known, or known to be smaller than this share
    trials    exactly so many of each candidate; None: as many as the target needs
    most      no more than so many where `trials` is None; None: as many as `max_s` allows
    max_s     begin no new block after this long
    """

    target: float = 0.02
    trials: int | None = None
    max_s: float = 600.0
    warmup: int = 1
    idle_s: float = 2.0
    cool: bool = True
    setup: str | None = None
    prepare: str | None = None
    cleanup: str | None = None
    ignore_failure: bool = False
    show_output: bool = False
    most: int | None = None

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise UsageError("At least one trial is required.")
        if not 0 < self.target < 1:
            raise UsageError("The target must be a percentage such as 2%.")


@dataclass(frozen=True, slots=True)
class Result(ToDict):
    """What came out. `ended` is why it ended: `decided`, `trials`, `time`, `failures` or `interrupted`."""

    JSON = "run ended target=plan.target candidates=found order notes"

    plan: Plan
    candidates: tuple[Candidate, ...]
    found: tuple[Figures, ...]
    ended: str
    run: str | None
    notes: tuple[str, ...] = ()

    @property
    def floor(self) -> str:
        """The sentence on the smallest difference that these trials could have detected; empty where none could be."""
        floors = [one.gross.floor for one in self.found[1:] if one.gross is not None and one.gross.floor < 10]
        return f"smallest detectable difference in energy: {format_percent(max(floors))}" if floors else ""

    def verdicts(self) -> list[str]:
        """One sentence for each candidate but the first: CPU time where energy is modelled, gross, and above idle."""
        lines: list[str] = []
        first = self.found[0].candidate.label
        for one in self.found[1:]:
            lines += one.verdicts(first)
            if one.above_idle is not None and not one.failures:
                lines.append(f"   above idle: {one.above_idle.text(one.candidate.label, first)}")
        return lines

    @property
    def order(self) -> list[str]:
        """The labels of the candidates in the order in which their trials ran."""
        trials = sorted((t for one in self.found for t in one.trials), key=lambda t: (t.block, t.place))
        return [self.candidates[trial.candidate].label for trial in trials]

    @property
    def cpu_columns(self) -> tuple[Column, ...]:
        """CPU time leads where energy is modelled from it; () elsewhere."""
        modelled = any(one.modelled for one in self.found)
        return columns_of("CPU time [s], ratio of CPU time []") if modelled else ()

    def cpu_cells(self, one: Figures) -> list[Cell]:
        """The cells of a candidate in these columns."""
        ratio = one.cpu.cell if one.cpu is not None else 1 if one is self.found[0] else None
        return [quantity(one.cpu_s, "s"), ratio] if self.cpu_columns else []

    def tables(self) -> list[Table]:
        """One row for each candidate, with the verdicts as notes."""
        first = self.found[0]
        columns: list[Column | str] = ["", "command", Column("trials", ""), *self.cpu_columns]
        columns += [
            *(Column("energy", "J"), Column("above idle", "J", spare=4), Column("ratio", ""), Column("time", "s")),
            *(Column("power", "W", spare=3), Column("memory", "B", spare=2), Column("energy × time", "J·s", spare=1)),
        ]
        rows: list[list[Cell]] = []
        for one in self.found:
            text = one.candidate.text
            shown = text if len(text) <= MOST_COMMAND else f"{text[: MOST_COMMAND - 1]}…"
            row: list[Cell] = [one.candidate.label, shown, one.trial_count, *self.cpu_cells(one)]
            row += [one.energy_cell, quantity(one.net, "J"), one.ratio_beside(first), one.seconds.time]
            rows.append([*row, one.rounded(one.power_w, "W"), one.max_rss_bytes, one.rounded(one.edp_js, "J·s")])
        return [Table.of(*columns, rows=rows, notes=[line.strip() for line in self.verdicts()])]

    def to_csv(self) -> str:
        """One line for each candidate, plain numbers."""
        return csv_of(COLUMNS, self.found)


class Comparing:
    """One comparison in a recording of its own. An interrupt loses nothing: what is done is kept."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        plan: Plan,
        meter: Meter,
        show: Show | None = None,
        apply: Callable[[Candidate], None] | None = None,
        clock: Clock | None = None,
        execute: Execute = execute,
    ) -> None:
        self._candidates = tuple(candidates)
        self._plan = plan
        self._meter = meter
        self._tell = show or (lambda text: None)
        self._apply = apply
        self._clock = clock or SystemClock()
        self._execute = execute
        self._trials: list[Trial] = []
        self._found: list[Figures] = []  # as far as the tape goes
        self._experiment = Experiment(meter, idle_s=plan.idle_s, cool=plan.cool, show=self._show, clock=self._clock)
        self._ended = "interrupted"
        self._looked_ns = 0

    def take_up(self, run: Run) -> None:
        """Go on with an earlier comparison: its trials count and are not run again."""
        found = [trial for span in run.spans if (trial := from_span(span)) is not None]
        if any(trial.candidate >= len(self._candidates) for trial in found):
            raise UsageError(f"{run.name} compared other commands.")
        texts = {int(s.attributes["candidate"]): s.attributes.get("command") for s in run.spans if from_span(s)}
        for index, text in texts.items():
            if text != self._candidates[index].text:
                raise UsageError(
                    f"{run.name} compared other commands: {text!r} is not {self._candidates[index].text!r}."
                )
        self._trials = with_energy(found, run)

    def work(self) -> None:
        """Run the trials. KeyboardInterrupt and errors of the commands' start pass through; what is done is kept."""
        plan = self._plan
        _must(plan.setup, "setup")
        try:
            self._experiment.idle()
            if not any(not trial.warmup for trial in self._trials):
                self._experiment.warm_up(self._candidates, self._trial, plan.warmup)
            self._ended = self._experiment.blocks(
                self._candidates,
                self._trial,
                trials=plan.trials or plan.most,
                max_s=plan.max_s if plan.trials is None else math.inf,
                skip=self._has,
                ended=self._why_ended,
            )
        finally:
            if plan.cleanup is not None:
                execute(words_of(plan.cleanup, shell=True))

    def result(self, run: Run | None) -> Result:
        trials = self._trials
        if run is not None:
            trials = with_power(with_energy(trials, run), run)
        found = figures(
            self._candidates,
            trials,
            target=self._plan.target,
            ignore_failure=self._plan.ignore_failure,
            anytime=self._plan.trials is None,
        )
        return Result(
            self._plan,
            self._candidates,
            tuple(found),
            self._ended,
            None if run is None else run.name,
            () if run is None else tuple(dict.fromkeys(run.trouble)),
        )

    def _has(self, candidate: Candidate, block: int) -> bool:
        return any((trial.candidate, trial.block) == (candidate.index, block) for trial in self._trials)

    def _trial(self, candidate: Candidate, block: int, place: int) -> None:
        self._show(f"warm-up {-block} of {candidate.label}" if block < 0 else f"trial {block + 1} of {candidate.label}")
        _must(self._plan.prepare, "prepare")
        self._experiment.cool_down()
        if self._apply is not None:
            self._apply(candidate)
        trial = run_trial(
            self._meter,
            candidate,
            block=block,
            place=place,
            warmup=block < 0,
            show_output=self._plan.show_output,
            clock=self._clock,
            execute=self._execute,
        )
        self._trials.append(trial)

    def _why_ended(self) -> str | None:
        if self._hopeless():
            return "failures"
        return "decided" if self._plan.trials is None and self._answered() else None

    def _hopeless(self) -> bool:
        """Whether a command fails again and again, so that there can be no verdict."""
        if self._plan.ignore_failure or self._plan.trials is not None:
            return False
        failures = [trial.candidate for trial in self._trials if trial.failed and not trial.warmup]
        return any(failures.count(candidate.index) >= FEWEST for candidate in self._candidates)

    def _answered(self) -> bool:
        """Look at what the tape has by now, at most once a second: looking costs the machine something too."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._looked_ns < LOOK_AGAIN_S * NS:
            return False
        self._looked_ns = now_ns
        run = self._experiment.live()
        if run is None:
            return sum(not t.warmup for t in self._trials) >= FEWEST * len(self._candidates)
        self._trials = with_energy(self._trials, run, live=True)
        plan, whole = self._plan, whole_blocks(self._trials)
        found = figures(self._candidates, whole, target=plan.target, ignore_failure=plan.ignore_failure)
        self._found = found
        return answered(found, plan.target)

    def _show(self, doing: str) -> None:
        """Say how many trials are done in which time, what is done now, and what is known by now."""
        count = sum(not trial.warmup for trial in self._trials)
        words = [f"{count} trials", format_duration(self._experiment.elapsed_s), doing]
        for one in self._found[1:]:
            if one.decisive is not None:
                what = "CPU time " if one.decisive is one.cpu else ""
                ratio = cell_text(one.decisive.cell)
                words.append(f"{what}{one.candidate.label}/{self._candidates[0].label} {ratio}, {one.verdict}")
        if len(self._found) == 1 and self._found[0].energy is not None:
            words.append(cell_text(self._found[0].energy_cell, "J"))
        self._tell(" · ".join(words))


def _must(command: str | None, name: str) -> None:
    if command is None:
        return
    code = execute(words_of(command, shell=True))[0]
    if code:
        raise UsageError(f"The {name} command ended with {code}: {command}")


@dataclass(frozen=True, slots=True)
class RunFigures(ToDict):
    """One run beside the first one."""

    JSON = "label=name energy energy_net=net duration_s ratio=gross ratio_net=above_idle verdict"

    name: str
    energy: Energy
    net: Energy
    duration_s: float
    gross: Ratio | None = None
    above_idle: Ratio | None = None
    verdict: str = ""


RUN_COLUMNS = (
    "label=name energy_j=energy.joules energy_low_j=energy.low energy_high_j=energy.high net_j=net.joules "
    "net_low_j=net.low net_high_j=net.high ratio=gross.value ratio_low=gross.low ratio_high=gross.high "
    "ratio_net=above_idle.value ratio_net_low=above_idle.low ratio_net_high=above_idle.high seconds=duration_s verdict"
)
SHOWN = columns_of("run, energy [J], above idle [J], time [s], ratio [], ratio above idle []")


@dataclass(frozen=True, slots=True)
class RunsCompared(ToDict):
    """Finished runs, each beside the first."""

    JSON = "candidates=found target"

    found: tuple[RunFigures, ...]
    target: float

    def verdicts(self) -> list[str]:
        """A sentence for each run but the first, and why there is no energy above idle."""
        said = [of_candidate(one.name, one.verdict) for one in self.found[1:]]
        why: dict[str, list[str]] = {}
        for one in self.found:
            if one.energy.joules is not None and one.net.refused:
                why.setdefault(one.net.refused, []).append(one.name)
        return said + [f"{', '.join(names)} above idle: refused: {reason}" for reason, names in why.items()]

    def tables(self) -> list[Table]:
        """One row for each run, with the verdicts as notes."""
        return [Table.of(*SHOWN, rows=[self._row(one) for one in self.found], notes=self.verdicts())]

    def _row(self, one: RunFigures) -> list[Cell]:
        def ratio(found: Ratio | None, energy: Energy) -> Cell:
            return found if found is not None else 1 if one is self.found[0] and energy.joules is not None else None

        net = None if one.net.joules is None else one.net
        return [one.name, one.energy, net, one.duration_s, ratio(one.gross, one.energy), ratio(one.above_idle, one.net)]

    def to_csv(self) -> str:
        """One line for each run, plain numbers, in the columns of a comparison of commands."""
        return csv_of(RUN_COLUMNS, self.found)


def compare_runs(runs: Sequence[Run], *, target: float = 0.02, force: bool = False) -> RunsCompared:
    """Every run beside the first. ScopeError where they cover different things, unless `force`.

    A run is one trial, so the interval is of the measurement alone: how much the program itself varies is not in it.
    """
    found = [RunFigures(run.name, run.energy(), run.energy_net(), run.duration_s) for run in runs]
    first = found[0]
    for place, one in enumerate(found[1:], start=1):
        if one.energy.joules is not None and first.energy.joules is not None and one.energy.scope != first.energy.scope:
            if not force:
                raise ScopeError(
                    f"{one.name} covers '{one.energy.scope}' and {first.name} covers '{first.energy.scope}'.",
                    cure="--force compares them anyway, with a note",
                )
            note = f"scopes differ: {first.energy.scope} and {one.energy.scope}"
        else:
            note = ""
        gross, above_idle = _ratio(one.energy, first.energy), _ratio(one.net, first.net)
        words = _verdict(one.name, first.name, gross, target)
        if gross is None and None not in (one.energy.joules, first.energy.joules):
            words = f"no verdict: the interval of {first.name} holds zero"
        found[place] = replace(one, gross=gross, above_idle=above_idle, verdict="; ".join(filter(None, (words, note))))
    return RunsCompared(tuple(found), target)


def _ratio(one: Energy, first: Energy) -> Ratio | None:
    """None where there is no figure for both, and where the first may be zero: such a ratio has no finite end."""
    if first.low is None or first.low <= 0:
        return None
    try:
        return one.ratio(replace(first, scope=one.scope))
    except EverywattError:
        return None


def _verdict(name: str, first: str, ratio: Ratio | None, target: float) -> str:
    if ratio is None:
        return "no verdict: energy is not available for both"
    if ratio.low >= 1 - target and ratio.high <= 1 + target:
        return f"no difference in energy larger than {format_percent(target)} compared with {first}"
    if ratio.high < 1 or ratio.low > 1:
        return f"{name} used {change(ratio, 'energy', first)}"
    return f"undecided: {ratio}"
