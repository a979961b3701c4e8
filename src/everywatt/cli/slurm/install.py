"""`everywatt slurm install` and `check`: the hooks and units of a node, and whether nodes can record their jobs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from everywatt.cli.common.options import FILE, FOLDER, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import here, slurm_conf_option, spool_option, store_option
from everywatt.core.files import replace_text
from everywatt.core.units import parse_duration_s
from everywatt.doctor.diagnose import Verdict
from everywatt.slurm.node.check import check_node
from everywatt.slurm.node.hooks import (
    DEFAULT_FOLDER,
    EVENTS,
    NAMES,
    UNITS,
    Site,
    hook,
    make_spool,
    slurm_conf_lines,
    unit,
)
from everywatt.slurm.site.checks import NodeChecks, checks_by_srun

UNIT_FOLDER = Path("/etc/systemd/system")


@click.command(cls=Verb)
@click.option(
    "--folder", type=FOLDER, default=DEFAULT_FOLDER, help="Folder for the hooks.  [default: /etc/everywatt/slurm]"
)
@click.option(
    "--units", type=FOLDER, default=UNIT_FOLDER, help="Folder for the systemd units.  [default: /etc/systemd/system]"
)
@spool_option
@store_option
@click.option("--period", default="2s", help="Time between two reads, stored with each job.  [default: 2s]")
@click.option("--config", type=FILE, help="A configuration for the agent, as agent.toml.")
@click.option("--job-line", is_flag=True, help="Add a line with its energy to the output of each batch job.")
@click.option("--root", type=FOLDER, help="Write below this folder, for a machine image whose root it is.")
@slurm_conf_option
@click.option("--print", "print_only", is_flag=True, help="Print the files instead of writing them.")
@output_options
def install(
    folder: Path,
    units: Path,
    spool: Path | None,
    store: Path | None,
    period: str,
    config: Path | None,
    job_line: bool,
    root: Path | None,
    slurm_conf: Path,
    print_only: bool,
    output: Output,
) -> None:
    """Write Prolog, Epilog and TaskProlog and the systemd units of the agent, and print what slurm.conf needs.

    Each hook writes one small file and exits with 0, whatever happens, so that it does not drain the node. slurm.conf
    is not changed: the lines to add, given its present content, are printed. Repeating changes nothing.
    """
    parse_duration_s(period)
    site, name = here(spool, store, folder)
    site = replace(site, period=period, config=config.absolute() if config else None, job_line=job_line)
    if root is not None:
        site = replace(site, command=Site().command)  # this machine's is not the image's
    wanted = {_below(root, site.folder / NAMES[event]): (hook(event, site), 0o755) for event in EVENTS}
    wanted |= {_below(root, units / name): (unit(name, site), 0o644) for name in UNITS}
    conf = slurm_conf.read_text(encoding="utf-8", errors="replace") if slurm_conf.is_file() else ""
    lines = slurm_conf_lines(site, conf)
    changed = [] if print_only else _write(wanted, _below(root, site.spool))
    files = {str(path): text for path, (text, _) in wanted.items()} if print_only else list(map(str, wanted))
    facts = {"files": files, "changed": [str(path) for path in changed], "slurm_conf": lines}
    for finding in () if print_only or root is not None else check_node(site, name, slurm_conf):
        if finding.verdict is Verdict.FAIL and finding.name != "slurm.conf":
            output.warn(f"{finding.name}: {finding.seen} ({finding.cure})")
    if print_only:
        texts = [f"# {path}\n{text}" for path, (text, _) in wanted.items()]
    else:
        texts = [f"{len(wanted)} files, {len(changed)} of them changed:"]
        texts += [f"  {path}{'  (written)' if path in changed else ''}" for path in wanted]
    if lines:
        texts += [f"{slurm_conf} needs:", *(f"  {line}" for line in lines)]
        texts.append("Then: scontrol reconfigure, and systemctl enable --now everywatt-agent everywatt-slurm")
    else:
        texts.append(f"{slurm_conf} needs no change.")
    output.facts("slurm-install", facts, *texts)


def _below(root: Path | None, path: Path) -> Path:
    """Where this machine finds a file of the image below `root`."""
    return path if root is None else root / path.absolute().relative_to("/")


def _write(wanted: dict[Path, tuple[str, int]], spool: Path) -> list[Path]:
    """Write what is not there already, each file whole or not at all; gives what was changed."""
    changed = []
    for path, (text, mode) in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8") == text and path.stat().st_mode & 0o777 == mode:
            continue
        replace_text(path, text, mode=mode)
        changed.append(path)
    make_spool(spool)
    return changed


@click.command(cls=Verb)
@click.option("--nodes", metavar="LIST", help="Check these nodes by srun, as n[1-20]; without it this machine.")
@click.option("--node", "name", help="This node's name in Slurm (this host's, without the domain).")
@click.option("--folder", type=FOLDER, default=DEFAULT_FOLDER, help="Where the hooks are (/etc/everywatt/slurm).")
@spool_option
@store_option
@slurm_conf_option
@output_options
def check(
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
        found = checks_by_srun(nodes, site, slurm_conf)
    else:
        found = NodeChecks({name or own: check_node(site, name or own, slurm_conf)})
    output.result("slurm-check", found, utc_s=time.time())
    return 1 if found.wrong else 0
