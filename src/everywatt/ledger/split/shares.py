"""Who gets what of one device: the values between the splitter and the book."""

from __future__ import annotations

from dataclasses import field

import numpy as np
import numpy.typing as npt

from everywatt.core.energy import Energy
from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.idle import Idle
from everywatt.ledger.owners import IDLE, METER, OTHER, UNATTRIBUTED, Owner

Floats = npt.NDArray[np.float64]

# Every list of owners begins with these four.
SPECIAL: tuple[Owner, ...] = (IDLE, METER, OTHER, UNATTRIBUTED)
IDLE_AT, METER_AT, OTHER_AT, NOBODY_AT = range(4)


@dataclass(frozen=True, slots=True)
class DeviceShares:
    """Joules of a device by owner (in the order of the owners of its tape) and by reason; idle's own are in `idle_j`.

    `paths_j` is the sum over stretches, `energy` the window's own integral. `owned_s` is each owner's part of the time
    that was shared, so that a watt more of idle is so many joules less for it. `unsure` is by
    how much the cost of a unit of use may differ between owners (95 %, relative), `doubt_j` what else is not sure of
    each owner's share, and `method` how the active joules were split. `occupancy` is which part of the CPUs each owner
    kept busy on average, None where the power of the device rises in proportion to that.
    `reasons` say why joules are unattributed.
    """

    label: str
    energy: Energy
    idle: Idle
    active_j: Floats
    held_j: Floats
    idle_j: Floats
    paths_j: float
    owned_s: Floats
    method: str
    unsure: float
    doubt_j: Floats
    occupancy: Floats | None = None
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TapeShares:
    """All devices of one tape, with the owners that their numbers stand for.

    `use` is what was measured of each owner by name (cpu_s, gpu_s, rss_bytes, …), NaN where it was not.
    """

    host: str
    owners: tuple[Owner, ...]
    devices: tuple[DeviceShares, ...]
    total: Energy
    use: dict[str, Floats] = field(default_factory=dict)
    details: dict[int, dict[str, object]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
