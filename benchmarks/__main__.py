"""Run benchmarks: `python -m benchmarks [NAME…] [--quick] [--against base]`. Without a name, all of them.

A benchmark is a module of this package with `main(quick: bool)`; `list` prints their names. Peers are measured with the
Python in BENCH_PYTHON, and left out, with a sentence, where there is none. `--against base` runs one benchmark on this
tree and on the commit in `benchmarks/BASE`, in turns, and prints ratios (see `_against.py`).
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import pkgutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import OUT, say

ORDER = (
    "accuracy",
    "honesty",
    "weight",
    "start",
    "use_cost",
    "ledger_cost",
    "attribution",
    "windows",
    "slurm_day",
    "slurm_year",
    "slowdown",
    "monitor_cost",
    "report_time",
    "verdicts",
    "layer_pass",
    "batch_cost",
    "meter_import",
    "meter_archive",
    "stress_duty",
    "agent_cost",
    "scrape",
    "fleet_scale",
)


def found(*only: str) -> dict[str, Callable[[bool], None]]:
    """The benchmarks by name: modules with a `main` that takes `quick`, known ones first; `only` these, if named."""
    modules = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    names = [name for name in modules if not name.startswith("_") and (not only or name in only)]
    benchmarks = {}
    for name in sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)):
        main = getattr(importlib.import_module(f"benchmarks.{name}"), "main", None)
        if main is not None and "quick" in inspect.signature(main).parameters:
            benchmarks[name] = main
    return benchmarks


def run(names: list[str], quick: bool) -> int:
    """Run these benchmarks (all, if none is named). One that fails does not stop the others; gives the exit code."""
    if names == ["list"]:
        OUT.text("\n".join(found()))
        return 0
    known = found(*names)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"There is no benchmark '{unknown[0]}'; there are: {', '.join(found())}.", file=sys.stderr)
        return 2
    failed = []
    for name in names or known:
        began = time.monotonic()
        OUT.text(f"== {name} ==")
        try:
            known[name](quick=quick)  # type: ignore[call-arg]
        except Exception as error:
            failed.append(name)
            say(f"{name} failed: {type(error).__name__}: {error}")
        OUT.text(f"({name}: {time.monotonic() - began:.0f} s)\n")
        sys.stdout.flush()
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="short runs: to see that it works, not for figures")
    parser.add_argument("--against", choices=("base",), help="compare with the commit in benchmarks/BASE")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="recordings for the benchmarks that read some")
    parsed = parser.parse_args(arguments)
    if parsed.data is not None:
        if not parsed.data.is_dir():
            parser.error(f"{parsed.data} is not a folder")
        os.environ["BENCH_DATA"] = str(parsed.data.resolve())
    if parsed.against is None or parsed.names == ["list"]:
        return run(parsed.names, parsed.quick)
    if len(parsed.names) != 1 or not found(*parsed.names):
        parser.error(f"--against wants one benchmark: {', '.join(found())}")
    from benchmarks import _against

    return _against.run(parsed.names[0], parsed.quick)


if __name__ == "__main__":
    sys.exit(main())
