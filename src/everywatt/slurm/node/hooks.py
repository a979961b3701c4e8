"""The scripts that Slurm calls when a job starts and ends on a node, and the lines of slurm.conf that call them.

A hook drops a file and is gone: it needs no agent, no Python and no network, and it cannot fail.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from everywatt.core.errors import UsageError

EVENTS: Final = {"start": "Prolog", "end": "Epilog", "task": "TaskProlog"}
NAMES: Final = {"start": "prolog.sh", "end": "epilog.sh", "task": "task-prolog.sh"}
DEFAULT_SPOOL: Final = Path("/var/spool/everywatt/slurm")
DEFAULT_FOLDER: Final = Path("/etc/everywatt/slurm")
DEFAULT_STORE: Final = Path("/var/lib/everywatt/slurm")
RUNTIME: Final = Path("/run/everywatt-slurm")  # of root's programs: in /tmp another user may make the folder first
JOB_LINE: Final = "--job-line"
EVENTS_MODE: Final = 0o700
MOST_BYTES: Final = 1 << 20  # of a site's own hook that are searched for ours
TASKS_MODE: Final = 0o711  # a task runs as its user, whose own folder in there the Prolog makes


@dataclass(frozen=True, slots=True)
class Site:
    """What the hooks of a site have to know."""

    spool: Path = DEFAULT_SPOOL
    folder: Path = DEFAULT_FOLDER
    store: Path = DEFAULT_STORE
    command: Path = Path("/usr/local/bin/everywatt")
    period: str = "2s"
    config: Path | None = None  # the agent's configuration
    job_line: bool = False  # whether a line about its energy is added to a job's output


def hook(event: str, site: Site) -> str:
    """The script for an event: start, end or task."""
    if event not in EVENTS:
        raise UsageError(f"'{event}' is not a job event.", cure=f"one of: {', '.join(EVENTS)}")
    text = files("everywatt.slurm").joinpath("scripts/hook.sh").read_text(encoding="utf-8")
    values = {
        "EVENT": event,
        "SPOOL": shlex.quote(str(site.spool)),
        "STORE": shlex.quote(str(site.store)),
        "COMMAND": shlex.quote(str(site.command)),
        "PERIOD": site.period,
        "RUNTIME": str(RUNTIME),
        "MORE": f" {JOB_LINE}" if site.job_line else "",
    }
    if not re.fullmatch(r"[\w.]+", site.period):
        raise UsageError(f"'{site.period}' is not a period.", cure="2s")
    return re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], text)


def make_spool(spool: Path) -> None:
    """The folders that hooks write to; their rights are set again where they were changed."""
    spool.mkdir(parents=True, exist_ok=True)
    for name, mode in (("events", EVENTS_MODE), ("tasks", TASKS_MODE)):
        (spool / name).mkdir(exist_ok=True)
        (spool / name).chmod(mode)


def slurm_conf_lines(site: Site, existing: str = "") -> list[str]:
    """What slurm.conf has to say, given what it says now; comments tell where a line is there already."""
    lines = []
    for event, key in EVENTS.items():
        path = site.folder / NAMES[event]
        there = _value(existing, key)
        if there is None:
            lines.append(f"{key}={path}")
        elif not _calls(there, path):
            several = "Slurm accepts several: put both into one folder and set it to FOLDER/*"
            one = f"and Slurm accepts only one: call {path} at its end"
            lines.append(f"# {key} is {there} now{', ' + one if key == 'TaskProlog' else '. ' + several}")
    flags = _value(existing, "PrologFlags") or ""
    if "alloc" not in flags.lower():
        lines.append(f"PrologFlags={flags + ',' if flags else ''}Alloc")
    return lines


def not_called(site: Site, existing: str) -> list[str]:
    """Which hooks this slurm.conf does not call, by file name."""
    values = ((NAMES[event], _value(existing, key)) for event, key in EVENTS.items())
    return [name for name, there in values if there is None or not _calls(there, site.folder / name)]


def _calls(there: str, path: Path) -> bool:
    """Whether a program or pattern of slurm.conf is our hook, is a link to it, or is a script that names it."""
    if there == str(path):
        return True
    for found in sorted(Path("/").glob(there.lstrip("/"))) if there.startswith("/") else ():
        try:
            if found.samefile(path) or str(path).encode() in found.read_bytes()[:MOST_BYTES]:
                return True
        except OSError:
            continue
    return False


def _value(conf: str, key: str) -> str | None:
    found = re.findall(rf"^\s*{key}\s*=\s*(\S+)", conf, re.MULTILINE | re.IGNORECASE)
    return str(found[-1]) if found else None
