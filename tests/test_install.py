"""What a base install brings: few distributions, few bytes; and what importing costs."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest
from required import closure

ROOT = Path(__file__).resolve().parent.parent
MOST_DISTRIBUTIONS = 8
MOST_BYTES = 95 * 1024 * 1024


def installed_bytes(dist: Distribution) -> int:
    paths = [Path(str(dist.locate_file(file))) for file in dist.files or []]
    # Compiled files appear when a module is first imported; pip makes them too, so they count.
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_the_base_install_is_small():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    try:
        found = closure(project["dependencies"])
    except PackageNotFoundError as error:
        pytest.fail(f"the base dependencies are not installed: {error}")
    assert set(found) >= {"numpy", "nvidia-ml-py", "click", "rich"}
    assert len(found) <= MOST_DISTRIBUTIONS, sorted(found)
    sizes = {name: installed_bytes(dist) for name, dist in found.items()}
    own = sum(p.stat().st_size for p in (ROOT / "src").rglob("*") if p.is_file() and p.suffix != ".pyc")
    assert sizes["numpy"] > 10_000_000, "the files were found"
    assert sum(sizes.values()) + own <= MOST_BYTES, sizes


def modules_after(code: str) -> set[str]:
    script = (
        f"import sys\nbefore = set(sys.modules)\n{code}\nprint('\\n'.join(set(sys.modules) - before), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stderr.split())


def test_importing_everywatt_loads_nothing_else():
    assert {name for name in modules_after("import everywatt") if not name.startswith("__")} == {"everywatt"}


def test_help_loads_no_verb_and_no_library():
    loaded = modules_after("from everywatt.cli.main import main; main(['--help'])")
    assert {name for name in loaded if name.startswith("everywatt")} == {
        "everywatt",
        "everywatt.cli",
        "everywatt.cli.main",
    }
    assert not {name.split(".")[0] for name in loaded} & {"click", "rich", "numpy", "psutil", "importlib.metadata"}


def test_versions_agree():
    import everywatt

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert everywatt.__version__ == project["version"]
    assert re.search(rf"^## {re.escape(everywatt.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert f"\nversion: {everywatt.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.serial
@pytest.mark.parametrize(
    ("code", "times"), [("import everywatt", 1.5), ("import everywatt.cli.main as m; m.main(['-h'])", 5)]
)
def test_start_is_quick_beside_bare_python(code, times):
    """The figures that are promised; the best of several, so that a busy moment does not count."""
    bare = min(_seconds("pass") for _ in range(9))
    ours = min(_seconds(code) for _ in range(9))
    assert ours <= times * bare, f"{ours * 1e3:.1f} ms beside {bare * 1e3:.1f} ms"


def _seconds(code: str) -> float:
    import time

    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


@pytest.mark.skipif(not (Path(sys.prefix) / ".stamp-dev").exists(), reason="not in an environment that make built")
def test_everything_installed_is_pinned():
    from importlib.metadata import distributions

    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    installed = {str(canonicalize_name(dist.name)): dist.version.split("+")[0] for dist in distributions()}
    for own in ("everywatt", "setuptools"):
        installed.pop(own, None)
    assert {name: version for name, version in installed.items() if pins.get(name) != version} == {}
