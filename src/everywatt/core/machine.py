"""Where the machine is looked at: the roots of /sys, /proc and /dev are arguments, so that a tree can stand in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from everywatt.core.clocks import Clock, SystemClock


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


def runtime_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The user's own folder for the recorder's socket: EVERYWATT_RUNTIME_DIR, XDG_RUNTIME_DIR, else one in /tmp."""
    env = os.environ if environ is None else environ
    if env.get("EVERYWATT_RUNTIME_DIR"):
        return Path(env["EVERYWATT_RUNTIME_DIR"])
    if env.get("XDG_RUNTIME_DIR"):
        return Path(env["XDG_RUNTIME_DIR"]) / "everywatt"
    return Path("/tmp") / f"everywatt-{os.getuid()}"
