"""A room imports and names only rooms above it, and what the recorder loads stays small."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "everywatt"
TARGET = re.compile(r"(everywatt(?:\.\w+)+):\w+")  # "module:Name", as entry points and tables of workers have it
HEAVY = {"numpy", "click", "rich", "psutil", "pynvml", "asyncio", "pandas", "pyarrow", "scipy"}
LIGHT_ROOMS = ("core", "sensors", "recorder")


def rooms_in_order() -> list[str]:
    """The table in docs/design.md; `testing`, the pytest plug-in, sits beside `cli`."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


ORDER = rooms_in_order()
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str | None:
    """`everywatt.core.units` is in room core; the package itself and __main__ are in none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else None


def place(room: str) -> int:
    return len(ORDER) - 1 if room == "testing" else ORDER.index(room)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int]]:
    """Every module that is imported or named as "module:Name" anywhere in the tree, also under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + (1 if is_package else 0)] if node.level else []
            name = ".".join([*base, *filter(None, [node.module])])
            yield name, node.lineno
            # `from everywatt import sensors` names a room in its second half.
            for alias in node.names:
                yield f"{name}.{alias.name}", node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            target = TARGET.fullmatch(node.value)
            if target:
                yield target.group(1), node.lineno


def wrong_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    own = room_of(module)
    if own is None:
        return []
    wrong = []
    for name, line in imports(ast.parse(source), module, is_package):
        other = room_of(name) if name.split(".")[0] == "everywatt" else None
        if other is None or other == own or other not in (*ORDER, "testing"):
            continue
        if place(other) >= place(own):
            wrong.append(f"{module}:{line} imports {name}, which is below {own}")
    return wrong


def top_level_imports(source: str) -> set[str]:
    """First names of what is imported when the module is: not in functions, not under TYPE_CHECKING."""
    found: set[str] = set()
    stack: list[ast.AST] = [ast.parse(source)]
    while stack:
        for node in ast.iter_child_nodes(stack.pop()):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
                isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            ):
                continue
            else:
                stack.append(node)
    return found


def test_the_list_is_the_whole_list():
    assert ORDER[0] == "core" and ORDER[-1] == "cli" and len(ORDER) == 22
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert folders | files <= {*ORDER, "testing"}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_room_imports_only_rooms_above_it(path: Path):
    assert wrong_imports(path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py") == []


@pytest.mark.parametrize("path", [p for p in MODULES if room_of(module_name(p)) in LIGHT_ROOMS], ids=module_name)
def test_what_the_recorder_loads_imports_nothing_heavy(path: Path):
    assert top_level_imports(path.read_text(encoding="utf-8")) & HEAVY == set()


@pytest.mark.parametrize(
    "source",
    [
        "from everywatt.tape import reader",
        "from everywatt import tape",
        "import everywatt.cli.main",
        "from ...tape.reader import open_tape",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from everywatt.energy import x",
        "def f():\n    import everywatt.recorder",
        "from everywatt import testing",
        'TARGETS = {"replay": "everywatt.tape.replay:Replay"}',
    ],
)
def test_a_wrong_import_is_found(source: str):
    assert wrong_imports(source, "everywatt.sensors.cpu.rapl")


def test_a_right_import_passes():
    source = (
        "from everywatt.core import units\nfrom .base import Sensor\nfrom everywatt import __version__\nimport numpy"
    )
    assert wrong_imports(source, "everywatt.sensors.cpu.rapl") == []


def test_heavy_imports_are_told_from_late_ones():
    source = "try:\n    import numpy\nexcept ImportError:\n    pass\nclass A:\n    def f(self):\n        import rich\n"
    assert top_level_imports(source) == {"numpy"}
