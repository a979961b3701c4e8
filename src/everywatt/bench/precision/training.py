"""Energy of a training: epoch by epoch and step by step, fp32 beside autocast."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.bench.precision.computed import cpu_flags, emulated
from everywatt.bench.precision.quality import wilson
from everywatt.bench.precision.workers import Worker, WorkerFailed
from everywatt.core.energy import Energy, Ratio
from everywatt.core.errors import EverywattError, UsageError

MODULE = "everywatt.bench.precision.train_worker"
PRECISIONS = ("fp32", "bf16", "fp16")
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainJob:
    """What to train, and how. `precisions`: fp32, or autocast to bf16 or fp16 with weights in fp32."""

    model: str = "minilm"
    data: str = "sst2"
    precisions: tuple[str, ...] = ("fp32", "bf16")
    epochs: int = 2
    batch_size: int = 16
    lr: float = 5e-5
    limit: int | None = None
    entry: str | None = None
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [one for one in self.precisions if one not in PRECISIONS]
        if unknown or not self.precisions:
            raise UsageError(f"'{', '.join(unknown)}' is not one of {', '.join(PRECISIONS)}, which can be trained in.")

    def told(self, precision: str) -> dict[str, Any]:
        """What a worker gets."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "precisions"}
        return {**fields, "precision": precision}


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch: from its start to the start of the next, validation included."""

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

    @property
    def per_step(self) -> Energy:
        """Mean energy of a step of this epoch, validation not included."""
        return self.training if self.training.joules is None else self.training / self.steps

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "epoch": self.number,
            "seconds": self.seconds,
            "steps": self.steps,
            "train_loss": self.train_loss,
            "val_loss": self.val_loss,
            "val_accuracy": self.val_accuracy,
            "energy": self.energy.to_dict(),
            "energy_per_step": self.per_step.to_dict(),
            "step_joules": list(self.step_joules),
            "losses": list(self.losses),
        }


@dataclass(frozen=True, slots=True)
class Trained:
    """One precision: its epochs, which fill the training from its start to its end."""

    precision: str
    epochs: tuple[Epoch, ...]
    energy: Energy
    failure: str | None = None
    cure: str | None = None
    emulated: str | None = None
    held_out: int = 0
    ratio: Ratio | None = None

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
        return reduce(add, parts) / steps

    @property
    def accuracy(self) -> tuple[float, float, float] | None:
        """After the last epoch, with Wilson's interval."""
        if not self.epochs or not self.held_out:
            return None
        right = round(self.epochs[-1].val_accuracy * self.held_out)
        return right / self.held_out, *wilson(right, self.held_out)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        known = self.accuracy
        step = self.per_step
        return {
            "precision": self.precision,
            "failure": self.failure,
            "cure": self.cure,
            "emulated": self.emulated,
            "seconds": self.seconds,
            "energy": self.energy.to_dict(),
            "energy_per_step": None if step is None else step.to_dict(),
            "ratio": None if self.ratio is None else self.ratio.to_dict(),
            "accuracy": None if known is None else dict(zip(("value", "low", "high"), known, strict=True)),
            "epochs": [epoch.to_dict() for epoch in self.epochs],
        }


@dataclass(slots=True)
class _Arm:
    precision: str
    spans: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    whole: str | None = None
    told: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    cure: str | None = None


