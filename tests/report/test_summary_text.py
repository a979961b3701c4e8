"""The summary of a run, as text."""

from dataclasses import replace

import pytest
from machines import write_machine
from tapes import counter_group, gauge_group, rows, write_tape

import everywatt
from everywatt.api.run import Run
from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.energy import Energy
from everywatt.core.spans import Point, Span
from everywatt.ledger.owners import Entry, Owner, OwnerKind, Part
from everywatt.ledger.text import LedgerReport, owner_amounts
from everywatt.report.text import RunList, RunReport, RunSums, Why, causes, summary


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


@pytest.mark.parametrize(
    ("roles", "cpu"),
    [
        ((("idle", None), ("trial", 1.0), ("trial", 2.0)), "3.00 s"),
        ((("run", None), ("item", 1.0), ("item", 0.5), ("item", 1.5)), "3.00 s"),
        ((("run", None), ("item", 1.0), ("item", None)), None),  # one that is not known would be missing
    ],
)
def test_cpu_time_of_trials_and_items_leads_where_energy_is_modelled(tmp_path, monkeypatch, roles, cpu):
    run = everywatt.load(write_machine(tmp_path / "box-0001.tape", {"gpu.0": [50.0] * 6}, seconds=6, gauges=["gpu.0"]))
    spans = [
        Span(str(n), role, 0, 6 * 10**9, "0" if role == "item" else None, {"role": role, "cpu_s": cpu_s})
        for n, (role, cpu_s) in enumerate(roles)
    ]
    monkeypatch.setattr(Run, "spans", spans)
    modelled = Energy(6.0, Budget((Term("model", "m", 4.0),)), "machine", "modelled")
    monkeypatch.setattr(Run, "energy", lambda self, *_, **asked: modelled)
    assert summary(run)[0].startswith("energy" if cpu is None else f"cpu     {cpu} of CPU time in ")


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


@pytest.fixture
def partly(tmp_path):
    """40 W of a package for 10 s, beside a card that gave no reading."""
    groups = [(counter_group(), 0.1, rows(lambda t: 40 * t, 0, 10, 0.1)), (gauge_group(), 0.1, [])]
    return everywatt.load(write_tape(tmp_path / "box-0001.tape", groups, [("run", 0, 10, None, {"role": "run"})]))


def test_mean_power_is_that_of_the_devices_with_a_figure(partly):
    assert "mean 40.00 W of the observed time" in "\n".join(summary(partly))


def test_lists_say_where_a_figure_does_not_cover_the_run(partly):
    assert "400.0 J (coverage 50.0 %)" in RunList(partly.path, [(partly, partly.energy())]).tables()[0].text()
    assert "400.0 J (coverage 50.0 %)" in RunSums([("a=b", [partly])]).tables()[0].text()


def test_spans_that_did_not_end_have_no_duration(tmp_path):
    groups = [(counter_group(), 0.1, rows(lambda t: 40 * t, 0, 10, 0.1))]
    spans = [("run", 0, 10, None, {"role": "run"}), ("open", 4, None, "s0", {}), ("step", 1, 2, "s0", {})]
    run = everywatt.load(write_tape(tmp_path / "x.tape", groups, [*spans, ("step", 5, None, "s0", {})]))
    text = "\n".join(summary(run))
    assert "open: 240.0 J, not ended" in text
    assert "step ×2: 240.0 J in 1.00 s, 1 of them not ended" in text


def test_what_holds_for_several_devices_is_one_line(tmp_path):
    watts = {name: [50.0] * 6 for name in ("cpu.0", "gpu.0", "gpu.1")}
    run = everywatt.load(write_machine(tmp_path / "box-0001.tape", watts, seconds=6))
    reason = "the gain and offset of this sensor are unknown; the interval covers sampling only"
    assert f"  ! cpu.0, gpu.0, gpu.1: {reason}" in summary(run)
    assert f"! cpu.0, gpu.0, gpu.1: {reason}" in Why("x", run.energy(), []).tables()[1].notes
    assert "! gpu.0, gpu.1: no process on it was recorded" in LedgerReport("x", run.ledger()).tables()[1].notes


def test_a_cure_that_would_not_help_is_not_given():
    energy = Energy(100.0, Budget((Term("edges", "e", 1.0), Term("gain", "g", 30.0))))
    cures = {cause.source: cause.cure for cause in causes(energy, 10.0)}
    assert cures["edges"] == "" and "calibrate" in cures["gain"]


def test_a_longer_recording_does_not_help_against_what_is_missed_all_the_time():
    """A load in step with a part-time sensor looks the same however long it is recorded; a beat averages out."""
    edges, alias = Term("edges", "e", 5.0), Bound("aliasing", "a", 30.0, 50.0)
    stays, averages = (
        Energy(100.0, Budget((edges,), (alias,))),
        Energy(100.0, Budget((edges, Term("aliasing", "b", 30.0)))),
    )
    found = [{cause.source: cause.cure for cause in causes(one, 10.0)}["aliasing"] for one in (stays, averages)]
    assert "a longer recording does not narrow it" in found[0] and "ten times" not in found[0]
    assert found[1].startswith("measure ten times as long (100 s): ± 1")


def test_logged_values_have_the_digits_that_people_read(tmp_path, monkeypatch):
    run = everywatt.load(write_machine(tmp_path / "box-0001.tape", {"gpu.0": [50.0] * 6}, seconds=6, gauges=["gpu.0"]))
    logged = {"loss": 0.684697687625885, "lr": 3e-05, "step": 1234567, "whole": 2.0}
    at_ns = run.tapes[0].extent_ns()[0]
    points = [Point(at_ns, name, value) for name, value in logged.items()]
    monkeypatch.setattr(Run, "points", points)
    (table,) = RunReport(run).tables()
    said = [line.split(" at ")[0] for line in table.text().splitlines() if "  point " in line]
    assert said == [
        "  point   loss = 0.684698",
        "  point   lr = 3e-05",
        "  point   step = 1234567",
        "  point   whole = 2.0",
    ]
