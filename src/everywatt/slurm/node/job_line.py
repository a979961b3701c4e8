"""A line about its energy at the end of a job's output, for users who look nowhere else.

It is written when the job's record is in the store, so no hook and no job waits for it. The file is the user's and its
name is the user's choice: a shell with the user's rights appends to it, nothing else looks at it, and if it hangs it
is left to itself and killed after a while.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Final

from everywatt.core.format import format_percent, format_quantity, print_quantity
from everywatt.ledger.engine import UJ
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.figures import COVERED
from everywatt.slurm.site.users import person

MOST: Final = 8  # shells at a time: on a filesystem that does not answer more would only pile up
LONGEST_S: Final = 20.0
J_PER_WH: Final = 3600.0
_APPEND: Final = '[ -f "$2" ] && [ -O "$2" ] && printf "%s\\n" "$1" >>"$2"'


def job_line(row: JobOnNode) -> str | None:
    """What the user reads; None where there is no figure."""
    if row.energy_uj is None or row.low_uj is None or row.high_uj is None:
        return None
    used, low, high = (value / UJ / J_PER_WH for value in (row.energy_uj, row.low_uj, row.high_uj))
    level = "95 %" if row.coverage >= COVERED else f"95 %, coverage {format_percent(row.coverage)}"
    where = f" on {row.node} (1 of its {row.nodes} nodes)" if row.nodes > 1 else ""
    text = f"everywatt: this job used {print_quantity(used, 'Wh', used - low, high - used).at(level)}{where}"
    if row.idle_uj:
        share = row.idle_uj / (row.energy_uj + row.idle_uj)
        ends_uj = (row.idle_uj if end is None else end for end in (row.idle_low_uj, row.idle_high_uj))
        idle, low, high = (value / UJ / J_PER_WH for value in (row.idle_uj, *ends_uj))
        text += f"; its idle allocation drew {format_quantity(idle, 'Wh', idle - low, high - idle)} more"
        text += f" ({format_percent(share)} of both)"
    return f"{text}."


class JobLines:
    """Appends lines to the output of jobs. Nothing waits for it, and nothing that goes wrong is raised."""

    def __init__(self) -> None:
        self._shells: list[tuple[subprocess.Popen[bytes], float]] = []

    def append(self, job: NodeJob, row: JobOnNode) -> None:
        """Add the line of a job to its output, if it has one and the output is a file of its user's."""
        self._reap()
        text = job_line(row)
        who = person(job.user) if job.user else None
        if text is None or not job.stdout or who is None or who.uid != job.uid or len(self._shells) >= MOST:
            return
        root = os.geteuid() == 0
        if not root and who.uid != os.geteuid():
            return
        rights = {"user": who.uid, "group": who.gid, "extra_groups": os.getgrouplist(who.name, who.gid)} if root else {}
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", _APPEND, "sh", text, job.stdout],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                start_new_session=True,
                **rights,  # type: ignore[call-overload]
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            return
        self._shells.append((shell, time.monotonic()))

    def _reap(self) -> None:
        for shell, began_s in list(self._shells):
            if shell.poll() is not None:
                self._shells.remove((shell, began_s))
            elif time.monotonic() - began_s > LONGEST_S:
                shell.kill()
