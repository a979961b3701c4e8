"""Where the machine is looked at: the roots of /sys, /proc and /dev are arguments, so that a tree can stand in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from everywatt.core.clocks import Clock, SystemClock
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.platforms import user_id

RUN_USER = Path("/run/user")  # where systemd makes a folder for each user who is logged in


@dataclass(frozen=True, slots=True)
class Machine:
    """The filesystem roots, the environment and the clock that sensors see."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    clock: Clock = field(default_factory=SystemClock)

    @classmethod
    def here(cls, environ: Mapping[str, str] | None = None) -> Machine:
        """This machine, or the simulated one that `everywatt sim` put into the environment.

        EVERYWATT_SYS, EVERYWATT_PROC and EVERYWATT_DEV replace the roots; the recorder works in another folder, so
        relative ones are completed here.
        """
        env = dict(os.environ if environ is None else environ)
        return cls(
            sys=Path(env.get("EVERYWATT_SYS", "/sys")).absolute(),
            proc=Path(env.get("EVERYWATT_PROC", "/proc")).absolute(),
            dev=Path(env.get("EVERYWATT_DEV", "/dev")).absolute(),
            environ=env,
        )


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's name of this boot; empty where it has none."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def runtime_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The user's own folder for the recorder's socket.

    EVERYWATT_RUNTIME_DIR, else `everywatt` in XDG_RUNTIME_DIR or /run/user/UID where that is the user's own (it is not
    for root after `sudo -E`), else /tmp/everywatt-UID, which others may have made before: `wire.own_folder` checks.
    """
    env = os.environ if environ is None else environ
    if env.get("EVERYWATT_RUNTIME_DIR"):
        return Path(env["EVERYWATT_RUNTIME_DIR"])
    for folder in (env.get("XDG_RUNTIME_DIR"), RUN_USER / str(user_id())):
        if folder and _is_own(folder):
            return Path(folder) / "everywatt"
    return Path("/tmp") / f"everywatt-{user_id()}"


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """What everywatt keeps for the user: XDG_STATE_HOME/everywatt, or ~/.local/state/everywatt."""
    env = os.environ if environ is None else environ
    base = env.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = f"{env.get('HOME') or '~'}/.local/state"
    return Path(base).expanduser() / "everywatt"


def _is_own(folder: Path | str) -> bool:
    try:
        return os.stat(folder).st_uid == user_id()  # noqa: PTH116 - a text or a path
    except OSError:
        return False
