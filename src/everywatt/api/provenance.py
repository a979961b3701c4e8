"""Where a figure comes from: host, versions, command, git state, tags. Stored in every tape."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everywatt.core.machine import boot_id
from everywatt.core.secrets import mask_words
from everywatt.sensors.sysfs import packages_of, threads_per_core

GIT_TIMEOUT_S = 1.0


def provenance(
    command: Sequence[str] | None = None,
    *,
    tags: Mapping[str, str] | None = None,
    note: str = "",
    cwd: Path | None = None,
    mask: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """The `meta` of a tape. `mask` hides secrets in the command."""
    from everywatt import __version__

    folder = cwd or Path.cwd()
    words = list(sys.orig_argv if command is None else command)
    system = os.uname()
    return {
        "everywatt": __version__,
        "host": {
            "name": socket.gethostname(),
            "system": system.sysname,
            "kernel": system.release,
            "boot": boot_id(),
            "machine": system.machine,
            "cpus": os.cpu_count(),
            "cpu": _cpu_model(),
            "memory_bytes": _memory_bytes(),
            "packages": packages_of(Path("/sys")),
            "threads_per_core": threads_per_core(Path("/sys")),
        },
        "python": sys.version.split()[0],
        "user": user_name(),
        "command": mask_words(words) if mask else words,
        "cwd": str(folder),
        "git": git_state(folder),
        "tags": dict(tags or {}),
        "note": note,
        **more,
    }


def _memory_bytes() -> int | None:
    """Bytes of memory of this machine, None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit, branch and whether tracked files were changed; None outside a repository or without git."""
    if not _in_repository(folder):
        return None  # git would say the same, and a run waits for it
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
    if status is None:  # it took too long, or there is no work tree
        commit = _git(folder, "rev-parse", "HEAD")
        if commit is None:
            return None
        return {"commit": commit, "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"), "dirty": None}
    lines = status.split("\n")
    facts = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = facts.get("branch.oid", "(initial)"), facts.get("branch.head", "(detached)")
    if commit == "(initial)":
        return None
    dirty = any(line and not line.startswith("#") for line in lines)
    return {"commit": commit, "branch": "HEAD" if branch == "(detached)" else branch, "dirty": dirty}


def _in_repository(folder: Path) -> bool:
    """Whether git has something to look at: a work tree, a bare repository, or one that the environment names."""
    if "GIT_DIR" in os.environ:
        return True
    return any(os.access(place / name, os.F_OK) for place in (folder, *folder.parents) for name in (".git", "HEAD"))


def _git(folder: Path, *words: str) -> str | None:
    import subprocess

    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=GIT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").split("\n"):
            if line.startswith(("model name", "Model", "Hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    import platform

    return platform.processor()


def user_name() -> str:
    """The user's name, or number where it has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
