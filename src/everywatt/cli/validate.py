"""`everywatt validate PATH…`: check every byte of tapes, journals beside them, and the store of Slurm jobs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from everywatt.api.run import Run, load
from everywatt.bench.llm.leaderboard import check_board
from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.validate_journals import journal_findings
from everywatt.core import foreign
from everywatt.core.config import resolve
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.tables import Table
from everywatt.slurm.site.checks import flaws, is_store
from everywatt.slurm.site.detail import FOREVER_S
from everywatt.slurm.site.store import Store
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
    output.json("validation", {"findings": [asdict(finding) for finding in findings], "ok": not findings})
    if output.json_to is None:
        if not findings:
            output.text("No problems found.")
        else:
            rows = [[f.file, f.table, f.row, f.field, f.problem] for f in findings]
            output.table(Table.of("FILE", "TABLE", "ROW", "FIELD", "PROBLEM", rows=rows))
    return 1 if findings else 0


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
            _where(flaw.node) + flaw.problem,
        )
        for flaw in flaws(Store(path), 0.0, FOREVER_S)
    ]


def _where(node: str) -> str:
    return f"{node}: " if node else ""
