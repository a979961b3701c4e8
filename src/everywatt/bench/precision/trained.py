"""What came of a training: its epochs with energy, losses and accuracy; and of several, which precision is cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everywatt.bench.candidates import Candidate
from everywatt.bench.figures import Figures, figures
from everywatt.bench.trials import Trial
from everywatt.core.energy import Energy, Ratio, sum_energies
from everywatt.core.stats import wilson


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
    """One training of one precision: its epochs, which fill it from its start to its end."""

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
            "trial": self.trial,
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


def compared(precisions: Sequence[str], found: Sequence[Trained]) -> list[Figures]:
    """Every precision beside the first one over all its trainings; a block is one training of each.

    Empty where there was one training each: how much trainings vary is then not known.
    """
    if max((one.trial for one in found), default=1) < 2:
        return []
    candidates = [Candidate(index, name, name, ()) for index, name in enumerate(precisions)]
    trials = [
        Trial(
            precisions.index(one.precision),
            one.trial - 1,
            place,
            one.span,
            0 if one.failure is None else 1,
            one.seconds,
            0.0,
            None,
            energy=one.energy,
            net=one.net,
        )
        for place, one in enumerate(found)
    ]
    return figures(candidates, trials, anytime=False)
