"""The documents are true: links lead somewhere, commands and options exist, code compiles, and what is marked runs."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from pages import GENERATED, ROOT, WRITTEN, anchors, blocks, command_lines, links, marked

from everywatt.cli.common.group import cli
from everywatt.core import errors
from everywatt.core.config import SETTINGS, VARIABLES

RUNNABLE = [block for block in blocks() if block.mark.startswith("runs")]
PYTHON = [block for block in blocks() if block.language == "python"]


def name(value):
    return value.stem if isinstance(value, Path) else value.label


@pytest.mark.parametrize("page", [*WRITTEN, *GENERATED], ids=name)
def test_links_lead_to_files_and_headings(page):
    for target in links(page):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


def test_the_index_links_every_page():
    linked = {target.partition("#")[0] for target in links(ROOT / "docs" / "index.md")}
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages - linked == set()


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_command_lines_use_what_exists(page):
    for words in command_lines(page):
        parse(words)


def parse(words: list[str]) -> None:
    """Let click take the words, without doing anything; `…` stands for anything."""
    command: click.Command = cli()
    called = "everywatt"
    words = [word for word in words if word != "…"]
    while isinstance(command, click.Group):
        if not words or words[0] in ("-h", "--help", "--version", "COMMAND"):
            return
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"there is no command '{called} {words[0]}'"
        called, words, command = f"{called} {words[0]}", words[1:], found
    try:
        command.make_context(called, list(words))
    except click.MissingParameter:
        pass  # prose names a command without its arguments
    except click.exceptions.Exit:
        pass  # --help
    except click.UsageError as error:
        raise AssertionError(f"{called} {' '.join(words)}: {error.format_message()}") from None


@pytest.mark.parametrize(
    "words", [["runn"], ["run", "--idel", "3s", "--", "x"], ["export", "--to", "xls"]], ids=" ".join
)
def test_the_parser_would_notice(words):
    with pytest.raises(AssertionError):
        parse(words)


@pytest.mark.parametrize("block", PYTHON, ids=name)
def test_python_compiles(block):
    compile(block.code, str(block.page), "exec")


@pytest.fixture
def environ(tmp_path):
    """The environment of a reader: `everywatt` and `python` on the path, folders of their own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program, words in (("everywatt", "-m everywatt"), ("python", "")):
        file = programs / program
        source = f'PYTHONPATH="{ROOT / "src"}:$PYTHONPATH"'
        file.write_text(f'#!/bin/sh\n{source} exec "{sys.executable}" {words} "$@"\n')
        file.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVERYWATT_")}
    return kept | {
        "PATH": f"{programs}:{kept['PATH']}",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "EVERYWATT_RUNTIME_DIR": str(tmp_path / "r"),
        "EVERYWATT_RECORDER_IDLE_S": "1",
    }


