"""`doctor --fix`: a rule that lets one group, and nobody else, read the RAPL counters.

Readable counters leak secrets (CVE-2020-8694), so they are never opened to everyone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everywatt.core.machine import Machine

GROUP = "everywatt"
UDEV_RULE = (
    "# everywatt: members of the group 'everywatt' may read CPU energy counters (CVE-2020-8694: never everyone)\n"
    'SUBSYSTEM=="powercap", ACTION=="add|change", KERNEL=="intel-rapl*", '
    f"RUN+=\"/bin/sh -c 'chgrp {GROUP} /sys%p/energy_uj && chmod 0440 /sys%p/energy_uj'\"\n"
)
TMPFILES_RULE = (
    "# everywatt: the same at boot, for counters that were there before udev\n"
    f"z /sys/class/powercap/intel-rapl*/energy_uj 0440 root {GROUP} -\n"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was or is to be done."""

    what: str
    done: bool
    problem: str = ""


Call = Callable[[Sequence[str]], None]


def _call(words: Sequence[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)


def steps(machine: Machine, etc: Path = Path("/etc"), *, user: str = "", call: Call = _call) -> list[Step]:
    """Make the group, write both rules, apply them to the counters that are there. Says what was done."""
    done = [
        _try(f"make the group '{GROUP}'", lambda: call(["groupadd", "--system", "--force", GROUP])),
        _try(
            f"write {etc}/udev/rules.d/70-everywatt.rules",
            lambda: _write(etc / "udev/rules.d/70-everywatt.rules", UDEV_RULE),
        ),
        _try(
            f"write {etc}/tmpfiles.d/everywatt.conf", lambda: _write(etc / "tmpfiles.d/everywatt.conf", TMPFILES_RULE)
        ),
    ]
    counters = sorted(machine.sys.glob("class/powercap/intel-rapl*/energy_uj"))
    if counters:
        done.append(_try(f"let the group read {len(counters)} counters now", lambda: _apply(counters, call)))
    if user and user != "root":
        done.append(
            _try(f"add {user} to the group (log in again to use it)", lambda: call(["usermod", "-aG", GROUP, user]))
        )
    return done


def by_hand(user: str) -> list[str]:
    """The commands that root would type, for a user who is not root."""
    return [
        f"sudo groupadd --system --force {GROUP}",
        f"sudo usermod -aG {GROUP} {user}",
        f"sudo sh -c 'chgrp {GROUP} /sys/class/powercap/intel-rapl*/energy_uj; chmod 0440 /sys/class/powercap/intel-rapl*/energy_uj'",
        "sudo everywatt doctor --fix   # writes the udev and tmpfiles rules that survive a reboot",
    ]


def _try(what: str, act: Callable[[], None]) -> Step:
    try:
        act()
    except (OSError, subprocess.SubprocessError) as error:
        return Step(what, False, str(error))
    return Step(what, True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(text)
    partial.replace(path)


def _apply(counters: Sequence[Path], call: Call) -> None:
    names = [str(counter) for counter in counters]
    call(["chgrp", GROUP, *names])
    call(["chmod", "0440", *names])
