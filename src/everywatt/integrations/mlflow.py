"""`log_run()` for MLflow: the joules of a run with their interval, its power curve and its file.

>>> with mlflow.start_run(), everywatt.measure("train") as m:    # doctest: +SKIP
...     train()
>>> everywatt.integrations.mlflow.log_run(m, run_id=…)           # doctest: +SKIP
"""

from __future__ import annotations

import time

from everywatt.api.measurement import Measurement
from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.core.errors import UsageError
from everywatt.core.plugins import library
from everywatt.integrations import _summary

MOST_METRICS, MOST_TAGS = 1000, 100  # that MLflow takes at once
LONGEST_TAG = 5000


def log_run(
    run: Run | Meter | Measurement,
    *,
    run_id: str | None = None,
    prefix: str = "",
    curve_points: int = 200,
    artefact: str | None = "json",
) -> None:
    """Put a finished run into an MLflow run: the active one, or the one with that id.

    Metrics: `energy_joules`, `energy_low`, `energy_high`, the same for `energy_net_…`, `energy_joules.DEVICE`,
    `energy_joules.span.NAME`, `energy_coverage`, `duration_s`, and `power_watts` as a curve of at most `curve_points`
    steps at their real times. Tags: `everywatt.scope`, `.pedigree`, `.coverage`, `.refused` and others. `artefact` is
    `json` (one file with everything but the ticks), `tape` (the recording itself) or None. `prefix` goes before the
    names of metrics.
    """
    mlflow = library("mlflow", "mlflow")
    measured = _summary.as_run(run)
    client = mlflow.MlflowClient()
    active = mlflow.active_run()
    if run_id is None and active is None:
        raise UsageError("There is no active MLflow run.", cure="with mlflow.start_run(): …, or log_run(…, run_id=…)")
    target = run_id or str(active.info.run_id)
    now_ms = time.time_ns() // 1_000_000
    entries = [
        mlflow.entities.Metric(prefix + name, value, now_ms, 0) for name, value in _summary.metrics(measured).items()
    ]
    entries += [
        mlflow.entities.Metric(f"{prefix}power_watts", point.watts, point.utc_ms, step)
        for step, point in enumerate(_summary.power_curve(measured, curve_points))
    ]
    tags = [
        mlflow.entities.RunTag(f"everywatt.{key}", value[:LONGEST_TAG])
        for key, value in _summary.labels(measured).items()
    ]
    for start in range(0, len(entries), MOST_METRICS):
        client.log_batch(target, metrics=entries[start : start + MOST_METRICS])
    for start in range(0, len(tags), MOST_TAGS):
        client.log_batch(target, tags=tags[start : start + MOST_TAGS])
    with _summary.artefacts(measured, artefact) as files:
        for file in files:
            client.log_artifact(target, str(file), artifact_path="everywatt")
