"""Which processes a server is: found by the port that it listens on, on this host. Reads /proc only."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

_LISTEN = "0A"
# Programs that hold a port on behalf of others, by their names in the kernel.
TUNNELS = ("ssh", "autossh", "kubectl", "cloudflared")
PROXIES = (
    *("docker-proxy", "rootlesskit", "rootlessport", "slirp4netns", "pasta", "conmon", "gvproxy", "socat"),
    *("nginx", "haproxy", "envoy", "caddy", "traefik", "systemd"),
)


def is_here(url: str) -> bool:
    """Whether a URL's host is this machine: loopback, or an address that a local socket can be bound to."""
    host = urlsplit(url).hostname or ""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_local(str(address[0])) for *_, address in found)


def _local(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if address.is_loopback:
        return True
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((text, 0))
        return True
    return False


def port_of(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def listeners(port: int, proc: Path = Path("/proc")) -> list[int]:
    """Processes that listen on a TCP port, without those whose parent is among them; empty if unknown."""
    inodes = _inodes(port, proc)
    if not inodes:
        return []
    found = [pid for pid in _pids(proc) if _holds(proc / str(pid), inodes)]
    return sorted(pid for pid in found if _parent(proc, pid) not in found)


def forwarder(pids: Sequence[int], proc: Path = Path("/proc")) -> str | None:
    """The name of a program among these that only forwards; None if none does."""
    for pid in pids:
        try:
            name = (proc / str(pid) / "comm").read_text().strip()
        except OSError:
            continue
        if name in TUNNELS or name in PROXIES:
            return name
    return None


def _inodes(port: int, proc: Path) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "self" / "net" / name).read_text().split("\n")[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{words[9]}]")
    return found


def _pids(proc: Path) -> list[int]:
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]


def _holds(folder: Path, inodes: set[str]) -> bool:
    try:
        with os.scandir(folder / "fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path) in inodes:  # noqa: PTH115 - thousands of them, and a Path costs more
                        return True
    except OSError:
        pass  # gone, or another user's
    return False


def _parent(proc: Path, pid: int) -> int:
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
