"""Commands, options, settings, errors and public names are in the docs; no file names a machine or a registry."""

import functools
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

import everywatt
from everywatt.core.config import SETTINGS, VARIABLES

ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def reference():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "scripts" / "make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def documents() -> str:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def documented(word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", documents()) is not None


def test_every_command_and_option_is_documented():
    names = [name for name, _ in reference().commands()]
    assert "everywatt config show" in names
    options = {
        spelling
        for _, command in reference().commands()
        for option in reference().visible_options(command)
        for spelling in (*option.opts, *option.secondary_opts)
    }
    assert {"--json", "--quiet"} <= options
    assert [word for word in (*names, *sorted(options)) if not documented(word)] == []


def test_every_option_and_command_has_help():
    for name, command in reference().commands():
        assert command.help, name
        assert [o.name for o in reference().visible_options(command) if not o.help] == [], name


def test_every_setting_and_variable_is_documented():
    words = [*(s.name for s in SETTINGS), *(s.variable for s in SETTINGS), *VARIABLES]
    assert [word for word in words if not documented(word)] == []


def test_every_variable_that_the_code_reads_is_in_the_table():
    known = {*VARIABLES, *(s.variable for s in SETTINGS)}
    found: dict[str, str] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for name in re.findall(r"(?<![\w])EVERYWATT_[A-Z][A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")):
            found[name] = str(path.relative_to(ROOT))
    assert {name: path for name, path in found.items() if name not in known} == {}


def test_every_error_and_public_name_is_documented():
    kinds = reference().error_classes()
    assert {kind.__name__ for kind in kinds} <= set(everywatt.__all__), "errors are public names"
    names = everywatt.__all__
    assert [name for name in names if not documented(name) and not documented(f"everywatt.{name}")] == []
    assert [name for name in names if not name.startswith("__") and not getattr(everywatt, name).__doc__] == []


@pytest.mark.parametrize("page", ["cli.md", "settings.md", "errors.md", "api.md"])
def test_the_reference_is_up_to_date(page):
    assert page not in reference().stale(), "make reference"


# Written in halves, so that this file does not hold what it looks for.
FORBIDDEN = [
    r"(?<![\w.)}*-])/" + "work/",
    r"(?<![\w.)}*-])/" + r"root\b",
    r"(?<![\w/])shared" + "/",
    "py" + r"pi\.org",
    "python" + r"hosted\.org",
    "conda" + r"\.(anaconda\.)?org",
    "hugging" + r"face\.co\b",
    "download\\.py" + "torch",
]
TEXT_LIMIT_BYTES = 2_000_000


def tracked_files() -> list[Path]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git and a checkout: the tracked files are what is looked at")
    return [ROOT / name for name in listed.split("\0") if name]


def test_no_tracked_file_names_a_machine_or_a_registry():
    pattern = re.compile("|".join(FORBIDDEN))
    found = []
    for path in tracked_files():
        if not path.is_file() or path.stat().st_size > TEXT_LIMIT_BYTES:
            continue
        text = path.read_bytes()
        if b"\0" in text:
            continue
        for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_the_constraints_are_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 40
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []


def test_hashes_are_those_of_the_constraints():
    pins = {line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n") if "==" in line}
    lines = (ROOT / "constraints-hashes.txt").read_text(encoding="utf-8").split("\n")[1:-1]
    assert len(lines) > 100
    found = [re.fullmatch(r"(\S+==\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    assert [line for line, match in zip(lines, found, strict=True) if match is None] == []
    assert {match[1] for match in found} <= pins, "written again by scripts/make_hashes.py"
