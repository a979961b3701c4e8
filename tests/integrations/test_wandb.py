"""The real Weights & Biases client, offline: what went in is read back from the files that it would upload."""

import time

import pytest

from everywatt.api.meter import Meter
from everywatt.core.errors import UsageError

pytestmark = pytest.mark.ml


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    yield wandb
    wandb.teardown()


@pytest.fixture
def measured(card):
    with Meter("wandb") as meter, meter.span("work"):
        time.sleep(0.6)  # the work that is measured
    return meter.run


@pytest.mark.parametrize("artefact", ["json", "tape", None])
def test_an_offline_run_has_the_figures(wandb, measured, artefact, tmp_path):
    from everywatt.integrations.wandb import log_run

    with wandb.init(project="energy", settings=wandb.Settings(console="off", x_disable_stats=True)) as run:
        log_run(measured, curve_points=4, artefact=artefact)
        summary, config, steps = dict(run.summary), dict(run.config), run.step
    energy = measured.energy()
    assert summary["everywatt/energy_joules"] == energy.joules
    assert (summary["everywatt/energy_low"], summary["everywatt/energy_high"]) == (energy.low, energy.high)
    assert summary["everywatt/energy_joules.span.work"] == measured.energy(span="work").joules
    assert summary["everywatt/power_watts"] == pytest.approx(100, rel=0.5)
    assert config["everywatt/scope"] == "gpu" and config["everywatt/pedigree"] == "counter"
    assert 2 <= steps <= 4
    wandb.teardown()  # its helper process has then written everything
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    stored = log.read_bytes()
    assert b"everywatt/energy_joules" in stored
    assert (b"everywatt-run" in stored) == (artefact is not None)


def test_without_a_run_it_says_what_to_do(wandb, measured):
    from everywatt.integrations.wandb import log_run

    with pytest.raises(UsageError, match=r"wandb\.init"):
        log_run(measured)