class TrainLab:
    """Trains one precision after the other in a recording that the caller opened."""

    def __init__(self, job: TrainJob, meter: Meter, show: Show | None = None) -> None:
        self.job = job
        self._meter = meter
        self._show = show or (lambda text: None)
        self._arms = [_Arm(precision) for precision in job.precisions]
        self.interrupted = True

    def work(self, idle_s: float = 2.0) -> None:
        """Train. KeyboardInterrupt passes through; epochs that are done are kept."""
        with self._meter.span("idle", role="idle"):
            time.sleep(idle_s)
        for arm in self._arms:
            worker = Worker(module=MODULE)
            try:
                self._train(arm, worker)
            except WorkerFailed as error:
                arm.failure, arm.cure = error.reason, error.cure
            finally:
                worker.close()
        self.interrupted = False

    def _train(self, arm: _Arm, worker: Worker) -> None:
        self._show(f"set-up of {arm.precision}")
        with self._meter.span("set-up", precision=arm.precision):
            arm.told = worker.ask("setup", **self.job.told(arm.precision))
        recording = self._meter.recording
        ends: list[int] = []
        for number in range(1, self.job.epochs + 1):
            self._show(f"epoch {number} of {arm.precision}")
            told = worker.ask("epoch")
            if recording is None:
                arm.spans.append(("", "", told))
                continue
            if arm.whole is None:
                about = {"precision": arm.precision}
                arm.whole = recording.span_open("training", attributes=about, at_ns=told["start_ns"])
            arm.spans.append((*self._record(arm, number, told), told))
            ends.append(told["end_ns"])
        if recording is not None and arm.whole is not None:
            recording.span_close(arm.whole, at_ns=ends[-1])

    def _record(self, arm: _Arm, number: int, told: Mapping[str, Any]) -> tuple[str, str]:
        """The epoch and its training part as spans, and the losses beside them."""
        recording = self._meter.recording
        assert recording is not None
        about = {"precision": arm.precision, "epoch": number}
        epoch = recording.span_open("epoch", parent=arm.whole, attributes=about, at_ns=told["start_ns"])
        part = recording.span_open("steps", parent=epoch, attributes=about, at_ns=told["start_ns"])
        for step in told["steps"]:
            recording.log({"loss": step["loss"]}, span=part, at_ns=step["end_ns"])
        recording.span_close(part, at_ns=told["trained_ns"])
        known = {"val_accuracy": told["val_accuracy"], "val_loss": told["val_loss"], "train_loss": told["train_loss"]}
        recording.log(known, span=epoch, at_ns=told["end_ns"])
        recording.span_close(epoch, at_ns=told["end_ns"], attributes=known)
        return epoch, part

    def result(self, run: Run | None) -> list[Trained]:
        """Every precision with its epochs; ratios are to the first one that was trained."""
        found = [self._trained(arm, run) for arm in self._arms]
        first = next((one for one in found if one.epochs and one.energy.joules), None)
        return [_beside(one, first) for one in found]

    def _trained(self, arm: _Arm, run: Run | None) -> Trained:
        epochs = tuple(_epoch(n, spans, run) for n, spans in enumerate(arm.spans, 1))
        energies = [epoch.energy for epoch in epochs]
        if not energies:
            energy = Energy.refuse(arm.failure or "not trained")
        elif any(one.joules is None for one in energies):
            energy = next(one for one in energies if one.joules is None)
        else:
            energy = reduce(add, energies)
        why = emulated(arm.precision, flags=cpu_flags()) if self.job.device in ("auto", "cpu") else None
        held = int(arm.told.get("held_out", 0))
        return Trained(arm.precision, epochs, energy, arm.failure, arm.cure, why, held)


def _epoch(number: int, spans: tuple[str, str, dict[str, Any]], run: Run | None) -> Epoch:
    whole, part, told = spans
    if run is None:
        energy = training = Energy.refuse("there is no recording")
        joules: Sequence[float] = ()
    else:
        energy, training = run.energy(span=whole), run.energy(span=part)
        joules = _steps(run, told["steps"])
    seconds = (told["end_ns"] - told["start_ns"]) / 1e9
    return Epoch(
        number,
        seconds,
        len(told["steps"]),
        told["train_loss"],
        told["val_loss"],
        told["val_accuracy"],
        energy,
        training,
        tuple(joules),
        tuple(step["loss"] for step in told["steps"]),
    )


def _steps(run: Run, steps: Sequence[Mapping[str, Any]]) -> list[float]:
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


def _beside(one: Trained, first: Trained | None) -> Trained:
    if first is None or one is first or one.energy.joules is None:
        return one
    try:
        return replace(one, ratio=one.energy.ratio(first.energy))
    except EverywattError:
        return one
