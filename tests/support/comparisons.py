"""Results of comparisons with figures that are known: A takes 100 J and 1 s, B 80 J and 1.2 s, with 1 % of scatter."""

from __future__ import annotations

from everywatt.bench.comparing import Plan, Result
from everywatt.bench.experiment import interleaved
from everywatt.bench.figures import figures
from everywatt.bench.trials import Candidate, Trial
from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy

EVIL = "<script>window.evil = 3</script>"


def compared(
    points=((100.0, 1.0), (80.0, 1.2)),
    *,
    count=8,
    failing=None,
    ignore_failure=False,
    odd=None,
    run=None,
    pedigree="counter",
):
    """A finished comparison. `failing` is (candidate, block); `odd` a trial that took thrice as much."""
    chosen = [Candidate(n, "AB"[n] if n < 2 else f"C{n}", EVIL if n else "./old", ("x",)) for n in range(len(points))]
    trials = []
    for block, order in zip(range(count), interleaved(len(points)), strict=False):
        for place, index in enumerate(order):
            joules, seconds = points[index]
            joules *= (3 if odd == (index, block) else 1) * (1 + 0.01 * ((block * 7 + index * 3) % 5 - 2) / 2)
            energy = Energy(joules, Budget((Term("offset", "x", 0.5),)), "cpu", pedigree)
            code = 3 if failing == (index, block) else 0
            trials.append(
                Trial(index, block, place, None, code, seconds, joules / 50, 10**7, energy=energy, net=energy)
            )
    found = figures(chosen, trials, ignore_failure=ignore_failure)
    return Result(Plan(trials=count), tuple(chosen), tuple(found), "trials", run)
