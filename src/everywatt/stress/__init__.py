"""Load programs: what a machine is to be kept busy with, for how long, and what it really did.

    from everywatt.stress import Load, parse_shape, play, shaped

    program = shaped(Load(cpu_cores=2), {"": parse_shape("ramp:0..100")}, time_s=20)
    for result in play(program):
        print(result.asked["cpu_percent"], result.reached["cpu_percent"])

The names are imported when they are first used: a worker of this package is a small process.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from everywatt.stress.files import load_program
    from everywatt.stress.playing import play
    from everywatt.stress.program import KINDS, RESOURCES, Cpu, Gpu, Program, Step
    from everywatt.stress.results import StepResult
    from everywatt.stress.shapes import Load, Shape, latin_hypercube, parse_shape, shaped

__all__ = [
    "KINDS",
    "RESOURCES",
    "Cpu",
    "Gpu",
    "Load",
    "Program",
    "Shape",
    "Step",
    "StepResult",
    "latin_hypercube",
    "load_program",
    "parse_shape",
    "play",
    "shaped",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    for home in ("program", "shapes", "files", "results", "playing") if name in __all__ else ():
        module = import_module(f"{__name__}.{home}")
        if hasattr(module, name):
            return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
