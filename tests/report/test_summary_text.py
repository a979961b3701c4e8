"""The summary of a run, as text."""

from machines import write_machine

import everywatt
from everywatt.api.run import Run
from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy
from everywatt.core.spans import Span
from everywatt.report.text import summary


def test_a_run_without_a_reading_inside_has_a_mean_and_no_extremes(tmp_path, monkeypatch):
    """As of a command of 20 ms beside the modelled sensor."""
    run = everywatt.load(write_machine(tmp_path / "box-0001.tape", {"gpu.0": [50.0] * 6}, seconds=6, gauges=["gpu.0"]))
    power = {"mean": 50.0, "sd": None, "min": None, "median": None, "max": None, "samples": 0}
    monkeypatch.setattr(Run, "devices", lambda self: {"gpu.0": {"power": power}})
    assert "50.00 W mean, 0 ticks" in "\n".join(summary(run))


def test_cpu_time_leads_where_energy_is_modelled(tmp_path, monkeypatch):
    run = everywatt.load(write_machine(tmp_path / "box-0001.tape", {"gpu.0": [50.0] * 6}, seconds=6, gauges=["gpu.0"]))
    span = Span("s", "run", 0, 6 * 10**9, None, {"role": "run", "cpu_s": 3.0})
    monkeypatch.setattr(Run, "spans", [span])
    measured = summary(run)
    modelled = Energy(6.0, Budget((Term("model", "m", 4.0),)), "machine", "modelled")
    monkeypatch.setattr(Run, "energy", lambda self, **asked: modelled)
    lines = summary(run)
    assert lines[0].startswith("cpu     3.00 s of CPU time in ") and lines[1].startswith(
        "energy  ≈ 6.0 J (2.0 … 10.0 J"
    )
    assert measured[0].startswith("energy"), "where it is measured, energy leads"
