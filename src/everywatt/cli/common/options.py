"""The options that many verbs share, with one spelling and one meaning, and the types of their values.

    @click.command(cls=Verb)
    @run_argument
    @output_options
    def command(run: str, output: Output) -> int | None: ...

`output_options` gives `output`; `settings_options` gives `settings` (flags joined with environment and
files).
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everywatt.cli.common.output import STDOUT, Output, check_folder
from everywatt.core.clocks import NS
from everywatt.core.config import Settings, parse_tag, resolve
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.units import parse_duration_s, parse_energy_j, parse_power_w

if TYPE_CHECKING:
    from everywatt.footprint.carbon import Factors

F = TypeVar("F", bound=Callable[..., Any])
FOREIGN = "OPTION"  # metavar of values that are options of another program, which may have one of the same name


class Help(click.HelpFormatter):
    """Help in which figures, defaults and brackets stay whole."""

    def write_text(self, text: str) -> None:
        super().write_text(_kept_together(text, self.width // 2))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        kept = [(name, _kept_together(text, self.width // 2)) for name, text in rows]
        super().write_dl(kept, col_max, col_spacing)

    def getvalue(self) -> str:
        from everywatt.core.tables import JOINT

        return super().getvalue().replace(JOINT, " ")


def _kept_together(text: str, width: int) -> str:
    from everywatt.core.tables import keep_together

    return keep_together(text, width)


class HelpContext(click.Context):
    """The context of a command whose help is `Help`."""

    formatter_class = Help


class Verb(click.Command):
    """A click command with `-h`, and with `--json` that takes a file only as `--json=FILE`.

    Plain click would take the next word for the file: `show --json last` would write a file named "last".
    """

    context_class = HelpContext

    def __init__(self, name: str | None, *, context_settings: dict[str, Any] | None = None, **settings: Any) -> None:
        context = {"help_option_names": ["-h", "--help"], **(context_settings or {})}
        super().__init__(name, context_settings=context, **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, bind_json(self.get_params(ctx), args, ctx.allow_interspersed_args))


class Resumed(Verb):
    """A verb whose `--resume RUN` without arguments means those of the run's first call, with its options.

    Options beside it count more.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter:
            name = re.search(r"(?:^|\0)--resume[=\0]([^\0]+)", "\0".join(given))
            if name is None:
                raise
            return super().parse_args(ctx, _first_call(name[1], str(ctx.info_name), given))


def _first_call(name: str, verb: str, given: list[str]) -> list[str]:
    """The words after the verb in the call that made a run, with what is given now before the command."""
    from everywatt.api.run import load

    run = load(name)
    first = run.tapes[0].meta.get("command") or []
    if first[1:2] != [verb]:
        raise UsageError(f"{run.name} is not a run of `everywatt {verb}`.", cure="everywatt list")
    words = first[2:]
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], *given, *words[end:]]


def bind_json(params: Sequence[click.Parameter], args: Sequence[str], interspersed: bool) -> list[str]:
    """The words with each bare `--json` option as `--json=-`; words that are values or arguments stay as they are.

    BadOptionUsage where an option lacks its value: click would take the option after it for that.
    """
    names = {name: param for param in params if isinstance(param, click.Option) for name in _names(param)}
    bound = list(args)
    position = 0
    while position < len(bound):
        word = bound[position]
        if word == "--" or (not interspersed and not word.startswith("-")):
            break
        option = names.get(word)
        if option is None or option.is_flag or option.count:
            pass
        elif word == "--json":
            bound[position] = f"--json={STDOUT}"
        else:
            values = bound[position + 1 : position + 1 + option.nargs]
            odd = next((one for one in values if one == "--" or one.partition("=")[0] in names), None)
            if odd is not None and option.metavar != FOREIGN:
                cure = f"; if that is its value: {word}={odd}" if option.nargs == 1 else ""
                if option.nargs == 2 and "=" in values[0]:
                    cure = f": {word} {values[0].replace('=', ' ', 1)}"
                needed = option.metavar or "a value"
                raise click.BadOptionUsage(word, f"Option '{word}' requires {needed}, and '{odd}' is an option{cure}.")
            position += option.nargs
        position += 1
    return bound


def _names(option: click.Option) -> tuple[str, ...]:
    return (*option.opts, *option.secondary_opts)


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """A value that `parse` makes of a text; its ValueError or EverywattError is what was wrong with that."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (EverywattError, ValueError) as error:
            self.fail(str(error), param, ctx)


class RunName(click.ParamType):  # type: ignore[type-arg]
    """A run: its name, its path, or `last`. Stays text; `everywatt.load` finds it."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value or "\0" in value:
            self.fail("is not the name of a run.", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [name for name in ("last", *_run_names()) if name.startswith(incomplete)]
        return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="file")]


