"""A run as numbers, labels and a curve, against a card of 100 W."""

import json
import time

import pytest
from truths import holds

from everywatt.api.measurement import measure
from everywatt.api.meter import Meter
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.integrations import _summary


@pytest.fixture
def measured(card):
    with Meter("summary", tags={"project": "alpha"}) as meter:
        with meter.span("first"):
            time.sleep(0.4)  # the work that is measured
        meter.log(loss=0.25)
        time.sleep(0.4)  # the work that is measured
    return meter


def test_metrics_are_the_figures_of_the_run(measured):
    run = measured.run
    found = _summary.metrics(run)
    assert found["energy_joules"] == run.energy().joules
    assert holds(run.energy(), 100 * run.duration_s), "a card of 100 W"
    assert found["energy_low"] == run.energy().low and found["energy_high"] == run.energy().high
    assert found["energy_joules.gpu.0"] == found["energy_joules"]
    assert found["energy_joules.span.first"] == run.energy(span="first").joules
    assert found["duration_s"] == run.duration_s and 0.99 <= found["energy_coverage"] <= 1
    assert "energy_net_joules" not in found, "refused: the run is too short for a baseline"


def test_labels_say_what_the_figures_cover(measured):
    found = _summary.labels(measured.run)
    assert found["scope"] == "gpu" and found["pedigree"] == "counter"
    assert found["tag.project"] == "alpha" and found["run"].endswith("-summary")
    assert found["energy"] == str(measured.run.energy())
    assert "the idle power of gpu.0 is not known" in found["net_refused"] and "refused" not in found


def test_a_refused_run_has_no_joules_and_a_reason(sim_machine, monkeypatch, tmp_path):
    lab = sim_machine()
    for name in ("EVERYWATT_SYS", "EVERYWATT_RUNTIME_DIR"):
        monkeypatch.setenv(name, lab.environment()[name])
    with Meter("nothing", home=tmp_path, estimate=False) as meter:
        time.sleep(0.2)  # the work that is measured
    assert meter.energy.joules is None
    assert [name for name in _summary.metrics(meter.run) if name.startswith("energy")] == []
    assert _summary.labels(meter.run)["refused"] == meter.energy.refused
    assert _summary.power_curve(meter.run, 10) == []


@pytest.mark.parametrize("most", [0, 1, 3, 1000])
def test_the_curve_is_bounded_and_holds_the_power(measured, most):
    run = measured.run
    points = _summary.power_curve(run, most)
    assert len(points) <= min(most, 100) and (most == 0 or points)
    seconds = [point.seconds for point in points]
    assert seconds == sorted(seconds)
    if points:
        low, high = run.tapes[0].extent_ns()
        total = run.energies([0.0], [(high - low) / 1e9])[0]
        assert sum(p.watts for p in points) / len(points) == pytest.approx(total / ((high - low) / 1e9), rel=1e-6)


def test_a_curve_of_less_than_nothing_is_refused(measured):
    with pytest.raises(UsageError):
        _summary.power_curve(measured.run, -1)


def test_the_file_is_the_run_as_json_or_its_tape(measured):
    with _summary.artefacts(measured.run, "json") as files:
        data = json.loads(files[0].read_text())
    assert data["schema"] == "everywatt/1" and data["energy"]["joules"] == measured.run.energy().joules
    assert [(p["name"], p["value"]) for p in data["points"]] == [("loss", 0.25)]
    with _summary.artefacts(measured.run, "tape") as files:
        assert [file.suffix for file in files] == [".tape"] and files[0].exists()
    with _summary.artefacts(measured.run, None) as files:
        assert files == []
    with pytest.raises(UsageError, match="pdf"), _summary.artefacts(measured.run, "pdf"):
        pass


def test_a_run_that_was_not_kept_has_no_tape_to_give(card):
    with measure("gone", save=False) as m:
        time.sleep(0.2)  # the work that is measured
    with pytest.raises(UsageError, match="not kept"), _summary.artefacts(m.run, "tape"):
        pass
    with _summary.artefacts(m.run, "json") as files:
        assert files[0].exists()


def test_a_meter_a_measurement_and_a_run_are_all_taken(measured):
    assert _summary.as_run(measured) is measured.run and _summary.as_run(measured.run) is measured.run
    with pytest.raises(MeasurementRefused):
        _summary.as_run(Meter("never started"))
