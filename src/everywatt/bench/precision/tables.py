"""The lab's result as tables and sentences, and as CSV."""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.bench.figures import quantity
from everywatt.bench.precision.layers import LayerRow, by_part
from everywatt.bench.precision.result import Result, Row, percent, row_dict
from everywatt.bench.precision.scoring import Beside, Score
from everywatt.core.format import format_bytes, format_number, format_percent, format_ratio
from everywatt.core.tables import Cell, Column, Table, csv_text

COST = (
    "precision", Column("trials", ""), Column("energy / sample", "J"), Column("energy / batch", "J"),
    Column("power", "W"), Column("mean", "s"), Column("p50", "s"), Column("p95", "s"), Column("p99", "s"),
    Column("samples / s", ""), Column("samples / J", ""),
)  # fmt: skip
WORTH = (
    "precision", Column("quality", ""), Column("vs baseline", ""), Column("agreement", "%"),
    Column("on disk", "B"), Column("in memory", "B"), Column("correct / J", ""), Column("Pareto", align="right"),
)  # fmt: skip
SHARES = {
    "energy / sample": "energy_per_sample",
    "power": "power",
    "mean": "latency_mean",
    "p50": "latency_p50",
    "p95": "latency_p95",
    "p99": "latency_p99",
    "samples / s": "throughput",
    "quality": "accuracy",
    "on disk": "disk",
    "in memory": "memory",
    "samples / J": "samples_per_joule",
    "correct / J": "accuracy_per_joule",
}


def tables(result: Result) -> list[Table]:
    """Cost, worth, and everything in percent of the baseline; precisions that failed are not in them."""
    rows = [row for row in result.rows if row.failure is None]
    if not rows:
        return []
    best, size = result.pareto(), result.job.batch_size
    shares = [(row.precision, percent(row, result.baseline, size)) for row in rows]
    return [
        Table.of(*COST, rows=[_cost(row, size) for row in rows]),
        Table.of(*WORTH, rows=[_worth(row, size, row.precision in best) for row in rows]),
        Table.of(
            "% of the baseline",
            *(Column(name, "") for name in SHARES),
            rows=[[precision, *(found[key] for key in SHARES.values())] for precision, found in shares],
        ),
    ]


TRIALS = (
    "precision", Column("trial", ""), Column("time / batch", "s"), Column("energy / batch", "J"), Column("power", "W"),
    Column("sd", "W"), Column("readings", ""), Column("readings / s", ""),
)  # fmt: skip


def trial_table(result: Result) -> Table:
    """Every trial with how its power varied, by how many readings, and how often they came."""
    rows: list[list[Cell]] = []
    for row in result.rows:
        for number, trial in enumerate(() if row.figures is None else row.figures.trials, start=1):
            seen = trial.power
            told = [None] * 4 if seen is None else [seen.mean_w, seen.sd_w, seen.samples, seen.rate_hz]
            rows.append([row.precision, number, trial.seconds, trial.joules, *told])
    return Table.of(*TRIALS, rows=rows)


def _cost(row: Row, size: int) -> list[Cell]:
    latency, figures = row.latency, row.figures
    times = (None,) * 4 if latency is None else (latency.mean_s, latency.p50_s, latency.p95_s, latency.p99_s)
    return [
        row.precision,
        0 if figures is None else len(figures.trials),
        quantity(row.energy_per_sample(size), "J"),
        quantity(row.energy_per_batch, "J"),
        None if figures is None else figures.power_w,
        *times,
        row.throughput(size),
        row.samples_per_joule(size),
    ]


def _worth(row: Row, size: int, best: bool) -> list[Cell]:
    seen, beside = row.computed, row.beside
    return [
        row.precision,
        None if row.score is None else score_text(row.score),
        None if beside is None else beside_text(beside, row.score),
        None if beside is None else beside.agreement,
        None if seen is None else seen.disk_bytes,
        None if seen is None else seen.memory_bytes,
        row.accuracy_per_joule(size),
        "yes" if best else "",
    ]


def failures(result: Result) -> list[str]:
    """A line for each precision without figures."""
    return [
        f"{row.precision}: {row.failure}" + (f" (try: {row.cure})" if row.cure else "")
        for row in result.rows
        if row.failure is not None
    ]


def computed_lines(result: Result) -> list[str]:
    """What was really computed, a line for each precision."""
    lines = []
    for row in result.rows:
        seen = row.computed
        if seen is None or not seen.visible:
            continue
        weights = ", ".join(f"{dtype} {format_bytes(size)}" for dtype, size in _largest(seen.weights, 3))
        compute = ", ".join(dtype for dtype, _ in _largest(seen.compute, 3)) or "?"
        largest = list(seen.operators.items())[:3]
        integer = [(name, seen.operators[name]) for name in seen.int8_operators if name not in dict(largest)]
        operators = ", ".join(f"{name} × {count}" for name, count in largest + integer[:1])
        said = f"{row.precision}: weights {weights}; products in {compute}; {operators}"
        lines.append(said + (f"; {row.emulated}" if row.emulated else ""))
    return lines


