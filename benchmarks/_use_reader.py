"""Reads the `use` sensor of the everywatt that PYTHONPATH finds, this tree's or an older one's, for benchmarks.

Lines on standard input: `open sensor`, `open all`, `open tree PID`, `open host`, `read`. Each is answered by a line:
the CPU seconds that it took, and how many processes are known. It ends with its input, and imports nothing of
`benchmarks`.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

Read = Callable[[], int]


def module(*names: str) -> ModuleType:
    """The first of these modules that there is: they had other places before."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(names[-1])


def opened(what: str, pid: str = "0") -> Read:
    """How it is read."""
    use = module("everywatt.sensors.usage.use", "everywatt.sensors.use")
    request = importlib.import_module("everywatt.sensors.base").Request
    if what in ("all", "tree"):
        trees = module("everywatt.sensors.usage.processes", "everywatt.sensors.processes").Trees
        whole: dict[str, Any] = {"everything": True, "exits": True}
        found = trees(Path("/proc"), [int(pid)]) if what == "tree" else trees(Path("/proc"), **whole)

        def read_trees() -> int:
            found.read()
            return len(found)

        return read_trees
    host, *tables = use.Use(request(everything=what == "sensor")).groups()

    def read() -> int:
        host.read()
        for table in tables if what == "sensor" else ():
            table.read_table()
        return len(getattr(tables[0], "_trees", tables[0])) if what == "sensor" else 0  # `_trees`: the base commit

    return read


def main() -> None:
    """Answer lines until there are no more."""
    read: Read = lambda: 0  # noqa: E731
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "open":
            read = opened(*rest)
        began = time.process_time()
        known = read() if word == "read" else 0
        print(time.process_time() - began, known, flush=True)


if __name__ == "__main__":
    main()
