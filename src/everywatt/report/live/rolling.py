"""Rolling averages of a power that is known in stretches, exact whatever the stretches' lengths.

For a time constant tau the average obeys a' = (p - a) / tau. Over a stretch of dt seconds with constant power p that
has the exact solution a + (p - a) (1 - exp(-dt / tau)), so the answer to a step is 1 - exp(-t / tau) for regular and
for irregular readings alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

CONSTANTS_S = (1.0, 5.0, 15.0)


@dataclass(slots=True)
class Rolling:
    """Averages over the time constants of `constants_s`; None until the first stretch, which they start from."""

    constants_s: tuple[float, ...] = CONSTANTS_S
    watts: list[float | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watts = self.watts or [None] * len(self.constants_s)

    def add(self, power_w: float, duration_s: float) -> None:
        """Power was `power_w` for `duration_s` seconds."""
        for index, (before, constant_s) in enumerate(zip(self.watts, self.constants_s, strict=True)):
            if before is None:
                self.watts[index] = power_w
            else:
                self.watts[index] = before - (power_w - before) * math.expm1(-duration_s / constant_s)
