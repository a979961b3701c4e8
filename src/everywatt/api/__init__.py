"""measure(), Meter, span(), log(), Run and load(): everywatt from Python.

`Run` and `load` are imported when they are first used: they need numpy, which recording does not.
"""

from typing import TYPE_CHECKING

from everywatt.api.measurement import Measurement, measure
from everywatt.api.meter import Meter, log, span

if TYPE_CHECKING:
    from everywatt.api.run import Run, load

__all__ = ["Measurement", "Meter", "Run", "load", "log", "measure", "span"]


def __getattr__(name: str) -> object:
    if name not in ("Run", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from everywatt.api import run

    value: object = getattr(run, name)
    globals()[name] = value
    return value
