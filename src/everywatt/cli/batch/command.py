"""`everywatt batch ITEMS -- CMD {input}`: many items, a few GPUs, and what each item cost."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from everywatt.batch import array
from everywatt.batch.devices import Lanes, lay_out
from everywatt.batch.items import Item, check_words, decoded, parse_items, read_items, unused
from everywatt.batch.journal import DONE, FAILED, Device, History, read_journal
from everywatt.batch.plan import Pace, plan_lines, plan_table, shares
from everywatt.batch.runner import FINISH, KILL, Event, Progress
from everywatt.batch.runner import Settings as RunnerSettings
from everywatt.batch.session import Work, take_up, what_is_left, work_off
from everywatt.cli.batch.common import (
    DURATIONS,
    WORDS,
    WithCommand,
    batch_meter,
    find_batch,
    given_options,
    gpus_option,
    kept_options,
    option_words,
    stopping,
    wanted_gpus,
    words_of,
)
from everywatt.cli.batch.slurm import LOCAL, SLURM, SlurmOptions, run_array, settle, slurm_options
from everywatt.cli.batch.summary import show_batch
from everywatt.cli.common.group import WithMembers
from everywatt.cli.common.metering import new_folder, start
from everywatt.cli.common.options import DURATION, PATH, RUN, WAIT, output_options, settings_options
from everywatt.cli.common.output import Output
from everywatt.core.config import Settings, nearest, resolve
from everywatt.core.errors import ConfigError, EverywattError, UsageError
from everywatt.core.format import format_count, format_duration
from everywatt.formats.badc import TelemetryLog, write_summary
from everywatt.tape.run_store import existing_home

SHOW_EVERY_S = 0.2
MEMBERS = {"probe": "everywatt.cli.batch.probe", "summary": "everywatt.cli.batch.summary"}


class Batch(WithCommand, WithMembers):
    """A verb with members whose command comes after `--`."""


def _from_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """A TOML file whose keys are the options; flags are stronger."""
    if value is None:
        return None
    try:
        data = tomllib.loads(value.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{value} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    table = data.get("batch", data)
    odd = [key for key in data if key != "batch"] if table is not data else []
    if odd:
        raise ConfigError(
            f"{value}: '{odd[0]}' is outside the table [batch].", cure="put all keys into the table [batch]"
        )
    known = {name.lstrip("-"): p for p in ctx.command.params for name in p.opts}
    defaults: dict[str, Any] = {}
    for key, setting in table.items():
        name = key.replace("_", "-")
        if name == "command":
            command = setting if isinstance(setting, list) else str(setting).split()
            ctx.meta.setdefault(WORDS, tuple(str(word) for word in command))
        elif name in known and known[name] is not param and known[name].name is not None:
            joined = isinstance(setting, list) and not known[name].multiple
            defaults[str(known[name].name)] = ",".join(map(str, setting)) if joined else setting
        else:
            meant = nearest(name, [*known, "command", "batch"])
            raise ConfigError(
                f"{value}: there is no setting '{key}'{meant or '.'}", cure=", ".join(sorted({*known, "command"}))
            )
    ctx.default_map = {**(ctx.default_map or {}), **defaults}  # stronger than the journal of a resumed batch
    return value


def _from_journal(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The options of the batch that is resumed; those of a file and flags are stronger."""
    if value is None or ctx.resilient_parsing:
        return value
    try:
        stored = read_journal(find_batch(value, existing_home(resolve().home))).options or {}
    except EverywattError:
        return value  # the command itself says that there is no such run
    named = kept_options(ctx)
    defaults = {str(named[name].name): setting for name, setting in stored.items() if name in named}
    ctx.default_map = {**defaults, **(ctx.default_map or {})}
    return value


config_option = click.option(
    "--config",
    type=PATH,
    is_eager=True,
    expose_value=False,
    callback=_from_file,
    help="TOML file with these options as keys, plus items and command.",
)