class Time(click.ParamType):  # type: ignore[type-arg]
    """An instant as UTC nanoseconds: `2026-11-15T10:00` (local time unless it has a zone), `-2h` (ago), `now`."""

    name = "time"

    def __init__(self, utc_ns: Callable[[], int] = time.time_ns) -> None:
        self._utc_ns = utc_ns

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == "now":
            return self._utc_ns()
        try:
            if re.match(r"-\s*[\d.]", value):
                return self._utc_ns() + round(parse_duration_s(value) * NS)
            moment = datetime.fromisoformat(value).astimezone()
            return int(moment.timestamp()) * NS + moment.microsecond * 1000
        except (ValueError, OverflowError, EverywattError):
            self.fail(f"'{value}' is not a time such as 2026-11-15T10:00, -2h or now.", param, ctx)


def _tag(text: str) -> tuple[str, str]:
    """`key=value`; a bare word is the tag `name`."""
    try:
        return parse_tag(text)
    except ValueError as error:
        raise ValueError(f"'{text}' is not {error}.") from None


def _pair(text: str) -> tuple[str, str]:
    """`key=value`, and nothing shorter: a bare word would get an invented name."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise ValueError(f"'{text}' is not a setting such as key=value.")
    return key, value


def json_value(text: str) -> Any:
    """The value of a pair: JSON where it is that (`4`, `[1, 2]`), else the text."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def _ahead_s(text: str) -> float:
    """A time to wait, which may be nothing and cannot be less."""
    seconds = parse_duration_s(text)
    if seconds < 0:
        raise UsageError(f"'{text}' has already passed.", cure="a duration such as 10s")
    return seconds


def _some_s(text: str) -> float:
    """A time for which something goes on."""
    seconds = parse_duration_s(text)
    if seconds <= 0:
        raise UsageError(f"'{text}' is not a duration above zero.", cure="a duration such as 10s")
    return seconds


DURATION = Parsed("duration", _some_s)
WAIT = Parsed("duration", _ahead_s)
POWER = Parsed("power", parse_power_w)
ENERGY = Parsed("energy", parse_energy_j)
RUN = RunName()
TIME = Time()
TAG = Parsed("k=v", _tag)
PAIR = Parsed("k=v", _pair)
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)

run_argument = click.argument("run", type=RUN, default="last")
out_option = click.option("-o", "--out", type=PATH, help="Write to this file or folder.")


def _window(
    ctx: click.Context, param: click.Parameter, value: tuple[float, float] | None
) -> tuple[float, float] | None:
    if value is not None and not value[0] < value[1]:
        raise click.BadParameter(f"a window ends after it begins: {value[1]:g} does not come after {value[0]:g}.")
    return value


