"""A control group for a command, only to count its CPU time: exact for all that it starts, daemons and short ones too.

It is made below the group that this process is in, in one hierarchy, and only where it changes nothing else: no limits,
no weights, no other hierarchy. That is a version 2 group that hands no controller down, or the cpuacct hierarchy of
version 1 where that stands alone. Groups that systemd looks after are left alone unless it has handed them over.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from everywatt.core.foreign import text_lines
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.machine import Machine
from everywatt.sensors.usage.cgroups import MADE, made_seconds

SYSTEMD = Path("/run/systemd/system")  # there while systemd runs the machine


@dataclass(frozen=True, slots=True)
class OwnCgroup:
    """A group that was made for a command."""

    folder: Path

    def join(self) -> None:
        """Move the calling process in. OSError where that is not allowed."""
        (self.folder / "cgroup.procs").write_text("0")

    def cpu_s(self) -> float | None:
        """CPU seconds of all that ever ran in it; None where nothing did."""
        try:
            return made_seconds(self.folder) or None
        except (OSError, ValueError):
            return None

    def remove(self) -> bool:
        """Remove it. False where processes still live in it; the next run that finds it empty removes it."""
        try:
            self.folder.rmdir()
        except OSError:
            return not self.folder.exists()
        return True


def make(machine: Machine | None = None) -> tuple[OwnCgroup | None, str]:
    """A new group for a command of this process; None and why where none can be made without harm."""
    machine = machine or Machine.here()
    reasons = []
    for parent, why in _parents(machine):
        if parent is None:
            reasons.append(why)
            continue
        _sweep(parent, machine.proc)
        folder = parent / f"{MADE}{os.getpid()}"
        try:
            folder.mkdir(exist_ok=True)
            made = OwnCgroup(folder)
            made_seconds(folder)
        except (OSError, ValueError) as error:
            reasons.append(f"{folder}: {error.strerror if isinstance(error, OSError) else error}")
            with suppress(OSError):
                folder.rmdir()
            continue
        return made, ""
    return None, "; ".join(dict.fromkeys(reasons)) or "there are no control groups"


def _parents(machine: Machine) -> list[tuple[Path | None, str]]:
    """The groups below which one could be made, best first, each None with the reason where it must not be."""
    root = machine.sys / "fs" / "cgroup"
    try:
        lines = text_lines((machine.proc / "self" / "cgroup").read_text())
    except OSError:
        return []
    found = []
    for line in sorted(lines, key=lambda line: not line.startswith("0::")):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            mount = root if (root / "cgroup.controllers").exists() else root / "unified"
        elif controllers == "cpuacct":
            mount = root / "cpuacct"
        else:
            continue
        parent = Path(f"{mount}{path}")
        why = _refusal(mount, parent, machine)
        found.append((None if why else parent, why))
    return found


def _refusal(mount: Path, parent: Path, machine: Machine) -> str:
    """Why no group may be made below `parent`, empty where it may."""
    if ".." in parent.parts or not parent.is_dir():
        return "the group of this process is not visible"
    if not os.access(parent / "cgroup.procs", os.W_OK) or not os.access(parent, os.W_OK):
        return "this user may not create control groups"
    try:
        if (parent / "cgroup.subtree_control").read_text().split():
            return "its group delegates controllers, so a child group would change more than accounting"
        if (parent / "cgroup.type").read_text().strip() not in ("domain", ""):
            return "its group is threaded"
    except FileNotFoundError:
        pass  # version 1, or the root
    except OSError as error:
        return f"{parent}: {error.strerror}"
    if _systemd(machine.proc) and not _handed_over(mount, parent):
        return "systemd manages the control groups and has not delegated this one"
    return ""


def _systemd(proc: Path) -> bool:
    try:
        return (proc / "1" / "comm").read_text().strip() == "systemd" or SYSTEMD.is_dir()
    except OSError:
        return True  # not visible: be careful


def _handed_over(mount: Path, parent: Path) -> bool:
    """Whether systemd marked the group, or one above it, as delegated (Delegate=yes)."""
    while parent != mount and mount in parent.parents:
        for name in ("trusted.delegate", "user.delegate"):
            with suppress(OSError):
                if os.getxattr(parent, name) == b"1":
                    return True
        parent = parent.parent
    return False


def _sweep(parent: Path, proc: Path) -> None:
    """Remove groups of runs that have ended whose daemons have ended since."""
    with suppress(OSError):
        for folder in parent.glob(f"{MADE}*"):
            if not (proc / folder.name.removeprefix(MADE)).exists():
                with suppress(OSError):
                    folder.rmdir()
