"""measure(), Meter, span(), log(), Run and load(): everywatt from Python."""

from everywatt.api.measurement import Measurement, measure
from everywatt.api.meter import Meter, log, span
from everywatt.api.run import Run, load

__all__ = ["Measurement", "Meter", "Run", "load", "log", "measure", "span"]
