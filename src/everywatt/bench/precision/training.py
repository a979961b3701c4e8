"""Energy of a training: epoch by epoch and step by step, fp32 beside autocast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.bench.experiment import Experiment, Show
from everywatt.bench.figures import Figures, figures, quantity
from everywatt.bench.precision.computed import cpu_flags, emulated
from everywatt.bench.precision.plan import DEFAULT_MODEL, EpochReport, StepReport, check_model
from everywatt.bench.precision.variants import Worker, WorkerFailed, load_data_without_torch
from everywatt.bench.trials import Candidate, Trial
from everywatt.core.energy import Energy, Ratio, sum_energies
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_rounded
from everywatt.core.jsonio import ToDict, declared
from everywatt.core.stats import wilson
from everywatt.core.tables import Cell, Column, Quantity, Table, columns_of, csv_of
from everywatt.recorder.client import Recording

CPU = Column("CPU time", "s")
TRAINING = columns_of("energy [J], time [s], steps [], energy / step [J], train loss [], val loss [], val accuracy [%]")
MEANS = columns_of("precision, runs [], mean energy [J], time [s]")
COLUMNS = (
    "precision trial epoch=number energy_j=energy.joules energy_low_j=energy.low energy_high_j=energy.high seconds "
    "cpu_s steps energy_per_step_j=per_step.joules train_loss=report.train_loss val_loss=report.val_loss "
    "val_accuracy=report.val_accuracy"
)


NOT_RECORDED = Energy.refuse("nothing was recorded")


def _loss(value: float) -> str:
    return f"{value:.4f}"  # as training logs have it: losses are compared digit by digit


@dataclass(frozen=True, slots=True)
class Epoch(ToDict):
    """One epoch: from its start to the start of the next, validation included; `training` is the energy of its steps.

    `spans` are those of the epoch and of its steps on the tape, from which `measured` takes the energies.
    """

    JSON = (
        "epoch=number seconds cpu_s steps train_loss=report.train_loss val_loss=report.val_loss "
        "val_accuracy=report.val_accuracy energy energy_per_step=per_step step_joules losses"
    )

    precision: str
    trial: int
    number: int
    report: EpochReport
    spans: tuple[str, str] | None = None
    energy: Energy = NOT_RECORDED
    training: Energy = NOT_RECORDED
    step_joules: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        return (self.report["end_ns"] - self.report["start_ns"]) / 1e9

    @property
    def cpu_s(self) -> float:
        return self.report["cpu_s"]

    @property
    def steps(self) -> int:
        return len(self.report["steps"])

    @property
    def losses(self) -> list[float]:
        return [step["loss"] for step in self.report["steps"]]

    def measured(self, run: Run | None) -> Epoch:
        if run is None or self.spans is None:
            return self
        energy, training = (run.energy(span=span) for span in self.spans)
        return replace(self, energy=energy, training=training, step_joules=tuple(_steps(run, self.report["steps"])))

    @property
    def per_step(self) -> Energy:
        """Mean energy of a step of this epoch, validation not included."""
        return self.training if self.training.joules is None else self.training / self.steps

    def row(self, cpu: bool) -> list[Cell]:
        return [
            *(self.precision, self.number),
            *([self.cpu_s] if cpu else []),
            *(self.energy, self.seconds, self.steps, self.per_step),
            *(_loss(self.report["train_loss"]), _loss(self.report["val_loss"]), self.report["val_accuracy"]),
        ]


@dataclass(frozen=True, slots=True)
class Trained(ToDict):
    """One training of one precision: its epochs, which fill it from its start to its end."""

    JSON = "precision trial failure cure emulated seconds cpu_s energy energy_per_step=per_step ratio accuracy epochs"

    precision: str
    trial: int = 1
    epochs: tuple[Epoch, ...] = ()
    span: str | None = None
    held_out: int = 0
    failure: str | None = None
    cure: str | None = None
    emulated: str | None = None
    net: Energy | None = None
    ratio: Ratio | None = None

    @property
    def energy(self) -> Energy:
        """The energy of all epochs; refused where one of them has none."""
        energies = [epoch.energy for epoch in self.epochs]
        if not energies:
            return Energy.refuse(self.failure or "not trained")
        return next((one for one in energies if one.joules is None), None) or sum_energies(energies)

    @property
    def seconds(self) -> float:
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def cpu_s(self) -> float | None:
        """CPU time of all epochs; None where there are none."""
        return sum(epoch.cpu_s for epoch in self.epochs) if self.epochs else None

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
        right = round(self.epochs[-1].report["val_accuracy"] * self.held_out)
        return Ratio(right / self.held_out, *wilson(right, self.held_out))

    def row(self, *, several: bool, cpu: bool) -> list[Cell]:
        known, last = self.accuracy, self.epochs[-1].report
        losses: list[Cell] = [_loss(last["train_loss"]), _loss(last["val_loss"])] if several else ["", ""]
        return [
            *(self.precision, str(self.trial) if several else "all", *([self.cpu_s] if cpu else [])),
            *(self.energy, self.seconds),
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
    def modelled(self) -> bool:
        """Whether an energy is estimated from CPU time, which then leads."""
        return any(one.energy.pedigree == "modelled" for one in self.trained)

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
                *(0, one.seconds, one.cpu_s or 0.0, None),
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
                first = self.trained[0]
                if self.modelled and one.cpu_s and first.cpu_s:
                    share = format_rounded("", 0.0, one.cpu_s / first.cpu_s)
                    lines.append(f"{one.precision}: {share} of the CPU time of {first.precision}")
                modelled = "" if one.energy.measured else " (modelled)"
                lines.append(f"{one.precision}: {one.ratio} of the energy of {first.precision}{modelled}")
            if one.emulated is not None:
                lines.append(f"{one.precision}: {one.emulated}")
        return list(dict.fromkeys(lines))

    def verdicts(self) -> list[str]:
        """A sentence for each precision beside the first; none where there was one training each."""
        return [line for one in self.beside[1:] for line in one.verdicts(self.job.precisions[0])]

    def tables(self) -> list[Table]:
        """A row for each epoch and training, or where there are several trainings one for each, and their means."""
        beside, cpu = self.beside, self.modelled
        rows: list[list[Cell]] = []
        for one in self.trained:
            rows += [] if beside else [epoch.row(cpu) for epoch in one.epochs]
            rows += [one.row(several=bool(beside), cpu=cpu)] if one.epochs else []
        which = Column("trial" if beside else "epoch", "")
        notes = [*self.remarks(), *self.verdicts()]
        lead = [CPU] if cpu else []
        found = [Table.of("precision", which, *lead, *TRAINING, rows=rows, notes=notes)]
        if beside:
            means = [
                [
                    *(one.candidate.label, len(one.trials), *([quantity(one.cpu_s, "s")] if cpu else [])),
                    *(one.energy_cell, one.seconds.time),
                ]
                for one in beside
            ]
            found.append(Table.of(*MEANS[:2], *lead, *MEANS[2:], rows=means))
        return found

    def to_csv(self) -> str:
        return csv_of(COLUMNS, [epoch for one in self.trained for epoch in one.epochs])

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "job": self.job.request(""),
            "trained": [one.to_dict() for one in self.trained],
            "compared": [one.to_dict() for one in self.beside],
            "order": [one.precision for one in self.trained if one.epochs],
        }


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
        self._done: list[Trained] = []
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
        self._done.append(Trained(precision, block + 1))
        worker = self._worker()
        try:
            self._train(worker)
        except WorkerFailed as error:
            self._now(failure=error.reason, cure=error.cure)
            self._wrong = error.reason if error.usage else None
        finally:
            worker.close()

    def _now(self, **more: Any) -> Trained:
        """The training that runs, with what became known of it."""
        self._done[-1] = replace(self._done[-1], **more)
        return self._done[-1]

    def _train(self, worker: Worker) -> None:
        one = self._done[-1]
        which = one.precision + (f", trial {one.trial}" if self.job.trials > 1 else "")
        about: dict[str, Any] = {"precision": one.precision, "trial": one.trial}
        self._experiment.show(f"set-up of {which}")
        with self._meter.span("set-up", **about):
            self._now(held_out=worker.ask("setup", **self.job.request(one.precision, one.trial))["held_out"])
        recording = self._meter.recording
        try:
            for number in range(1, self.job.epochs + 1):
                self._experiment.show(f"epoch {number} of {which}")
                report = cast(EpochReport, worker.ask("epoch"))
                if recording is not None and one.span is None:
                    whole = recording.span_open("training", attributes=about, at_ns=report["start_ns"])
                    one = self._now(span=whole)
                epoch = Epoch(one.precision, one.trial, number, report)
                spans = None if recording is None else _record(recording, one.span, epoch)
                one = self._now(epochs=(*one.epochs, replace(epoch, spans=spans)))
        finally:
            if recording is not None and one.span is not None:
                recording.span_close(one.span, at_ns=one.epochs[-1].report["end_ns"])

    def result(self, run: Run | None) -> TrainResult:
        """Every training with its epochs, in the order in which they ran; ratios are to the first precision's."""
        found = [self._measured(one, run) for one in self._done]
        missing = [name for name in self.job.precisions if all(one.precision != name for one in found)]
        found += [Trained(name, failure=self._wrong or "interrupted first") for name in missing]
        base = next((one for one in found if one.epochs and one.energy.joules), None)
        whole = tuple(_beside(one, base, found) for one in found)
        return TrainResult(self.job, whole, None if run is None else run.name)

    def _measured(self, one: Trained, run: Run | None) -> Trained:
        return replace(
            one,
            epochs=tuple(epoch.measured(run) for epoch in one.epochs),
            net=None if run is None or one.span is None else run.energy_net(one.span),
            emulated=emulated(one.precision, flags=cpu_flags()) if self.job.device in ("auto", "cpu") else None,
        )


def _record(recording: Recording, parent: str | None, epoch: Epoch) -> tuple[str, str]:
    """The epoch and its steps as spans, and the losses beside them."""
    report = epoch.report
    about = {"precision": epoch.precision, "trial": epoch.trial, "epoch": epoch.number}
    whole = recording.span_open("epoch", parent=parent, attributes=about, at_ns=report["start_ns"])
    part = recording.span_open("steps", parent=whole, attributes=about, at_ns=report["start_ns"])
    for step in report["steps"]:
        recording.log({"loss": step["loss"]}, span=part, at_ns=step["end_ns"])
    recording.span_close(part, at_ns=report["trained_ns"])
    known = declared(report, "val_accuracy val_loss train_loss")
    recording.log(known, span=whole, at_ns=report["end_ns"])
    recording.span_close(whole, at_ns=report["end_ns"], attributes=known)
    return whole, part


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
