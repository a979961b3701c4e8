"""The shared options: one spelling, one meaning."""

from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner

from everywatt.cli.common.options import (
    DURATION,
    ENERGY,
    PAIR,
    POWER,
    RUN,
    TAG,
    Time,
    Verb,
    output_options,
    run_argument,
    settings_options,
)

NOW_NS = 1_800_000_000_000_000_000


def verb(*, interspersed=True):
    seen = {}

    @click.command(cls=Verb, context_settings={"allow_interspersed_args": interspersed})
    @click.argument("words", nargs=-1)
    @output_options
    @settings_options
    def command(words, output, settings):
        seen.update(words=words, json=output.json_to, settings=settings, output=output)

    return command, seen


def call(words, **settings):
    command, seen = verb(**settings)
    result = CliRunner().invoke(command, words, catch_exceptions=False, env={"HOME": "/nonexistent"})
    return result, seen


@pytest.mark.parametrize(
    ("words", "json", "rest"),
    [
        ([], None, ()),
        (["--json"], "-", ()),
        (["--json", "last"], "-", ("last",)),
        (["last", "--json"], "-", ("last",)),
        (["--json=out.json", "last"], "out.json", ("last",)),
        (["--note=--json", "last"], None, ("last",)),
        (["--note=x", "--json"], "-", ()),
        (["--json", "--", "--json"], "-", ("--json",)),
        (["--", "--json"], None, ("--json",)),
    ],
)
def test_json_takes_a_file_only_with_an_equals_sign(words, json, rest):
    result, seen = call(words)
    assert result.exit_code == 0, result.output
    assert (seen["json"], seen["words"]) == (json, rest)


def test_json_after_the_command_belongs_to_the_command():
    """`everywatt run python x.py --json`: the words after the first argument are not ours."""
    _, seen = call(["--json", "python", "x.py", "--json"], interspersed=False)
    assert (seen["json"], seen["words"]) == ("-", ("python", "x.py", "--json"))
    _, seen = call(["python", "--json"], interspersed=False)
    assert (seen["json"], seen["words"]) == (None, ("python", "--json"))


def test_flags_become_settings():
    words = ["--period", "250ms", "--sensors", "rapl,nvml", "--no-estimate", "--tag", "project=a", "--tag", "night"]
    _, seen = call([*words, "--note", "a b", "--quiet"])
    settings = seen["settings"]
    assert (settings.period_s, settings.sensors, settings.estimate) == (0.25, ("rapl", "nvml"), False)
    assert settings.tags == {"project": "a", "name": "night"}
    assert {origin.source for name, origin in settings.origins.items() if name in ("period", "sensors")} == {"flag"}
    assert settings.origins["estimate"].where == "--no-estimate"
    assert (seen["settings"].note, seen["output"].quiet, seen["output"].verbose) == ("a b", True, False)


def test_flags_that_are_not_given_leave_the_environment_in_charge(monkeypatch):
    monkeypatch.setenv("EVERYWATT_PERIOD", "2s")
    monkeypatch.setenv("EVERYWATT_ESTIMATE", "off")
    _, seen = call([])
    assert (seen["settings"].period_s, seen["settings"].estimate) == (2.0, False)
    assert seen["settings"].origins["estimate"].source == "environment"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (DURATION, "250ms", 0.25),
        (DURATION, "3", 3.0),
        (POWER, "1.2kW", 1200.0),
        (ENERGY, "3Wh", 10800.0),
        (ENERGY, 5, 5.0),
    ],
)
def test_quantities(kind, text, value):
    assert kind.convert(text, None, None) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (DURATION, "soon"),
        (POWER, "5J"),
        (ENERGY, "W"),
        (RUN, ""),
        (RUN, "a\0b"),
        (TAG, "=x"),
        (TAG, "k="),
        (TAG, " "),
        (PAIR, "k"),
        (PAIR, "k="),
        (PAIR, "=v"),
    ],
)
def test_bad_values_are_usage_errors(kind, text):
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(text, None, None)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "value_ns"),
    [
        ("now", NOW_NS),
        ("-2h", NOW_NS - 7_200 * 10**9),
        ("-250ms", NOW_NS - 250_000_000),
        ("2026-11-15T10:00+00:00", int(datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp()) * 10**9),
        ("2026-11-15T10:00Z", int(datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp()) * 10**9),
        ("2026-11-15T10:00", int(datetime(2026, 11, 15, 10).astimezone().timestamp()) * 10**9),
        ("2026-11-15T10:00:00.25Z", int(datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp()) * 10**9 + 250_000_000),
        (5, 5),
    ],
)
def test_times(text, value_ns):
    assert Time(lambda: NOW_NS).convert(text, None, None) == value_ns


@pytest.mark.parametrize("text", ["", "yesterday", "2h", "--2h", "-2x", "2026-13-01", "-1e400h"])
def test_bad_times(text):
    with pytest.raises(click.BadParameter):
        Time(lambda: NOW_NS).convert(text, None, None)


def test_a_time_in_the_past_can_be_an_option_value():
    @click.command(cls=Verb)
    @click.option("--start", type=Time(lambda: NOW_NS))
    def command(start):
        click.echo(start)

    assert CliRunner().invoke(command, ["--start", "-2h"]).output == f"{NOW_NS - 7_200 * 10**9}\n"


def test_runs_are_completed_by_name(tmp_path, monkeypatch):
    for name in ("2026-11-15-night", "2026-11-16", ".gitignore"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("EVERYWATT_HOME", str(tmp_path))

    @click.command(cls=Verb)
    @run_argument
    def command(run):
        click.echo(run)

    context = click.Context(command)
    names = [item.value for item in RUN.shell_complete(context, command.params[0], "")]
    assert names == ["last", "2026-11-15-night", "2026-11-16"]
    assert [item.type for item in RUN.shell_complete(context, command.params[0], "./x")] == ["file"]
    assert CliRunner().invoke(command, ["last"]).output == "last\n"


@pytest.mark.parametrize("columns", [40, 60])
def test_help_keeps_defaults_and_amounts_whole(columns):
    @click.command(cls=Verb)
    @click.option("--target", help="Stop when all of them are known. [default: 30 min]")
    @click.option("--price", help="Cost from this price of a kWh: 0.25 or '0.25 EUR'.")
    def command(**_):
        """Words and words, 412.3 J ± 6.1 (coverage 33.3 %), and more words about it."""

    text = CliRunner().invoke(command, ["--help"], terminal_width=columns).output
    for whole in ("[default: 30 min]", "'0.25 EUR'", "412.3 J ± 6.1", "(coverage 33.3 %)"):
        assert whole in text, text
