"""measure(), Meter, span(), log(), Run and load(): everywatt from Python.

Names are imported when they are first used: a program that only may measure need not load what records, and what
records does not load numpy, which a finished run needs.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everywatt.api.measurement import Measurement, measure
    from everywatt.api.meter import Meter, log, span
    from everywatt.api.run import Run, load

__all__ = ["Measurement", "Meter", "Run", "load", "log", "measure", "span"]

_HOMES = {
    **dict.fromkeys(("Measurement", "measure"), "everywatt.api.measurement"),
    **dict.fromkeys(("Meter", "log", "span"), "everywatt.api.meter"),
    **dict.fromkeys(("Run", "load"), "everywatt.api.run"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
