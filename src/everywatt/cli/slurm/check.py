"""`everywatt slurm check`: whether nodes can record their jobs."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import FOLDER, slurm_conf_option, spool_of, spool_option, store_option
from everywatt.core.config import resolve
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_count
from everywatt.core.tables import Table
from everywatt.doctor.diagnose import Check, Verdict
from everywatt.slurm.lists import expand
from everywatt.slurm.node.check import check_node
from everywatt.slurm.node.hooks import DEFAULT_FOLDER, DEFAULT_STORE, Site

SRUN_S = 300.0
CLOCK_S = 1.0  # a clock that is off by more charges readings to the wrong jobs


@click.command(cls=Verb)
@click.option("--nodes", metavar="LIST", help="Check these nodes by srun, as n[1-20]; without it this machine.")
@click.option("--node", "name", help="This node's name in Slurm (this host's, without the domain).")
@click.option("--folder", type=FOLDER, default=DEFAULT_FOLDER, help="Where the hooks are (/etc/everywatt/slurm).")
@spool_option
@store_option
@slurm_conf_option
@output_options
def command(
    nodes: str | None,
    name: str | None,
    folder: Path,
    spool: Path | None,
    store: Path | None,
    slurm_conf: Path,
    output: Output,
) -> int:
    """Check what a node needs to record its jobs; exits with 1 and a cure for each finding.

    Program and version, hooks and slurm.conf, how long a hook takes, spool, store (a record is written, read and
    removed), clock (with --nodes also against this machine's), order of GPUs, and what records the node.
    """
    site, own = here(spool, store, folder)
    if nodes is not None:
        found = _everywhere(nodes, site, slurm_conf)
    else:
        found = {name or own: [asdict(check) for check in check_node(site, name or own, slurm_conf)]}
    wrong = sum(check["verdict"] == Verdict.FAIL for checks in found.values() for check in checks)
    output.json("slurm-check", {"nodes": found, "ok": not wrong, "utc_s": time.time()})
    if output.json_to is None:
        shown = [
            [check["verdict"], node, check["name"], check["seen"], check["cure"] or None]
            for node, checks in found.items()
            for check in checks
            if nodes is None or check["verdict"] == Verdict.FAIL
        ]
        if shown:
            output.table(Table.of("", "NODE", "CHECK", "SEEN", "TRY", rows=shown))
        output.text(f"{format_count(len(found), 'node')}, {format_count(wrong, 'finding')}.")
    return 1 if wrong else 0


def here(spool: Path | None, store: Path | None, folder: Path = DEFAULT_FOLDER) -> tuple[Site, str]:
    """Where the parts of this node are, and its name."""
    command_path = Path(shutil.which("everywatt") or Path(sys.executable).with_name("everywatt"))
    kept = store or resolve().slurm_store or DEFAULT_STORE
    site = Site(spool_of(spool).absolute(), folder.absolute(), kept.absolute(), command_path.absolute())
    return site, socket.gethostname().partition(".")[0]


def _everywhere(nodes: str, site: Site, slurm_conf: Path) -> dict[str, list[dict[str, Any]]]:
    """The checks of nodes, by name. One that says nothing has a finding that says so."""
    names = expand(nodes)
    if not names:
        raise UsageError(f"'{nodes}' is not a list of nodes.", cure="--nodes 'n[1-20]'")
    words = [site.command, "slurm", "check", "--json", "--slurm-conf", slurm_conf]
    words += ["--folder", site.folder, "--spool", site.spool, "--store", site.store]
    # The shell on the node knows what Slurm calls it.
    shell = ["sh", "-c", 'exec "$@" --node "$SLURMD_NODENAME"', "sh"]
    asked = ["srun", "--label", f"--nodelist={nodes}", f"--nodes={len(names)}", "--ntasks-per-node=1", *shell, *words]
    began_s = time.time()
    try:
        done = subprocess.run([*map(str, asked)], capture_output=True, text=True, timeout=SRUN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EverywattError(f"srun: {error}.", cure="run `everywatt slurm check` on the node itself") from None
    texts: dict[str, list[str]] = {}
    for line in done.stdout.split("\n"):
        if match := re.fullmatch(r"\s*(\d+): ?(.*)", line):
            texts.setdefault(match[1], []).append(match[2])
    found: dict[str, list[dict[str, Any]]] = {}
    for text in texts.values():
        try:
            answer = json.loads("\n".join(text))
            for node, checks in answer["nodes"].items():
                found[node] = [*checks, *_clock_offset(answer.get("utc_s"), began_s)]
        except (ValueError, KeyError, TypeError):
            continue
    why = done.stderr.strip()[-200:] or "no answer"
    silent = [asdict(Check("answer", Verdict.FAIL, why, "everywatt slurm check on that node"))]
    return {name: found.get(name, silent) for name in names}


def _clock_offset(utc_s: float | None, began_s: float) -> list[dict[str, Any]]:
    """A finding where a node's clock, read between `began_s` and now, is outside of that time."""
    if utc_s is None:
        return []  # an earlier version
    ahead_s, behind_s = utc_s - time.time(), began_s - utc_s
    if max(ahead_s, behind_s) <= CLOCK_S:
        return []
    seen = f"ahead of this machine by {ahead_s:.1f} s" if ahead_s > 0 else f"behind this machine by {behind_s:.1f} s"
    return [asdict(Check("clock offset", Verdict.FAIL, seen, "the same NTP servers for all nodes"))]
