"""`everywatt slurm install`: the hooks and units of a node."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import click

from everywatt.cli.common.options import Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import FOLDER, slurm_conf_option, spool_of, spool_option
from everywatt.core.config import resolve
from everywatt.core.units import parse_duration_s
from everywatt.doctor.diagnose import Verdict
from everywatt.slurm.node.check import check_node
from everywatt.slurm.node.hooks import (
    DEFAULT_FOLDER,
    DEFAULT_STORE,
    EVENTS,
    NAMES,
    Site,
    hook,
    make_spool,
    slurm_conf_lines,
)
from everywatt.slurm.node.units import UNITS, unit

UNIT_FOLDER = Path("/etc/systemd/system")


@click.command(cls=Verb)
@click.option(
    "--folder", type=FOLDER, default=DEFAULT_FOLDER, help="Folder for the hooks.  [default: /etc/everywatt/slurm]"
)
@click.option(
    "--units", type=FOLDER, default=UNIT_FOLDER, help="Folder for the systemd units.  [default: /etc/systemd/system]"
)
@spool_option
@click.option("--store", type=FOLDER, help="Store of the site's jobs.")
@click.option("--period", default="2s", help="Time between two reads, stored with each job.  [default: 2s]")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="A configuration for the agent, as agent.toml."
)
@click.option("--job-line", is_flag=True, help="Add a line with its energy to the output of each batch job.")
@slurm_conf_option
@click.option("--print", "print_only", is_flag=True, help="Print the files instead of writing them.")
@output_options
def command(
    folder: Path,
    units: Path,
    spool: Path | None,
    store: Path | None,
    period: str,
    config: Path | None,
    job_line: bool,
    slurm_conf: Path,
    print_only: bool,
    output: Output,
) -> None:
    """Write Prolog, Epilog and TaskProlog and the systemd units of the agent, and print what slurm.conf needs.

    Each hook writes one small file and exits with 0, whatever happens, so that it does not drain the node. slurm.conf
    is not changed: the lines to add, given its present content, are printed. Repeating changes nothing.
    """
    parse_duration_s(period)
    command_path = Path(shutil.which("everywatt") or Path(sys.executable).with_name("everywatt"))
    kept = store or resolve().slurm_store or DEFAULT_STORE
    places = spool_of(spool).absolute(), folder.absolute(), kept.absolute(), command_path.absolute()
    site = Site(*places, period, config.absolute() if config else None, job_line)
    wanted = {site.folder / NAMES[event]: (hook(event, site), 0o755) for event in EVENTS}
    wanted |= {units / name: (unit(name, site), 0o644) for name in UNITS}
    conf = slurm_conf.read_text(encoding="utf-8", errors="replace") if slurm_conf.is_file() else ""
    lines = slurm_conf_lines(site, conf)
    changed = [] if print_only else _write(wanted, site)
    output.json(
        "slurm-install",
        {
            "files": {str(path): text for path, (text, _) in wanted.items()} if print_only else list(map(str, wanted)),
            "changed": [str(path) for path in changed],
            "slurm_conf": lines,
        },
    )
    for check in () if print_only else check_node(site, socket.gethostname().partition(".")[0], slurm_conf):
        if check.verdict is Verdict.FAIL and check.name != "slurm.conf":
            output.warn(f"{check.name}: {check.seen} ({check.cure})")
    if output.json_to is not None:
        return
    if print_only:
        for path, (text, _) in wanted.items():
            output.text(f"# {path}\n{text}")
    else:
        output.text(f"{len(wanted)} files, {len(changed)} of them changed:")
        for path in wanted:
            output.text(f"  {path}{'  (written)' if path in changed else ''}")
    if lines:
        output.text(f"{slurm_conf} needs:")
        for line in lines:
            output.text(f"  {line}")
        output.text("Then: scontrol reconfigure, and systemctl enable --now everywatt-agent everywatt-slurm")
    else:
        output.text(f"{slurm_conf} needs no change.")


def _write(wanted: dict[Path, tuple[str, int]], site: Site) -> list[Path]:
    """Write what is not there already, each file whole or not at all; gives what was changed."""
    changed = []
    for path, (text, mode) in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8") == text and path.stat().st_mode & 0o777 == mode:
            continue
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.chmod(mode)
        part.replace(path)
        changed.append(path)
    make_spool(site.spool)
    return changed
