"""`everywatt sweep --power-limit 150W..300W:25W -- CMD`: energy against time at each setting."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from everywatt.bench.comparing import Plan
from everywatt.bench.limits import PowerLimits
from everywatt.bench.sweep import Sweep, choose, parse_watts
from everywatt.bench.sweep import settings as limits_of
from everywatt.bench.trials import candidates, parse_params
from everywatt.cli.common.metering import terminable
from everywatt.cli.common.options import (
    RUN,
    Resumed,
    as_value,
    cooldown_option,
    idle_option,
    out_option,
    output_options,
    settings_options,
)
from everywatt.cli.common.output import Output
from everywatt.cli.common.results import check_ending, write_result
from everywatt.cli.compare import compare, param_option, refusal, say_trials, show, trials_html
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError


@click.command(cls=Resumed, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
@click.option("--power-limit", metavar="RANGE", help="Power limits of the GPUs: 150W..300W:25W, or 150W,200W.")
@click.option("--gpu", "gpus", type=click.IntRange(0), multiple=True, help="Restrict to this GPU.  [default: all]")
@param_option
@click.option("--trials", type=click.IntRange(1), default=3, help="Trials at each setting.  [default: 3]")
@click.option(
    "--warmup", type=click.IntRange(0), default=1, help="Warm-up trials at each setting, not counted.  [default: 1]"
)
@idle_option
@cooldown_option
@click.option("--ignore-failure", is_flag=True, help="Count trials whose command failed.")
@click.option("--show-output", is_flag=True, help="Show the output of the command.")
@click.option("--resume", type=RUN, metavar="RUN", help="Resume an interrupted sweep.")
@out_option
@settings_options
@output_options
@as_value("plan", Plan)
def command(
    words: tuple[str, ...],
    power_limit: str | None,
    gpus: tuple[int, ...],
    param: Sequence[tuple[str, str]],
    plan: Plan,
    resume: str | None,
    out: Path | None,
    settings: Settings,
    output: Output,
) -> int:
    """Measure a command at several settings: energy against time, Pareto-optimal settings, and the cheapest.

    The power limits are restored when the command ends, for whatever reason. -o writes .json, .csv, .md or .html.
    Ctrl-C keeps partial results; --resume RUN continues, and command and options do not have to be repeated.
    """
    if (power_limit is None) == (not param):
        raise UsageError("A sweep varies either --power-limit or --param.")
    check_ending(out)
    watts = None if power_limit is None else parse_watts(power_limit)
    with ExitStack() as stack:
        code = stack.enter_context(terminable())
        if watts is not None:
            limits = PowerLimits(gpus)
            chosen = limits_of(words, _within(watts, limits))
            stack.enter_context(limits)
            result = compare(
                chosen,
                plan,
                settings,
                resume,
                output,
                name="sweep",
                apply=lambda one: limits.set_w(float(one.params["power_limit"])),
            )
        else:
            chosen = candidates([shlex.join(words)], params=parse_params(param), names=[""])
            result = compare(chosen, plan, settings, resume, output, name="sweep")
    sweep = Sweep(result, choose(result.found, ignore_failure=plan.ignore_failure))
    show(sweep, sweep.lines, output)
    say_trials(result, output)
    write_result(output, out, "sweep", sweep, lambda: trials_html(result, sweep, settings))
    if result.ended == "interrupted":
        if result.run is not None:
            output.say(f"Interrupted. Resume with: everywatt sweep --resume {result.run}")
        return code()
    return 0 if sweep.choice.best is not None else refusal(result)


def _within(watts: list[float], limits: PowerLimits) -> list[float]:
    low, high = limits.range_w()
    outside = [watt for watt in watts if not low <= watt <= high]
    if outside:
        raise UsageError(f"{outside[0]:g} W is outside the range that the GPU accepts: {low:g} to {high:g} W.")
    return watts
