"""The experiment: a worker for each precision, set-up and scoring in spans of their own, timed loops interleaved."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.bench.candidates import Candidate
from everywatt.bench.cooling import Cooling
from everywatt.bench.figures import decided, figures
from everywatt.bench.order import blocks
from everywatt.bench.precision.computed import Computed, cpu_flags, emulated, int8_note, refusal
from everywatt.bench.precision.data import Dataset, load_data
from everywatt.bench.precision.endings import ISA_VARIABLE, next_isa
from everywatt.bench.precision.layers import apportion
from everywatt.bench.precision.plan import TARGET, Job
from everywatt.bench.precision.result import Latency, Result, Row, Window
from everywatt.bench.precision.scoring import Scorer, read_answers
from everywatt.bench.precision.sensitivity import Sensitivity, plan, ranked, savings
from everywatt.bench.precision.workers import Worker, WorkerFailed
from everywatt.bench.trials import Trial, with_energy
from everywatt.core.energy import Energy

FEWEST = 3
SENSITIVITY_ITEMS = 64
LEAST = 2
"""Batches in a timed loop, however long they take."""
Show = Callable[[str], None]


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


@dataclass(slots=True)
class Arm:
    """One precision while it is worked on."""

    precision: str
    index: int
    int8_layers: tuple[str, ...] | None = None
    worker: Worker | None = None
    failure: str | None = None
    cure: str | None = None
    notes: list[str] = field(default_factory=list)
    computed: Computed | None = None
    emulated: str | None = None
    batches: list[int] = field(default_factory=list)
    seq_length: int | None = None
    latencies_s: list[float] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    peak_bytes: int | None = None
    hooks: int = 0
    times: list[dict[str, Any]] = field(default_factory=list)
    pass_s: float = 0.0

    @property
    def batch_s(self) -> float:
        """Seconds of a batch to which layers are held: the loop's mean, or a hooked pass where that was shorter."""
        return min(math.fsum(self.latencies_s) / len(self.latencies_s), self.pass_s)

    @property
    def usable(self) -> bool:
        """Whether it can be measured."""
        return self.failure is None and self.worker is not None


