"""How every ending of the command line becomes an exit code, and what it says on which stream."""

import io
import os
import subprocess
import sys

import click
import pytest

from everywatt.cli.common import group as frame
from everywatt.cli.common.output import Output
from everywatt.cli.main import COMMANDS, GROUPS, help_text, main
from everywatt.core import errors
from everywatt.core.errors import UsageError
from everywatt.core.tables import Table
from everywatt.doctor.preflight import CpuLoad


def everywatt(*words, **settings):
    command = [sys.executable, "-m", "everywatt", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, **settings)


def test_help_lists_every_command_on_stdout(capsys):
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == help_text() and err == ""
    assert [name for name in COMMANDS if f"\n  {name} " not in out] == []
    assert main(["-h"]) == 0


def test_help_by_click_is_the_same_text(capsys):
    """`everywatt --help` does not load click; every other way to the same text goes through it."""
    assert frame.dispatch(["--help"]) == 0
    assert capsys.readouterr().out.strip() == help_text()


def test_no_command_is_a_usage_error(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Usage: everywatt" in err


@pytest.mark.parametrize("group", ["bench", "slurm", "meter", "model", "config"])
def test_a_group_without_a_member_prints_its_help(group, capsys):
    assert main([group, "--help"]) == 0
    text = capsys.readouterr().out
    assert main([group]) == 2
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sensrs"], "There is no command 'sensrs'. Did you mean 'sensors'?"),
        (["sensors", "--wrong"], "--wrong"),
        (["--wrong"], "--wrong"),
        (["completion", "tcsh"], "tcsh"),
        (["sensors", "--sensors", "no-such"], "There is no sensor 'no-such'"),
    ],
)
def test_usage_errors_end_with_2(capsys, words, said):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err


def test_version(capsys):
    import everywatt as package

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"everywatt {package.__version__}\n"


def test_every_command_has_the_help_of_the_table():
    context = click.Context(frame.cli(), info_name="everywatt")
    for name, (_, text) in COMMANDS.items():
        command = frame.cli().get_command(context, name)
        assert isinstance(command, click.Command), name
        assert command.help and text.endswith("."), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists(name, capsys):
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: everywatt {name}")


def group_that(function) -> click.Group:
    return click.Group(commands={"go": click.Command("go", callback=function)})


@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EverywattError)],
)
def test_each_error_ends_with_its_code_and_says_the_cure(kind, capsys):
    def fail():
        if kind is errors.MissingExtra:
            raise kind("lib", "extra")
        if kind is errors.NetworkError:
            raise kind("connect", "http://plug.lan", "connection refused", cure="mend it")
        raise kind("It broke.", cure="mend it")

    assert frame.dispatch(["go"], group_that(fail)) == kind.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ") and "\nTry:   " in err


def test_what_a_verb_returns_is_the_exit_code():
    assert frame.dispatch(["go"], group_that(lambda: 7)) == 7
    assert frame.dispatch(["go"], group_that(lambda: None)) == 0
    assert frame.dispatch(["go"], group_that(lambda: click.get_current_context().exit(4))) == 4


def test_a_verb_gets_the_load_that_was_watched_since_the_call():
    load = CpuLoad()
    found = []
    look = group_that(lambda: found.append(click.get_current_context().find_object(CpuLoad)))
    assert frame.dispatch(["go"], look, load=load) == 0
    assert found == [load]


def test_interrupt_is_130(monkeypatch):
    def interrupt(args, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(frame, "dispatch", interrupt)
    assert main(["sensors"]) == 130


def test_a_reader_that_leaves_is_not_an_error():
    """The pipe is closed before anything is written, as by `everywatt … | true`."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "everywatt", "completion", "bash"]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=240)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "everywatt", "completion", "bash"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=240)
    assert result.returncode == 1
    assert result.stderr == "Error: cannot write to stdout: No space left on device.\n"


@pytest.mark.parametrize("words", ["completion bash", "config show", "config show --json", "--help"])
def test_a_closed_stdout_is_no_error(words):
    result = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m everywatt {words} >&-'], capture_output=True, text=True, timeout=240
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_module_runs_as_a_program():
    result = everywatt("config", "show", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith('{\n  "schema": "everywatt/1",\n  "kind": "config"')


def test_no_command_is_in_two_groups_of_the_help():
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped)) and set(grouped) <= set(COMMANDS)


def test_a_command_that_is_named_next_is_written_as_this_program_is_called(monkeypatch, tmp_path):
    """`everywatt` need not be on the PATH: what is printed can be typed as it is, whoever prints it."""
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "everywatt"), "show"])
    out, err = io.StringIO(), io.StringIO()
    speaker = Output(stdout=out, stderr=err, environ={})
    speaker.say("record again: everywatt run --idle 10s -- true (everywatt itself used 1 s)")
    speaker.error(UsageError("There is no run.", cure="everywatt list"))
    speaker.table(
        Table.of("NAME", "FIX", rows=[["everywatt run", "everywatt doctor --fix"]], notes=["everywatt why x"])
    )
    speaker.text("  command everywatt batch items.csv -- ./work")
    here = tmp_path / "everywatt"
    assert err.getvalue().splitlines() == [
        f"record again: {here} run --idle 10s -- true (everywatt itself used 1 s)",
        "Error: There is no run.",
        f"Try:   {here} list",
    ]
    assert out.getvalue().splitlines()[1:] == [
        f"everywatt run  {here} doctor --fix", f"{here} why x", "  command everywatt batch items.csv -- ./work"
    ]  # fmt: skip
