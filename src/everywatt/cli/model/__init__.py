"""`everywatt model WHAT`: learn power from use, each step a module that is imported when it is called."""

from __future__ import annotations

from everywatt.cli.common.group import parts

STEPS: dict[str, tuple[str, str]] = {
    "collect": ("everywatt.cli.model.collect", "Generate varied load and record everything as training data."),
    "explore": ("everywatt.cli.model.fit:explore_columns", "Show which columns move with power, and with what delay."),
    "fit": ("everywatt.cli.model.fit", "Fit models of power and report their errors on held-out rows."),
    "evaluate": ("everywatt.cli.model.evaluate", "Report a model's errors on a table with known power."),
    "explain": ("everywatt.cli.model.evaluate:explain", "Show how much each input moves a model's watts."),
    "predict": ("everywatt.cli.model.evaluate:predict", "Predict the watts of a table, with intervals, as CSV."),
    "show": ("everywatt.cli.model.evaluate:show", "Show a model file: its inputs, valid ranges and errors."),
    "install": ("everywatt.cli.model.install", "Use a model as a sensor from now on, also on another machine."),
}

command = parts("model", "Fit power models, and estimate power where there is no sensor.", STEPS)
