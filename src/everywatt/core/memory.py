"""How memory of processes is reported, and how much this process has had."""

from __future__ import annotations

MEMORIES = ("rss", "pss")  # resident set size; proportional and unique set size as well


def own_peak_bytes() -> int:
    """The most memory that this program has had resident.

    The kernel's rusage cannot say it: it holds the peak of the process that started this program too (a notebook's
    gigabytes). `VmHWM` restarts with the program.
    """
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib is slow to load
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource  # Windows has no such module, and its programs no such figure

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