def shell(text, environ, folder, **more):
    done = subprocess.run(
        ["sh", "-ec", text], env=environ | more, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("block", RUNNABLE, ids=name)
def test_marked_blocks_run(block, environ, tmp_path):
    head, command = "", "python block.py"
    if block.mark == "runs: sim":
        command = "everywatt sim --gpu constant:100W --sensor period=20ms -- python block.py"
    elif block.mark == "runs: tape":
        shell("everywatt run --quiet -- sleep 0.2", environ, tmp_path)
        (tape,) = (tmp_path / "everywatt-runs").glob("*/*.tape")
        head = f"path = {str(tape)!r}\n"
    else:
        assert block.mark == "runs"
    (tmp_path / "block.py").write_text(head + block.code)
    out = shell(command, environ, tmp_path)
    assert "refused" not in out
    if block.mark == "runs: sim":
        assert re.search(r"\d m?J (± .* )?\(.*95 %\) · gpu · counter · coverage", out), out


def test_the_sensor_of_the_page_works_as_it_is_written_there(environ, tmp_path):
    """Extracted verbatim, tried by the page's own commands: 12.5 W for three seconds."""
    (tmp_path / "battery.py").write_text(marked("write-a-sensor.md", "battery.py").code)
    commands = marked("write-a-sensor.md", "try").code
    out = shell(commands + "everywatt show last --json=show.json\n", environ, tmp_path)
    assert re.search(r"^battery +usable +1", out, re.MULTILINE), out
    assert re.search(r"^battery +battery\.0\.power +12\.5", out, re.MULTILINE), out
    assert "BAT0" in out, "show names the device"
    run = json.loads((tmp_path / "show.json").read_text())
    truth = 12.5 * run["duration_s"]
    assert 3.0 <= run["duration_s"] < 30.0
    assert run["energy"]["scope"] == "psu"
    assert run["energy"]["parts"].keys() == {"battery.0"}
    assert run["energy"]["joules"] == pytest.approx(truth, rel=0.01)
    assert run["energy"]["low"] < truth < run["energy"]["high"]


def test_the_sensor_of_the_page_as_an_installed_package(environ, tmp_path):
    """What pip makes of the page's pyproject.toml: the module, and its entry points beside it."""
    project = tomllib.loads(marked("write-a-sensor.md", "pyproject.toml").code)
    site = tmp_path / "site"
    info = site / "everywatt_battery-0.1.0.dist-info"
    info.mkdir(parents=True)
    about = project["project"]
    (site / "battery.py").write_text(marked("write-a-sensor.md", "battery.py").code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n")
    points = about["entry-points"]["everywatt.sensors"]
    lines = "\n".join(f"{key} = {value}" for key, value in points.items())
    (info / "entry_points.txt").write_text(f"[everywatt.sensors]\n{lines}\n")
    battery = tmp_path / "tree" / "class" / "power_supply" / "BAT0"
    battery.mkdir(parents=True)
    (battery / "status").write_text("Discharging\n")
    (battery / "power_now").write_text("12500000\n")
    more = {"PYTHONPATH": str(site), "EVERYWATT_SYS": str(tmp_path / "tree")}
    plugins = json.loads(shell("everywatt plugins --json", environ, tmp_path, **more))["plugins"]
    (mine,) = [plugin for plugin in plugins if plugin["name"] == "battery"]
    assert (mine["distribution"], mine["error"]) == ("everywatt-battery", None)
    run = json.loads(shell("everywatt run --json --sensors battery -- sleep 0.5", environ, tmp_path, **more))
    assert run["energy"]["joules"] == pytest.approx(12.5 * run["duration_s"], rel=0.05)


def test_the_tests_of_the_page_pass(environ, tmp_path):
    for file in ("battery.py", "test_battery.py"):
        (tmp_path / file).write_text(marked("write-a-sensor.md", file).code)
    out = shell("python -m pytest -q -p no:cacheprovider test_battery.py", environ, tmp_path, PYTHONPATH=".")
    assert "2 passed" in out


@pytest.mark.parametrize("page", ["design.md", "tape-format.md", "recorder-protocol.md", "estimation.md"])
def test_modules_that_the_design_names_exist(page):
    """`energy.window`, `recorder.client.Recording`: a renamed module is renamed here too."""
    package = ROOT / "src" / "everywatt"
    rooms = {folder.name for folder in package.iterdir() if (folder / "__init__.py").exists()}
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+(?:\.\w+)+)`", text):
        room, *parts = name.split(".")
        if room not in rooms:
            continue
        place = package / room
        while parts and (place / parts[0]).is_dir():
            place /= parts.pop(0)
        module = place / (f"{parts[0]}.py" if parts else "__init__.py")
        assert module.exists(), name
        for attribute in parts[1:2]:
            assert re.search(rf"\b(def|class) {attribute}\b|^{attribute} =", module.read_text(), re.MULTILINE), name


def written() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in WRITTEN)


def said(word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", written()) is not None


def test_everything_public_is_in_pages_that_people_wrote():
    """The generated reference does not count here."""
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "scripts" / "make_reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    options = {s for _, command in reference.commands() for o in reference.visible_options(command) for s in o.opts}
    words = [called.removeprefix("everywatt ") for called, _ in reference.commands()]
    words += sorted(options - {"-o"})
    words += [setting.variable for setting in SETTINGS] + [setting.name for setting in SETTINGS] + list(VARIABLES)
    words += [kind.__name__ for kind in vars(errors).values() if isinstance(kind, type)]
    assert [word for word in words if not said(word)] == []


def test_figures_in_the_pages_are_those_of_the_code():
    from everywatt.core.channels import Domain
    from everywatt.sensors.cpu.modelled import shipped
    from everywatt.sensors.cpu.rapl import Cpu, energy_channel
    from everywatt.sensors.nvidia.gpu_known import CARDS, spread

    sensors = re.sub(r"\s+", " ", (ROOT / "docs" / "sensors.md").read_text(encoding="utf-8"))
    why = (ROOT / "docs" / "why-the-interval.md").read_text(encoding="utf-8")
    wide = spread()
    assert f"± {wide.gain_pct:.1f} % gain and ± {wide.offset_w:.1f} W offset" in sensors
    assert f"from {len(CARDS)} cards of {len({card.model for card in CARDS})} models" in sensors
    assert f"± {wide.gain_pct:.1f} % is taken" in why and f"± {wide.offset_w:.1f} W" in why
    assert f"off by up to {max(abs(card.gradient_pct) for card in CARDS):.1f} %" in why
    assert f"wall power of {shipped()['models']['server']['servers']} servers" in sensors
    for vendor, text in (
        ("GenuineIntel", "packages ± {:.0f} % and ± {:.0f} W"),
        ("AuthenticAMD", "± {:.0f} % and {} W"),
    ):
        channel = energy_channel(Domain.PACKAGE, "0", cpu=Cpu(vendor, 6, 85), scale=1.0, wrap=None, max_w=None)
        assert text.format(channel.facts.gain_pct, channel.facts.offset_w) in sensors


def test_the_picture_shows_what_was_printed_and_loads_nothing():
    picture = (ROOT / "docs" / "images" / "terminal.svg").read_text(encoding="utf-8")
    assert re.findall(r"url\((?!#)[^)]*\)|href=\"http", picture) == []
    assert "everywatt" in picture


def test_the_tests_behind_promises_exist():
    """Every test that docs/reliability.md names, and at least one for each promise."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = [line for line in text.split("\n") if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8"), (file, test)
