"""Energy of a training: epoch by epoch and step by step, fp32 beside autocast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.bench.experiment import Experiment, Show
from everywatt.bench.figures import Figures, figures, quantity
from everywatt.bench.precision.computed import cpu_flags, emulated
from everywatt.bench.precision.plan import DEFAULT_MODEL, EpochReport, StepReport, check_model
from everywatt.bench.precision.variants import Worker, WorkerFailed, load_data_without_torch
from everywatt.bench.trials import Candidate, Trial
from everywatt.bench.verdict import of_candidate
from everywatt.core.energy import Energy, Ratio, sum_energies
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.jsonio import ToDict
from everywatt.core.stats import wilson
from everywatt.core.tables import Cell, Column, Quantity, Table, csv_of

TRAINING = (
    *(Column("energy", "J"), Column("time", "s"), Column("steps", ""), Column("energy / step", "J")),
    *(Column("train loss", ""), Column("val loss", ""), Column("val accuracy", "%")),
)
MEANS = ("precision", Column("runs", ""), Column("mean energy", "J"), Column("time", "s"))
COLUMNS = (
    "precision trial epoch=number energy_j=energy.joules energy_low_j=energy.low energy_high_j=energy.high seconds "
    "steps energy_per_step_j=per_step.joules train_loss val_loss val_accuracy"
)


def _loss(value: float) -> str:
    return f"{value:.4f}"  # as training logs have it: losses are compared digit by digit


@dataclass(frozen=True, slots=True)
class Epoch(ToDict):
    """One epoch: from its start to the start of the next, validation included."""

    JSON = (
        "epoch=number seconds steps train_loss val_loss val_accuracy energy energy_per_step=per_step step_joules losses"
    )

    number: int
    seconds: float
    steps: int
    train_loss: float
    val_loss: float
    val_accuracy: float
    energy: Energy
    training: Energy
    step_joules: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    precision: str = ""
    trial: int = 1

    @property
    def per_step(self) -> Energy:
        """Mean energy of a step of this epoch, validation not included."""
        return self.training if self.training.joules is None else self.training / self.steps

    def row(self) -> list[Cell]:
        """For a table."""
        return [
            *(self.precision, self.number, self.energy, self.seconds, self.steps, self.per_step),
            *(_loss(self.train_loss), _loss(self.val_loss), self.val_accuracy),
        ]


@dataclass(frozen=True, slots=True)
class Trained(ToDict):
    """One training of one precision: its epochs, which fill it from its start to its end."""

    JSON = "precision trial failure cure emulated seconds energy energy_per_step=per_step ratio accuracy epochs"

    precision: str
    epochs: tuple[Epoch, ...]
    energy: Energy
    net: Energy | None = None
    failure: str | None = None
    cure: str | None = None
    emulated: str | None = None
    held_out: int = 0
    ratio: Ratio | None = None
    trial: int = 1
    span: str | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def per_step(self) -> Energy | None:
        """Mean energy of a step over all epochs."""
        parts = [epoch.training for epoch in self.epochs]
        steps = sum(epoch.steps for epoch in self.epochs)
        if not steps or any(part.joules is None for part in parts):
            return None
        return sum_energies(parts) / steps

    @property
    def accuracy(self) -> Ratio | None:
        """After the last epoch, with Wilson's interval."""
        if not self.epochs or not self.held_out:
            return None
        right = round(self.epochs[-1].val_accuracy * self.held_out)
        return Ratio(right / self.held_out, *wilson(right, self.held_out))

    def row(self, *, several: bool) -> list[Cell]:
        """For a table."""
        known, last = self.accuracy, self.epochs[-1]
        losses: list[Cell] = [_loss(last.train_loss), _loss(last.val_loss)] if several else ["", ""]
        return [
            *(self.precision, str(self.trial) if several else "all", self.energy, self.seconds),
            *(sum(epoch.steps for epoch in self.epochs), self.per_step, *losses),
            "" if known is None else Quantity(known.value, "%", known.value - known.low, known.high - known.value),
        ]