class PrecisionLab:
    """One experiment in a recording that the caller opened. An interrupt loses nothing that is done."""

    def __init__(self, job: Job, conduct: Conduct, meter: Meter, show: Show | None = None) -> None:
        self.job = job
        self.conduct = conduct
        self.data: Dataset = load_data(job.data)
        self.arms = [Arm(precision, index) for index, precision in enumerate(job.precisions)]
        self.scorer = Scorer(job, self.data)
        self._meter = meter
        self._show = show or (lambda text: None)
        self._cooling = Cooling(meter)
        self._folder = tempfile.TemporaryDirectory(prefix="everywatt-")
        self._ended = "interrupted"
        self._sensitive: list[Sensitivity] = []
        self._plan: list[str] = []
        self._remarks: list[str] = []
        self._began = time.monotonic()

    @property
    def folder(self) -> Path:
        """Where workers leave their answers; gone when the lab is closed."""
        return Path(self._folder.name)

    def work(self) -> None:
        """Set up, score and measure. KeyboardInterrupt passes through; what is done is kept."""
        self._idle()
        for arm in self.arms:
            self.ready(arm)
        self._ended = self._blocks(self.arms)
        if self.conduct.layers or self.conduct.sensitivity:
            for arm in self.arms:
                self._guarded(arm, self._layers)
        if self.conduct.sensitivity:
            self._mixed()

    @property
    def _loop_s(self) -> float:
        """How long a loop lasts: where batches are counted, as long as they take."""
        return 0.0 if self.job.iters is not None else self.job.loop_s

    def close(self) -> None:
        """End the workers."""
        for arm in self.arms:
            if arm.worker is not None:
                arm.worker.close()
                arm.worker = None
        self._folder.cleanup()

    def ready(self, arm: Arm) -> None:
        """Bring one precision to where it can be timed; again with fewer instructions where the CPU faulted."""
        environ = dict(os.environ)
        while True:
            try:
                self._prepare(arm, environ)
                return
            except WorkerFailed as error:
                limit = None if error.gone is None else next_isa(error.gone, environ)
                if arm.worker is not None:
                    arm.worker.close()
                    arm.worker = None
                if limit is None:
                    arm.failure, arm.cure = error.reason, error.cure
                    return
                environ[ISA_VARIABLE] = limit
                arm.notes.append(f"{error.reason}; measured with {ISA_VARIABLE}={limit}")

    def _prepare(self, arm: Arm, environ: dict[str, str]) -> None:
        arm.worker = Worker(environ)
        told = self._step(arm, "setup", job=self.job.to_dict(), precision=arm.precision, int8_layers=arm.int8_layers)
        arm.seq_length = told["seq_length"]
        self._check(arm, self._step(arm, "facts"))
        if not self.scorer.ready:
            self._step(arm, "score", part="train", file=str(self.folder / "train.npz"))
            self.scorer.train(self.folder / "train.npz")
        file = self.folder / f"{arm.index}.npz"
        self._step(arm, "score", file=str(file), limit=self.job.limit)
        self.scorer.add(arm.precision, file)
        self._step(arm, "warmup", iters=self.job.warmup)

    def _check(self, arm: Arm, told: dict[str, Any]) -> None:
        """Refuse a label that is not true; say what is emulated."""
        capability = told.pop("capability", None)
        arm.computed = Computed.of(told)
        why = refusal(arm.precision, arm.computed)
        if why is not None:
            raise WorkerFailed(why)
        flags = cpu_flags()
        pair = None if capability is None else (int(capability[0]), int(capability[1]))
        arm.emulated = emulated(arm.precision, flags=flags, capability=pair)
        if arm.precision.startswith("int8") and pair is None and (note := int8_note(flags)) is not None:
            arm.notes.append(note)
        if not arm.computed.visible:
            arm.notes.append("a plain callable: its precision is the caller's word")

    def _mixed(self) -> None:
        """Try each layer alone, make a plan from that, and measure the plan beside the baseline."""
        base = next((arm for arm in self.arms if arm.usable), None)
        if base is None or base.precision != "fp32" or not base.times:
            self._remarks.append("no sensitivity: it needs fp32 of torch as the baseline, with its layers")
            return
        self._guarded(base, self._sensitivity)
        self._plan = plan(self._sensitive)
        if not self._plan or not base.usable:
            return
        arm = Arm("mixed", len(self.arms), tuple(self._plan))
        arm.notes.append(f"{len(self._plan)} of {len(self._sensitive)} layers in int8, the others in fp32")
        self.arms.append(arm)
        self.ready(arm)
        if arm.usable:
            first = 1 + max((trial.block for one in self.arms for trial in one.trials), default=-1)
            self._ended = self._blocks([base, arm], first)
            self._guarded(arm, self._layers)

    def _sensitivity(self, arm: Arm) -> None:
        items = min(SENSITIVITY_ITEMS, self.job.limit or SENSITIVITY_ITEMS)
        folder = self.folder / "layers"
        folder.mkdir()
        self._step(arm, "score", file=str(folder / "base.npz"), limit=items)
        names = self._step(arm, "sensitivity", folder=str(folder), limit=items)["layers"]
        base = read_answers(folder / "base.npz")
        int8 = next((one.times for one in self.arms if one.precision == "int8" and one.usable), [])
        known = savings(arm.times, int8, arm.batch_s)
        for place, name in enumerate(names):
            mine = read_answers(folder / f"{place}.npz")
            _, beside = self.scorer.compared(mine, base)
            change = None if beside is None else beside.change
            share, saved = known.get(name, (0.0, 0.0))
            self._sensitive.append(Sensitivity(name, self.scorer.divergence(mine, base), change, share, saved))

    def _blocks(self, arms: Sequence[Arm], first: int = 0) -> str:
        conduct = self.conduct
        if not any(arm.usable for arm in arms):
            return "failures"
        for number, order in enumerate(blocks(len(arms))):
            block = first + number
            if conduct.trials is not None and number >= conduct.trials:
                return "trials"
            if conduct.trials is None and number and time.monotonic() - self._began > conduct.max_s:
                return "time"
            for place, index in enumerate(order):
                if arms[index].usable:
                    self._guarded(arms[index], self._trial, block, place)
            if conduct.trials is None and number + 1 >= FEWEST and self._decided(arms):
                return "decided"
        raise AssertionError("blocks never end")

    def _guarded(self, arm: Arm, step: Callable[..., None], *more: int) -> None:
        """A worker that fails later on is a row with its reason; the others go on."""
        if not arm.usable:
            return
        try:
            step(arm, *more)
        except WorkerFailed as error:
            arm.failure, arm.cure = f"after {len(arm.trials)} trials: {error.reason}", error.cure

    def _trial(self, arm: Arm, block: int, place: int) -> None:
        """One timed loop. Only the worker's own window is charged; the parent's reads lie around it."""
        if self.conduct.cool and any(one.trials for one in self.arms):
            self._cooling.wait(self._show)
        self._show(f"trial {block + 1} of {arm.precision}")
        recording = self._meter.recording
        about = {"precision": arm.precision, "block": block, "place": place}
        outer = recording.span_open("trial", attributes={"role": "trial", **about}) if recording is not None else None
        told: dict[str, Any] = {}
        try:
            assert arm.worker is not None
            told = arm.worker.ask("loop", iters=self.job.iters or LEAST, seconds=self._loop_s)
        finally:
            if recording is not None and outer is not None:
                inner = None
                if told:
                    inner = recording.span_open("loop", parent=outer, attributes=about, at_ns=told["start_ns"])
                    recording.span_close(inner, at_ns=told["end_ns"], attributes={"batches": len(told["latency_ns"])})
                recording.span_close(outer)
        seconds = (told["end_ns"] - told["start_ns"]) / 1e9
        arm.latencies_s += [ns / 1e9 for ns in told["latency_ns"]]
        arm.batches.append(len(told["latency_ns"]))
        arm.peak_bytes = max(arm.peak_bytes or 0, told["peak_bytes"])
        arm.hooks = max(arm.hooks, told["hooks"])
        arm.trials.append(
            Trial(
                arm.index, block, place, inner if recording is not None else None, 0, seconds, told["cpu_s"],
                told["peak_bytes"],
            )
        )  # fmt: skip

    def _decided(self, arms: Sequence[Arm]) -> bool:
        run = self._cooling.live()
        if run is None:
            return True
        found = figures(
            *self._per_batch([arm for arm in arms if arm.usable], run, live=True), target=self.conduct.target
        )
        if any(any(t.energy is None for t in one.trials) for one in found):
            return False
        return all(one.energy is None for one in found) or (len(found) > 1 and decided(found))

    def _layers(self, arm: Arm) -> None:
        if arm.computed is None or not arm.computed.visible:
            return
        told = self._step(arm, "layers", passes=5)
        arm.times, arm.pass_s = told["layers"], told["whole_s"]

    def _step(self, arm: Arm, do: str, **more: Any) -> dict[str, Any]:
        """One step of a worker in a span of its own, which is not charged to the precision."""
        names = {"setup": "set-up", "facts": "profile", "score": "accuracy", "warmup": "warm-up"}
        self._show(f"{names.get(do, do)} of {arm.precision}")
        recording = self._meter.recording
        name = names.get(do, do)
        uid = recording.span_open(name, attributes={"precision": arm.precision}) if recording is not None else None
        try:
            assert arm.worker is not None
            return arm.worker.ask(do, **more)
        finally:
            if recording is not None and uid is not None:
                recording.span_close(uid)

    def _idle(self) -> None:
        recording = self._meter.recording
        if recording is None or self.conduct.idle_s <= 0:
            return
        self._show(f"recording idle power for {self.conduct.idle_s:g} s")
        uid = recording.span_open("idle", attributes={"role": "idle"})
        time.sleep(self.conduct.idle_s)
        recording.span_close(uid)

    def _per_batch(
        self, arms: Sequence[Arm], run: Run | None, *, live: bool = False
    ) -> tuple[list[Candidate], list[Trial]]:
        """Trials as energies and seconds of one batch, so that loops of different lengths compare."""
        found = []
        for arm in arms:
            filled = arm.trials if run is None else with_energy(arm.trials, run, live=live)
            found += [_divided(trial, count) for trial, count in zip(filled, arm.batches, strict=True)]
        return [Candidate(arm.index, arm.precision, arm.precision, ()) for arm in arms], found

    def result(self, run: Run | None) -> Result:
        """The figures from the finished tape."""
        usable = [arm for arm in self.arms if arm.failure is None and arm.trials]
        per_batch = figures(*self._per_batch(usable, run), target=self.conduct.target) if usable else []
        by_index = {one.candidate.index: one for one in per_batch}
        baseline = usable[0].precision if usable else None
        rows = []
        for arm in self.arms:
            one = by_index.get(arm.index)
            score, beside = self.scorer.scores(arm.precision, baseline)
            latency = Latency.of(arm.latencies_s)
            row = Row(
                arm.precision,
                arm.failure or (None if arm.trials else "not measured: interrupted before"),
                arm.cure,
                tuple(dict.fromkeys((*arm.notes, *(one.notes if one is not None else ())))),
                arm.computed,
                arm.emulated,
                sum(arm.batches) or None,
                arm.seq_length,
                latency,
                one,
                score,
                beside,
                arm.peak_bytes,
                self._window(arm, run),
                arm.hooks if arm.trials else None,
            )
            rows.append(_with_layers(row, arm))
        order = sorted((t for arm in self.arms for t in arm.trials), key=lambda t: (t.block, t.place))
        return Result(
            self.job,
            tuple(rows),
            self._ended,
            None if run is None else run.name,
            tuple(self.arms[trial.candidate].precision for trial in order),
            (*self.scorer.notes, *self._remarks, *(() if run is None else dict.fromkeys(run.trouble))),
            self._sensitivity_dict(),
        )

    def _sensitivity_dict(self) -> dict[str, Any]:
        if not self._sensitive:
            return {}
        return {"layers": [one.to_dict() for one in ranked(self._sensitive)], "plan": self._plan}

    def _window(self, arm: Arm, run: Run | None) -> Window | None:
        if run is None or not arm.trials:
            return None
        energy = with_energy(arm.trials[-1:], run)[0].energy or Energy.refuse("not on the tape")
        return Window.of(energy, arm.trials[-1].seconds)


def _divided(trial: Trial, iters: int) -> Trial:
    def each(energy: Energy | None) -> Energy | None:
        return energy if energy is None or energy.joules is None else energy / iters

    return replace(
        trial, energy=each(trial.energy), net=each(trial.net), seconds=trial.seconds / iters, cpu_s=trial.cpu_s / iters
    )


def _with_layers(row: Row, arm: Arm) -> Row:
    if not arm.times or row.latency is None:
        return row
    mean = row.energy_per_batch
    found, note = apportion(arm.times, arm.batch_s, None if mean is None else mean.value)
    notes = row.notes if note is None else (*row.notes, note)
    return replace(row, layers=tuple(one.to_dict() for one in found), notes=notes)
