"""The lab's result as tables for people, and as CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from everywatt.bench.figures import Mean
from everywatt.bench.precision.layers import LayerRow, by_part
from everywatt.bench.precision.quality import Beside, Score
from everywatt.bench.precision.result import Result, Row, percent, row_dict
from everywatt.bench.tables import joules, memory

COST = (
    "precision", "trials", "energy / sample", "energy / batch", "power", "mean", "p50", "p95", "p99", "samples / s",
    "samples / J",
)  # fmt: skip
WORTH = ("precision", "quality", "beside the baseline", "same answers", "on disk", "in memory", "right / J", "Pareto")
SHARES = (
    "% of the baseline", "energy / sample", "power", "mean", "p50", "p95", "p99", "samples / s", "quality", "on disk",
    "in memory", "samples / J", "right / J",
)  # fmt: skip
SENSITIVITY = ("what to quantise first", "share", "saves", "divergence", "change", "plan")
SHARE_KEYS = (
    "energy_per_sample", "power", "latency_mean", "latency_p50", "latency_p95", "latency_p99", "throughput", "accuracy",
    "disk", "memory", "samples_per_joule", "accuracy_per_joule",
)  # fmt: skip


def cost_rows(result: Result) -> list[list[str]]:
    """What each precision costs; a failed one says why."""
    return [_cost(row, result.job.batch_size) for row in result.rows if row.failure is None]


def _cost(row: Row, size: int) -> list[str]:
    latency, figures = row.latency, row.figures
    times = ["-"] * 4 if latency is None else [
        milliseconds(value) for value in (latency.mean_s, latency.p50_s, latency.p95_s, latency.p99_s)
    ]  # fmt: skip
    return [
        row.precision,
        str(len(figures.trials)) if figures is not None else "0",
        joules(row.energy_per_sample(size)),
        joules(row.energy_per_batch),
        "-" if figures is None or figures.power_w is None else f"{figures.power_w:.1f} W",
        *times,
        _number(row.throughput(size)),
        _number(row.samples_per_joule(size)),
    ]


def worth_rows(result: Result) -> list[list[str]]:
    """What each precision gives for it."""
    best = result.pareto()
    found = []
    for row in result.rows:
        if row.failure is not None:
            continue
        seen = row.computed
        found.append(
            [
                row.precision,
                score_text(row.score),
                "-" if row.beside is None else beside_text(row.beside, row.score),
                "-" if row.beside is None or row.beside.agreement is None else f"{row.beside.agreement:.1%}",
                memory(None if seen is None else seen.disk_bytes),
                memory(None if seen is None else seen.memory_bytes),
                _number(row.accuracy_per_joule(result.job.batch_size)),
                "yes" if row.precision in best else "",
            ]
        )
    return found


def share_rows(result: Result) -> list[list[str]]:
    """Everything in percent of the baseline."""
    base, size = result.baseline, result.job.batch_size
    found = []
    for row in result.rows:
        if row.failure is None:
            shares = percent(row, base, size)
            found.append([row.precision, *(_percent(shares[key]) for key in SHARE_KEYS)])
    return found


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
        weights = ", ".join(f"{dtype} {memory(size)}" for dtype, size in _largest(seen.weights, 3))
        compute = ", ".join(dtype for dtype, _ in _largest(seen.compute, 3)) or "?"
        dear = list(seen.operators.items())[:3]
        integer = [(name, seen.operators[name]) for name in seen.int8_operators if name not in dict(dear)]
        operators = ", ".join(f"{name} × {count}" for name, count in dear + integer[:1])
        said = f"{row.precision}: weights {weights}; products in {compute}; {operators}"
        lines.append(said + (f"; {row.emulated}" if row.emulated else ""))
    return lines


def verdicts(result: Result) -> list[str]:
    """A sentence for each precision beside the baseline."""
    said = [(row.precision, row.figures.verdict) for row in result.rows if row.figures is not None]
    return [text if text.startswith(f"{name} ") else f"{name}: {text}" for name, text in said if text]


def layer_rows(row: Row, most: int = 12) -> list[list[str]]:
    """The dearest layers, then the parts; everything is in JSON and CSV."""
    rows = [LayerRow(**one) for one in row.layers]
    dear = sorted(rows[:-1], key=lambda one: -one.seconds)[:most]
    rest = [one for one in rows[:-1] if one not in dear]
    shown = [[one.layer, one.kind, f"{one.share:.1%}", _joules(one.joules)] for one in dear]
    if rest:
        joined = None if rest[0].joules is None else sum(one.joules or 0.0 for one in rest)
        shown.append([f"{len(rest)} other layers", "", f"{sum(one.share for one in rest):.1%}", _joules(joined)])
    shown.append([rows[-1].layer, "", f"{rows[-1].share:.1%}", _joules(rows[-1].joules)])
    return shown


def sensitivity_rows(result: Result, most: int = 12) -> list[list[str]]:
    """What to quantise first, with what it does to the answers."""
    told = result.sensitivity
    return [
        [
            one["layer"],
            f"{one['share']:.1%}",
            f"{one['saved']:+.1%}",
            f"{one['kl']:.2e}",
            "-" if one["change"] is None else f"{one['change']:+.4f}",
            "int8" if one["layer"] in told["plan"] else "fp32",
        ]
        for one in told["layers"][:most]
    ]


def part_line(row: Row) -> str:
    """`attention 34 %, mlp 50 %, …`."""
    return ", ".join(f"{part} {share:.0%}" for part, share, _ in by_part([LayerRow(**one) for one in row.layers]))


def score_text(score: Score | None) -> str:
    """`81.2 % (76.9 … 84.9)`, or the perplexity."""
    if score is None:
        return "-"
    if score.metric == "accuracy":
        return f"{score.value:.1%} ({score.low * 100:.1f} … {score.high * 100:.1f})"
    return f"perplexity {score.value:.4g} ({score.low:.4g} … {score.high:.4g})"


def beside_text(beside: Beside, score: Score | None) -> str:
    """`-0.2 points (-1.9 … +1.4)`, or the ratio of perplexities."""
    if score is not None and score.metric != "accuracy":
        return f"× {beside.change:.4f} ({beside.low:.4f} … {beside.high:.4f})"
    return f"{beside.change * 100:+.1f} points ({beside.low * 100:+.1f} … {beside.high * 100:+.1f})"


def milliseconds(seconds: float) -> str:
    """`12.3 ms`, or seconds from one second on."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def to_markdown(result: Result) -> str:
    """The tables for notes and pull requests."""
    lines: list[str] = []
    for headers, rows in ((COST, cost_rows(result)), (WORTH, worth_rows(result)), (SHARES, share_rows(result))):
        lines += ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    lines += [f"- {line}" for line in (*failures(result), *verdicts(result), *computed_lines(result))]
    return "\n".join(lines) + "\n"


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
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _largest(counts: object, most: int) -> Sequence[tuple[str, int]]:
    assert hasattr(counts, "items")
    return sorted(counts.items(), key=lambda one: -one[1])[:most]


def _joules(amount: float | None) -> str:
    return joules(None if amount is None else Mean(amount, float("-inf"), float("inf"), 0.0, 1))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1f}" if share < 1000 else f"{share:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
