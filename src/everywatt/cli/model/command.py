"""`everywatt model WHAT`: learn power from use, each step a module that is imported when it is called."""

from __future__ import annotations

from everywatt.cli.common.parts import parts

STEPS: dict[str, tuple[str, str]] = {
    "collect": ("everywatt.cli.model.collect", "Make load on purpose and record everything: rows to learn from."),
    "explore": ("everywatt.cli.model.explore", "Say which column moves with power at all, and with which delay."),
    "fit": ("everywatt.cli.model.fit", "Learn power from use, with every model's error on rows it had not seen."),
    "evaluate": ("everywatt.cli.model.evaluate", "Say how far off a model is on a table with the truth."),
    "explain": ("everywatt.cli.model.explain", "Say what moves a model's watts, and by how much."),
    "predict": ("everywatt.cli.model.predict", "Watts of a table with their interval, as CSV."),
    "show": ("everywatt.cli.model.show", "Show a model file: what it needs, where it holds, how far off it is."),
    "install": ("everywatt.cli.model.install", "Use a model as a sensor from now on, also on another machine."),
}

command = parts("model", "Learn power from what a machine does, and estimate it where no sensor is.", STEPS)
