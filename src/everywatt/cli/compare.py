"""`everywatt compare 'CMD A' 'CMD B'`: is one really cheaper than the other?"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from everywatt.api.run import Run, load
from everywatt.bench.comparing import Comparing, Plan, Result, compare_runs
from everywatt.bench.figures import MOST_OF_ONE, Rule, failing, parse_rule, undecided, unjudged
from everywatt.bench.llm.comparing import compare_llm_runs, is_llm
from everywatt.bench.sweep import Sweep
from everywatt.bench.trials import Candidate, candidates, parse_params
from everywatt.cli.common.metering import meter_of, recorded, terminable
from everywatt.cli.common.options import (
    DURATION,
    RUN,
    Parsed,
    Resumed,
    as_value,
    cooldown_option,
    idle_option,
    out_option,
    output_options,
    settings_options,
)
from everywatt.cli.common.output import Output
from everywatt.cli.common.results import FileResult, check_ending, own_words, run_of, write_result
from everywatt.core.config import Settings
from everywatt.core.errors import MeasurementRefused, NoSensor, NotATape, RunNotFound, UsageError

LOG_EVERY_S = 30.0


def _share(text: str) -> float:
    """`2%`, `0.02`."""
    try:
        share = float(text.strip().rstrip("% ")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise ValueError(f"'{text}' is not a percentage such as 2%.") from None
    if not 0 < share < 1:
        raise ValueError(f"'{text}' is not between 0 and 100 %.")
    return share


param_option = click.option(
    "--param",
    nargs=2,
    multiple=True,
    metavar="NAME VALUES",
    help="Values of {NAME} in a command: 1,2,4 or 1..9:2; may be repeated.",
)
target_option = click.option(
    "--target",
    type=Parsed("percent", _share),
    default=0.02,
    help="Stop when differences are known to this precision.  [default: 2%]",
)


@click.command(cls=Resumed)
@click.argument("commands", nargs=-1, required=True, metavar="'CMD A' 'CMD B'... | RUN RUN...")
@click.option("--trials", type=click.IntRange(1), help="Run exactly this many trials of each, without a target.")
@target_option
@click.option(
    "--max-time", "max_s", type=DURATION, default=600.0, help="Start no trials after this long.  [default: 10 min]"
)
@click.option("--warmup", type=click.IntRange(0), default=1, help="Warm-up trials of each, not counted.  [default: 1]")
@idle_option
@cooldown_option
@param_option
@click.option("--name", "names", multiple=True, metavar="TEXT", help="Names of the commands, in order.")
@click.option("--shell", is_flag=True, help="Run the commands through a shell.")
@click.option("--setup", metavar="CMD", help="Shell command to run before all trials.")
@click.option("--prepare", metavar="CMD", help="Shell command to run before each trial.")
@click.option("--cleanup", metavar="CMD", help="Shell command to run after all trials, even after a failure.")
@click.option("--ignore-failure", is_flag=True, help="Count trials whose command failed.")
@click.option("--show-output", is_flag=True, help="Show the output of the commands.")
@click.option(
    "--fail-if",
    "rules",
    multiple=True,
    metavar="RULE",
    help="Exit with 1 if this holds, such as 'energy > baseline * 1.05'.",
)
@click.option("--resume", type=RUN, metavar="RUN", help="Resume an interrupted comparison.")
@click.option(
    "--level", metavar="LOAD", help="Load level to compare, for runs of `bench llm` with several: 'concurrency 4'."
)
@click.option("--force", is_flag=True, help="Compare runs even if they cover different devices.")
@out_option
@settings_options
@output_options
@as_value("plan", Plan)
def command(
    commands: tuple[str, ...],
    plan: Plan,
    param: Sequence[tuple[str, str]],
    names: tuple[str, ...],
    shell: bool,
    rules: tuple[str, ...],
    resume: str | None,
    level: str | None,
    force: bool,
    out: Path | None,
    settings: Settings,
    output: Output,
) -> int:
    """Compare the energy of commands: interleaved trials, as many as needed, and a verdict with its interval.

    Commands are split as a shell would split them; --shell runs them through one. If all arguments name finished runs,
    those are compared; runs of `bench llm` item by item. -o writes .json, .csv, .md or .html. Ctrl-C keeps partial
    results; --resume RUN continues, and commands and options do not have to be repeated.
    """
    gate = [parse_rule(rule) for rule in rules]
    runs = _runs(commands, settings)
    if runs and all(is_llm(run) for run in runs):
        return _models(runs, level, force, out, output)
    if runs:
        return _finished(runs, plan.target, force, out, output)
    chosen = candidates(commands, params=parse_params(param), names=names, shell=shell)
    _check_programs(chosen, certain=not (shell or plan.setup or plan.prepare))
    most = MOST_OF_ONE if len(chosen) == 1 and plan.trials is None else None
    check_ending(out)
    if most is not None:
        output.say(f"One command, nothing to compare it with: {most} trials at most; --trials N for another number.")
    with terminable() as code:
        result = compare(chosen, replace(plan, most=most), settings, resume, output)
    show(result, [*result.verdicts(), *([result.floor] if result.floor else [])], output)
    say_trials(result, output)
    write_result(output, out, "comparison", result, lambda: trials_html(result, None, settings))
    failed, unknown = _judged(gate, result, output)
    if result.ended == "interrupted":
        if result.run is not None:
            output.say(f"Interrupted. Resume with: everywatt compare --resume {result.run}")
        return code()
    if failed:
        return 1
    return refusal(result) or (MeasurementRefused.exit_code if unknown else 0)


def _check_programs(chosen: Sequence[Candidate], *, certain: bool) -> None:
    """UsageError for words of one command without quotes, and for programs that do not exist; a single word is probably
    the name of a run that does not exist. `certain`: nothing else can make a program of them."""
    options = [one.text for one in chosen if one.text.startswith("-")]
    if options:
        cure = f"everywatt compare '{chosen[0].text} {options[0]} …'"
        raise UsageError(f"'{options[0]}' is not a command: each command is one argument, in quotes.", cure=cure)
    missing = next((one.words for one in chosen if certain and not shutil.which(one.words[0])), None)
    if missing is not None:
        together = shlex.quote(" ".join(one.text for one in chosen))
        quotes = f"; for words of one command: everywatt compare {together}" if missing != chosen[0].words else ""
        neither = "neither a run nor" if len(missing) == 1 else "not"
        cure = (
            "everywatt list for the runs; for a program that is not on the PATH, its path; --shell for built-in words"
        )
        raise UsageError(f"'{missing[0]}' is {neither} a program.", cure=cure + quotes)


def _judged(gate: Sequence[Rule], result: Result, output: Output) -> tuple[bool, bool]:
    """Whether a condition holds, and whether one cannot be decided; both are reported."""
    failed = [sentence for rule in gate for sentence in failing(rule, result.found)]
    unknown = [sentence for rule in gate for sentence in unjudged(rule, result.found)]
    output.say(*(f"failed: {sentence}" for sentence in failed))
    output.say(*(f"undecided: {sentence}" for rule in gate for sentence in undecided(rule, result.found)))
    output.warn(*unknown)
    return bool(failed), bool(unknown)


def refusal(result: Result) -> int:
    """The exit code of a comparison that could not be made: no energy at all, or commands that failed; else 0."""
    found = result.found
    if all(one.energy is None for one in found):
        return NoSensor.exit_code
    counted = result.plan.ignore_failure and not any(one.never_began for one in found)
    return 0 if counted or not any(one.failures for one in found) else MeasurementRefused.exit_code


def _runs(commands: Sequence[str], settings: Settings) -> list[Run]:
    """The runs that all the arguments name; none where all of them are commands. UsageError for some of each."""
    found, others = [], []
    for text in commands:
        try:
            found.append(load(text, home=None if "/" in text else settings.home))
        except (RunNotFound, UsageError):
            others.append(text)
        except NotATape:
            # A program in a file is a command; a run whose tape cannot be opened is not.
            if not os.access(text, os.X_OK) or Path(text).is_dir():
                raise
            others.append(text)
    if found and (others or len(found) == 1):
        wrong = f"'{others[0]}' is no run, and {found[0].name} is one" if others else f"{found[0].name} is a run"
        raise UsageError(
            f"{wrong}: runs are compared with runs, commands with commands.",
            cure="everywatt list for the runs; for a command that is called like a run, its path",
        )
    return found


def compare(
    chosen: Sequence[Candidate],
    plan: Plan,
    settings: Settings,
    resume: str | None,
    output: Output,
    *,
    name: str = "compare",
    apply: Callable[[Candidate], None] | None = None,
) -> Result:
    """Run a comparison in a recording of its own, with progress on stderr; `apply` makes a candidate's setting."""
    meter = meter_of(settings, name, append=resume)
    earlier = None if resume is None else load(resume, home=settings.home)
    comparing = Comparing(chosen, plan, meter, output.progress(log_every_s=LOG_EVERY_S), apply)
    if earlier is not None:
        comparing.take_up(earlier)
    return comparing.result(recorded(meter, output, comparing.work, command=own_words()))


