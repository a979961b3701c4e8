"""The summary of a run, as text."""

from dataclasses import replace

from machines import write_machine

import everywatt
from everywatt.api.run import Run
from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy
from everywatt.core.spans import Span
from everywatt.ledger.owners import Entry, Owner, OwnerKind, Part
from everywatt.report.ledger_text import owner_amounts
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


def test_mean_power_has_the_digits_of_its_interval(tmp_path, monkeypatch):
    run = everywatt.load(write_machine(tmp_path / "box-0001.tape", {"gpu.0": [6.23] * 6}, seconds=6, gauges=["gpu.0"]))
    part = Energy(37.38, Budget((Term("model", "m", 16.0),)), "machine", "modelled")
    monkeypatch.setattr(Run, "energy", lambda self, **asked: replace(part, parts=(("gpu.0", part),)))
    text = "\n".join(summary(run))
    assert "gpu.0   37 J ± 16   6.2 W mean" in text and "mean 6.2 W" in text
    assert "6.23" not in text


def test_owners_have_the_digits_of_the_interval_of_their_sum(tmp_path):
    one, other = (
        Entry(
            Owner(OwnerKind.PROCESS, name, name),
            Energy(microjoules / 1e6, Budget((Term("model", "m", 10.0),))),
            {Part.ACTIVE: microjoules},
        )
        for name, microjoules in (("a", 28_211_400), ("b", 2_702_300))
    )
    assert owner_amounts([one, other], 5) == [("a", "28.2 J (18.2 … 38.3)"), ("b", " 2.7 J (0.0 … 12.8)")]
