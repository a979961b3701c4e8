"""How well `everywatt stress` keeps a share of a core: asked, by its own count, and as seen from outside.

One core, each kind of work, several shares; beside it stress-ng with its own load control, where it is installed. From
outside means the kernel's CPU clocks of all worker processes, read twice during the step. The target is 2 points of
what was asked. On a busy machine a worker that falls short must have worked or waited for a core all of the time; what
it did neither in counts against it.
"""

from __future__ import annotations

import os
import shutil
import threading
import time

from benchmarks.common import OUT, cpu_s, tree
from everywatt.stress import KINDS, Load, Shape, StepResult, play, shaped
from everywatt.stress.stress_ng import METHODS

TARGET_POINTS = 2.0
SETTLE_S = 0.4
HEADERS = ("work", "asked", "reached", "from outside", "waited", "off by", "stress-ng")


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
        began, before = time.monotonic(), sum(map(cpu_s, pids))
        time.sleep(seconds - 2 * SETTLE_S)
        self.percent = 100 * (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)


def one(kind: str, percent: float, seconds: float, engine: str = "own") -> tuple[StepResult, float | None]:
    """One step on one core, with what it looked like from outside."""
    outside = Outside(seconds)
    program = shaped(Load(cpu_cores=1, cpu_kinds=(kind,)), {"": Shape("constant", (percent,))}, time_s=seconds)
    (result,) = play(program, engine=engine, on_start=outside.start)
    return result, outside.join()


def missed_points(result: StepResult) -> float:
    """Points between asked and reached. A worker that falls short may only have worked and waited for a core."""
    reached = result.reached["cpu_percent"]
    short = float(result.asked["cpu_percent"]) - reached
    if short <= 0:
        return -short
    waited = 100 * result.reached.get("waited_s", 0.0) / result.duration_s
    return min(short, max(0.0, 100 - reached - waited))


def main(quick: bool = False) -> None:
    """Print the table."""
    seconds = 1.5 if quick else 4.0
    shares = (20.0, 70.0) if quick else (5.0, 20.0, 50.0, 80.0, 95.0)
    rows, worst = [], 0.0
    for kind in KINDS:
        for percent in shares:
            result, outside = one(kind, percent, seconds)
            off = missed_points(result)
            worst = max(worst, off)
            rows.append(
                [
                    kind,
                    f"{percent:.0f} %",
                    f"{result.reached['cpu_percent']:.2f} %",
                    None if outside is None else f"{outside:.2f} %",
                    f"{result.reached.get('waited_s', 0.0):.2f} s",
                    f"{off:.2f}",
                    _theirs(kind, percent, seconds),
                ]
            )
    OUT.table(HEADERS, rows, right=(1, 2, 3, 4, 5, 6), title="One core, share of its time")
    verdict = "reached" if worst <= TARGET_POINTS else "missed"
    OUT.text(f"worst: {worst:.2f} points (target {TARGET_POINTS:g}: {verdict})")


def _theirs(kind: str, percent: float, seconds: float) -> str | None:
    if shutil.which("stress-ng") is None or kind not in METHODS:
        return None
    result, outside = one(kind, percent, seconds, "stress-ng")
    found = result.reached["cpu_percent"] if outside is None else outside
    return f"{found:.2f} %"


if __name__ == "__main__":
    main()