@click.command(cls=Batch, modules=MEMBERS)
@click.argument("items", required=False, metavar="ITEMS")
@config_option
@gpus_option
@click.option("--per-gpu", type=click.IntRange(1), default=1, help="Items to run at once on each GPU.  [default: 1]")
@click.option("--cpu-workers", type=click.IntRange(0), default=None, help="Items to run at once without a GPU.")
@click.option("--max-retries", type=click.IntRange(0), default=2, help="Retries for a failed item.  [default: 2]")
@click.option(
    "--backoff",
    "backoff_s",
    type=WAIT,
    default=1.0,
    help="Delay before the first retry; doubled for each further one.  [default: 1s]",
)
@click.option("--timeout", "timeout_s", type=DURATION, default=None, help="Fail an item that takes longer than this.")
@click.option("--size", "size_column", metavar="COLUMN", help="Column that holds the size of an item.")
@click.option("--no-hash", "hashed", flag_value=False, default=True, help="Do not record content hashes of files.")
@click.option("--telemetry", type=PATH, metavar="FILE", help="Also write telemetry in BADC's format (JSON lines).")
@click.option(
    "--resume",
    type=RUN,
    metavar="RUN",
    is_eager=True,
    callback=_from_journal,
    help="Resume an earlier batch with its options; finished items are not run again.",
)
@click.option("--wrap", metavar="WORDS", help="Prefix the command with these words, such as 'nsys profile -o {index}'.")
@click.option("--wrap-items", metavar="0,ID", help="Apply --wrap only to these items, by index or id; all by default.")
@slurm_options
@click.option("--plan", "plan_only", is_flag=True, help="Print which item would run where, and exit.")
@click.option(
    "--on-interrupt",
    type=click.Choice([FINISH, KILL]),
    default=FINISH,
    help="What Ctrl-C does with running items; a second Ctrl-C kills them.  [default: finish]",
)
@settings_options
@output_options
def command(
    items: str | None,
    gpus: str | None,
    per_gpu: int,
    cpu_workers: int | None,
    max_retries: int,
    backoff_s: float,
    timeout_s: float | None,
    size_column: str | None,
    hashed: bool,
    telemetry: Path | None,
    resume: str | None,
    wrap: str | None,
    wrap_items: str | None,
    slurm: SlurmOptions,
    plan_only: bool,
    on_interrupt: str,
    settings: Settings,
    output: Output,
) -> int:
    """Run a command for each item, spread over the GPUs, and measure the energy and GPU metrics of every item.

    ITEMS is a .csv or .jsonl file, a file with one item per line, or `-` for standard input. {input}, {index}, {gpu}
    and any {column} in the command are replaced. A failed item does not stop the others; the exit code is then 1.
    --resume RUN continues an earlier batch; items, command and options do not have to be repeated.
    """
    words = words_of()
    folder = None if resume is None else find_batch(resume, existing_home(settings.home))
    by_array = folder is not None and bool(array.parts(folder))
    if folder is not None and by_array and not plan_only:
        code = settle(folder, slurm, output)
        if code is not None:
            return code
    history = None if folder is None else take_up(folder, words)
    kept = given_options(click.get_current_context())
    if history is not None and not words:
        words = tuple(history.command)
    chosen = _items(items, history, size_column, output)
    wrapping = _wrapping(wrap, wrap_items, chosen)
    check_words((*wrapping[0], *words) if words else (), chosen)
    if note_on_words := unused(words, chosen):
        output.warn(note_on_words)
    work = what_is_left(chosen, history)
    if history is not None and folder is not None and work.todo:
        output.say(_resumed(folder.name, history, kept))
    on_slurm = (slurm.executor or (SLURM if by_array else LOCAL)) == SLURM
    if on_slurm and plan_only:
        tasks = min(slurm.tasks, max(len(work.todo), 1))
        _show_plan(work, Lanes((Device("task"),) * tasks), history, output)
        return 0
    if on_slurm and work.todo:
        if telemetry is not None:
            raise UsageError(
                "--telemetry is written where the items run, and these run on other hosts.",
                cure="leave --telemetry out",
            )
        return run_array(work, words, folder, slurm, settings, kept, items, output)
    if not work.todo and folder is not None and not plan_only:
        return _nothing_left(folder, work, telemetry, output)
    lanes = lay_out(os.environ, gpus=wanted_gpus(gpus), per_gpu=per_gpu, cpu_workers=cpu_workers)
    output.say(*lanes.notes)
    if plan_only:
        _show_plan(work, lanes, history, output)
        return 0
    output.say(*work.notes)
    pace = Pace.of(history.states) if history is not None else Pace()
    output.say(plan_lines(shares(work.todo, [device.name for device in lanes.devices], pace))[-1])
    source = items or (history.source if history is not None else None)
    runner = RunnerSettings(words, max_retries, backoff_s, timeout_s, hashed, *wrapping, options=kept, source=source)
    return run_batch(work, lanes.devices, runner, settings, output, folder, history, on_interrupt, telemetry)


def _resumed(run: str, history: History, now: Mapping[str, Any]) -> str:
    """Which options hold in a resumed batch, and which of them differ from those of the session before."""
    if history.options is None:
        return f"Resuming {run}: its journal, of an earlier version, has no options; those not given are the defaults."
    changed = sorted(name for name in {*now, *history.options} if now.get(name) != history.options.get(name))
    shown = [f"{name} {_shown(name, value)}".rstrip() for name, value in now.items()]
    return (
        f"Resuming {run} with {', '.join(shown) or 'default options'}; changed by you: {', '.join(changed) or 'none'}"
    )


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return format_duration(value) if name in DURATIONS else str(value)


