"""A comparison as a table, its verdicts as sentences, and its numbers as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence

from everywatt.bench.comparing import Result
from everywatt.bench.figures import Figures, Mean
from everywatt.bench.verdict import Comparison
from everywatt.core.energy import Ratio
from everywatt.core.tables import Cell, Column, Quantity, Table, csv_text

MOST_PLACES = 8  # numbers of trials in one sentence
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


def table(result: Result) -> Table:
    """One row for each candidate, with the verdicts as notes; CPU time leads where energy is modelled from it."""
    first = result.found[0]
    modelled = any(one.modelled for one in result.found)
    columns: list[Column | str] = ["", "command", Column("trials", "")]
    columns += [Column("CPU time", "s"), Column("ratio of CPU time", "")] if modelled else []
    columns += [
        *(Column("energy", "J"), Column("above idle", "J"), Column("ratio", ""), Column("time", "s")),
        *(Column("power", "W"), Column("memory", "B"), Column("energy × time", "J·s")),
    ]
    rows: list[list[Cell]] = []
    for one in result.found:
        row: list[Cell] = [one.candidate.label, _short(one.candidate.text)]
        row.append(str(len(one.trials)) + (f" ({one.failures} failed)" if one.failures else ""))
        if modelled:
            row += [quantity(one.cpu_s, "s"), ratio(one.cpu) if one.cpu is not None else 1 if one is first else None]
        row += [quantity(one.energy, "J"), quantity(one.net, "J"), ratio_beside(one, first), time_of(one.seconds)]
        row += [one.power_w, one.max_rss_bytes, one.edp_js]
        rows.append(row)
    return Table.of(*columns, rows=rows, notes=[line.strip() for line in verdicts(result)])


def verdicts(result: Result) -> list[str]:
    """One sentence for each candidate but the first: CPU time where energy is modelled, gross, and above idle."""
    lines = []
    for one in result.found[1:]:
        label = one.candidate.label
        if one.modelled and one.cpu is not None and not one.failures:
            found = one.cpu.text(label, "CPU time")
            lines.append(found if found.startswith(f"{label} ") else f"{label}: CPU time: {found}")
        lines.append(one.verdict if one.verdict.startswith(f"{label} ") else f"{label}: {one.verdict}")
        if one.modelled:
            lines[-1] += " (modelled)"
        if one.above_idle is not None and not one.failures:
            lines.append(f"   above idle: {one.above_idle.text(one.candidate.label)}")
    return lines


def to_csv(result: Result) -> str:
    """One line for each candidate, plain numbers."""
    return csv_text(COLUMNS, [_numbers(one) for one in result.found])


def quantity(mean: Mean | None, unit: str) -> Quantity | None:
    """A mean over trials as a cell."""
    return None if mean is None else mean.quantity(unit)


def time_of(seconds: Mean) -> Quantity | None:
    """The mean time of trials with their standard deviation; None where no trial ended."""
    if not math.isfinite(seconds.value):
        return None
    sd = seconds.sd if math.isfinite(seconds.sd) else 0.0
    return Quantity(seconds.value, "s", sd, sd)


def ratio(comparison: Comparison) -> Ratio:
    """The ratio to the first candidate as a cell."""
    return Ratio(comparison.ratio, comparison.low, comparison.high)


def ratio_beside(one: Figures, first: Figures) -> Cell:
    """The ratio to the first candidate, which is 1 to itself; None where there is none."""
    if one.gross is not None:
        return ratio(one.gross)
    return 1 if one is first and one.energy is not None else None


def far_off(one: Figures) -> str:
    """A sentence about trials that lie far off: `trial 1 is an outlier; kept`."""
    if len(one.outliers) > MOST_PLACES:
        return f"{len(one.outliers)} of {len(one.trials)} trials are outliers; kept"
    places = ", ".join(str(place + 1) for place in one.outliers)
    if len(one.outliers) == 1:
        return f"trial {places} is an outlier; kept"
    return f"trials {places} are outliers; kept"


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
