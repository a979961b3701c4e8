"""What the per-layer pass of the precision lab costs the run that is measured: nothing.

    python -m benchmarks layer_pass [--quick]

Three workers hold the same GPT-2 with random weights. Of one the layers are timed before every loop, of the others
never. What decides is counted, so that no noise can blur it: hooks on the model in every measured loop, and the
functions that a batch calls after the last layer pass, which must be as many as in a model that never had one. Beside
it the CPU time of loops that take turns, with its interval: of two models that nothing was done to (A/A, what this
machine can show at all), and of the profiled one. Last, the quickest batch with hooks on every module, as tools
measure that leave them on, and the quickest without.
"""

from __future__ import annotations

import os
import statistics
from importlib.util import find_spec

from benchmarks.common import OUT, say
from everywatt.bench.precision.plan import Job
from everywatt.bench.precision.variants import Worker, WorkerFailed
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
    environ = dict(os.environ) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    workers = [Worker(environ) for _ in NAMES]
    try:
        for worker in workers:
            worker.ask("setup", job=job.to_dict(), precision="fp32")
            worker.ask("loop", iters=1 if quick else 5)
        _measure(workers, rounds=2 if quick else 20, iters=1 if quick else 8)
    except WorkerFailed as error:
        say(f"layer_pass: left out, {error.reason}")
    finally:
        for worker in workers:
            worker.close()


def _measure(workers: list[Worker], rounds: int, iters: int) -> None:
    used_s: list[list[float]] = [[] for _ in workers]
    hooked_s: list[float] = []
    plain_s: list[float] = []
    hooks = 0
    for number in range(rounds):
        # Every other round backwards: a machine that warms up meanwhile favours none of them.
        for which in range(len(workers))[:: -1 if number % 2 else 1]:
            if which == PROFILED:
                hooked_s.append(workers[which].ask("layers", passes=3)["whole_s"])
            told = workers[which].ask("loop", iters=iters)
            used_s[which].append(told["cpu_s"] / iters)
            plain_s.append(min(told["latency_ns"]) / 1e9)
            hooks = max(hooks, told["hooks"])
    calls = [int(worker.ask("calls")["calls"]) for worker in workers]
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
