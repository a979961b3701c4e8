"""`everywatt list`: the runs, newest last, and sums over a tag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from everywatt.api.run import Run, load, sum_runs
from everywatt.cli.common.options import TAG, Verb, output_options, settings_here
from everywatt.cli.common.output import Output
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_energy
from everywatt.core.tables import Column, Table
from everywatt.tape.mending import empty_spool
from everywatt.tape.run_store import existing_home, list_runs

_Item = TypeVar("_Item", Path, Run)
_Answer = TypeVar("_Answer")


@click.command(cls=Verb)
@click.option(
    "--sum", "sum_tag", default=None, metavar="TAG", help="Add up runs: tag=value, or a tag for one sum per value."
)
@click.option("--tag", "tags", type=TAG, multiple=True, help="List only runs with this tag.")
@click.option("--limit", type=int, default=50, show_default=True, help="List at most this many, newest first.")
@output_options
def command(sum_tag: str | None, tags: tuple[tuple[str, str], ...], limit: int, output: Output) -> None:
    """List runs, or add them up: `list --sum project=alpha`, `list --sum project` (or `--sum tag=project`)."""
    empty_spool()
    home = existing_home(settings_here(quiet=output.quiet).home)
    runs = [run for _, run in _each(list_runs(home), load, output)]
    chosen = [run for run in runs if all(run.meta.get("tags", {}).get(key) == value for key, value in tags)]
    if sum_tag is not None:
        _sums(chosen, sum_tag, output)
        return
    rows = [row for _, row in _each(chosen[-limit:] if limit > 0 else chosen, _row, output)]
    output.json("runs", {"home": str(home), "runs": rows})
    columns = ("RUN", "STARTED (UTC)", Column("TIME", "s"), "ENERGY", "SCOPE", "PROVENANCE", "TAGS")
    names = ("name", "started", "duration_s", "shown", "scope", "pedigree", "tags")
    shown = [[row[name] if name != "started" else row[name][:19] for name in names] for row in rows]
    output.table(Table.of(*columns, rows=shown))


def _each(items: Iterable[_Item], ask: Callable[[_Item], _Answer], output: Output) -> Iterator[tuple[_Item, _Answer]]:
    """What is asked of each run. A file may come from anywhere: one that cannot be read does not hide the others."""
    for item in items:
        try:
            yield item, ask(item)
        except EverywattError as error:
            output.warn(f"{item.name}: {error}")
        except Exception as error:  # noqa: BLE001
            output.warn(f"{item.name} cannot be read: {type(error).__name__}: {error}")


def _row(run: Run) -> dict[str, Any]:
    energy = run.energy()
    return {
        "name": run.name,
        "path": str(run.path),
        "started": run.started.isoformat(),
        "duration_s": run.duration_s,
        "energy": energy.to_dict(),
        "shown": format_energy(energy),
        "scope": energy.scope,
        "pedigree": energy.pedigree,
        "tags": ", ".join(f"{key}={value}" for key, value in run.meta.get("tags", {}).items()),
    }


def _meant(tags: list[dict[str, Any]], wanted: str) -> str:
    """The tag that is asked for. `tag=project` may name a tag with that value, the tag `project`, or a bare word."""
    key, _, rest = wanted.partition("=")
    if key != "tag" or not rest or any("tag" in own for own in tags):
        return wanted
    known = any(rest.partition("=")[0] in own for own in tags)
    return rest if known else f"name={rest}"


def _sums(runs: list[Run], wanted: str, output: Output) -> None:
    """One row for each value of the tag and for each scope and provenance: those are never added."""
    name, given, wished = wanted.partition("=")
    if not name.strip() or (given and not wished.strip()):
        raise UsageError(f"'{wanted}' is not a tag to add up by.", cure="--sum project, or --sum project=alpha")
    key, equals, value = _meant([run.meta.get("tags", {}) for run in runs], wanted).partition("=")
    sums: dict[tuple[str, str, str], list[Run]] = {}
    tagged = [run for run in runs if key in (tags := run.meta.get("tags", {})) and (not equals or tags[key] == value)]
    for run, energy in _each(tagged, Run.energy, output):
        sums.setdefault((str(run.meta["tags"][key]), energy.scope, energy.pedigree), []).append(run)
    rows = []
    for (found, scope, pedigree), members in sums.items():
        total = sum_runs(members)
        rows.append(
            {
                "tag": f"{key}={found}",
                "runs": len(members),
                "duration_s": sum(run.duration_s for run in members),
                "scope": scope,
                "pedigree": pedigree,
                "energy": total.to_dict(),
                "shown": format_energy(total),
            }
        )
    if not rows:
        output.say(f"No run has the tag {wanted}.")
    output.json("sums", {"sums": rows})
    if rows:
        shown: list[list[Any]] = [
            [r["tag"], r["runs"], r["duration_s"], r["shown"], r["scope"], r["pedigree"]] for r in rows
        ]
        output.table(
            Table.of("TAG", Column("RUNS", ""), Column("TIME", "s"), "ENERGY", "SCOPE", "PROVENANCE", rows=shown)
        )
