"""The systemd units of a node: the agent (with Slurm or without), what books its tape to jobs, a site's daily work.

What is left out of the agent's is left out for a reason. PrivateDevices, ProtectClock and DeviceAllow would hide
/dev/nvidia* and /dev/i2c*; ProtectProc would hide the processes that energy belongs to; MemoryDenyWriteExecute breaks
libraries of vendors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from everywatt.slurm.node.hooks import JOB_LINE, RUNTIME, Site

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
