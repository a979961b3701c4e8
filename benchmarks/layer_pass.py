"""What the per-layer pass of the precision lab costs the run that is measured: nothing.

    python -m benchmarks layer_pass [--quick]

Three labs hold the same GPT-2 with random weights. Of one the layers are timed before every loop, of the others
never. What decides is counted, so that no noise can blur it: hooks on the model in every measured loop, and the
functions that a batch calls after the last layer pass, which must be as many as in a model that never had one. Beside
it the CPU time of loops that take turns, with its interval: of two models that nothing was done to (A/A, what this
machine can show at all), and of the profiled one. Last, the quickest batch with hooks on every module, as tools
measure that leave them on, and the quickest without.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.common import OUT, say
from everywatt.bench.precision.plan import Job
from everywatt.bench.precision.worker import Lab
from everywatt.bench.verdict import compare

TARGET = 0.05
NAMES = ("never", "never, another", "before every loop")
PROFILED = 2


def main(quick: bool) -> None:
    """Print the table."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        say("layer_pass: left out, torch and transformers are not installed")
        return
    job = Job(
        model="gpt2-random", task="causal-lm", data="random-tokens", precisions=("fp32",), batch_size=1 if quick else 4
    )
    import torch

    torch.set_num_threads(1)
    labs = [Lab() for _ in NAMES]
    for lab in labs:
        lab.setup({"job": job.to_dict(), "precision": "fp32"})
        lab.loop({"iters": 1 if quick else 5})
    _measure(labs, rounds=2 if quick else 20, iters=1 if quick else 8)


def _measure(labs: list[Lab], rounds: int, iters: int) -> None:
    used_s: list[list[float]] = [[] for _ in labs]
    hooked_s: list[float] = []
    plain_s: list[float] = []
    hooks = 0
    for number in range(rounds):
        # Every other round backwards: a machine that warms up meanwhile favours none of them.
        for which in range(len(labs))[:: -1 if number % 2 else 1]:
            if which == PROFILED:
                hooked_s.append(labs[which].layers({"passes": 3})["whole_s"])
            loop = labs[which].loop({"iters": iters})
            used_s[which].append(loop["cpu_s"] / iters)
            plain_s.append(min(loop["latency_ns"]) / 1e9)
            hooks = max(hooks, loop["hooks"])
    # The least of three: now and then the garbage collector calls some functions too.
    calls = [min(count_calls(partial(lab.loop, {"iters": 1})) for _ in range(3)) for lab in labs]
    rows = [
        [name, f"{count:,}", f"{statistics.median(values) * 1e3:.2f} ms", str(len(values))]
        for name, count, values in zip(NAMES, calls, used_s, strict=True)
    ]
    OUT.table(["layers timed", "functions a batch calls", "CPU time of a batch", "loops"], rows, right=(1, 2, 3))
    same = len(set(calls)) == 1
    OUT.text(f"hooks on the model in measured loops: {hooks} (aim 0: {_reached(hooks == 0)})")
    more = calls[PROFILED] - calls[0]
    OUT.text(f"functions called more than where layers are never timed: {more:+,} (aim 0: {_reached(same)})")
    OUT.text(f"overhead of the per-layer pass on the measured run: {'none' if same and hooks == 0 else 'there is one'}")
    _times(used_s)
    OUT.text(f"quickest batch: {min(plain_s) * 1e3:.2f} ms, with hooks left on {min(hooked_s) * 1e3:.2f} ms\n")


def count_calls(work: Callable[[], Any]) -> int:
    """How many functions a piece of work calls."""
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def _times(used_s: list[list[float]]) -> None:
    """The same by the clock: how far apart two models are that nothing was done to, and how far the profiled one is."""
    alike = compare(used_s[0], used_s[1], target=TARGET)
    profiled = compare(used_s[0], used_s[PROFILED], target=TARGET)
    for name, found in (("never against never (A/A)", alike), ("profiled against never", profiled)):
        OUT.text(f"CPU time, {name}: {found.ratio:.3f} ({found.low:.3f} … {found.high:.3f})")
    bound, floor = max(profiled.high - 1, 1 - profiled.low), max(alike.high - 1, 1 - alike.low)
    OUT.text(
        f"by the clock the profiled one is within {bound:.1%} of the other; two that are alike, within {floor:.1%}"
    )


def _reached(aim: bool) -> str:
    return "reached" if aim else "missed"
