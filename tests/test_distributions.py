"""The wheel and the source distribution: what they contain, that they are reproducible, that the wheel works alone."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from required import closure

pytest.importorskip("hatchling", reason="needs hatchling, the build backend")
ROOT = Path(__file__).resolve().parent.parent
INPUTS = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md")
INPUTS += ("constraints.txt", "mkdocs.yml", "src", "docs", "scripts", "examples")
DATA_BY_OTHERS = (
    "report/vendor/uplot",
    "footprint/grid_intensity.csv",
    "sensors/cpu/modelled_fit.json",
    "sensors/cpu/rapl_accuracy.json",
    "sensors/nvidia/known_cards.json",
)
OWN_DATA = {"bench/llm/short_questions.csv", "bench/precision/review_tokens.npz", "slurm/scripts/hook.sh", "py.typed"}


def copy_of_the_project(folder: Path) -> Path:
    """What is built from, without git: the result does not depend on it, or on times of files."""
    folder.mkdir()
    skip = shutil.ignore_patterns("__pycache__", "*.pyc", "everywatt-runs")
    for name in INPUTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=skip, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, folder / name)
    return folder


def build(folder: Path) -> dict[str, bytes]:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", "dist"], cwd=folder, check=True, capture_output=True
    )
    return {file.name: file.read_bytes() for file in (folder / "dist").iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, bytes]:
    return build(copy_of_the_project(tmp_path_factory.mktemp("first") / "project"))


def wheel_of(built: dict[str, bytes]) -> zipfile.ZipFile:
    (data,) = (data for name, data in built.items() if name.endswith(".whl"))
    return zipfile.ZipFile(io.BytesIO(data))


def source_names(built: dict[str, bytes]) -> list[str]:
    (data,) = (data for name, data in built.items() if name.endswith(".tar.gz"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [name.split("/", 1)[1] for name in archive.getnames()]


def test_building_twice_gives_the_same_bytes(built, tmp_path):
    assert build(copy_of_the_project(tmp_path / "project")) == built


def test_the_wheel_contains_the_package_and_nothing_else(built):
    names = wheel_of(built).namelist()
    package = {name.removeprefix("everywatt/") for name in names if name.startswith("everywatt/")}
    written = {path.relative_to(ROOT / "src/everywatt").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in package if name.endswith(".py")} == written
    assert {name for name in names if not name.startswith(("everywatt/", "everywatt-"))} == set()
    for name in sorted(package - written - OWN_DATA):
        known = name.startswith(DATA_BY_OTHERS) or re.match(
            r"(report/(html|web)/.*\.(js|css|html|svg)|sim/\w+\.[ch])$", name
        )
        assert known, f"{name}: whose is it? Add it here, and to NOTICE where it is by others"


def test_notice_names_every_part_by_others(built):
    notice = wheel_of(built).read("everywatt-0.1.0.dist-info/licenses/NOTICE").decode()
    for name in DATA_BY_OTHERS:
        assert name in notice
    assert "sst2" not in " ".join(wheel_of(built).namelist())


def test_the_source_distribution_has_no_recordings(built):
    names = source_names(built)
    assert {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "CITATION.cff"} <= set(names)
    assert {name.split("/")[0] for name in names if "/" in name} == {"src", "docs", "scripts", "examples"}
    tables = [name for name in names if name.endswith((".tape", ".gz", ".csv"))]
    assert {Path(name).name for name in tables} == {"grid_intensity.csv", "short_questions.csv"}


def test_metadata(built):
    metadata = wheel_of(built).read("everywatt-0.1.0.dist-info/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata and "Description-Content-Type: text/markdown" in metadata
    extras = set(re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE))
    assert {"all", "amd", "analysis", "export", "meters", "opencl", "plots", "tui"} <= extras
    everything = set(re.findall(r"^Requires-Dist: ([\w-]+).*extra == 'all'$", metadata, re.MULTILINE))
    assert {"pyarrow", "duckdb", "uvicorn", "scikit-learn", "altair", "textual", "tokenizers"} <= everything
    assert not everything & {"torch", "transformers", "lightning", "keras"}
    pocl = re.search(r"^Requires-Dist: pocl.*extra == 'opencl'$", metadata, re.MULTILINE)
    assert pocl is not None and "platform_machine == 'x86_64'" in pocl.group()


@pytest.fixture(scope="module")
def alone(built, tmp_path_factory) -> Path:
    """A virtual environment with the wheel, and links to the distributions that it requires: no extra, no test tool."""
    import tomllib

    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    with wheel_of(built) as wheel:
        wheel.extractall(site)
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    for dist in closure(required).values():
        for top in {file.parts[0] for file in dist.files or [] if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(dist.locate_file(top))))
    command = folder / "env" / "bin" / "everywatt"
    command.write_text(
        f"#!{folder}/env/bin/python\nimport sys\nfrom everywatt.cli.main import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return folder


def call(folder: Path, *words: str, codes=(0,)) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("EVERYWATT_", "PYTHON"))}
    environ = kept | {"HOME": str(folder), "EVERYWATT_RUNTIME_DIR": str(folder / "r"), "EVERYWATT_RECORDER_IDLE_S": "1"}
    environ["PATH"] = f"{folder / 'env' / 'bin'}:{kept['PATH']}"
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_works_alone(alone):
    """run, measure(), report, doctor and import, from the wheel, with the base dependencies."""
    run = json.loads(call(alone, "everywatt", "run", "--json", "--quiet", "--", "sleep", "0.3"))
    assert run["energy"]["joules"] is None or run["energy"]["joules"] > 0
    program = (
        "import everywatt\nwith everywatt.measure('x') as m: sum(range(1000))\nprint(everywatt.__file__, m.energy)"
    )
    printed = call(alone, "python", "-c", program)
    assert printed.startswith(str(alone / "env")), "the wheel is what was imported"
    call(alone, "everywatt", "report", "last", "-o", "report.html")
    assert (alone / "report.html").stat().st_size > 50_000
    checks = json.loads(call(alone, "everywatt", "doctor", "--json", codes=(0, 1)))
    assert checks["kind"] == "doctor"
    (alone / "meter.csv").write_text("time,watts\n" + "".join(f"{1000 + n},100\n" for n in range(11)))
    options = ("time=time", "time_format=s", "values=watts", "unit=W", "kind=gauge", "device=wall.0", "domain=wall")
    settings = [word for option in options for word in ("--set", option)]
    call(alone, "everywatt", "import", "csv", "meter.csv", *settings, "--out", "meter.tape")
    shown = json.loads(call(alone, "everywatt", "show", "meter.tape", "--json"))
    assert shown["energy"]["joules"] == pytest.approx(1000, rel=0.01)


def test_man_pages_are_made_for_every_command(tmp_path):
    scripts = ROOT / "scripts"
    subprocess.run([sys.executable, scripts / "make_man_pages.py", tmp_path], check=True, capture_output=True)
    names = {file.name for file in (tmp_path / "man1").iterdir()}
    assert {"everywatt.1", "everywatt-run.1", "everywatt-bench-llm.1", "everywatt-doctor.1"} <= names
    text = (tmp_path / "man1" / "everywatt-run.1").read_text(encoding="utf-8")
    assert text.startswith(".TH") and ".SH SYNOPSIS" in text and r"\-\-period" in text
    if shutil.which("groff"):
        checked = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-z", "-Kutf8", *sorted((tmp_path / "man1").iterdir())],
            capture_output=True,
            text=True,
        )
        assert [line for line in checked.stderr.splitlines() if "error" in line] == []
