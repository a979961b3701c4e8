"""A comparison as rows: for the terminal, CSV and Markdown, all from one list."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from everywatt.bench.comparing import Result
from everywatt.bench.figures import Figures, Mean
from everywatt.bench.verdict import Comparison
from everywatt.core.format import format_joules

HEADERS = ("", "command", "trials", "energy", "above idle", "ratio", "time", "power", "memory", "energy × time")
COLUMNS = (
    "label",
    "command",
    "trials",
    "failures",
    "energy_j",
    "energy_low_j",
    "energy_high_j",
    "net_j",
    "net_low_j",
    "net_high_j",
    "ratio",
    "ratio_low",
    "ratio_high",
    "ratio_net",
    "ratio_net_low",
    "ratio_net_high",
    "seconds",
    "power_w",
    "max_rss_bytes",
    "energy_delay_js",
    "verdict",
)


def rows(result: Result) -> list[list[str]]:
    """One row for each candidate, for people; `HEADERS` names the columns."""
    return [
        [
            one.candidate.label,
            _short(one.candidate.text),
            str(len(one.trials)) + (f" ({one.failures} failed)" if one.failures else ""),
            joules(one.energy),
            joules(one.net),
            ratio_beside(one, result.found[0]),
            seconds(one.seconds),
            "-" if one.power_w is None else f"{one.power_w:.1f} W",
            memory(one.max_rss_bytes),
            "-" if one.edp_js is None else f"{one.edp_js:.4g} J·s",
        ]
        for one in result.found
    ]


def verdicts(result: Result) -> list[str]:
    """One sentence for each candidate but the first, gross and above idle."""
    lines = []
    for one in result.found[1:]:
        label = one.candidate.label
        lines.append(one.verdict if one.verdict.startswith(f"{label} ") else f"{label}: {one.verdict}")
        if one.above_idle is not None and not one.failures:
            lines.append(f"   above idle: {one.above_idle.text(one.candidate.label)}")
    return lines


def to_csv(result: Result) -> str:
    """One line for each candidate, plain numbers."""
    return csv_text(COLUMNS, [_numbers(one) for one in result.found])


def csv_text(columns: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A table as CSV; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return text.getvalue()


def to_markdown(result: Result) -> str:
    """A table and the verdicts, for notes and pull requests."""
    return markdown(HEADERS, rows(result), [line.strip() for line in verdicts(result)])


def markdown(headers: Sequence[str], cells: Sequence[Sequence[str]], lines: Sequence[str]) -> str:
    """A table of Markdown with a list below it."""
    text = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    text += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([*text, "", *(f"- {line}" for line in lines), ""])


def joules(mean: Mean | None) -> str:
    """`12.3 J ± 0.4`, `-` where there is none."""
    if mean is None:
        return "-"
    if not math.isfinite(mean.low):
        return format_joules(mean.value)
    return format_joules(mean.value, mean.value - mean.low, mean.high - mean.value)


def seconds(mean: Mean) -> str:
    """`1.23 s ± 0.04`."""
    if not math.isfinite(mean.value):
        return "-"
    unit, factor = ("ms", 1e3) if mean.value < 1 else ("s", 1.0)
    if not math.isfinite(mean.sd):
        return f"{mean.value * factor:.4g} {unit}"
    digits = max(0, 1 - math.floor(math.log10(mean.sd * factor))) if mean.sd > 0 else 2
    return f"{mean.value * factor:.{digits}f} {unit} ± {mean.sd * factor:.{digits}f}"


def ratio(comparison: Comparison) -> str:
    """`0.82 (0.79 … 0.85)`."""
    if not math.isfinite(comparison.high):
        return f"{comparison.ratio:.3f}"
    return f"{comparison.ratio:.3f} ({comparison.low:.3f} … {comparison.high:.3f})"


def ratio_beside(one: Figures, first: Figures) -> str:
    """The ratio to the first candidate, which is 1 to itself; `-` where there is none."""
    if one.gross is not None:
        return ratio(one.gross)
    return "1" if one is first and one.energy is not None else "-"


def far_off(one: Figures) -> str:
    """A sentence about trials that lie far off: `trial 1 lies far off the others; it is counted`."""
    places = ", ".join(str(place + 1) for place in one.outliers)
    if len(one.outliers) == 1:
        return f"trial {places} lies far off the others; it is counted"
    return f"trials {places} lie far off the others; they are counted"


def memory(amount: int | None) -> str:
    """`12 MB`, `83 kB`, `-` where it is not known."""
    if amount is None:
        return "-"
    if 0 < amount < 1e6:
        return f"{amount / 1e3:.3g} kB"
    return f"{amount / 1e6:.0f} MB" if amount < 1e9 else f"{amount / 1e9:.2f} GB"


def _numbers(one: Figures) -> Sequence[object]:
    def ends(mean: Mean | None) -> list[object]:
        if mean is None:
            return [None, None, None]
        return [mean.value, *(end if math.isfinite(end) else None for end in (mean.low, mean.high))]

    def of(found: Comparison | None) -> list[object]:
        if found is None:
            return [None, None, None]
        return [found.ratio, found.low, found.high if math.isfinite(found.high) else None]

    return [
        one.candidate.label,
        one.candidate.text,
        len(one.trials),
        one.failures,
        *ends(one.energy),
        *ends(one.net),
        *of(one.gross),
        *of(one.above_idle),
        one.seconds.value,
        one.power_w,
        one.max_rss_bytes,
        one.edp_js,
        one.verdict,
    ]


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
