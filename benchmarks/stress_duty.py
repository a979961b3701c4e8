"""How well `everywatt stress` keeps a share of a core: asked, by its own count, and as seen from outside.

One core, each kind of work, several shares; beside it stress-ng with its own load control, where it is installed. From
outside means the kernel's CPU clocks of all worker processes, read twice during the step. The target is 2 points of
what was asked. `not given` is how many points the machine withheld: the worker was ready and no core was free
(/proc/PID/schedstat), or the hypervisor ran somebody else (/proc/stat). A step that fell short by no more than that
says nothing of the duty cycle and is not judged: run it on a quiet machine.
"""

from __future__ import annotations

import os
import shutil
import threading
import time

from benchmarks.common import OUT, cpu_s, tree
from everywatt.stress import KINDS, Load, Shape, StepResult, play, shaped
from everywatt.stress.cpu import METHODS

TARGET_POINTS = 2.0
SETTLE_S = 0.4
HEADERS = ("work", "asked", "reached", "from outside", "not given", "off by", "stress-ng")


class Outside:
    """The share of a core that all processes below this one use, between two moments inside a step."""

    def __init__(self, seconds: float) -> None:
        self.percent: float | None = None
        self._thread = threading.Thread(target=self._look, args=(seconds,))

    def start(self, _about: object) -> None:
        """The workers are ready, and start in a moment."""
        self._thread.start()

    def join(self) -> float | None:
        """The share in percent."""
        self._thread.join()
        return self.percent

    def _look(self, seconds: float) -> None:
        time.sleep(SETTLE_S)
        pids = [pid for pid in tree(os.getpid()) if pid != os.getpid()]
        began, before = time.monotonic(), [cpu_s(pid) for pid in pids]
        time.sleep(seconds - 2 * SETTLE_S)
        passed_s, spent = time.monotonic() - began, [cpu_s(pid) - s for pid, s in zip(pids, before, strict=True)]
        if pids and min(spent) >= 0:  # else a worker had ended before this thread got a core again
            self.percent = 100 * sum(spent) / passed_s


def one(kind: str, percent: float, seconds: float, engine: str = "own") -> tuple[StepResult, float | None]:
    """One step on one core, with what it looked like from outside."""
    outside = Outside(seconds)
    program = shaped(Load(cpu_cores=1, cpu_kinds=(kind,)), {"": Shape("constant", (percent,))}, time_s=seconds)
    (result,) = play(program, engine=engine, on_start=outside.start)
    return result, outside.join()


def main(quick: bool = False) -> None:
    """Print the table."""
    seconds = 0.8 if quick else 4.0
    shares = (20.0, 70.0) if quick else (5.0, 20.0, 50.0, 80.0, 95.0)
    rows, judged = [], []
    for kind in KINDS:
        for percent in shares:
            result, outside = one(kind, percent, seconds)
            off = result.off_points(TARGET_POINTS)
            judged += [off] if off is not None else []
            rows.append(
                [
                    kind,
                    f"{percent:.0f} %",
                    f"{result.reached['cpu_percent']:.2f} %",
                    None if outside is None else f"{outside:.2f} %",
                    f"{result.cpu_withheld_points:.2f}",
                    "not given" if off is None else f"{off:.2f}",
                    None if quick and kind != KINDS[0] else _theirs(kind, percent, seconds),
                ]
            )
    OUT.table(HEADERS, rows, right=(1, 2, 3, 4, 5, 6), title="One core, share of its time")
    OUT.text(_verdict(judged, len(rows)))


def _verdict(judged: list[float], count: int) -> str:
    left_out = (
        f"; {count - len(judged)} of {count} not judged, the machine did not give the CPU"
        if len(judged) < count
        else ""
    )
    if not judged:
        return "no verdict" + left_out
    reached = "reached" if max(judged) <= TARGET_POINTS else "missed"
    return f"worst: {max(judged):.2f} points (target {TARGET_POINTS:g}: {reached}){left_out}"


def _theirs(kind: str, percent: float, seconds: float) -> str | None:
    if shutil.which("stress-ng") is None or kind not in METHODS:
        return None
    result, outside = one(kind, percent, seconds, "stress-ng")
    found = result.reached["cpu_percent"] if outside is None else outside
    return f"{found:.2f} %"


if __name__ == "__main__":
    main()