def show(found: FileResult, lines: Sequence[str], output: Output) -> None:
    """The tables, and below them lines in place of their notes, which are for files."""
    output.table(*(replace(table, notes=()) for table in found.tables()))
    output.text("", *lines)


def say_trials(result: Result, output: Output) -> None:
    """What is odd about trials, how those ended that did not end well, and the run that they are in."""
    for one in result.found:
        label = one.candidate.label
        if one.outliers:
            output.say(f"{label}: {one.outlier_line}")
        if one.failures:
            output.warn(f"{label}: {one.endings}; --show-output shows its messages")
        for note in one.notes:
            output.warn(f"{label}: {note}")
    if result.run is not None:
        output.say(f"  run     {result.run}")


def trials_html(result: Result, sweep: Sweep | None, settings: Settings) -> str:
    """The page of a comparison, or of a sweep."""
    from everywatt.report.html.page import trials_page
    from everywatt.report.html.trials import trials_document

    run = run_of(result.run, settings)
    return trials_page(trials_document(result, sweep=sweep, run=run, command=own_words()))


def _finished(runs: Sequence[Run], target: float, force: bool, out: Path | None, output: Output) -> int:
    check_ending(out)
    result = compare_runs(runs, target=target, force=force)
    show(result, result.verdicts(), output)
    output.say("One run each: these intervals do not include the variation of the program from run to run.")
    write_result(output, out, "comparison", result, lambda: _runs_html(runs))
    return 0


def _models(runs: Sequence[Run], level: str | None, force: bool, out: Path | None, output: Output) -> int:
    """Runs of `bench llm`, item by item."""
    check_ending(out)
    result = compare_llm_runs(runs, level=level, force=force)
    for one, table in zip(result.found, result.tables(), strict=True):
        output.table(replace(table, notes=()))
        output.text(*one.verdicts)
        for text in one.notes:
            output.say(f"Note: {text}")
        output.text("")
    write_result(output, out, "llm-comparison", result)
    return 0


def _runs_html(runs: Sequence[Run]) -> str:
    """The report over these runs, which compares them."""
    from everywatt.report.html.data import report_document
    from everywatt.report.html.page import page

    return page(report_document(runs, command=own_words()))
