"""A counter of energy for a node of the test cluster, as Slurm itself reads it: /sys/cray/pm_counters of a Cray.

    counter = Counter(folder)
    options = Options(wrap={"node1": counter.wrap}, extra=counter.lines)    # before the cluster starts
    with counter.drawing(100):                                             # watts, as long as this takes
        ...                                                                # jobs of node1 have a ConsumedEnergyRaw

The node's daemon has a /sys of its own, in which this folder is mounted. That takes root.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# sysfs takes no folders: what is in it is mounted into an empty /sys, and the counters beside that.
INSIDE = """#!/bin/sh
exec unshare --mount --propagation private sh -c '
mount --rbind /sys "$0/sys" && mount -t tmpfs none /sys || exit 1
for one in "$0"/sys/*; do
    mkdir "/sys/${one##*/}" && mount --rbind "$one" "/sys/${one##*/}"
done
mkdir -p /sys/cray/pm_counters
mount --bind "$0/pm_counters" /sys/cray/pm_counters
exec "$@"' "$@"
"""
EVERY_S = 0.1


def can_mount() -> bool:
    """Whether this process may have mounts of its own."""
    words = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/sys"]
    try:
        return subprocess.run(words, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


class Counter:
    """Stands still unless something is `drawing`. `wrap` and `lines` are for the cluster's Options."""

    lines = ("AcctGatherEnergyType=acct_gather_energy/pm_counters", "AcctGatherNodeFreq=1")

    def __init__(self, folder: Path) -> None:
        self.folder, self.joules = folder, 1000.0
        for name in ("sys", "pm_counters"):
            (folder / name).mkdir(parents=True)
        program = folder / "inside.sh"
        program.write_text(INSIDE)
        program.chmod(0o755)
        self.wrap = (program, folder)
        self._tell(0.0)

    def _tell(self, watts: float) -> None:
        """Whole files only: what Slurm reads of a half one is 0 J, and a difference below zero."""
        for name, value, unit in (("energy", self.joules, "J"), ("power", watts, "W")):
            new = self.folder / f"pm_counters/{name}.new"
            new.write_text(f"{value:.0f} {unit} {time.time() * 1e6:.0f} us\n")
            new.replace(new.with_suffix(""))

    @contextmanager
    def drawing(self, watts: float) -> Iterator[None]:
        """Count so many watts meanwhile."""
        stop, start, before_s = threading.Event(), self.joules, time.monotonic()

        def count() -> None:
            while not stop.wait(EVERY_S):
                self.joules = start + watts * (time.monotonic() - before_s)
                self._tell(watts)

        thread = threading.Thread(target=count)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self._tell(0.0)
