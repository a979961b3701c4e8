"""`everywatt bench precision`: what a precision costs and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from everywatt.api.run import Run, load
from everywatt.bench.experiment import folder_of
from everywatt.bench.precision.lab import Conduct, PrecisionLab
from everywatt.bench.precision.layers import correlated
from everywatt.bench.precision.plan import (
    DEFAULT_MODEL,
    RUNTIMES,
    TASKS,
    Job,
    job_from,
    parse_precisions,
    task_of,
)
from everywatt.bench.precision.result import Result, layer_table, sensitivity_table
from everywatt.bench.precision.variants import read_journal
from everywatt.cli.common.metering import meter_of, recorded, terminable
from everywatt.cli.common.options import (
    DURATION,
    PATH,
    RUN,
    Verb,
    as_value,
    cooldown_option,
    device_option,
    entry_option,
    idle_option,
    out_option,
    output_options,
    settings_options_beside_model,
)
from everywatt.cli.common.output import Output, write_text
from everywatt.cli.common.results import check_ending, own_words, run_of, write_result
from everywatt.cli.compare import target_option
from everywatt.core.config import Settings
from everywatt.core.errors import NoSensor, UsageError
from everywatt.core.jsonio import declared
from everywatt.core.plugins import check_installed
from everywatt.core.tables import Table, columns_of
from everywatt.formats.quantization import FORMS, OldFigure, OldLayer, old_csv, read_old

KIND = "precision"
QUICK: dict[str, Any] = {"loop_s": 2.0, "limit": 128, "trials": 3}
USUAL: dict[str, Any] = {"loop_s": 10.0, "limit": None, "trials": None}


@click.command(cls=Verb)
@click.option(
    "--model", default=DEFAULT_MODEL, metavar="DIR", help="Saved model, minilm or gpt2-random.  [default: minilm]"
)
@click.option("--task", type=click.Choice(TASKS), help="Task of the model; by default taken from the model.")
@click.option("--data", metavar="D", help="An .npz file, a folder of .pt tensors, reviews, sst2 or random-tokens.")
@click.option(
    "--precisions", default="fp32,bf16,int8", metavar="LIST", help="Precisions to measure; the first is the baseline."
)
@click.option("--batch-size", type=click.IntRange(1), default=8, help="Items per batch.  [default: 8]")
@click.option(
    "--seq-length",
    type=click.IntRange(1),
    help="Tokens per timed sentence; by default the length that nine in ten sentences fit.",
)
@click.option("--iters", type=click.IntRange(1), help="Batches per timed loop; by default as many as fit into --loop.")
@click.option("--loop", "loop_s", type=DURATION, help="Duration of a timed loop.  [default: 10s]")
@click.option(
    "--warmup", type=click.IntRange(2), default=3, help="Warm-up batches before the first loop.  [default: 3]"
)
@click.option("--trials", type=click.IntRange(1), help="Run exactly this many loops of each, ignoring --target.")
@target_option
@click.option(
    "--max-time", "max_s", type=DURATION, default=1800.0, help="Start no trials after this long.  [default: 30 min]"
)
@click.option("--limit", type=click.IntRange(8), help="Score at most this many items; all by default.")
@click.option(
    "--runtime", type=click.Choice(RUNTIMES), default="torch", help="Library that runs the model.  [default: torch]"
)
@entry_option
@device_option
@idle_option
@cooldown_option
@click.option("--layers", is_flag=True, help="Also measure energy by layer.")
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Also rank layers by their sensitivity to quantisation, and measure a mixed-precision plan.",
)
@click.option("--from", "old", multiple=True, type=PATH, help="Show result files of older tools.")
@click.option("--old-format", type=click.Choice(FORMS), help="Write -o FILE.csv with the columns of an older tool.")
@click.option("--resume", type=RUN, metavar="RUN", help="Resume an interrupted benchmark.")
@click.option("--quick", is_flag=True, help="Loops of 2 s, three trials, 128 scored items.")
@out_option
@settings_options_beside_model
@output_options
@as_value("conduct", Conduct)
def command(
    conduct: Conduct,
    old: tuple[Path, ...],
    old_format: str | None,
    resume: str | None,
    quick: bool,
    out: Path | None,
    settings: Settings,
    output: Output,
    **requested: Any,
) -> int:
    """Measure a model at several precisions: energy, speed, accuracy, size, and the precision actually computed.

    Each precision runs in a process of its own, in interleaved timed loops; only the loops are charged. By default the
    model is the MiniLM sentence encoder on the bundled reviews. -o writes .json, .csv, .md or .html. Ctrl-C keeps
    partial results: --resume RUN continues with the same options and repeats nothing that was finished.
    """
    if old:
        return _old(old, output)
    if old_format is not None and (out is None or out.suffix != ".csv"):
        raise UsageError("--old-format requires -o FILE.csv.")
    check_ending(out)
    chosen = QUICK if quick else USUAL
    requested["task"] = task_of(requested["model"], requested["task"], requested["entry"])
    requested["data"] = requested["data"] or ("random-tokens" if requested["task"] == "causal-lm" else "reviews")
    requested["precisions"] = parse_precisions(requested["precisions"])
    requested |= {name: requested[name] or chosen[name] for name in ("loop_s", "limit")}
    conduct = replace(
        conduct,
        trials=conduct.trials or chosen["trials"],
        layers=conduct.layers or old_format == "layers",
        sensitivity=conduct.sensitivity or old_format == "impact",
    )
    earlier = None if resume is None else load(resume, home=settings.home)
    if earlier is None:
        job = Job(**requested)
    else:
        job, conduct = _same(earlier, requested, conduct)
    if job.entry is None:
        check_installed("torch", "precision")  # to load it takes seconds and belongs to workers
    with terminable() as code:
        result = experiment(job, conduct, settings, output, earlier)
    show(result, output)
    if out is not None and old_format is not None:
        write_text(out, old_csv(old_format, result, datetime.now().astimezone()))
        out = None
    write_result(output, out, KIND, result, lambda: page_of(result, settings))
    return _ending(result, code, settings, output)


def _same(earlier: Run, requested: Mapping[str, Any], conduct: Conduct) -> tuple[Job, Conduct]:
    """The request of an earlier run. Options may say how to go on with it, but not that it is another one."""
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    request, _ = read_journal(folder_of(earlier))
    job = job_from(request["job"])
    wrong = [name for name in requested if name in given and getattr(job, name) != requested[name]]
    if wrong:
        raise UsageError(f"{earlier.name} used other options: {', '.join(sorted(wrong))} differ.")
    fields = {name: getattr(conduct, name) for name in conduct.__dataclass_fields__ if name in given}
    return job, replace(Conduct(**request["conduct"]), **fields)


def experiment(job: Job, conduct: Conduct, settings: Settings, output: Output, earlier: Run | None = None) -> Result:
    """Run the lab in a recording of its own, or in a further piece of an earlier one, with progress on stderr."""
    meter = meter_of(settings, "precision", append=None if earlier is None else folder_of(earlier))
    lab = PrecisionLab(job, conduct, meter, output.progress())
    if earlier is not None:
        lab.take_up(earlier, folder_of(earlier))
    try:
        run = recorded(meter, output, lab.work, command=own_words())
    finally:
        lab.close()
    return lab.result(run)


def show(result: Result, output: Output) -> None:
    job = result.job
    output.text(f"{job.name} · {job.task} · {job.data} · batch size {result.batches}")
    output.text("")
    if result.baseline is not None:
        for table in (*result.tables(), result.trial_table()):
            output.table(replace(table, notes=()))
            output.text("")
    output.text(*result.failures(), *result.verdicts())
    output.text("")
    output.text(*result.computed_lines())
    shown = [layer_table(row) for row in result.rows if row.layers]
    shown += [] if result.sensitivity is None else [sensitivity_table(result.sensitivity)]
    for table in shown:
        output.text("")
        output.table(table)
    output.say(*result.remarks())
    if result.run is not None:
        output.say(f"  run     {result.run}")


def page_of(result: Result, settings: Settings) -> str:
    from everywatt.report.html.page import trials_page
    from everywatt.report.html.trials import precision_document

    return trials_page(precision_document(result, run=run_of(result.run, settings), command=own_words()))


OLD_FIGURES = columns_of(
    "precision, file, energy / sample [J], energy / batch [J], power [W], latency [s], samples / s [], accuracy [%], "
    "size [B]"
)
OLD_LAYERS = columns_of(
    "layer, type, file, time [s], share [%], energy [J], KL [], logits [], degradation [], impact []"
)

FIGURE = "precision source energy_per_sample_j energy_per_batch_j power_w latency_s throughput accuracy size_bytes"
LAYER = "layer kind source seconds share energy_j kl logit_l2 change impact"


def _old(paths: tuple[Path, ...], output: Output) -> int:
    found = read_old(paths)
    whole = [one for one in found if isinstance(one, OldFigure)]
    layers = [one for one in found if isinstance(one, OldLayer)]
    if whole:
        output.table(Table.of(*OLD_FIGURES, rows=[[*declared(one, FIGURE).values()] for one in whole]))
    if layers:
        output.table(Table.of(*OLD_LAYERS, rows=[[*declared(one, LAYER).values()] for one in layers]))
    output.say(*dict.fromkeys(f"{one.source}: {one.note}" for one in found if one.note))
    both = correlated(
        {one.layer: one.energy_j for one in layers if one.energy_j is not None},
        {one.layer: one.kl for one in layers if one.kl is not None},
    )
    if both is not None:
        output.text(str(both))
    facts = {
        "figures": [one.to_dict() for one in whole],
        "layers": [one.to_dict() for one in layers],
        "correlation": None if both is None else both.to_dict(),
    }
    output.json("old-results", facts)
    return 0


def _ending(result: Result, interrupted: Callable[[], int], settings: Settings, output: Output) -> int:
    if result.ended == "interrupted":
        if result.run is not None:
            output.say(f"Interrupted. Resume with: everywatt bench precision --resume {result.run}")
        return interrupted()
    if result.baseline is None:
        return 3
    if not settings.estimate and all(row.energy_per_batch is None for row in result.rows):
        return NoSensor.exit_code
    return 0
