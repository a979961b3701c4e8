"""What is installed: scripts that Slurm calls when a job starts and ends on a node, lines of slurm.conf, systemd units.

A hook drops a file and is gone: it needs no agent, no Python and no network, and it cannot fail.

What is left out of the agent's unit is left out for a reason. PrivateDevices, ProtectClock and DeviceAllow would hide
/dev/nvidia* and /dev/i2c*; ProtectProc would hide the processes that energy belongs to; MemoryDenyWriteExecute breaks
libraries of vendors.
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
    """What slurm.conf has to say, given what it says now; comments say where a line is there already."""
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


NAME: Final = "everywatt-agent.service"
COMMAND: Final = "/usr/local/bin/everywatt"
CONFIG: Final = "/etc/everywatt/agent.toml"
STATE: Final = "/var/lib/everywatt-agent"
USER: Final = "everywatt"
AGENT_RUNTIME: Final = "/run/everywatt-agent"  # not in /tmp, where another user may make a folder of that name first

HARDENING: Final = """\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
PrivateTmp=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service perf_event_open
SystemCallErrorNumber=EPERM
"""


def agent_unit(
    command: str = COMMAND,
    arguments: str = f"--config {CONFIG}",
    *,
    user: str | None = USER,
    capabilities: str = "",
    more: str = "",
) -> str:
    """The text of the unit. `user` None: root; `capabilities` are all it can ever have; `more` are further lines."""
    account = f"User={user}\nGroup={user}\n" if user else ""
    return f"""\
[Unit]
Description=everywatt agent: the energy of this node
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
ExecStart={command} agent {arguments}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
WatchdogSec=60
TimeoutStopSec=20
StateDirectory=everywatt-agent
StateDirectoryMode=0750
RuntimeDirectory=everywatt-agent
RuntimeDirectoryMode=0700
Environment=EVERYWATT_RUNTIME_DIR={AGENT_RUNTIME}
UMask=0027
MemoryMax=256M
{account}CapabilityBoundingSet={capabilities}
{HARDENING}{more}
[Install]
WantedBy=multi-user.target
"""


UNITS: Final = {
    NAME: agent_unit(
        "{command}",
        "{config}--state {state} --period {period} --jobs slurm,cgroup",
        user=None,  # the hooks' spool is root's, and users' files in it are their own
        capabilities="CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_NET_ADMIN CAP_PERFMON",
        more="Environment=EVERYWATT_SLURM_SPOOL={spool}\n"
        "ExecStartPre=+/bin/mkdir -p {spool}\nReadWritePaths=-{spool}\n",
    ),
    "everywatt-slurm.service": f"""[Unit]
Description=everywatt: the jobs of this Slurm node
After=everywatt-agent.service slurmd.service
Wants=everywatt-agent.service
RequiresMountsFor={{store}}

[Service]
# The - keeps systemd from refusing to start if a folder in ReadWritePaths does not exist yet.
ExecStartPre=+/bin/mkdir -p {{spool}} {{store}}
ExecStart={{command}} slurm node --tape {{state}}/tape --spool {{spool}} --store {{store}} --every 60s --quiet{{more}}
# Shared with what the hooks start, so that one of them works on the spool; it stays when the service stops.
RuntimeDirectory={RUNTIME.name}
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
Environment=EVERYWATT_RUNTIME_DIR={RUNTIME}
Restart=always
RestartSec=10
MemoryMax=512M
{{confined}}NoNewPrivileges=yes
ReadWritePaths=-{{spool}} -{{store}}

[Install]
WantedBy=multi-user.target
""",
}


def unit(name: str, site: Site) -> str:
    """The text of a unit."""
    config = f"--config {site.config} " if site.config else ""
    places = {"command": site.command, "spool": site.spool, "store": site.store, "config": config}
    # A job's output may be on any filesystem. It is written with the rights of the job's user.
    confined = "ProtectSystem=full\n" if site.job_line else "ProtectSystem=strict\nPrivateTmp=yes\n"
    more = f" {JOB_LINE}" if site.job_line else ""
    return UNITS[name].format(**places, state=STATE, period=site.period, confined=confined, more=more)


# On one host of the site, not on its nodes.
SITE_UNITS: Final = {
    "everywatt-daily.service": """\
[Unit]
Description=everywatt: the daily work of a Slurm site

[Service]
Type=oneshot
ExecStart={command} slurm daily --store {store}{options}
Nice=10
""",
    "everywatt-daily.timer": """\
[Unit]
Description=everywatt: the daily work of a Slurm site, after midnight UTC

[Timer]
OnCalendar=*-*-* 00:30:00 UTC
RandomizedDelaySec=10min
Persistent=true

[Install]
WantedBy=timers.target
""",
}


def site_unit(name: str, command: str, store: Path, options: str = "") -> str:
    """The text of a unit of the site's host; `options` are more words for `slurm daily`."""
    return SITE_UNITS[name].format(command=command, store=store, options=f" {options}" if options else "")


def cron_line(command: str, store: Path, options: str = "") -> str:
    """The line for /etc/cron.d where there is no systemd."""
    more = f" {options}" if options else ""
    return f"30 1 * * * root {command} slurm daily --store {store} --quiet{more}"