def _nothing_left(folder: Path, work: Work, telemetry: Path | None, output: Output) -> int:
    output.say(*work.notes)
    output.say(f"Nothing is left to do in {folder.name}.")
    code, found = show_batch(folder, output)
    if telemetry is not None and telemetry.exists():
        write_summary(telemetry, found)
    return code


def run_batch(
    work: Work,
    devices: Sequence[Device],
    runner: RunnerSettings,
    settings: Settings,
    output: Output,
    folder: Path | None,
    history: History | None,
    on_interrupt: str,
    telemetry: Path | None,
) -> int:
    """Record, work off, print; gives the exit code."""
    log = None if telemetry is None else TelemetryLog(telemetry)
    meter = batch_meter("batch", devices, settings, folder)
    words = [runner.source or "-", *option_words(runner.options or {}), "--", *runner.command]
    start(meter, output, root=True, command=["everywatt", "batch", *words], reaper=os.getpid())
    if meter.recording is None:
        output.warn(f"nothing recorded: {meter.energy.refused}")
    with stopping(on_interrupt, output) as (ready, caught):
        outcome = work_off(
            work,
            devices,
            runner,
            meter,
            folder=lambda: folder or new_folder(settings, "batch", output),
            history=history,
            watch=_watcher(output, log),
            ready=ready,
        )
    code, found = show_batch(outcome.folder, output)
    if outcome.trouble:  # what is shown is what the journal has
        done, failed = (outcome.statuses.count(status) for status in (DONE, FAILED))
        count = format_count(len(outcome.statuses), "item")
        output.warn(outcome.trouble, f"{count} in this session: {done} done, {failed} failed.")
        code = max(code, int(done < len(outcome.statuses)))
    if log is not None:
        log.close()
        write_summary(log.path, found)
    if outcome.stopped:
        output.say(f"Interrupted. Resume with: everywatt batch --resume {outcome.folder.name}")
        return 128 + (caught[0] if caught else signal.SIGINT)
    return code


def _items(items: str | None, history: History | None, size_column: str | None, output: Output) -> list[Item]:
    if items is None and history is not None:
        return [state.item for state in history.states.values()]
    if items is None:
        raise UsageError("No items were given.", cure="everywatt batch ITEMS -- CMD {input}")
    if items == "-":
        text = decoded(sys.stdin.buffer.read(), "standard input")
        return parse_items(text, "", size_column=size_column, what="standard input", warn=output.warn)
    return read_items(Path(items), size_column=size_column, warn=output.warn)


def _wrapping(
    wrap: str | None, chosen: str | None, items: Sequence[Item]
) -> tuple[tuple[str, ...], frozenset[str] | None]:
    """The words of --wrap, and the items that get them. UsageError where there is no such item."""
    if wrap is None:
        if chosen is not None:
            raise UsageError("--wrap-items needs --wrap.", cure="--wrap 'nsys profile -o {index}'")
        return (), None
    try:
        words = tuple(shlex.split(wrap))
    except ValueError as error:
        raise UsageError(f"--wrap '{wrap}': {error}.") from None
    if not words or not words[0]:
        raise UsageError("--wrap names no program.", cure="--wrap 'nsys profile -o {index}'")
    if chosen is None:
        return words, None
    wanted = frozenset(word.strip() for word in chosen.split(",") if word.strip())
    known = {name for item in items for name in (item.id, str(item.index))}
    if unknown := sorted(wanted - known):
        raise UsageError(f"There is no item '{unknown[0]}' to wrap.")
    return words, wanted


def _watcher(output: Output, log: TelemetryLog | None = None) -> Callable[[Event, Progress], None]:
    show = output.progress()
    shown = [0.0]

    def watch(event: Event, progress: Progress) -> None:
        if log is not None:
            log.event(event)
        if event.kind == "end" and event.final and event.attempt.status != DONE:
            output.detail(f"{event.state.item.id} failed on {event.device.name}")
        moment = time.monotonic()
        if moment - shown[0] < SHOW_EVERY_S and progress.running:
            return
        shown[0] = moment
        eta = progress.eta_s
        rest = "" if not eta else f" · about {format_duration(eta)} left"
        failed = f" · {progress.failed} failed" if progress.failed else ""
        show(f"{progress.done}/{progress.total} done{failed} · {progress.running} running{rest}")

    return watch


def _show_plan(work: Work, lanes: Lanes, history: History | None, output: Output) -> None:
    pace = Pace.of(history.states) if history is not None else Pace()
    found = shares(work.todo, [device.name for device in lanes.devices], pace)
    data: dict[str, Any] = {"lanes": [share.to_dict() for share in found], "items": len(work.todo)}
    seconds = [share.seconds for share in found if share.seconds is not None]
    data["eta_s"] = max(seconds) if seconds else None
    output.table(plan_table(found))
    output.text(*plan_lines(found))
    output.json("batch-plan", data)
