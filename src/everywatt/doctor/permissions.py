"""`doctor --fix`: rules that make the RAPL counters readable for one group only.

Readable counters leak secrets (CVE-2020-8694), so they are never opened to everyone.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everywatt.core.files import replace_text
from everywatt.core.machine import Machine
from everywatt.sensors.cpu.rapl import find_zones, group_rule

GROUP = "everywatt"
UDEV_PATH = "udev/rules.d/70-everywatt.rules"
TMPFILES_PATH = "tmpfiles.d/everywatt.conf"
UDEV_TEXT = f"# Members of the group '{GROUP}' may read CPU energy counters.\n{group_rule(GROUP)}\n"
TMPFILES_RULE = f"z /sys/class/powercap/*rapl*:*/energy_uj 0440 root {GROUP} - -"
TMPFILES_TEXT = f"# The same at boot, for counters that exist before udev starts.\n{TMPFILES_RULE}\n"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done, or could not be."""

    what: str
    done: bool
    problem: str = ""


Call = Callable[[Sequence[str]], None]


def counters(machine: Machine) -> list[Path]:
    """The energy counters that a rule would be about."""
    zones, _ = find_zones(machine.sys / "class" / "powercap")
    return sorted({zone.folder / "energy_uj" for zone in zones if (zone.folder / "energy_uj").exists()})


def fix(machine: Machine, etc: Path = Path("/etc"), *, user: str = "", call: Call | None = None) -> list[Step]:
    """Make the group, write both rules below `etc`, apply them to the counters that are there now.

    Says what was done; doing it again changes nothing. `call` runs a command and raises where it fails.
    """
    run = call or _call
    done = [
        _try(
            f"created the group '{GROUP}' if it did not exist", lambda: run(["groupadd", "--system", "--force", GROUP])
        ),
        _put(etc / UDEV_PATH, UDEV_TEXT),
        _put(etc / TMPFILES_PATH, TMPFILES_TEXT),
    ]
    if shutil.which("udevadm"):
        done.append(_try("reloaded the udev rules", lambda: run(["udevadm", "control", "--reload"])))
    names = [str(counter) for counter in counters(machine)]
    if names:
        done.append(_try(f"made {len(names)} counters readable for the group only", lambda: _open_to_group(names, run)))
    if user and user != "root":
        done.append(
            _try(f"added {user} to the group (log in again to use it)", lambda: run(["usermod", "-aG", GROUP, user]))
        )
    return done


def by_hand(user: str) -> list[str]:
    """What a user who is not root can have root type: the same fix, or its steps one by one."""
    return [
        f"sudo {shlex.quote(sys.executable)} -m everywatt doctor --fix",
        "or, step by step:",
        f"sudo groupadd --system --force {GROUP}",
        f"sudo usermod -aG {GROUP} {shlex.quote(user)}",
        f"printf '%s\\n' {shlex.quote(group_rule(GROUP))} | sudo tee /etc/{UDEV_PATH}",
        f"printf '%s\\n' {shlex.quote(TMPFILES_RULE)} | sudo tee /etc/{TMPFILES_PATH}",
        f"sudo systemd-tmpfiles --create /etc/{TMPFILES_PATH}",
    ]


def _call(words: Sequence[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=30)


def _try(what: str, act: Callable[[], None]) -> Step:
    try:
        act()
    except subprocess.CalledProcessError as error:
        return Step(what, False, (error.stderr or "").strip() or str(error))
    except (OSError, subprocess.SubprocessError) as error:
        return Step(what, False, str(error))
    return Step(what, True)


def _put(path: Path, text: str) -> Step:
    try:
        if path.exists() and path.read_text() == text:
            return Step(f"found {path} up to date", True)
    except (OSError, UnicodeDecodeError):
        pass  # then it is to be replaced
    return _try(f"wrote {path}", lambda: _write(path, text))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, text, mode=0o644)


def _open_to_group(names: Sequence[str], call: Call) -> None:
    call(["chgrp", GROUP, *names])
    call(["chmod", "0440", *names])
