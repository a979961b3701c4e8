"""The real MLflow with a local store: what went in is read back from the store."""

import importlib.util
import json
import time
from pathlib import Path

import pytest
from truths import holds

from everywatt.api.meter import Meter
from everywatt.core.errors import UsageError

pytestmark = pytest.mark.ml
# The slim package has no database; the whole one has. Files are still taken by both when they are asked to.
STORES = ["file", *(["sqlite"] if importlib.util.find_spec("sqlalchemy") else [])]


@pytest.fixture(params=STORES)
def mlflow(request, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    import mlflow

    place = tmp_path / "store"
    place.mkdir()
    uri = place.as_uri() if request.param == "file" else f"sqlite:///{place}/mlflow.db"
    # By variables and not by calls, which would stay set for the tests that follow and their children.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    number = mlflow.MlflowClient().create_experiment("energy", artifact_location=(tmp_path / "artefacts").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", number)
    yield mlflow
    while mlflow.active_run() is not None:
        mlflow.end_run()


@pytest.fixture
def measured(card):
    with Meter("mlflow", tags={"project": "alpha"}) as meter, meter.span("work"):
        time.sleep(0.8)  # the work that is measured
    return meter.run


def test_a_run_in_the_store_has_the_figures(mlflow, measured):
    from everywatt.integrations.mlflow import log_run

    with mlflow.start_run() as active:
        log_run(measured, curve_points=5)
    stored = mlflow.MlflowClient().get_run(active.info.run_id)
    metrics, energy = stored.data.metrics, measured.energy()
    assert metrics["energy_joules"] == pytest.approx(energy.joules)
    assert holds(energy, 100 * measured.duration_s), "a card of 100 W"
    assert metrics["energy_low"] == pytest.approx(energy.low) and metrics["energy_high"] == pytest.approx(energy.high)
    assert metrics["energy_joules.gpu.0"] == pytest.approx(energy.joules)
    assert metrics["energy_joules.span.work"] == pytest.approx(measured.energy(span="work").joules)
    assert metrics["duration_s"] == pytest.approx(measured.duration_s)
    tags = stored.data.tags
    assert tags["everywatt.scope"] == "gpu" and tags["everywatt.pedigree"] == "counter"
    assert float(tags["everywatt.coverage"]) > 0.98 and tags["everywatt.tag.project"] == "alpha"


def test_the_power_curve_has_real_times_and_a_bound(mlflow, measured):
    from everywatt.integrations.mlflow import log_run

    with mlflow.start_run() as active:
        log_run(measured, curve_points=5, prefix="train.")
    curve = mlflow.MlflowClient().get_metric_history(active.info.run_id, "train.power_watts")
    assert 2 <= len(curve) <= 5 and sorted(point.step for point in curve) == list(range(len(curve)))
    assert sum(point.value for point in curve) / len(curve) == pytest.approx(100, rel=0.1)
    start_ms = measured.started.timestamp() * 1000
    assert all(start_ms - 1 <= point.timestamp <= start_ms + 5000 for point in curve)


@pytest.mark.parametrize("kind", ["json", "tape", None])
def test_the_file_is_kept(mlflow, measured, kind, tmp_path):
    from everywatt.integrations.mlflow import log_run

    run_id = mlflow.MlflowClient().create_run(mlflow.get_experiment_by_name("energy").experiment_id).info.run_id
    log_run(measured, run_id=run_id, artefact=kind)
    kept = mlflow.MlflowClient().list_artifacts(run_id, "everywatt")
    if kind is None:
        assert kept == []
        return
    (file,) = kept
    path = mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=file.path, dst_path=str(tmp_path))
    if kind == "json":
        assert json.loads(Path(path).read_text())["energy"]["joules"] == measured.energy().joules
    else:
        from everywatt import load

        assert load(path).energy().joules == measured.energy().joules


def test_without_an_active_run_it_says_what_to_do(mlflow, measured):
    from everywatt.integrations.mlflow import log_run

    with pytest.raises(UsageError, match="start_run"):
        log_run(measured)
