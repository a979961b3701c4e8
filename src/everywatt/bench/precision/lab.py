"""The experiment: a worker for each precision, set-up and scoring in spans of their own, timed loops interleaved."""

from __future__ import annotations

import math
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.bench.experiment import Experiment, JsonLines, Show
from everywatt.bench.figures import MOST_OF_ONE, Figures, answered, figures, whole_blocks
from everywatt.bench.precision.data import Dataset
from everywatt.bench.precision.layers import Ranking, Sensitivity, plan, ranked, savings
from everywatt.bench.precision.plan import TARGET, Job, LoopReport
from everywatt.bench.precision.result import Latency, Result, Row, Window
from everywatt.bench.precision.scoring import Scorer, read_answers
from everywatt.bench.precision.variants import (
    ANSWERS,
    FILE,
    ISA_VARIABLE,
    CheckedLine,
    JournalLine,
    TimedLine,
    Variant,
    Worker,
    WorkerFailed,
    crowded,
    load_data_without_torch,
    next_isa,
    read_journal,
)
from everywatt.bench.trials import Candidate, Trial, with_energy, with_power
from everywatt.core.energy import Energy
from everywatt.core.machine import Machine
from everywatt.sensors.surroundings import memory_bytes

MOST_BLOCKS = 1_000_000_000  # the end of a range of blocks that has no end
SENSITIVITY_ITEMS = 64  # scored for each layer alone: a model has dozens of layers, and their order is what is asked
LEAST = 2
"""Batches in a timed loop, however long they take."""
SHORT = "memory is short: each model is reloaded before its trials, one at a time"


@dataclass(frozen=True, slots=True)
class Conduct:
    """How the experiment is run. `trials` None: until every ratio is known to `target`, or `max_s` is over."""

    trials: int | None = 5
    target: float = TARGET
    max_s: float = 1800.0
    idle_s: float = 2.0
    cool: bool = True
    layers: bool = False
    sensitivity: bool = False


