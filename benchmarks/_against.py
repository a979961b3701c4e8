"""One benchmark on this tree and on the commit in `benchmarks/BASE`, in turns, as ratios.

The commit is unpacked into a temporary folder. Pairs are interleaved (base, new, base, new, …), so that a machine that
grows slower meanwhile slows both. Which benchmark code runs on the old source:

- a benchmark that only starts everywatt as a command (`DRIVES_COMMANDS = True` in its module) is this tree's file for
  both; BENCH_SOURCE says which source its subjects import;
- any other imports everywatt's modules, whose names and places change: the commit's own file runs on the commit's
  source. Where that file does something else than this tree's, beyond its imports, a line says so.
"""

from __future__ import annotations

import difflib
import importlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import HERE, OUT, say

PAIRS = 5
ROOT = HERE.parent
NUMBER = re.compile(r"[−-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
Cell = tuple[str, str, str]  # title of the table, first cell of the row, header of the column


def base_commit() -> str:
    """The commit that figures are compared with."""
    return (HERE / "BASE").read_text().strip()


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The files of a commit in a temporary folder, with its entry points where Python looks for them."""
    with tempfile.TemporaryDirectory(prefix="everywatt-base-") as folder:
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        _write_metadata(Path(folder))
        yield Path(folder)


def _write_metadata(tree: Path) -> None:
    """Metadata beside the unpacked source: else the entry points of the installed everywatt would count for it."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    folder = tree / "src" / f"everywatt-{project.get('version', '0')}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: everywatt\nVersion: 0\n")
    groups: Mapping[str, Mapping[str, str]] = project.get("entry-points", {})
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def tables(name: str, tree: Path, source: Path, quick: bool) -> dict[Cell, str]:
    """The cells of the tables that a tree's benchmark prints about everywatt in the folder `source`."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]), "BENCH_SOURCE": str(source)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "tables.json")
        words = [sys.executable, str(HERE / "_tables.py"), str(out), name, *(["--quick"] if quick else [])]
        done = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True)
        if done.returncode or not out.exists():
            raise RuntimeError(f"{name} failed on {source}: {done.stderr.strip()[-2000:]}")
        printed = json.loads(out.read_text())
    cells: dict[Cell, str] = {}
    for table in printed:
        for row in table["rows"]:
            for header, cell in zip(table["headers"][1:], row[1:], strict=False):
                cells.setdefault((table["title"], row[0], header), cell)
    return cells


def number(cell: str) -> float | None:
    """The number that a cell begins with, None where it begins with none."""
    found = NUMBER.match(cell.strip())
    return None if found is None else float(found[0].replace(",", "").replace("−", "-"))


def ratios(pairs: Sequence[tuple[Mapping[Cell, str], Mapping[Cell, str]]]) -> dict[Cell, list[float]]:
    """new/base of every cell that is a number in both, one ratio for each pair."""
    found: dict[Cell, list[float]] = {}
    for base, new in pairs:
        for cell in base:
            before, after = number(base[cell]), number(new.get(cell, ""))
            if before and after is not None:
                found.setdefault(cell, []).append(after / before)
    return found


def differs(name: str, tree: Path) -> bool:
    """Whether the tree's benchmark does something else than this one's, beyond imports."""
    mine, its = ((folder / "benchmarks" / f"{name}.py").read_text().split("\n") for folder in (ROOT, tree))
    changed = [line[1:].strip() for line in difflib.unified_diff(its, mine, n=0) if line[:1] in "+-"]
    return any(line and not line.startswith(("import ", "from ", "+", "-", "@")) for line in changed)


def run(name: str, quick: bool, pairs: int = PAIRS) -> int:
    """Interleave the benchmark on the base and on this tree; print each row as new/base, with the pairs' spread."""
    commit = base_commit()
    module = importlib.import_module(f"benchmarks.{name}")
    with checked_out(commit) as tree:
        both = getattr(module, "DRIVES_COMMANDS", False)
        if not both and not (tree / "benchmarks" / f"{name}.py").exists():
            say(f"{name} is not in {commit[:7]} and cannot drive its source: there is nothing to compare with.")
            return 2
        if not both and differs(name, tree):
            OUT.text(f"benchmarks/{name}.py is not the same in {commit[:7]}: a ratio may compare two different things.")
        taken = []
        for pair in range(1, pairs + 1):
            base = tables(name, ROOT if both else tree, tree / "src", quick)
            new = tables(name, ROOT, ROOT / "src", quick)
            taken.append((base, new))
            say(f"pair {pair} of {pairs} done")
    show(name, commit, taken)
    return 0


def show(name: str, commit: str, taken: Sequence[tuple[Mapping[Cell, str], Mapping[Cell, str]]]) -> None:
    """The ratios, one row for each figure, in the tables of the benchmark."""
    OUT.text(f"{name}: this tree beside {commit[:7]}, medians of {len(taken)} interleaved pairs, and their spread")
    by_title: dict[str, list[list[str]]] = {}
    for cell, values in ratios(taken).items():
        title, row, column = cell
        base = statistics.median(number(one[cell]) or 0.0 for one, _ in taken if cell in one)
        new = statistics.median(number(one[cell]) or 0.0 for _, one in taken if cell in one)
        by_title.setdefault(title, []).append(
            [row, column, f"{base:.4g}", f"{new:.4g}", f"{statistics.median(values):.3f}",
             f"{min(values):.3f} … {max(values):.3f}"]
        )  # fmt: skip
    heads = ["figure", "column", "base", "new", "new/base", "pairs"]
    for title, rows in by_title.items():
        OUT.text()
        OUT.table(heads, rows, right=(2, 3, 4, 5), title=title)
    lost = sorted({cell[:2] for base, _ in taken for cell in base} - {cell[:2] for _, new in taken for cell in new})
    for title, row in lost:
        OUT.text(f"only in the base: {title}: {row}")
