"""The summary of a run, as text."""

from machines import write_machine

import everywatt
from everywatt.api.run import Run
from everywatt.report.text import summary


def test_a_run_without_a_reading_inside_has_a_mean_and_no_extremes(tmp_path, monkeypatch):
    """As of a command of 20 ms beside the modelled sensor."""
    run = everywatt.load(write_machine(tmp_path / "box-0001.tape", {"gpu.0": [50.0] * 6}, seconds=6, gauges=["gpu.0"]))
    power = {"mean": 50.0, "sd": None, "min": None, "median": None, "max": None, "samples": 0}
    monkeypatch.setattr(Run, "devices", lambda self: {"gpu.0": {"power": power}})
    assert "50.00 W mean, 0 ticks" in "\n".join(summary(run))
