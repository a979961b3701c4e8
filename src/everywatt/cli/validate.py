"""`everywatt validate PATH…`: check every byte of tapes, journals beside them, and the store of Slurm jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from everywatt.api.run import Run, load
from everywatt.batch.journal import JOURNAL
from everywatt.bench.llm.leaderboard import check_board
from everywatt.bench.llm.plan import PLAN
from everywatt.bench.llm.records import QUERIES, SCORES
from everywatt.bench.precision.variants import FILE as PRECISION
from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.core import foreign
from everywatt.core.config import resolve
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.tables import Table
from everywatt.slurm.site.checks import flaws, is_store
from everywatt.slurm.site.store import FOREVER_S, Store
from everywatt.tape.run_store import existing_home, find_run
from everywatt.tape.validate import Finding, validate


@click.command(cls=Verb)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@output_options
def command(paths: tuple[str, ...], output: Output) -> int:
    """Check tapes, runs, run directories or the store of a Slurm site; the exit code is 1 if anything is wrong.

    PATH may also be the name of a run, or `last`. Each finding names the file, the table, the row and the field; for
    the journals that a batch or a benchmark keeps beside its tape, the row is the line. For a store, jobs with
    incomplete records are listed, as by `slurm validate`. For a FILE.json of `bench leaderboard` every row is computed
    again from its run, in the run directory or beside the file.
    """
    findings = []
    for text in paths:
        path = Path(text)
        if not path.exists():
            try:
                path = find_run(text, existing_home(resolve().home))
            except EverywattError as error:
                output.error(error)
                return error.exit_code
        if path.is_file() and path.suffix == ".json":
            findings += _board(path)
        else:
            findings += _site(path) if is_store(path) else [*validate(path), *journal_findings(path)]
    output.result("validation", Findings(findings))
    return 1 if findings else 0


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with files."""

    found: Sequence[Finding]

    def to_dict(self) -> dict[str, Any]:
        return {"findings": [asdict(finding) for finding in self.found], "ok": not self.found}

    def tables(self) -> list[Table]:
        if not self.found:
            return [Table.lines("No problems found.")]
        rows = [[str(f.file), f.table, f.row, f.field, f.problem] for f in self.found]
        return [Table.of("FILE", "TABLE", "ROW", "FIELD", "PROBLEM", rows=rows)]


def _board(path: Path) -> list[Finding]:
    """What in a leaderboard does not follow from its runs."""
    try:
        data = foreign.read_json(path)
    except UsageError as error:
        return [Finding(path, None, None, None, error.message)]
    if not isinstance(data, dict) or data.get("kind") != "leaderboard":
        return [Finding(path, None, None, "kind", "not a leaderboard, and no other file of this kind can be checked")]

    def find(name: str) -> Run:
        beside = path.parent / Path(name).name
        return load(beside if beside.is_dir() else find_run(name, existing_home(resolve().home)))

    return [Finding(path, "places", row, field, why) for row, field, why in check_board(data, find)]


def _site(path: Path) -> list[Finding]:
    return [
        Finding(
            flaw.file or path,
            "jobs" if flaw.job else "nodes",
            flaw.job or None,
            flaw.kind,
            f"{flaw.node}: {flaw.problem}" if flaw.node else flaw.problem,
        )
        for flaw in flaws(Store(path), 0.0, FOREVER_S)
    ]


Fields = Mapping[str, type | tuple[type, ...]]
ANY_KIND = "*"
NUMBER = (int, float)
WORDS: Mapping[type | tuple[type, ...], str] = {
    str: "string",
    int: "whole number",
    dict: "object",
    list: "list",
    NUMBER: "number",
}
_QUERY: Fields = {"id": str, "level": str, "answer": dict, "answer.status": str, "answer.piece_ns": list}
KINDS: Mapping[str, Mapping[str, Fields]] = {
    JOURNAL: {
        "batch": {"command": list, "devices": list},
        "item": {"id": str, "index": int, "input": str, "row": dict},
        "start": {"id": str, "attempt": int, "device": str, "lane": int},
        "end": {"id": str, "attempt": int, "status": str, "ended": dict},
        "collected": {"part": str},
    },
    PRECISION: {
        "request": {"job": dict, "conduct": dict},
        "checked": {"precision": str, "told": dict},
        "timed": {"precision": str, "block": int, "place": int, "seconds": NUMBER, "told": dict},
        "layers": {"precision": str, "pass_s": NUMBER},
        "sensitivity": {"layers": list, "plan": list},
    },
    QUERIES: {ANY_KIND: _QUERY},
    SCORES: {ANY_KIND: {"id": str, "level": str, "score": dict}},
}
"""For each file the kinds of line, and the required fields of each; a dot leads into a nested object."""


def journal_findings(path: Path) -> list[Finding]:
    """What is wrong with the journals in a folder and those below it; the row of a finding is its line."""
    found = []
    for file in sorted(path.rglob("*.json*")) if path.is_dir() else ():
        if file.name in KINDS:
            found += list(_lines(file, KINDS[file.name]))
        elif file.name == PLAN:
            found += list(_whole(file))
    return found


def _whole(file: Path) -> Iterator[Finding]:
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        yield Finding(file, None, None, None, f"The file cannot be read: {error}.")
        return
    if not isinstance(data, dict):
        yield Finding(file, None, None, None, "Not a JSON object.")


def _lines(file: Path, kinds: Mapping[str, Fields]) -> Iterator[Finding]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        yield Finding(file, None, None, None, f"The file cannot be read: {error.strerror}.")
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            torn = "The last line is incomplete and was skipped" if number == len(lines) else "Not valid JSON"
            yield Finding(file, None, number, None, f"{torn}: {error}.")
            continue
        yield from _fields(file, number, data, kinds)


def _fields(file: Path, number: int, data: Any, kinds: Mapping[str, Fields]) -> Iterator[Finding]:
    if not isinstance(data, dict):
        yield Finding(file, None, number, None, "Not a JSON object.")
        return
    kind = ANY_KIND if ANY_KIND in kinds else data.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        yield Finding(file, None, number, "kind", f"{kind!r} is not one of {', '.join(kinds)}.")
        return
    for name, types in kinds[kind].items():
        value: Any = data
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, types) or isinstance(value, bool):
            yield Finding(file, None, number, name, f"{_short(value)} is not a {WORDS[types]}.")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"
