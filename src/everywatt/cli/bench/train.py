"""`everywatt bench train`: energy of a training, epoch by epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from everywatt.bench.precision.plan import parse_precisions
from everywatt.bench.precision.training import TrainJob, TrainLab
from everywatt.cli.common.metering import meter_of, recorded, terminable
from everywatt.cli.common.options import (
    Verb,
    device_option,
    entry_option,
    idle_option,
    out_option,
    output_options,
    settings_options_beside_model,
)
from everywatt.cli.common.output import Output
from everywatt.cli.common.results import check_ending, own_words, write_result
from everywatt.core.config import Settings
from everywatt.core.errors import MeasurementRefused, NoSensor
from everywatt.core.plugins import check_installed

QUICK_ITEMS = 24
ENDINGS = (".json", ".csv", ".md")


@click.command(cls=Verb)
@click.option(
    "--model", default="minilm", metavar="DIR", help="Saved classifier, or minilm with a new head.  [default: minilm]"
)
@click.option(
    "--data", default="reviews", metavar="D", help="An .npz file, a folder of .pt tensors, reviews (bundled) or sst2."
)
@click.option("--precisions", default="fp32,bf16", metavar="LIST", help="fp32, and autocast to bf16 or fp16.")
@click.option("--epochs", type=click.IntRange(1), default=2, help="Passes over the training half.  [default: 2]")
@click.option("--batch-size", type=click.IntRange(1), default=16, help="Items per batch.  [default: 16]")
@click.option("--lr", type=click.FloatRange(0, min_open=True), default=5e-5, help="Learning rate.  [default: 5e-5]")
@click.option("--limit", type=click.IntRange(2), help="At most this many items of each half; all by default.")
@entry_option
@device_option
@idle_option
@click.option(
    "--trials", type=click.IntRange(1), default=1, help="Training runs of each precision, interleaved.  [default: 1]"
)
@click.option(
    "--no-cooldown",
    "cool",
    flag_value=False,
    default=True,
    help="Do not wait for the machine to cool between training runs.",
)
@click.option("--quick", is_flag=True, help=f"Use only {QUICK_ITEMS} items of each half.")
@out_option
@settings_options_beside_model
@output_options
def command(
    idle_s: float,
    cool: bool,
    quick: bool,
    out: Path | None,
    settings: Settings,
    output: Output,
    **asked: Any,
) -> int:
    """Measure a training run: energy of each epoch and step beside loss and accuracy, fp32 against autocast.

    Half of the data is for training, the other half for validation. The energy of the epochs adds up to that of the
    run. With --trials N each precision is trained N times, interleaved, and a verdict follows. -o writes .json, .csv or
    .md.
    """
    check_ending(out, ENDINGS)
    check_installed("torch", "precision")
    asked["precisions"] = parse_precisions(asked["precisions"])
    asked["limit"] = asked["limit"] or (QUICK_ITEMS if quick else None)
    job = TrainJob(**asked)
    meter = meter_of(settings, "train")
    lab = TrainLab(job, meter, output.progress(), idle_s=idle_s, cool=cool)
    with terminable() as code:
        result = lab.result(recorded(meter, output, lab.work, command=own_words()))
    shown, *means = result.tables()
    output.table(replace(shown, notes=()))
    output.text("")
    output.text(*result.remarks())
    if not means:
        output.say("One training run each: these intervals do not include the variation from run to run.")
    for table in means:
        output.table(table)
        output.text("")
    output.text(*result.verdicts())
    if result.run is not None:
        output.say(f"  run     {result.run}")
    write_result(output, out, "training", result)
    if lab.interrupted:
        return code()
    if not any(one.epochs for one in result.trained):
        return MeasurementRefused.exit_code
    return 0 if settings.estimate or any(one.energy.joules for one in result.trained) else NoSensor.exit_code