def verdicts(result: Result) -> list[str]:
    """A sentence for each precision beside the baseline."""
    said = [(row.precision, row.figures.verdict) for row in result.rows if row.figures is not None]
    return [text if text.startswith(f"{name} ") else f"{name}: {text}" for name, text in said if text]


def layer_table(row: Row, most: int = 12) -> Table:
    """The most expensive layers, then the others together; everything is in JSON and CSV."""
    layers = [LayerRow(**one) for one in row.layers]
    largest = sorted(layers[:-1], key=lambda one: -one.seconds)[:most]
    rest = [one for one in layers[:-1] if one not in largest]
    rows: list[list[Cell]] = [[one.layer, one.kind, one.share, one.joules] for one in largest]
    if rest:
        joined = None if rest[0].joules is None else sum(one.joules or 0.0 for one in rest)
        rows.append([f"{len(rest)} other layers", "", sum(one.share for one in rest), joined])
    rows.append([layers[-1].layer, "", layers[-1].share, layers[-1].joules])
    title = f"{row.precision}: {part_line(row)}"
    return Table.of("layer", "type", Column("share", "%"), Column("energy / batch", "J"), rows=rows, title=title)


def sensitivity_table(result: Result, most: int = 12) -> Table:
    """What to quantise first, with what it does to the answers."""
    told = result.sensitivity
    rows: list[list[Cell]] = [
        [
            one["layer"],
            one["share"],
            format_percent(one["saved"], signed=True),
            f"{one['kl']:.2e}",  # over many powers of ten
            None if one["change"] is None else format_number(one["change"], signed=True),
            "int8" if one["layer"] in told["plan"] else "fp32",
        ]
        for one in told["layers"][:most]
    ]
    return Table.of(
        "layer, in order of sensitivity",
        Column("share", "%"),
        Column("saves", "%"),
        Column("divergence", ""),
        Column("change", ""),
        "plan",
        rows=rows,
    )


def part_line(row: Row) -> str:
    """`attention 34.1 %, mlp 50.2 %, …`."""
    parts = by_part([LayerRow(**one) for one in row.layers])
    return ", ".join(f"{part} {format_percent(share)}" for part, share, _ in parts)


def score_text(score: Score) -> str:
    """`81.2 % −4.3/+3.7`, or the perplexity."""
    below, above = score.value - score.low, score.high - score.value
    if score.metric == "accuracy":
        return format_percent(score.value, below, above)
    return f"perplexity {format_number(score.value, '', below, above)}"


def beside_text(beside: Beside, score: Score | None) -> str:
    """`-0.2 points (-1.9 … +1.4)`, or the ratio of perplexities."""
    if score is not None and score.metric != "accuracy":
        return f"× {format_ratio(beside.change, beside.low, beside.high)}"
    below, above = beside.change - beside.low, beside.high - beside.change
    return format_number(beside.change * 100, "points", below * 100, above * 100, signed=True)


def to_markdown(result: Result) -> str:
    """The tables for notes and pull requests."""
    lines = [f"- {line}" for line in (*failures(result), *verdicts(result), *computed_lines(result))]
    return "\n".join([*(table.markdown() for table in tables(result)), *lines]) + "\n"


def to_csv(result: Result) -> str:
    """A line for each precision, plain numbers."""
    records = []
    for row in result.rows:
        told = row_dict(row, result.job.batch_size)
        flat = {key: value for key, value in told.items() if not isinstance(value, dict | list)}
        for name in ("energy_per_batch", "energy_per_sample", "energy_net_per_batch", "ratio", "score", "latency"):
            flat |= {f"{name}_{key}": value for key, value in (told[name] or {}).items()}
        flat |= {f"percent_{key}": value for key, value in percent(row, result.baseline, result.job.batch_size).items()}
        seen = row.computed
        flat |= {"disk_bytes": seen and seen.disk_bytes, "memory_bytes": seen and seen.memory_bytes}
        records.append(flat)
    columns = list(dict.fromkeys(key for record in records for key in record))
    return csv_text(columns, [[record.get(name) for name in columns] for record in records])


def _largest(counts: object, most: int) -> Sequence[tuple[str, int]]:
    assert hasattr(counts, "items")
    return sorted(counts.items(), key=lambda one: -one[1])[:most]
