"""`python _tables.py FILE NAME [--quick]`: run one benchmark and write the tables that it prints to FILE, as JSON.

It belongs to no tree: `benchmarks` and `everywatt` are whatever PYTHONPATH finds, this tree's or an older one's.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from typing import Any


def main(path: str, name: str, *flags: str) -> int:
    """Run the benchmark; the tables keep their title, their headers and their cells as they were printed."""
    common = importlib.import_module("benchmarks.common")
    output = type(common.OUT)
    printed: list[dict[str, Any]] = []
    table = output.table
    signature = inspect.signature(table)

    @functools.wraps(table)
    def kept(self: Any, *args: Any, **options: Any) -> None:
        given = signature.bind(self, *args, **options).arguments
        rows = [[str(cell) for cell in row] for row in given["rows"]]
        printed.append({"title": str(given.get("title", "")), "headers": list(given["headers"]), "rows": rows})
        table(self, *args, **options)

    output.table = kept
    importlib.import_module(f"benchmarks.{name}").main(quick="--quick" in flags)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(printed, file)
    return 0


if __name__ == "__main__":
    # The folder of this file is not where `benchmarks` is to be found.
    sys.path.pop(0)
    sys.exit(main(*sys.argv[1:]))