MODULE = "everywatt.bench.precision.train_worker"
PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class TrainJob:
    """What to train, how, and how often. `precisions`: fp32, or autocast to bf16 or fp16 with weights in fp32."""

    model: str = DEFAULT_MODEL
    data: str = "reviews"
    precisions: tuple[str, ...] = ("fp32", "bf16")
    epochs: int = 2
    batch_size: int = 16
    lr: float = 5e-5
    limit: int | None = None
    entry: str | None = None
    device: str = "auto"
    seed: int = 0
    trials: int = 1

    def __post_init__(self) -> None:
        unknown = [one for one in self.precisions if one not in PRECISIONS]
        if unknown or not self.precisions:
            raise UsageError(f"'{', '.join(unknown)}' is not one of {', '.join(PRECISIONS)}, which can be trained in.")
        check_model(self.model, self.entry, (DEFAULT_MODEL,))

    def request(self, precision: str, trial: int = 1) -> dict[str, Any]:
        """What a worker gets. Each trial has its own start and order of items, the same for all precisions."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "precisions"}
        return {**fields, "precision": precision, "trial": trial}


@dataclass(frozen=True, slots=True)
class TrainResult:
    """All trainings in the order in which they ran, and every precision beside the first over all its trainings; that
    is empty where there was one training each: how much trainings vary is then not known."""

    job: TrainJob
    trained: tuple[Trained, ...]
    run: str | None = None

    @property
    def beside(self) -> list[Figures]:
        """A block is one training of each precision; those that failed or were interrupted are in no mean."""
        precisions = self.job.precisions
        found = [one for one in self.trained if one.failure is None and len(one.epochs) == self.job.epochs]
        if max((one.trial for one in found), default=1) < 2:
            return []
        candidates = [Candidate(index, name, name, ()) for index, name in enumerate(precisions)]
        trials = [
            Trial(
                *(precisions.index(one.precision), one.trial - 1, place, one.span),
                *(0, one.seconds, 0.0, None),
                energy=one.energy,
                net=one.net,
            )
            for place, one in enumerate(found)
        ]
        return figures(candidates, trials, anytime=False)

    def remarks(self) -> list[str]:
        """What failed, what was emulated, and without further trainings the ratios of energy."""
        lines, several = [], bool(self.beside)
        for one in self.trained:
            if one.failure is not None:
                where = f" (trial {one.trial})" if several else ""
                lines.append(f"{one.precision}{where}: {one.failure}" + (f" (try: {one.cure})" if one.cure else ""))
            if one.ratio is not None and not several:
                lines.append(f"{one.precision}: {one.ratio} of the energy of {self.trained[0].precision}")
            if one.emulated is not None:
                lines.append(f"{one.precision}: {one.emulated}")
        return list(dict.fromkeys(lines))

    def verdicts(self) -> list[str]:
        """A sentence for each precision beside the first; none where there was one training each."""
        return [of_candidate(one.candidate.label, one.verdict) for one in self.beside[1:]]

    def tables(self) -> list[Table]:
        """A row for each epoch and training, or where there are several trainings one for each, and their means."""
        beside = self.beside
        rows: list[list[Cell]] = []
        for one in self.trained:
            rows += [] if beside else [epoch.row() for epoch in one.epochs]
            rows += [one.row(several=bool(beside))] if one.epochs else []
        which = Column("trial" if beside else "epoch", "")
        notes = [*self.remarks(), *self.verdicts()]
        found = [Table.of("precision", which, *TRAINING, rows=rows, notes=notes)]
        if beside:
            means = [
                [one.candidate.label, len(one.trials), quantity(one.energy, "J"), one.seconds.time] for one in beside
            ]
            found.append(Table.of(*MEANS, rows=means))
        return found

    def to_csv(self) -> str:
        """A line for each epoch."""
        return csv_of(COLUMNS, [epoch for one in self.trained for epoch in one.epochs])

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; `cli` puts schema and kind around it."""
        return {
            "run": self.run,
            "job": self.job.request(""),
            "trained": [one.to_dict() for one in self.trained],
            "compared": [one.to_dict() for one in self.beside],
            "order": [one.precision for one in self.trained if one.epochs],
        }


@dataclass(slots=True)
class _Training:
    precision: str
    trial: int
    spans: list[tuple[str, str, EpochReport]] = field(default_factory=list)
    whole: str | None = None
    held_out: int = 0
    failure: str | None = None
    cure: str | None = None


