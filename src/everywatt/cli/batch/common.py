"""What the verbs of `batch` share: the command after `--`, the choice of GPUs, the recording, and Ctrl-C."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click
from click.core import ParameterSource

from everywatt.api.meter import Meter
from everywatt.batch.journal import JOURNAL, Device
from everywatt.batch.runner import FINISH
from everywatt.cli.common.metering import meter_of, on_signals
from everywatt.cli.common.options import Verb
from everywatt.cli.common.output import Output
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError
from everywatt.tape.run_store import find_run, list_runs

WORDS = "everywatt.batch.words"
TWINS_S = 0.5
DURATIONS = ("timeout", "backoff")
OF_ONE_SESSION = ("resume", "plan_only", "print_script", "wait", "json_to", "quiet", "verbose")
"""Options that say nothing about the work itself; a resumed batch does not keep them."""
gpus_option = click.option("--gpus", metavar="0,1", help="GPUs to use, by index or UUID; none for the CPU alone.")


class Stoppable(Protocol):
    """What Ctrl-C can stop."""

    def stop(self, how: str) -> None:
        """Begin nothing more, and finish or kill what runs."""


class WithCommand(Verb):
    """A verb whose command comes after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, apart(ctx, args))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- CMD..."]


def apart(ctx: click.Context, args: Sequence[str]) -> list[str]:
    """The words before the first `--`; those after it are kept as the command."""
    if "--" not in args:
        return list(args)
    place = list(args).index("--")
    ctx.meta[WORDS] = tuple(args[place + 1 :])
    return list(args[:place])


def find_batch(name: str, home: Path) -> Path:
    """The batch that a name, a path or `last` means, also one that has no recording yet: it waits for Slurm."""
    place = Path(name) if "/" in name else home / name
    if name != "last":
        return place if (place / JOURNAL).is_file() else find_run(name, home)
    waiting = [path.parent for path in home.glob(f"*/{JOURNAL}") if not path.parent.name.startswith(".")]
    newest = sorted({*waiting, *list_runs(home)}, key=lambda path: path.name)
    return newest[-1] if newest and newest[-1] in waiting else find_run(name, home)


def words_of() -> tuple[str, ...]:
    """The command after `--`, or that of the configuration file; else ()."""
    words: tuple[str, ...] = click.get_current_context().meta.get(WORDS, ())
    return words


def batch_meter(name: str, devices: Sequence[Device], settings: Settings, append: Path | None = None) -> Meter:
    """The recording of a batch: its own GPUs and the machine."""
    return meter_of(
        settings,
        name,
        devices=",".join(dict.fromkeys(device.uuid or device.visible for device in devices if device.is_gpu)),
        append=append,
        pids=(),
    )


@contextmanager
def stopping(how: str, output: Output) -> Iterator[tuple[Callable[[Stoppable], None], list[int]]]:
    """Ctrl-C and SIGTERM stop the batch as asked; gives what takes the runner, and the signals that came.

    Two SIGTERM in one moment are one: `timeout` sends it to its command and to its group.
    """
    runners: list[Stoppable] = []
    caught: list[int] = []
    last_s = [-math.inf]

    def stop(number: int, frame: object) -> None:
        now_s = time.monotonic()
        twin = number == signal.SIGTERM and now_s - last_s[0] < TWINS_S
        last_s[0] = now_s
        if twin:
            return
        caught.append(number)
        for runner in runners:
            runner.stop(how)
        if how == FINISH and len(caught) == 1:
            output.say("Finishing the running items; interrupt again to kill them.")

    def ready(runner: Stoppable) -> None:
        runners.append(runner)
        if caught:
            runner.stop(how)

    with on_signals(stop, (signal.SIGINT, signal.SIGTERM)):
        yield ready, caught


def wanted_gpus(text: str | None) -> list[str] | None:
    """The GPUs that --gpus names; [] for none, None where it was left out."""
    if text is None:
        return None
    if text.strip().lower() == "none":
        return []
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"'{text}' is not a list of GPUs.", cure="--gpus 0,1")
    return words


def kept_options(ctx: click.Context) -> dict[str, click.Option]:
    """The options that a resumed batch keeps, by their names without dashes."""
    options = [param for param in ctx.command.params if isinstance(param, click.Option)]
    return {param.opts[0].lstrip("-"): param for param in options if param.name not in OF_ONE_SESSION}


def given_options(ctx: click.Context) -> dict[str, Any]:
    """What flags, file and journal say, as plain data by the names of options; defaults are left out."""
    found: dict[str, Any] = {}
    for name, param in kept_options(ctx).items():
        if ctx.get_parameter_source(str(param.name)) not in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP):
            continue
        value = ctx.params.get(str(param.name))
        if value is not None and value != ():
            found[name] = [_plain(one) for one in value] if param.multiple else _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return "=".join(map(str, value))
    return str(value.absolute()) if isinstance(value, Path) else value


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Options of the journal as words of a command line."""
    words: list[str] = []
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool):
                words.append(f"--{name}")
            else:
                words += [f"--{name}", _seconds(one) if name in DURATIONS else str(one)]
    return words


def _seconds(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") + "s"
