"""What the per-layer pass of the precision lab costs the run that is measured: nothing.

    python -m benchmarks layer_pass [--quick]

Two workers hold the same GPT-2 with random weights. One has its layers timed before every loop, the other never. Timed
loops take turns (ABBA), on one thread, and CPU time is compared, which other programs on the machine hardly change; the
ratio comes with its interval, and each loop says how many hooks the model has. Beside it the quickest batch with hooks
on every module, as tools measure that leave them on, and the quickest without.
"""

from __future__ import annotations

import os
import statistics
from importlib.util import find_spec

from benchmarks.common import OUT, say
from everywatt.bench.order import blocks
from everywatt.bench.precision.plan import Job
from everywatt.bench.precision.workers import Worker, WorkerFailed
from everywatt.bench.verdict import compare

TARGET = 0.05
NAMES = ("never", "before every loop")


def main(quick: bool) -> None:
    """Print the table."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        say("layer_pass: left out, torch and transformers are not installed")
        return
    job = Job(model="gpt2-random", task="causal-lm", data="random-tokens", precisions=("fp32",), batch_size=4)
    environ = dict(os.environ) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    workers = [Worker(environ), Worker(environ)]
    try:
        for worker in workers:
            worker.ask("setup", job=job.to_dict(), precision="fp32")
            worker.ask("loop", iters=5)
        _measure(workers, rounds=6 if quick else 20, iters=8)
    except WorkerFailed as error:
        say(f"layer_pass: left out, {error.reason}")
    finally:
        for worker in workers:
            worker.close()


def _measure(workers: list[Worker], rounds: int, iters: int) -> None:
    used_s: tuple[list[float], list[float]] = ([], [])
    hooked_s: list[float] = []
    plain_s: list[float] = []
    hooks = 0
    for _, order in zip(range(rounds), blocks(2), strict=False):
        for which in order:
            if which == 1:
                hooked_s.append(workers[1].ask("layers", passes=3)["whole_s"])
            told = workers[which].ask("loop", iters=iters)
            used_s[which].append(told["cpu_s"] / iters)
            plain_s.append(min(told["latency_ns"]) / 1e9)
            hooks = max(hooks, told["hooks"])
    rows = [
        [name, f"{statistics.median(values) * 1e3:.2f} ms", str(len(values))]
        for name, values in zip(NAMES, used_s, strict=True)
    ]
    OUT.table(["layers timed", "CPU time of a batch", "loops"], rows, right=(1, 2))
    found = compare(*used_s, target=TARGET)
    OUT.text(f"hooks on the model in measured loops: {hooks} (aim 0: {'reached' if hooks == 0 else 'missed'})")
    OUT.text(f"ratio {found.ratio:.3f} ({found.low:.3f} … {found.high:.3f}): {found.text('the profiled one', 'time')}")
    more = max(0.0, found.low - 1)
    OUT.text(f"slower for certain by {more:.1%} (aim: not): {'reached' if more == 0 else 'missed'}")
    OUT.text(f"quickest batch: {min(plain_s) * 1e3:.2f} ms, with hooks left on {min(hooked_s) * 1e3:.2f} ms\n")
