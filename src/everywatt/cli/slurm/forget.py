"""`everywatt slurm forget`: delete the records of users."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from everywatt.cli.common.options import TIME, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import spool_of, spool_option, store_of, store_option, writing
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.core.format import format_count
from everywatt.slurm.site.retention import Forgotten, Whose, forget


@click.command(cls=Verb)
@click.option("--user", help="Delete the records of this user.")
@click.option("--all-users", is_flag=True, help="Delete the records of all users: a limit on how long they are kept.")
@click.option("--before", type=TIME, required=True, help="Only jobs that ended before this time.")
@click.option("--yes", is_flag=True, help="Delete without asking; required without a terminal.")
@click.option("--dry", is_flag=True, help="Show what would be deleted, and delete nothing.")
@spool_option
@store_option
@output_options
def command(
    user: str | None,
    all_users: bool,
    before: int,
    yes: bool,
    dry: bool,
    spool: Path | None,
    store: Path | None,
    output: Output,
) -> int:
    """Delete the records of a user's jobs that ended before a time.

    They are deleted from the store, the daily sums, the user's folder and this node's spool, and counted first. Hours
    of nodes hold no names and stay. Slurm's own accounting is not changed: a later import from sacct brings its jobs
    back, without energy. Exits with 1 if something is left.
    """
    if (user is None) != all_users:
        raise UsageError("Whose records?", cure="either --user NAME or --all-users")
    opened, place = store_of(store), spool_of(spool)
    if not opened.path.is_dir():
        raise UsageError(f"There is no store at {opened.path}.", cure="--store DIR")
    whose = Whose(user, before / NS)
    found = forget(opened, place, whose, delete=False)
    if not (dry or found.nothing):
        if not yes:
            _ask(whose, found)
        with writing(opened.path):
            found = forget(opened, place, whose, delete=True)
    deleted = not (dry or found.nothing)
    facts = {"user": user, "before_s": whose.before_s, "deleted": deleted, **found.to_dict()}
    output.json("slurm-forget", facts)
    for text in found.left:
        output.warn(f"left: {text}")
    if found.nothing:
        output.text(f"There are no records of {_scope(whose)}.")
    else:
        output.text(f"{_words(whose, found)}{': deleted' if deleted else ''}.")
    return 1 if found.left else 0


def _ask(whose: Whose, found: Forgotten) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{_words(whose, found)} would be deleted, and there is no terminal to ask.", cure="--yes")
    if not click.confirm(f"{_words(whose, found)}. Delete them?", err=True):
        raise UsageError("Nothing was deleted.")


def _scope(whose: Whose) -> str:
    who = "any user" if whose.user is None else whose.user
    return f"{who} before {datetime.fromtimestamp(whose.before_s, UTC):%Y-%m-%dT%H:%M}Z"


def _words(whose: Whose, found: Forgotten) -> str:
    parts = [f"{format_count(len(found.jobs), 'job')} of {_scope(whose)}"]
    parts.append(f"{format_count(found.records, 'record')} in {format_count(found.files, 'file')}")
    parts += [format_count(found.folders, "day") + " in users' folders"] if found.folders else []
    parts += [format_count(found.events, "event") + " of this node"] if found.events else []
    return ", ".join(parts)