class TrainLab:
    """Trains every precision in a recording that the caller opened; several times in interleaved blocks, if asked."""

    def __init__(
        self,
        job: TrainJob,
        meter: Meter,
        show: Show | None = None,
        *,
        idle_s: float = 2.0,
        cool: bool = True,
        worker: Callable[[], Worker] = lambda: Worker(module=MODULE),
    ) -> None:
        data = load_data_without_torch(job.data)
        if data.labels is None:
            raise UsageError(f"{data.name} has no labels to train on.")
        self.job = job
        self._worker = worker
        self._meter = meter
        self._wrong: str | None = None  # what is wrong with the request, at any precision
        # One training each takes long, and its machine is warm from its own first steps on.
        self._experiment = Experiment(meter, idle_s=idle_s, cool=cool and job.trials > 1, show=show)
        self._done: list[_Training] = []
        self.interrupted = True

    def work(self) -> None:
        """Train. KeyboardInterrupt passes through; epochs that are done are kept."""
        self._experiment.idle()
        self._experiment.blocks(self.job.precisions, self._one, trials=self.job.trials, skip=self._failed)
        self.interrupted = False

    def _failed(self, precision: str, block: int) -> bool:
        return self._wrong is not None or any(one.failure for one in self._done if one.precision == precision)

    def _one(self, precision: str, block: int, place: int) -> None:
        """One training in a process of its own, which begins where every other one began."""
        self._experiment.cool_down()
        training = _Training(precision, block + 1)
        self._done.append(training)
        worker = self._worker()
        try:
            self._train(training, worker)
        except WorkerFailed as error:
            training.failure, training.cure = error.reason, error.cure
            self._wrong = error.reason if error.usage else None
        finally:
            worker.close()

    def _train(self, training: _Training, worker: Worker) -> None:
        which = training.precision + (f", trial {training.trial}" if self.job.trials > 1 else "")
        about = {"precision": training.precision, "trial": training.trial}
        self._experiment.show(f"set-up of {which}")
        with self._meter.span("set-up", precision=training.precision, trial=training.trial):
            asked = self.job.request(training.precision, training.trial)
            training.held_out = worker.ask("setup", **asked)["held_out"]
        recording = self._meter.recording
        try:
            for number in range(1, self.job.epochs + 1):
                self._experiment.show(f"epoch {number} of {which}")
                report = cast(EpochReport, worker.ask("epoch"))
                if recording is None:
                    training.spans.append(("", "", report))
                    continue
                if training.whole is None:
                    training.whole = recording.span_open("training", attributes=about, at_ns=report["start_ns"])
                training.spans.append((*self._record(training, number, report), report))
        finally:
            if recording is not None and training.whole is not None:
                recording.span_close(training.whole, at_ns=training.spans[-1][2]["end_ns"])

    def _record(self, training: _Training, number: int, report: EpochReport) -> tuple[str, str]:
        """The epoch and its training part as spans, and the losses beside them."""
        recording = self._meter.recording
        assert recording is not None
        about = {"precision": training.precision, "trial": training.trial, "epoch": number}
        epoch = recording.span_open("epoch", parent=training.whole, attributes=about, at_ns=report["start_ns"])
        part = recording.span_open("steps", parent=epoch, attributes=about, at_ns=report["start_ns"])
        for step in report["steps"]:
            recording.log({"loss": step["loss"]}, span=part, at_ns=step["end_ns"])
        recording.span_close(part, at_ns=report["trained_ns"])
        known = {
            "val_accuracy": report["val_accuracy"],
            "val_loss": report["val_loss"],
            "train_loss": report["train_loss"],
        }
        recording.log(known, span=epoch, at_ns=report["end_ns"])
        recording.span_close(epoch, at_ns=report["end_ns"], attributes=known)
        return epoch, part

    def result(self, run: Run | None) -> TrainResult:
        """Every training with its epochs, in the order in which they ran; ratios are to the first precision's."""
        found = [self._trained(one, run) for one in self._done]
        missing = [name for name in self.job.precisions if all(one.precision != name for one in found)]
        why = self._wrong or "interrupted first"
        found += [Trained(name, (), Energy.refuse("not trained"), failure=why) for name in missing]
        base = next((one for one in found if one.epochs and one.energy.joules), None)
        whole = tuple(_beside(one, base, found) for one in found)
        return TrainResult(self.job, whole, None if run is None else run.name)

    def _trained(self, training: _Training, run: Run | None) -> Trained:
        epochs = tuple(_epoch(training, n, spans, run) for n, spans in enumerate(training.spans, 1))
        energies = [epoch.energy for epoch in epochs]
        if not energies:
            energy = Energy.refuse(training.failure or "not trained")
        elif any(one.joules is None for one in energies):
            energy = next(one for one in energies if one.joules is None)
        else:
            energy = sum_energies(energies)
        why = emulated(training.precision, flags=cpu_flags()) if self.job.device in ("auto", "cpu") else None
        return Trained(
            training.precision,
            epochs,
            energy,
            None if run is None or training.whole is None else run.energy_net(training.whole),
            training.failure,
            training.cure,
            why,
            training.held_out,
            trial=training.trial,
            span=training.whole,
        )


def _epoch(of: _Training, number: int, spans: tuple[str, str, EpochReport], run: Run | None) -> Epoch:
    whole, part, report = spans
    if run is None:
        energy = training = Energy.refuse("nothing was recorded")
        joules: Sequence[float] = ()
    else:
        energy, training = run.energy(span=whole), run.energy(span=part)
        joules = _steps(run, report["steps"])
    seconds = (report["end_ns"] - report["start_ns"]) / 1e9
    return Epoch(
        number,
        seconds,
        len(report["steps"]),
        report["train_loss"],
        report["val_loss"],
        report["val_accuracy"],
        energy,
        training,
        tuple(joules),
        tuple(step["loss"] for step in report["steps"]),
        of.precision,
        of.trial,
    )


def _steps(run: Run, steps: Sequence[StepReport]) -> list[float]:
    """Joules of each step; none where the run is in several pieces."""
    if len(run.tapes) != 1:
        return []
    origin = run.tapes[0].extent_ns()[0]
    try:
        starts = [(step["start_ns"] - origin) / 1e9 for step in steps]
        found = run.energies(starts, [(step["end_ns"] - origin) / 1e9 for step in steps])
    except EverywattError:
        return []
    return [float(value) for value in found]


def _beside(one: Trained, base: Trained | None, found: Sequence[Trained]) -> Trained:
    """With its ratio to the first precision's training of the same block."""
    if base is None or one.precision == base.precision or one.energy.joules is None:
        return one
    pairs = [other for other in found if (other.precision, other.trial) == (base.precision, one.trial)]
    if not pairs or not pairs[0].energy.joules:
        return one
    try:
        return replace(one, ratio=one.energy.ratio(pairs[0].energy))
    except EverywattError:
        return one
