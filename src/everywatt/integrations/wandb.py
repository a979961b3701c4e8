"""`log_run()` for Weights & Biases: the joules of a run with their interval, its power curve and its file.

>>> with wandb.init(project="p") as wandb_run:          # doctest: +SKIP
...     with everywatt.measure("train") as m:
...         train()
...     everywatt.integrations.wandb.log_run(m)
"""

from __future__ import annotations

import re
from typing import Any

from everywatt.api.measurement import Measurement
from everywatt.api.meter import Meter
from everywatt.api.run import Run
from everywatt.core.errors import UsageError
from everywatt.core.plugins import library
from everywatt.integrations import _summary


def log_run(
    run: Run | Meter | Measurement,
    *,
    to: Any = None,
    prefix: str = "everywatt/",
    curve_points: int = 200,
    artefact: str | None = "json",
) -> None:
    """Put a finished run into a W&B run: the active one, or `to`.

    The summary gets `energy_joules`, `energy_low`, `energy_high`, the same for `energy_net_…`, joules of devices and
    of span names, `energy_coverage` and `duration_s`; the config gets scope, pedigree and coverage; `power_watts` is a
    curve of at most `curve_points` over `seconds`. `artefact` is `json`, `tape` or None. `prefix` goes before
    each name.
    """
    wandb = library("wandb", "wandb")
    measured = _summary.as_run(run)
    target = to if to is not None else wandb.run
    if target is None:
        raise UsageError("There is no active W&B run.", cure="wandb.init(…), or log_run(…, to=run)")
    target.define_metric(f"{prefix}seconds", hidden=True)
    target.define_metric(f"{prefix}power_watts", step_metric=f"{prefix}seconds")
    for point in _summary.power_curve(measured, curve_points):
        target.log({f"{prefix}seconds": point.seconds, f"{prefix}power_watts": point.watts})
    target.summary.update({prefix + name: value for name, value in _summary.metrics(measured).items()})
    target.config.update({prefix + key: value for key, value in _summary.labels(measured).items()})
    with _summary.artefacts(measured, artefact) as files:
        if files:
            # W&B takes letters, digits, dashes, underscores and dots in the name of an artefact.
            name = re.sub(r"[^A-Za-z0-9_.-]", "-", measured.name)[:100]
            kept = wandb.Artifact(f"everywatt-{name}", type="everywatt-run")
            for file in files:
                kept.add_file(str(file))
            target.log_artifact(kept)