def _json_target(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value not in (None, STDOUT) and ctx.info_name != "run":  # which starts its command whatever becomes of the file
        check_folder(Path(value))
    return value


between_option = click.option(
    "--between",
    nargs=2,
    type=Parsed("duration", parse_duration_s),
    default=None,
    callback=_window,
    metavar="A B",
    help="Restrict to A to B after the start, such as 1.5s 2min; seconds without a unit.",
)
json_option = click.option(
    "--json",
    "json_to",
    is_flag=False,
    flag_value=STDOUT,
    default=None,
    callback=_json_target,
    metavar="[=FILE]",
    help="Print one JSON object on stdout and nothing else; =FILE writes it to a file.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
verbose_option = click.option("--verbose", is_flag=True, help="Print details and progress to stderr.")
period_option = click.option("--period", metavar="DURATION", help="Time between two reads, such as 100ms.")
sensors_option = click.option("--sensors", metavar="NAMES", help="Use only these sensors, separated by commas.")
estimate_option = click.option(
    "--no-estimate",
    "estimate",
    flag_value=False,
    default=None,
    help="Give no modelled figures if no sensor measures power.",
)
tag_option = click.option(
    "--tag", "tags", type=TAG, multiple=True, help="Tag the run with key=value; a bare word names the run."
)
memory_option = click.option(
    "--memory",
    type=click.Choice(["rss", "pss"]),
    default=None,
    help="Metric of process memory; pss adds proportional and unique set sizes, and is slower.",
)
_POWER_MODEL: dict[str, Any] = {
    "type": click.Path(path_type=Path, dir_okay=False, exists=True),
    "metavar": "FILE",
    "help": "Estimate power with this fitted model (see everywatt model fit).",
}
model_option = click.option("--model", "--power-model", "power_model", **_POWER_MODEL)
power_model_option = click.option("--power-model", **_POWER_MODEL)
idle_option = click.option(
    "--idle", "idle_s", type=WAIT, default=2.0, help="Record idle power for this long first.  [default: 2s]"
)
cooldown_option = click.option(
    "--no-cooldown", "cool", flag_value=False, default=True, help="Do not wait for the machine to cool between trials."
)
entry_option = click.option("--entry", metavar="MODULE:FUNCTION", help="Function that builds the model.")
device_option = click.option(
    "--device", default="auto", metavar="NAME", help="cpu, cuda or cuda:1; a GPU by default, if there is one."
)
note_option = click.option("--note", metavar="TEXT", help="Store a note with the run.")


def as_value(into: str, make: Any, names: Sequence[str] = ()) -> Callable[[F], F]:
    """The function gets those of its options that are fields of the dataclass `make` as one value, `into`; or those of
    `names`, where `make` is a function."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **values: Any) -> Any:
            own = {name: values.pop(name) for name in names or make.__dataclass_fields__ if name in values}
            return function(*args, **{into: make(**own)}, **values)

        return wrapped  # type: ignore[return-value]

    return decorate


def gathered(into: str, make: Callable[..., Any], *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Adds options; the function gets what `make` makes of their values as `into`."""

    def decorate(function: F) -> F:
        names: list[str] = []
        wrapped = as_value(into, make, names)(function)
        before = len(getattr(wrapped, "__click_params__", ()))
        for option in reversed(options):
            option(wrapped)
        params: list[click.Parameter] = wrapped.__click_params__  # type: ignore[attr-defined]
        names += [str(param.name) for param in params[before:] if param.expose_value]
        return wrapped

    return decorate


def settings_here(flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings that hold here (`core.config.resolve`). Problems with them, and sensors that do not exist, are
    reported unless the verb's --quiet says otherwise; its `warnings` have them too."""
    from everywatt.sensors.registry import odd_tables

    settings = resolve(flags)
    settings = replace(settings, warnings=(*settings.warnings, *odd_tables(settings.options)))
    ctx = click.get_current_context(silent=True)
    for warning in settings.warnings:
        Output(quiet=ctx is not None and bool(ctx.params.get("quiet"))).warn(warning)
    return settings


output_options = gathered("output", Output, json_option, quiet_option, verbose_option)
"""Adds --json, --quiet and --verbose; the function gets `output`."""


def _flags(tags: Sequence[tuple[str, str]], power_model: Path | None, note: str | None, **flags: Any) -> Settings:
    model = None if power_model is None else {"model": {"file": str(power_model)}}
    return replace(settings_here({**flags, "tag": dict(tags) or None, "sensor": model}), note=note or "")


def _settings_options(model: Callable[[Any], Any]) -> Callable[[F], F]:
    own = (period_option, sensors_option, estimate_option, memory_option, tag_option, note_option)
    return gathered("settings", _flags, model, *own)


settings_options = _settings_options(model_option)
"""Adds --period, --sensors, --no-estimate, --memory, --model, --tag and --note.

The function gets `settings`, a `core.config.Settings`: what the flags say, else the environment, the files,
the defaults; the file of --model is among its options of sensors. Problems with them have been reported.
"""
settings_options_beside_model = _settings_options(power_model_option)
"""`settings_options` of a verb whose --model is another thing: the model of power is --power-model alone."""


country_option = click.option("--country", metavar="CODE", help="Carbon from this country's yearly grid intensity.")
intensity_option = click.option(
    "--intensity", metavar="GRAMS", help="Carbon from this intensity, in grams of CO2e per kWh."
)
intensity_file_option = click.option(
    "--intensity-file", metavar="CSV", help="Carbon from a time series of intensity: columns time and g_per_kwh."
)
pue_option = click.option(
    "--pue", metavar="RATIO", help="Power usage effectiveness: power of the room divided by power of its computers."
)
price_option = click.option("--price", metavar="AMOUNT", help="Cost from this price of a kWh: 0.25 or '0.25 EUR'.")


def _factors(intensity_file: str | None, **flags: Any) -> Settings:
    return settings_here({**flags, "intensity-file": intensity_file})


carbon_options = gathered(
    "settings", _factors, country_option, intensity_option, intensity_file_option, pue_option, price_option
)
"""Adds --country, --intensity, --intensity-file, --pue and --price; the function gets `settings` with them."""
embodied_option = click.option(
    "--embodied",
    "embodied_g",
    type=click.FloatRange(0),
    metavar="GRAMS",
    help="SCI score: grams of CO2e of making the hardware that this use of it carries.",
)
per_option = click.option(
    "--per",
    type=(click.FloatRange(0, min_open=True), str),
    metavar="NUMBER UNIT",
    help="SCI score: functional units of the run, such as 1000 request.  [default: items of a batch, else the run]",
)


def _footprint(embodied_g: float | None, per: tuple[float, str] | None, **flags: Any) -> Factors:
    from everywatt.footprint.carbon import factors_of

    factors = factors_of(_factors(**flags))
    if embodied_g is None:
        if per is not None:
            raise UsageError("--per requires --embodied.", cure="--embodied 120 --per 1000 request")
        return factors
    if factors.intensity is None and factors.curve is None:
        raise UsageError("--embodied requires an intensity of the grid.", cure="--country FR, or --intensity 56")
    units, unit = per or (1.0, "run")
    return replace(factors, embodied_g=embodied_g, units=units, unit=unit)


footprint_options = gathered(
    "factors",
    _footprint,
    *(country_option, intensity_option, intensity_file_option, pue_option, price_option, embodied_option, per_option),
)
"""`carbon_options` of one run, with --embodied and --per; the function gets `factors`."""


def _run_names() -> list[str]:
    """Names in the folder of runs, for completion; none where it cannot be read."""
    from everywatt.tape.run_store import FOLDER

    try:
        folder = resolve().home or Path(FOLDER)
        return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except (OSError, EverywattError):
        return []
