"""`everywatt batch --executor slurm`: submit a job array, wait for it, and bring its results into one run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from everywatt.batch import array
from everywatt.batch.collecting import collect
from everywatt.batch.journal import Journal, read_journal
from everywatt.batch.plan import Pace
from everywatt.batch.session import Work
from everywatt.cli.batch.common import option_words
from everywatt.cli.batch.summary import show_batch
from everywatt.cli.common.metering import new_folder
from everywatt.cli.common.options import FOREIGN, gathered
from everywatt.cli.common.output import Output
from everywatt.core.config import Settings
from everywatt.core.errors import EverywattError, UsageError

LOCAL, SLURM = "local", "slurm"
FIRST_POLL_S, MOST_POLL_S = 0.5, 10.0
PATIENCE = 30  # failed questions in a row before giving up on Slurm
INTERRUPTED = 130
TASKS = 4
NOT_FOR_TASKS = ("executor", "tasks", "sbatch", "on-interrupt", "size", "telemetry")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What the command line says of the executor; `executor` is None where it was left out."""

    executor: str | None
    tasks: int
    sbatch: tuple[str, ...]
    print_script: bool
    wait: bool


def _options(executor: str | None, print_script: bool, **others: Any) -> SlurmOptions:
    if executor == LOCAL and print_script:
        raise UsageError("--print-script requires --executor slurm.", cure="--executor slurm --print-script")
    return SlurmOptions(SLURM if print_script else executor, print_script=print_script, **others)


slurm_options = gathered(
    "slurm",
    _options,
    click.option(
        "--executor", type=click.Choice([LOCAL, SLURM]), default=None, help="Where the items run.  [default: local]"
    ),
    click.option(
        "--tasks",
        type=click.IntRange(1),
        default=TASKS,
        help=f"Slurm: number of tasks in the job array.  [default: {TASKS}]",
    ),
    click.option("--sbatch", multiple=True, metavar=FOREIGN, help="Slurm: option for sbatch, such as --gres=gpu:1."),
    click.option("--print-script", is_flag=True, help="Slurm: print the job script without submitting it."),
    click.option(
        "--no-wait", "wait", flag_value=False, default=True, help="Slurm: submit the job without waiting for it."
    ),
)
"""Adds --executor, --tasks, --sbatch, --print-script and --no-wait; the function gets `slurm`."""


def settle(folder: Path, options: SlurmOptions, output: Output) -> int | None:
    """See to the submissions of an earlier session: wait for them and collect. An exit code where that is all."""
    for part in array.parts(folder):
        if part.name in read_journal(folder).collected:
            continue
        job = array.job_of(part)
        if job is None:
            raise UsageError(f"{folder.name} has not been submitted yet.", cure=f"sbatch {part / array.SCRIPT}")
        code = _await(folder, part, job, options, output)
        if code is not None:
            return code
    return None


def run_array(
    work: Work,
    command: tuple[str, ...],
    folder: Path | None,
    options: SlurmOptions,
    settings: Settings,
    kept: Mapping[str, Any],
    source: str | None,
    output: Output,
) -> int:
    """Submit what is left, wait, collect, print; gives the exit code."""
    if not options.print_script:
        array.check_program("sbatch")
    words = option_words({name: value for name, value in kept.items() if name not in NOT_FOR_TASKS})
    job_array = array.Array(options.tasks, options.sbatch, tuple(words))
    run = folder or new_folder(settings, "batch", output)
    pace = Pace.of(read_journal(run).states) if folder is not None else Pace()
    journal = Journal(run)
    try:
        journal.batch(command, work.new, [], options=kept, source=source)
    finally:
        journal.close()
    part = array.prepare(run, command, work.todo, job_array, pace, Path.cwd())
    if options.print_script:
        output.document((part / array.SCRIPT).read_text(encoding="utf-8"))
        output.say(f"Submit it with: sbatch {part / array.SCRIPT}")
        output.say(f"Then collect with: everywatt batch --resume {run.name}")
        return 0
    try:
        job = array.submit(part)
    except EverywattError:
        if folder is None:
            shutil.rmtree(run)  # our own, made a moment ago, and nothing ran
        raise
    output.say(f"Submitted as job {job}: {len(work.todo)} items in {len(array.tasks(part))} tasks; run {run.name}")
    code = _await(run, part, job, options, output)
    return code if code is not None else show_batch(run, output)[0]


def _await(run: Path, part: Path, job: str, options: SlurmOptions, output: Output) -> int | None:
    """Until the array has left the queue, then collect it; an exit code where it was not waited for."""
    if not options.wait and (waiting := array.in_queue(job)):
        output.say(
            f"{len(waiting)} tasks of job {job} are not finished. Collect with: everywatt batch --resume {run.name}"
        )
        return 0
    try:
        _watch(part, job, output)
    except KeyboardInterrupt:
        output.say(
            f"Job {job} keeps running; cancel it with scancel {job}. Wait for it with: everywatt batch --resume "
            f"{run.name}"
        )
        return INTERRUPTED
    output.warn(*collect(run, part))
    return None


def _watch(part: Path, job: str, output: Output) -> None:
    show = output.progress()
    follow = array.Follow(part)
    total = sum(len(read_journal(task).states) for task in array.tasks(part))
    pause_s, failures = FIRST_POLL_S, 0
    while True:
        try:
            states = array.in_queue(job)
            failures = 0
        except UsageError:
            raise
        except EverywattError as error:  # a controller that is being restarted says nothing about the job
            failures += 1
            if failures > PATIENCE:
                raise
            output.detail(str(error))
            states = ["UNKNOWN"]
        follow.look()
        failed = f" · {follow.failed} failed" if follow.failed else ""
        running = states.count("RUNNING")
        show(f"{follow.done}/{total} done{failed} · {running} tasks running, {len(states) - running} waiting")
        if not states:
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, MOST_POLL_S)
