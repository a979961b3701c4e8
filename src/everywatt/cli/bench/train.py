"""`everywatt bench train`: energy of a training, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from everywatt.bench.figures import Figures, quantity
from everywatt.bench.precision.plan import parse_precisions, require_torch
from everywatt.bench.precision.training import Epoch, Trained, TrainJob, TrainLab, compared
from everywatt.cli.common.metering import meter_of, terminable
from everywatt.cli.common.options import DURATION, Verb, out_option, output_options, settings_options_beside_model
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.common.results import check_ending, own_words
from everywatt.core.config import Settings
from everywatt.core.errors import NoSensor
from everywatt.core.jsonio import document, dumps
from everywatt.core.tables import Cell, Column, Quantity, Table, csv_text

TABLE = (
    *(Column("energy", "J"), Column("time", "s"), Column("steps", ""), Column("energy / step", "J")),
    *(Column("train loss", ""), Column("val loss", ""), Column("val accuracy", "%")),
)
QUICK_ITEMS = 24
ENDINGS = (".json", ".csv", ".md")
COLUMNS = (
    "precision", "trial", "epoch", "energy_j", "energy_low_j", "energy_high_j", "seconds", "steps", "energy_per_step_j",
    "train_loss", "val_loss", "val_accuracy",
)  # fmt: skip


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
@click.option("--entry", metavar="MODULE:FUNCTION", help="Function that builds the model.")
@click.option(
    "--device", default="auto", metavar="NAME", help="cpu, cuda or cuda:1; a GPU by default, if there is one."
)
@click.option(
    "--idle", "idle_s", type=DURATION, default=2.0, help="Record idle power for this long first.  [default: 2s]"
)
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
    model: str,
    data: str,
    precisions: str,
    epochs: int,
    batch_size: int,
    lr: float,
    limit: int | None,
    entry: str | None,
    device: str,
    idle_s: float,
    trials: int,
    cool: bool,
    quick: bool,
    out: Path | None,
    settings: Settings,
    note: str | None,
    output: Output,
) -> int:
    """Measure a training run: energy of each epoch and step beside loss and accuracy, fp32 against autocast.

    Half of the data is for training, the other half for validation. The energy of the epochs adds up to that of the
    run. With --trials N each precision is trained N times, interleaved, and a verdict follows. -o writes .json, .csv or
    .md.
    """
    check_ending(out, ENDINGS)
    require_torch()
    items = limit or (QUICK_ITEMS if quick else None)
    job = TrainJob(
        model, data, parse_precisions(precisions), epochs, batch_size, lr, items, entry, device, trials=trials
    )
    meter = meter_of(settings, note, "train")
    lab = TrainLab(job, meter, output.progress(), idle_s=idle_s, cool=cool)
    meter.start(command=own_words(), root=False)
    with terminable() as code:
        try:
            lab.work()
        except KeyboardInterrupt:
            pass
        finally:
            run = meter.stop()
    found = lab.result(run)
    beside = compared(job.precisions, found)
    _show(found, beside, output)
    if run is not None:
        output.say(f"  run     {run.name}")
    data_out = {
        "run": None if run is None else run.name,
        "job": job.told(""),
        "trained": [one.to_dict() for one in found],
        "compared": [one.to_dict() for one in beside],
        "order": [one.precision for one in found if one.epochs],
    }
    if out is not None:
        _write(out, found, beside, data_out)
    output.json("training", data_out)
    if lab.interrupted:
        return code()
    if not any(one.epochs for one in found):
        return 3
    return 0 if settings.estimate or any(one.energy.joules for one in found) else NoSensor.exit_code


def _write(out: Path, found: Sequence[Trained], beside: Sequence[Figures], data: Mapping[str, Any]) -> None:
    """The file that -o names: everything, or a line for each epoch, or the table with its remarks."""
    texts = {
        ".json": lambda: dumps(document("training", data), indent=2) + "\n",
        ".csv": lambda: csv_text(COLUMNS, [_numbers(one, epoch) for one in found for epoch in one.epochs]),
        ".md": lambda: _table(found, bool(beside), _said(found, beside)).markdown(),
    }
    write_text(out, texts[out.suffix]())


def _numbers(one: Trained, epoch: Epoch) -> list[object]:
    energy, step = epoch.energy, epoch.per_step
    ends = [energy.joules, energy.low, energy.high]
    told = [epoch.seconds, epoch.steps, step.joules, epoch.train_loss, epoch.val_loss, epoch.val_accuracy]
    return [one.precision, one.trial, epoch.number, *ends, *told]


def _said(found: Sequence[Trained], beside: Sequence[Figures]) -> list[str]:
    lines = list(dict.fromkeys(line for one in found for line in _remarks(one, found, bool(beside))))
    return lines + [f"{one.candidate.label}: {one.verdict}" for one in beside[1:]]


def _table(found: Sequence[Trained], several: bool, notes: Sequence[str] = ()) -> Table:
    rows: list[list[Cell]] = []
    for one in found:
        rows += [] if several else [_row(one.precision, epoch) for epoch in one.epochs]
        if one.epochs:
            rows.append(_whole(one, several))
    return Table.of("precision", Column("trial" if several else "epoch", ""), *TABLE, rows=rows, notes=notes)


def _show(found: Sequence[Trained], beside: Sequence[Figures], output: Output) -> None:
    several = bool(beside)
    output.table(_table(found, several))
    output.text()
    for said in dict.fromkeys(line for one in found for line in _remarks(one, found, several)):
        output.text(said)
    if not several:
        output.say("One training run each: these intervals do not include the variation from run to run.")
        return
    means = [[one.candidate.label, len(one.trials), quantity(one.energy, "J"), one.seconds.time] for one in beside]
    columns = ("precision", Column("runs", ""), Column("mean energy", "J"), Column("time", "s"))
    output.table(Table.of(*columns, rows=means))
    output.text()
    for one_beside in beside[1:]:
        output.text(f"{one_beside.candidate.label}: {one_beside.verdict}")


def _remarks(one: Trained, found: Sequence[Trained], several: bool) -> list[str]:
    lines = []
    if one.failure is not None:
        where = f" (trial {one.trial})" if several else ""
        lines.append(f"{one.precision}{where}: {one.failure}" + (f" (try: {one.cure})" if one.cure else ""))
    if one.ratio is not None and not several:
        lines.append(f"{one.precision}: {one.ratio} of the energy of {found[0].precision}")
    if one.emulated is not None:
        lines.append(f"{one.precision}: {one.emulated}")
    return lines


def _whole(one: Trained, several: bool) -> list[Cell]:
    """A training as a row."""
    known, last = one.accuracy, one.epochs[-1]
    losses: list[Cell] = [_loss(last.train_loss), _loss(last.val_loss)] if several else ["", ""]
    return [
        one.precision,
        str(one.trial) if several else "all",
        one.energy,
        one.seconds,
        sum(epoch.steps for epoch in one.epochs),
        one.per_step,
        *losses,
        "" if known is None else Quantity(known[0], "%", known[0] - known[1], known[2] - known[0]),
    ]


def _row(precision: str, epoch: Epoch) -> list[Cell]:
    losses = _loss(epoch.train_loss), _loss(epoch.val_loss)
    return [
        *(precision, epoch.number, epoch.energy, epoch.seconds, epoch.steps, epoch.per_step),
        *(*losses, epoch.val_accuracy),
    ]


def _loss(value: float) -> str:
    return f"{value:.4f}"  # as training logs have it: losses are compared digit by digit
