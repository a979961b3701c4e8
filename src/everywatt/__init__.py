"""Every watt has an owner: what a piece of computing cost in energy, and how sure you can be of it.

    import everywatt

    with everywatt.measure("training") as m:
        train()
    print(m.energy)

The public names are imported when they are first used, so that `import everywatt` itself loads nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

# Where public names live; those that are not here are errors.
_HOMES = {
    "measure": "everywatt.api.measurement",
    **dict.fromkeys(("Meter", "log", "span"), "everywatt.api.meter"),
    **dict.fromkeys(("Run", "load"), "everywatt.api.run"),
    "Energy": "everywatt.core.energy",
    "Span": "everywatt.core.spans",
    "load_ipython_extension": "everywatt.integrations.jupyter",
}

# `typing` costs a third of Python's own start; type checkers know this name without it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from everywatt.api.measurement import measure
    from everywatt.api.meter import Meter, log, span
    from everywatt.api.run import Run, load
    from everywatt.core.energy import Energy
    from everywatt.core.errors import (
        ConfigError,
        EverywattError,
        MeasurementRefused,
        MissingExtra,
        NetworkError,
        NoSensor,
        NotATape,
        RecorderError,
        RunExists,
        RunNotFound,
        ScopeError,
        SensorError,
        SimError,
        TapeDamaged,
        TapeError,
        TapeTooNew,
        UsageError,
    )
    from everywatt.core.spans import Span

__all__ = [
    "ConfigError",
    "Energy",
    "EverywattError",
    "MeasurementRefused",
    "Meter",
    "MissingExtra",
    "NetworkError",
    "NoSensor",
    "NotATape",
    "RecorderError",
    "Run",
    "RunExists",
    "RunNotFound",
    "ScopeError",
    "SensorError",
    "SimError",
    "Span",
    "TapeDamaged",
    "TapeError",
    "TapeTooNew",
    "UsageError",
    "__version__",
    "load",
    "log",
    "measure",
    "span",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name, "everywatt.core.errors")
    if name not in _HOMES and name not in __all__:
        raise AttributeError(f"module 'everywatt' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