class PrecisionLab:
    """One experiment in a recording that the caller opened. An interrupt loses nothing that is done."""

    def __init__(
        self,
        job: Job,
        conduct: Conduct,
        meter: Meter,
        show: Show | None = None,
        *,
        worker: Callable[[Mapping[str, str] | None], Worker] = Worker,
    ) -> None:
        self.job = job
        self._worker = worker
        self.conduct = conduct
        self.data: Dataset = load_data_without_torch(job.data)
        self.variants = [Variant(precision, index) for index, precision in enumerate(job.precisions)]
        self.scorer = Scorer(job, self.data)
        self._meter = meter
        self._experiment = Experiment(meter, idle_s=conduct.idle_s, cool=conduct.cool, show=show)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder: Path | None = None
        self._journal: JsonLines | None = None  # none where nothing is recorded
        self._taken_up = False
        self._short = False
        self._ended = "interrupted"
        self._sensitive: list[Sensitivity] = []
        self._plan: list[str] = []
        self._plan_block: int | None = None
        self._remarks: list[str] = []

    @property
    def folder(self) -> Path:
        """Where workers leave their answers: beside the tape; without one, gone when the lab is closed."""
        if self._folder is None:
            recording = self._meter.recording
            if recording is not None:
                self._folder = recording.path.parent / ANSWERS
            else:
                self._temporary = tempfile.TemporaryDirectory(prefix="everywatt-")
                self._folder = Path(self._temporary.name)
            self._folder.mkdir(exist_ok=True)
        return self._folder

    def take_up(self, run: Run, folder: Path) -> None:
        """Go on with an earlier benchmark of the same job: what is in its journal and on its tape is not done again."""
        spans = {span.id for span in run.spans if span.end_ns is not None}
        self._taken_up = True
        self._folder = folder / ANSWERS
        for line in read_journal(folder)[1]:
            if line["kind"] == "sensitivity":
                self._sensitive = [Sensitivity(**one) for one in line["layers"]]
                self._plan, self._plan_block = line["plan"], line["first_block"]
                if self._plan:
                    self._add_mixed()
                continue
            if line["kind"] == "request":
                continue
            variant = next((one for one in self.variants if one.precision == line["precision"]), None)
            if variant is None:
                continue
            if line["kind"] == "checked":
                self._recall(variant, line)
            elif line["kind"] == "timed" and line["span"] in spans and not variant.has(line["block"]):
                variant.add(line)
            elif line["kind"] == "layers":
                variant.times, variant.pass_s = line["times"], line["pass_s"]

    def _recall(self, variant: Variant, line: CheckedLine) -> None:
        """A precision that was checked and scored before; where its answers are gone it is done again."""
        file, train = self._answers(variant), self.folder / "train.npz"
        if not file.is_file() or not (self.scorer.ready or train.is_file()):
            return
        if not self.scorer.ready:
            self.scorer.train(train)
        variant.check(line["told"])
        self.scorer.add(variant.precision, file)
        variant.seq_length, variant.notes, variant.memory_bytes = (
            line["seq_length"],
            line["notes"],
            line["memory_bytes"],
        )
        variant.known = True

    def _answers(self, variant: Variant) -> Path:
        return self.folder / f"{variant.index}.npz"

    def work(self) -> None:
        """Set up, score and measure. KeyboardInterrupt passes through; what is done is kept."""
        recording = self._meter.recording
        self._journal = None if recording is None else JsonLines(recording.path.parent / FILE)
        if not self._taken_up:
            self._keep({"kind": "request", "job": self.job.to_dict(), "conduct": asdict(self.conduct)})
        self._experiment.idle()
        plain = [variant for variant in self.variants if variant.int8_layers is None]
        for variant in plain:
            if not variant.known and variant.failure is None:
                self.ready(variant)
        self._ended = self._blocks(plain)
        if self.conduct.layers or self.conduct.sensitivity:
            for variant in plain:
                self._pass("energy by layer", variant, self._layers)
        if self.conduct.sensitivity:
            self._mixed()

    def close(self) -> None:
        for variant in self.variants:
            variant.rest()
        if self._journal is not None and (why := self._journal.close()):
            self._remarks.append(f"{why}: --resume repeats what is missing there")
        if self._temporary is not None:
            self._temporary.cleanup()

    def _keep(self, line: JournalLine) -> None:
        if self._journal is not None:
            self._journal.write(line)

    def ready(self, variant: Variant) -> None:
        """Bring one precision to where it can be timed; again with fewer instructions where the CPU faulted."""
        while True:
            try:
                self._prepare(variant)
                return
            except WorkerFailed as error:
                limit = None if error.gone is None else next_isa(error.gone, variant.environ)
                variant.rest()
                if limit is None:
                    # The others need not load their libraries to say the same of a wrong request.
                    for one in [one for one in self.variants if one is variant or (error.usage and not one.known)]:
                        one.failure, one.cure = error.reason, error.cure
                    return
                variant.environ[ISA_VARIABLE] = limit
                variant.notes.append(f"{error.reason}; measured with {ISA_VARIABLE}={limit}")

    def _wake(self, variant: Variant) -> None:
        """A worker that holds the model. Where memory would not do for all of them, the others are let go first."""
        while variant.worker is None:
            others = [one for one in self.variants if one is not variant and one.worker is not None]
            if others and (self._short or crowded(self.variants, memory_bytes(Machine.here())[0])):
                for one in others:
                    one.rest()
                others, self._short = [], True
                if SHORT not in self._remarks:
                    self._remarks.append(SHORT)
            variant.worker = self._worker(variant.environ)
            try:
                report = self._step(
                    variant,
                    "setup",
                    job=self.job.to_dict(),
                    precision=variant.precision,
                    int8_layers=variant.int8_layers,
                )
            except WorkerFailed as error:
                variant.rest()
                no_memory = error.gone == -signal.SIGKILL or error.reason.startswith("out of memory")
                if not others or not no_memory:
                    raise
                self._short = True
                continue
            variant.seq_length = report["seq_length"]

    def _warm(self, variant: Variant) -> None:
        report = self._step(variant, "warmup", iters=self.job.warmup)
        variant.memory_bytes = max(variant.memory_bytes, report["peak_bytes"])

    def _prepare(self, variant: Variant) -> None:
        self._wake(variant)
        facts = self._step(variant, "facts")
        variant.check(facts)
        if not self.scorer.ready:
            self._step(variant, "score", part="train", file=str(self.folder / "train.npz"))
            self.scorer.train(self.folder / "train.npz")
        self._step(variant, "score", file=str(self._answers(variant)), limit=self.job.limit)
        self.scorer.add(variant.precision, self._answers(variant))
        self._warm(variant)
        variant.known = True
        self._keep(
            {
                "kind": "checked",
                "told": facts,
                "precision": variant.precision,
                "seq_length": variant.seq_length,
                "notes": variant.notes,
                "memory_bytes": variant.memory_bytes,
            }
        )

    def _mixed(self) -> None:
        """Try each layer alone, make a plan from that, and measure the plan beside the baseline."""
        base = next((variant for variant in self.variants if variant.usable), None)
        if base is None or base.precision != "fp32" or not base.times:
            self._remarks.append("no sensitivity: it requires torch fp32 as the baseline, with visible layers")
            return
        if self._plan_block is None:
            self._pass("sensitivity", base, self._sensitivity)
            self._plan = plan(self._sensitive)
            self._plan_block = 1 + max((trial.block for one in self.variants for trial in one.trials), default=-1)
            if self._plan:
                self._add_mixed()
            layers = [asdict(one) for one in self._sensitive]
            block = self._plan_block
            self._keep({"kind": "sensitivity", "layers": layers, "plan": self._plan, "first_block": block})
        variant = next((one for one in self.variants if one.int8_layers is not None), None)
        if variant is None or not base.usable:
            return
        if not variant.known:
            self.ready(variant)
        if variant.usable:
            self._blocks([base, variant], self._plan_block)
            self._pass("energy by layer", variant, self._layers)

    def _add_mixed(self) -> None:
        variant = Variant("mixed", len(self.job.precisions), tuple(self._plan))
        variant.notes.append(f"{len(self._plan)} of {len(self._sensitive)} layers in int8, the others in fp32")
        self.variants.append(variant)

    def _sensitivity(self, variant: Variant) -> None:
        items = min(SENSITIVITY_ITEMS, self.job.limit or SENSITIVITY_ITEMS)
        folder = self.folder / "layers"
        folder.mkdir(exist_ok=True)
        self._wake(variant)
        self._step(variant, "score", file=str(folder / "base.npz"), limit=items)
        names = self._step(variant, "sensitivity", folder=str(folder), limit=items)["layers"]
        base = read_answers(folder / "base.npz")
        int8 = next((one.times for one in self.variants if one.precision == "int8" and one.usable), [])
        known = savings(variant.times, int8, variant.batch_s)
        for place, name in enumerate(names):
            mine = read_answers(folder / f"{place}.npz")
            _, beside = self.scorer.compared(mine, base)
            change = None if beside is None else beside.change
            share, saved = known.get(name, (0.0, 0.0))
            kl, far = self.scorer.divergence(mine, base), self.scorer.distance(mine, base)
            self._sensitive.append(Sensitivity(name, kl, change, share, saved, far))

    def _blocks(self, variants: Sequence[Variant], first: int = 0) -> str:
        usable = sum(variant.usable for variant in variants)
        if not usable:
            return "failures"
        fixed = self.conduct.trials

        def ended() -> str | None:
            if not any(variant.usable for variant in variants):
                return "failures"
            return "decided" if fixed is None and self._answered(variants, first) else None

        return self._experiment.blocks(
            variants,
            self._trial,
            trials=MOST_OF_ONE if fixed is None and usable == 1 else fixed,
            max_s=self.conduct.max_s if fixed is None else math.inf,
            first=first,
            skip=lambda variant, block: not variant.usable or variant.has(block),
            ended=ended,
        )

    def _trial(self, variant: Variant, block: int, place: int) -> None:
        """A worker that fails is a row with its reason; trials that it finished count, and the others go on."""
        try:
            self._loop(variant, block, place)
        except WorkerFailed as error:
            variant.rest()
            if variant.trials:
                variant.stopped = True
                variant.notes.append(f"stopped after {len(variant.trials)} trials: {error.reason}")
            else:
                variant.failure, variant.cure = error.reason, error.cure

    def _pass(self, what: str, variant: Variant, step: Callable[[Variant], None]) -> None:
        """A pass beside the trials: one that fails is a note, and changes nothing that was measured."""
        if not variant.usable:
            return
        try:
            step(variant)
        except WorkerFailed as error:
            variant.rest()
            variant.notes.append(f"{what} failed: {error.reason}")

    def _loop(self, variant: Variant, block: int, place: int) -> None:
        """One timed loop. Only the worker's own window is charged; the parent's reads lie around it."""
        if variant.worker is None:
            self._wake(variant)
            self._warm(variant)
        self._experiment.cool_down()
        self._experiment.show(f"trial {block + 1} of {variant.precision}")
        recording = self._meter.recording
        about = {"precision": variant.precision, "block": block, "place": place}
        outer = recording.span_open("trial", attributes={"role": "trial", **about}) if recording is not None else None
        report: LoopReport | None = None
        span: str | None = None
        try:
            assert variant.worker is not None
            # Where batches are counted, a loop lasts as long as they take.
            seconds = 0.0 if self.job.iters is not None else self.job.loop_s
            report = cast(LoopReport, variant.worker.ask("loop", iters=self.job.iters or LEAST, seconds=seconds))
        finally:
            if recording is not None and outer is not None:
                if report is not None:
                    span = recording.span_open("loop", parent=outer, attributes=about, at_ns=report["start_ns"])
                    batches = {"batches": len(report["latency_ns"])}
                    recording.span_close(span, at_ns=report["end_ns"], attributes=batches)
                recording.span_close(outer)
        line: TimedLine = {
            "kind": "timed",
            "precision": variant.precision,
            "block": block,
            "place": place,
            "span": span,
            "seconds": (report["end_ns"] - report["start_ns"]) / 1e9,
            "told": report,
        }
        variant.add(line)
        self._keep(line)

    def _answered(self, variants: Sequence[Variant], first: int) -> bool:
        run = self._experiment.live()
        if run is None:
            return True
        usable = [variant for variant in variants if variant.usable]
        candidates, trials = self._per_batch(usable, run, range(first, MOST_BLOCKS), live=True)
        target = self.conduct.target
        return answered(figures(candidates, whole_blocks(trials), target=target), target)

    def _layers(self, variant: Variant) -> None:
        if variant.computed is None or not variant.computed.visible or variant.times:
            return
        self._wake(variant)
        report = self._step(variant, "layers", passes=5)
        variant.times, variant.pass_s = report["layers"], report["whole_s"]
        times, pass_s = variant.times, variant.pass_s
        self._keep({"kind": "layers", "precision": variant.precision, "times": times, "pass_s": pass_s})

    def _step(self, variant: Variant, do: str, **more: Any) -> dict[str, Any]:
        """One step of a worker in a span of its own, which is not charged to the precision."""
        names = {"setup": "set-up", "facts": "profile", "score": "accuracy", "warmup": "warm-up"}
        name = names.get(do, do)
        self._experiment.show(f"{name} of {variant.precision}")
        assert variant.worker is not None
        with self._meter.span(name, precision=variant.precision):
            return variant.worker.ask(do, **more)

    def _per_batch(
        self, variants: Sequence[Variant], run: Run | None, counted: range, *, live: bool = False
    ) -> tuple[list[Candidate], list[Trial]]:
        """Trials of some blocks as energies and seconds of one batch, so that loops of different lengths compare."""
        trials = [trial for variant in variants for trial in variant.trials if trial.block in counted]
        loops = [loop for variant in variants for loop in variant.loops_in(counted)]
        if run is not None:
            trials = with_energy(trials, run, live=live)
        if run is not None and not live:
            trials = with_power(trials, run)  # for all at once, as it reads the power of the whole tape
        found = [trial.shared(len(loop)) for trial, loop in zip(trials, loops, strict=True)]
        return [Candidate(variant.index, variant.precision, variant.precision, ()) for variant in variants], found

    def _figures(self, run: Run | None) -> dict[int, Figures]:
        """The figures of each precision by its index: of the experiment, and of a mixed plan's own blocks, in which it
        ran beside the baseline. Neither changes the other."""

        def made(variants: Sequence[Variant], counted: range) -> dict[int, Figures]:
            if not variants:
                return {}
            trials, fixed = self._per_batch(variants, run, counted), self.conduct.trials is not None
            return {one.candidate.index: one for one in figures(*trials, target=self.conduct.target, anytime=not fixed)}

        own = self._own_blocks(None)
        measured = [variant for variant in self.variants if variant.int8_layers is None and variant.loops_in(own)]
        mixed = [variant for variant in self.variants if variant.int8_layers is not None and variant.trials]
        beside = made([*measured[:1], *mixed], self._own_blocks(())) if mixed else {}
        return beside | made(measured, own)

    def _own_blocks(self, int8_layers: tuple[str, ...] | None) -> range:
        """The blocks that count for a precision: a mixed plan has its own, after those of the experiment."""
        first = MOST_BLOCKS if self._plan_block is None else self._plan_block
        return range(first) if int8_layers is None else range(first, MOST_BLOCKS)

    def result(self, run: Run | None) -> Result:
        by_index = self._figures(run)
        baseline = next((variant.precision for variant in self.variants if variant.index in by_index), None)
        rows = []
        for variant in self.variants:
            one = by_index.get(variant.index)
            score, beside = self.scorer.scores(variant.precision, baseline)
            loops = variant.loops_in(self._own_blocks(variant.int8_layers))
            latency = Latency.of([seconds for loop in loops for seconds in loop])
            if latency is not None and one is not None:
                # Of whole loops, as the energy is: so energy is power times this.
                latency = replace(latency, mean_s=one.seconds.value)
            row = Row(
                variant.precision,
                variant.failure or (None if one is not None else "not measured: interrupted first"),
                variant.cure,
                tuple(dict.fromkeys((*variant.notes, *(one.notes if one is not None else ())))),
                variant.computed,
                variant.emulated,
                sum(map(len, loops)) or None,
                variant.seq_length,
                latency,
                one,
                score,
                beside,
                variant.peak_bytes,
                self._window(variant, run),
                variant.hooks if variant.trials else None,
                batches=tuple(map(len, loops)),
                batch_size=self.job.batch_size,
            )
            rows.append(row.with_layers(variant.times, variant.batch_s) if variant.times and latency else row)
        order = sorted((t for variant in self.variants for t in variant.trials), key=lambda t: (t.block, t.place))
        ranking = Ranking(tuple(ranked(self._sensitive)), tuple(self._plan)) if self._sensitive else None
        both = None if ranking is None else ranking.correlation
        ranks = () if both is None else (str(both),)
        return Result(
            self.job,
            tuple(rows),
            self._ended,
            None if run is None else run.name,
            tuple(self.variants[trial.candidate].precision for trial in order),
            (*self.scorer.notes, *self._remarks, *ranks, *(() if run is None else dict.fromkeys(run.trouble))),
            ranking,
        )

    def _window(self, variant: Variant, run: Run | None) -> Window | None:
        if run is None or not variant.trials:
            return None
        energy = with_energy(variant.trials[-1:], run)[0].energy or Energy.refuse("not on the tape")
        return Window.of(energy, variant.trials[-1].seconds)
