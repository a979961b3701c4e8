"""The scripts behind make: what they say on a machine that lacks something."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
TARGETS = {"demo", "test", "test-long", "test-ml", "bench", "lint", "format", "clean", "system-packages", "help"}


def call(script: str, *words: str, **settings):
    return subprocess.run([SCRIPTS / script, *words], capture_output=True, text=True, timeout=240, **settings)


@pytest.fixture
def bare(tmp_path):
    """A PATH with a shell's tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "env", "dirname", "id", "cksum", "cut", "mkdir", "sed"):
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


def test_without_python_the_cure_is_named(bare, tmp_path):
    result = call("venv.sh", str(tmp_path / "v"), env={"PATH": str(bare)})
    assert result.returncode == 1 and "Python 3.11 or later" in result.stderr
    assert "apt-get install python3 python3-venv" in result.stderr


def test_a_python_that_is_too_old_does_not_count(bare, tmp_path):
    (bare / "python3").write_text("#!/bin/sh\nexit 1\n")
    (bare / "python3").chmod(0o755)
    result = call("venv.sh", str(tmp_path / "v"), env={"PATH": str(bare)})
    assert result.returncode == 1 and "Python 3.11 or later" in result.stderr


def test_without_venv_the_package_is_named(bare, tmp_path):
    """As on Debian without python3-venv: Python itself is fine, ensurepip is not there."""
    without = f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n'
    (bare / "python3").write_text(without)
    (bare / "python3").chmod(0o755)
    result = call("venv.sh", str(tmp_path / "v"), env={"PATH": str(bare)})
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert result.returncode == 1 and f"apt-get install python{version}-venv" in result.stderr


def test_an_environment_that_works_is_kept(tmp_path):
    python = tmp_path / "v" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    result = call("venv.sh", str(tmp_path / "v"))
    assert (result.returncode, result.stderr) == (0, "") and python.read_text() == "#!/bin/sh\nexit 0\n"


def test_the_place_is_the_project_where_it_can_be_written(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "place.sh", tmp_path / "scripts")
    result = subprocess.run([tmp_path / "scripts" / "place.sh"], capture_output=True, text=True)
    assert result.stdout == ".\n"


def test_the_place_is_the_cache_where_the_project_cannot_be_written():
    """Root may write everywhere, so root tries it as nobody."""
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as name:
        folder, scripts, cache = Path(name), Path(name) / "project" / "scripts", Path(name) / "cache"
        scripts.mkdir(parents=True)
        cache.mkdir()
        shutil.copy(SCRIPTS / "place.sh", scripts)
        folder.chmod(0o755)
        cache.chmod(0o777)
        (folder / "project").chmod(0o555)
        environ = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        result = subprocess.run([scripts / "place.sh"], capture_output=True, text=True, env=environ, **nobody)
        (folder / "project").chmod(0o755)
        assert re.fullmatch(rf"{re.escape(str(cache))}/everywatt/\d+\n", result.stdout), result.stderr
        shutil.rmtree(cache / "everywatt")
        cache.chmod(0o555)
        (folder / "project").chmod(0o555)
        result = subprocess.run(
            [scripts / "place.sh"], capture_output=True, text=True, env={**environ, "TMPDIR": str(cache)}, **nobody
        )
        (folder / "project").chmod(0o755)
        cache.chmod(0o755)
        assert result.returncode == 1 and "No folder can be written" in result.stderr


def test_no_packages_need_no_root():
    assert call("system_packages.sh").returncode == 0


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_the_targets():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\S+)", shown, re.MULTILINE)) >= TARGETS


def test_actions_of_workflows_are_pinned_by_commit():
    found = [
        (path.name, line.strip())
        for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
        for line in path.read_text(encoding="utf-8").split("\n")
        if "uses:" in line
    ]
    assert len(found) > 8
    pinned = re.compile(r"(- )?uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [entry for entry in found if not pinned.fullmatch(entry[1])] == []


def test_long_results_keep_the_commit_at_which_each_was_obtained():
    spec = importlib.util.spec_from_file_location("long_tests", SCRIPTS / "long_tests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def result(outcome, commit, date):
        return {"outcome": outcome, "seconds": 60.0, "commit": commit, "date": date}

    plans = "tests/recorder/test_fault_plans.py::test_thousands_of_plans"
    shown = module.table(
        {
            f"{plans}[0]": result("passed", "aaaaaaa", "2026-11-01"),
            f"{plans}[1]": result("passed", "bbbbbbb", "2026-11-02"),
            f"{plans}[2]": result("failed", "bbbbbbb", "2026-11-02"),
        }
    )
    rows = [line.split()[-6:] for line in shown.split("\n") if "plans of faults" in line]
    assert rows == [
        ["1", "1", "120", "s", "bbbbbbb", "2026-11-02"],
        ["1", "0", "60", "s", "aaaaaaa", "2026-11-01"],
    ]
    assert re.search("1,000 kills of the recorder +no result", shown)
