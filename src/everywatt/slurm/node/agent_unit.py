"""The systemd unit of the agent: one text, for a plain node and for a node of Slurm.

What is left out is left out for a reason. PrivateDevices, ProtectClock and DeviceAllow would hide /dev/nvidia* and
/dev/i2c*; ProtectProc would hide the processes that energy belongs to; MemoryDenyWriteExecute breaks libraries of
vendors.
"""

from __future__ import annotations

from typing import Final

NAME: Final = "everywatt-agent.service"
COMMAND: Final = "/usr/local/bin/everywatt"
CONFIG: Final = "/etc/everywatt/agent.toml"
STATE: Final = "/var/lib/everywatt-agent"
USER: Final = "everywatt"
RUNTIME: Final = "/run/everywatt-agent"  # not in /tmp, where another user may make a folder of that name first

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
Environment=EVERYWATT_RUNTIME_DIR={RUNTIME}
UMask=0027
MemoryMax=256M
{account}CapabilityBoundingSet={capabilities}
{HARDENING}{more}
[Install]
WantedBy=multi-user.target
"""
