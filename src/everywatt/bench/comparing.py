"""The comparison itself: warm up, then block after block of trials until the question is answered or time is up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.bench.candidates import Candidate, words_of
from everywatt.bench.cooling import Cooling
from everywatt.bench.figures import Figures, decided, figures, narrow
from everywatt.bench.interleaving import blocks
from everywatt.bench.trials import Execute, Trial, execute, from_span, run_trial, with_energy
from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.errors import UsageError

FEWEST = 3
LOOK_AGAIN_S = 1.0


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


@dataclass(slots=True)
class Progress:
    """Where a comparison stands, for whoever shows it."""

    began_ns: int
    trials: list[Trial] = field(default_factory=list)
    found: list[Figures] = field(default_factory=list)
    doing: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What came out. `ended` is why it ended: `decided`, `trials`, `time`, `failures` or `interrupted`."""

    plan: Plan
    candidates: tuple[Candidate, ...]
    found: tuple[Figures, ...]
    ended: str
    run: str | None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; `cli` puts schema and kind around it."""
        order = sorted((t for one in self.found for t in one.trials), key=lambda t: (t.block, t.place))
        return {
            "run": self.run,
            "ended": self.ended,
            "target": self.plan.target,
            "candidates": [one.to_dict() for one in self.found],
            "order": [self.candidates[trial.candidate].label for trial in order],
            "notes": list(self.notes),
        }


Watcher = Callable[[Progress], None]


class Comparing:
    """One comparison in a recording of its own. An interrupt loses nothing: what is done is kept."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        plan: Plan,
        meter: Meter,
        watch: Watcher | None = None,
        apply: Callable[[Candidate], None] | None = None,
        clock: Clock | None = None,
        execute: Execute = execute,
    ) -> None:
        self._candidates = tuple(candidates)
        self._plan = plan
        self._meter = meter
        self._watch = watch or (lambda progress: None)
        self._apply = apply
        self._clock = clock or SystemClock()
        self._execute = execute
        self._progress = Progress(self._clock.monotonic_ns())
        self._cooling = Cooling(meter, self._clock)
        self._ended = "interrupted"
        self._first_block = 0
        self._looked_ns = 0

    def take_up(self, run: Run) -> None:
        """Go on with an earlier comparison: its trials count, its next block is ours."""
        found = [trial for span in run.spans if (trial := from_span(span)) is not None]
        if any(trial.candidate >= len(self._candidates) for trial in found):
            raise UsageError(f"{run.name} compared other commands.")
        texts = {int(s.attributes["candidate"]): s.attributes.get("command") for s in run.spans if from_span(s)}
        for index, text in texts.items():
            if text != self._candidates[index].text:
                raise UsageError(
                    f"{run.name} compared other commands: {text!r} is not {self._candidates[index].text!r}."
                )
        self._progress.trials = with_energy(found, run)
        self._first_block = max((trial.block for trial in found), default=-1) + 1

    def work(self) -> None:
        """Run the trials. KeyboardInterrupt and errors of the commands' start pass through; what is done is kept."""
        plan = self._plan
        _must(plan.setup, "setup")
        try:
            self._idle()
            if not self._first_block:
                self._warm_up()
            self._ended = self._blocks()
        finally:
            if plan.cleanup is not None:
                execute(words_of(plan.cleanup, shell=True))

    def result(self, run: Run | None) -> Result:
        """The figures from the finished tape."""
        trials = self._progress.trials
        if run is not None:
            trials = with_energy(trials, run)
        found = figures(self._candidates, trials, target=self._plan.target, ignore_failure=self._plan.ignore_failure)
        return Result(
            self._plan,
            self._candidates,
            tuple(found),
            self._ended,
            None if run is None else run.name,
            () if run is None else tuple(dict.fromkeys(run.trouble)),
        )

    def _idle(self) -> None:
        recording = self._meter.recording
        if recording is None or self._plan.idle_s <= 0:
            return
        self._show(f"recording idle power for {self._plan.idle_s:g} s")
        uid = recording.span_open("idle", attributes={"role": "idle"})
        self._clock.sleep_until(self._clock.monotonic_ns() + round(self._plan.idle_s * NS))
        recording.span_close(uid)

    def _warm_up(self) -> None:
        for turn in range(self._plan.warmup):
            for candidate in self._candidates:
                self._show(f"warm-up {turn + 1} of {candidate.label}")
                self._progress.trials.append(self._trial(candidate, block=-1 - turn, place=0, warmup=True))

    def _blocks(self) -> str:
        plan = self._plan
        for number, order in enumerate(islice(blocks(len(self._candidates)), self._first_block, None)):
            block = number + self._first_block
            if (most := plan.trials or plan.most) is not None and block >= most:
                return "trials"
            if plan.trials is None and number >= 1 and self._since_s(self._progress.began_ns) > plan.max_s:
                return "time"
            for place, index in enumerate(order):
                candidate = self._candidates[index]
                self._show(f"trial {block + 1} of {candidate.label}")
                self._progress.trials.append(self._trial(candidate, block=block, place=place))
            if self._hopeless():
                return "failures"
            if plan.trials is None and self._answered():
                return "decided"
        raise AssertionError("blocks never end")

    def _trial(self, candidate: Candidate, *, block: int, place: int, warmup: bool = False) -> Trial:
        _must(self._plan.prepare, "prepare")
        self._cool_down()
        if self._apply is not None:
            self._apply(candidate)
        return run_trial(
            self._meter,
            candidate,
            block=block,
            place=place,
            warmup=warmup,
            show_output=self._plan.show_output,
            clock=self._clock,
            execute=self._execute,
        )

    def _hopeless(self) -> bool:
        """Whether a command fails again and again, so that there can be no verdict."""
        if self._plan.ignore_failure or self._plan.trials is not None:
            return False
        failures = [trial.candidate for trial in self._progress.trials if trial.failed and not trial.warmup]
        return any(failures.count(candidate.index) >= FEWEST for candidate in self._candidates)

    def _answered(self) -> bool:
        """Look at what the tape has by now, at most once a second: looking costs the machine something too."""
        if self._since_s(self._looked_ns) < LOOK_AGAIN_S:
            return False
        self._looked_ns = self._clock.monotonic_ns()
        run = self._cooling.live()
        if run is None:
            return sum(not t.warmup for t in self._progress.trials) >= FEWEST * len(self._candidates)
        self._progress.trials = with_energy(self._progress.trials, run, live=True)
        whole = _whole_blocks(self._progress.trials)
        found = figures(self._candidates, whole, target=self._plan.target, ignore_failure=self._plan.ignore_failure)
        self._progress.found = found
        if min(sum(t.energy is not None for t in one.trials) for one in found) < FEWEST:
            return False
        if all(one.energy is None for one in found):
            return True  # nothing measures anything: more trials would not either
        return decided(found) if len(found) > 1 else narrow(found[0], self._plan.target)

    def _cool_down(self) -> None:
        if self._plan.cool and self._progress.trials:
            self._cooling.wait(self._show)

    def _since_s(self, then_ns: int) -> float:
        return (self._clock.monotonic_ns() - then_ns) / NS

    def _show(self, doing: str) -> None:
        self._progress.doing = doing
        self._watch(self._progress)


def _whole_blocks(trials: Sequence[Trial]) -> list[Trial]:
    """Trials of blocks that are complete with their energies, so that every candidate has the same number."""
    open_blocks = {trial.block for trial in trials if trial.energy is None}
    return [trial for trial in trials if trial.block not in open_blocks]


def _must(command: str | None, name: str) -> None:
    if command is None:
        return
    code = execute(words_of(command, shell=True))[0]
    if code:
        raise UsageError(f"The {name} command ended with {code}: {command}")
