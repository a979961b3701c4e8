"""A result of the precision lab with known figures: fp32 takes 2 J a sample, bf16 3 J and int8 1 J; fp16 failed."""

from __future__ import annotations

from everywatt.bench.experiment import interleaved
from everywatt.bench.figures import figures
from everywatt.bench.precision.computed import Computed
from everywatt.bench.precision.layers import LayerRow, Ranking, Sensitivity
from everywatt.bench.precision.plan import Job
from everywatt.bench.precision.result import Latency, Result, Row
from everywatt.bench.precision.scoring import Beside, Score
from everywatt.bench.trials import Candidate, Trial
from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy

EVIL = "<script>window.evil = 5</script>"
SIZE = 10
JOULES = {"fp32": 20.0, "bf16": 30.0, "int8": 10.0}  # a batch
RIGHT = {"fp32": (0.82, 0.78, 0.85), "bf16": (0.81, 0.77, 0.84), "int8": (0.80, 0.76, 0.83)}


def layers(batch_j: float) -> tuple[LayerRow, ...]:
    """Attention 30 %, MLP 60 %, the rest outside of layers."""
    told = [("h.0.attn", "Conv1D", "attention", 0.3), ("h.0.mlp" + EVIL, "Conv1D", "mlp", 0.6)]
    told.append(("(outside layers)", "", "other", 0.1))
    return tuple(LayerRow(*names, 0.5 * share, 1.0, share, batch_j * share) for *names, share in told)


def precision_result(*, run: str | None = None, count: int = 6) -> Result:
    """A finished experiment."""
    names = list(JOULES)
    chosen = [Candidate(n, name, name, ("x",)) for n, name in enumerate(names)]
    trials = []
    for block, order in zip(range(count), interleaved(len(names)), strict=False):
        for place, index in enumerate(order):
            joules = JOULES[names[index]] * (1 + 0.01 * ((block * 7 + index * 3) % 5 - 2) / 2)
            energy = Energy(joules, Budget((Term("offset", "x", 0.1),)), "cpu", "counter")
            trials.append(Trial(index, block, place, None, 0, 0.5, 0.4, 10**7, energy=energy, net=energy))
    rows = []
    for name, found in zip(names, figures(chosen, trials), strict=True):
        score = Score("accuracy", *RIGHT[name], 436)
        beside = None if name == "fp32" else Beside(score.value - 0.82, -0.03, 0.01, 0.98, 0.01, 0.5)
        seen = Computed(
            {"int8" if name == "int8" else "float32": 10**7}, {"float32": 9}, {"aten::linear": 24}, 10**7, 10**7
        )
        rows.append(
            Row(
                name,
                computed=seen,
                iters=6,
                seq_length=40,
                latency=Latency.of([0.5] * 6),
                figures=found,
                score=score,
                beside=beside,
                layers=layers(JOULES[name]) if name != "bf16" else (),
                hooks=0,
                batch_size=SIZE,
            )
        )
    rows.append(Row("fp16", failure="this CPU has no fp16", cure="bf16"))
    sensitivity = Ranking((Sensitivity("h.0.mlp", 0.25, -0.125, 0.6, 0.5, 1.5),), ("h.0.mlp",))
    return Result(Job(batch_size=SIZE), tuple(rows), "trials", run, notes=("a note",), sensitivity=sensitivity)
