"""What several sensors say of one node and day, side by side: chips, node sensor (BMC), wall, Slurm's own count.

They do not measure the same. A wall contains its node sensor, which contains the chips, so a smaller figure inside a
larger one is another scope and is called so: a BMC at 0.77 of the PDU sees 77 % of what the node draws. What cannot be
is a part that is larger than the whole, or Slurm counting less than the chips of the same job: that is an alert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar, Final

import numpy as np

from everywatt.core.format import format_count, format_percent
from everywatt.core.jsonio import ToDict, as_data
from everywatt.core.tables import Cell, Quantity, Table, columns_of
from everywatt.ledger.engine import UJ
from everywatt.meters.wall import COVERED, MeterLine
from everywatt.net.api import ApiClient
from everywatt.slurm.schema import sum_known
from everywatt.slurm.site.carbon import HOUR_S
from everywatt.slurm.site.from_series import energy_lines
from everywatt.slurm.site.store import Store, day_of
from everywatt.slurm.site.wall import ORDER, Sensor

CHIPS: Final = "chips"
SLURM: Final = "slurm"
NAMES: Final = {CHIPS: "chips", "node": "node sensor", "psu": "power supply", "wall": "wall", SLURM: "Slurm"}
ALERT: Final = "alert"
SCOPE: Final = "scope"

_HOURS: Final = """
SELECT node, hour_s, CAST(sum(total_uj) AS BIGINT) AS total_uj, min(from_s) AS from_s, max(to_s) AS to_s,
  string_agg(DISTINCT nullif(domain, ''), '+' ORDER BY nullif(domain, '')) AS scope
FROM nodes WHERE hour_s >= ? AND hour_s < ? AND domain NOT IN ('wall', 'psu', 'node') {node}
GROUP BY 1, 2 ORDER BY 1, 2"""
_WIDTHS: Final = """
SELECT node, CAST(floor(end_s / 86400) AS BIGINT) AS day, sum(energy_uj) AS energy, sum(low_uj) AS low,
  sum(high_uj) AS high
FROM jobs WHERE end_s >= ? AND end_s < ? AND energy_uj > 0 AND low_uj IS NOT NULL AND high_uj IS NOT NULL {node}
GROUP BY 1, 2"""
# Slurm counts all that a node draws while a job runs: of jobs that shared their node it counts the same joules twice.
_LONE: Final = """
SELECT node, CAST(floor(end_s / 86400) AS BIGINT) AS day, count(*) AS jobs, sum(slurm_energy_j) AS slurm_j,
  sum(energy_uj + idle_uj) AS ours, sum(low_uj + idle_uj) AS low, sum(high_uj + idle_uj) AS high
FROM (
  SELECT *, max(end_s) OVER (PARTITION BY node ORDER BY start_s, end_s, job_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_s,
    lead(start_s) OVER (PARTITION BY node ORDER BY start_s, end_s, job_id) AS next_s
  FROM jobs WHERE end_s >= ? AND end_s < ? {node}
)
WHERE nodes <= 1 AND slurm_energy_j > 0 AND energy_uj IS NOT NULL AND idle_uj IS NOT NULL AND low_uj IS NOT NULL
  AND coalesce(before_s <= start_s, true) AND coalesce(next_s >= end_s, true)
GROUP BY 1, 2"""


@dataclass(frozen=True, slots=True)
class Figure(ToDict):
    """Joules by one kind of sensor. Without bounds its interval is not known."""

    joules: float
    low: float | None
    high: float | None
    scope: str


@dataclass(frozen=True, slots=True)
class Finding(ToDict):
    """`alert`: two figures that cannot both be right. `scope`: one that measures less than its name suggests."""

    kind: str
    inner: str
    outer: str
    ratio: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class NodeDay:
    """A node's day (UTC) over the hours that all of its sensors saw. Slurm's figure is of jobs that ran alone."""

    node: str
    day: date
    hours: int
    figures: Mapping[str, Figure]
    slurm: Figure | None
    ours: Figure | None  # the chips of the jobs that Slurm counted
    jobs: int
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        slurm = None if self.slurm is None or self.ours is None else {**self.slurm.to_dict(), "jobs": self.jobs}
        return {
            "node": self.node,
            "day": self.day.isoformat(),
            "hours": self.hours,
            "figures": as_data(self.figures),
            "slurm": slurm and {**slurm, "chips": self.ours and self.ours.to_dict()},
            "findings": as_data(self.findings),
        }


@dataclass(frozen=True, slots=True)
class Reconciled(ToDict):
    """Nodes and days with what each kind of sensor says."""

    JSON: ClassVar[str] = "days alerts ok"
    days: Sequence[NodeDay]

    @property
    def alerts(self) -> int:
        """Number of pairs of figures that cannot both be right."""
        return sum(one.kind == ALERT for day in self.days for one in day.findings)

    @property
    def ok(self) -> bool:
        return not self.alerts

    def tables(self) -> list[Table]:
        """One row for each node and day; kinds of sensor that no node has are left out."""
        columns = columns_of(
            "NODE, DAY, HOURS [], CHIPS [J], NODE SENSOR [J], POWER SUPPLY [J], WALL [J], SLURM [J], ITS CHIPS [J], "
            "FINDING"
        )
        rows = [_day_cells(day) for day in self.days]
        shown = [place for place in range(len(columns)) if place < 4 or any(row[place] is not None for row in rows)]
        chosen = [[row[place] for place in shown] for row in rows]
        lines = []
        if not any(len(day.figures) > 1 or day.slurm for day in self.days):
            lines.append(
                "Nothing was compared: no sensor beside the chips. Try --from, --archive with --map, or --run."
            )
        scopes = sorted({day.figures[CHIPS].scope for day in self.days if CHIPS in day.figures})
        if scopes:
            counted = any(day.slurm for day in self.days)
            slurm = " Slurm's count is of jobs that had their node to themselves." if counted else ""
            lines.append(f"Chips: {' or '.join(scopes)}.{slurm}")
        lines.append(f"{format_count(len(self.days), 'node-day')}, {format_count(self.alerts, 'alert')}.")
        table = Table.of(*(columns[place] for place in shown), rows=chosen)
        return [*([table] if rows else []), Table.lines(*lines)]


def _day_cells(day: NodeDay) -> list[Cell]:
    figures = [*(day.figures.get(name) for name in (CHIPS, *ORDER)), day.slurm, day.ours]
    text = "; ".join(f"{'ALERT: ' if one.kind == ALERT else ''}{one.text}" for one in day.findings)
    return [day.node, day.day.isoformat(), day.hours, *map(_cell, figures), text or None]


def _cell(figure: Figure | None) -> Cell:
    if figure is None or figure.low is None or figure.high is None:
        return None if figure is None else figure.joules
    return Quantity(figure.joules, "J", figure.joules - figure.low, figure.high - figure.joules)


def reconcile(
    store: Store, sensors: Mapping[str, Sequence[Sensor]], since_s: float, until_s: float, node: str | None = None
) -> list[NodeDay]:
    """Every node and day of a store with what its sensors say, and what does not fit. Days begin at midnight UTC."""
    where, values = ("AND node = ?", [node]) if node is not None else ("", [])

    def ask(sql: str) -> list[dict[str, Any]]:
        table = store.query(sql.format(node=where), [since_s, until_s, *values], since_s, until_s)
        return list(table.to_pylist())

    widths = {(row["node"], row["day"]): row for row in ask(_WIDTHS)}
    lone = {(row["node"], row["day"]): row for row in ask(_LONE)}
    days: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for hour in ask(_HOURS):
        days.setdefault((hour["node"], hour["hour_s"] // 86_400), []).append(hour)
    found = []
    for name, number in sorted({*days, *lone}, key=lambda key: (key[0], key[1])):
        key = (name, number)
        found.append(_of_day(key, days.get(key, []), sensors.get(name, ()), widths.get(key), lone.get(key)))
    return [day for day in found if day.hours or day.slurm]


def _of_day(
    key: tuple[str, int],
    hours: Sequence[Mapping[str, Any]],
    sensors: Sequence[Sensor],
    width: Mapping[str, Any] | None,
    lone: Mapping[str, Any] | None,
) -> NodeDay:
    figures, count = _figures(hours, sensors, width)
    findings = list(_nested(figures))
    slurm = ours = None
    if lone is not None:
        own_j, low_j, high_j = (float(lone[name]) / UJ for name in ("ours", "low", "high"))
        ours = Figure(own_j, low_j, high_j, _scope(hours))
        slurm = Figure(float(lone["slurm_j"]), None, None, "whole node or sockets, while its jobs ran alone")
        findings += _slurm_finding(slurm, ours)
    day = day_of(key[1] * 86_400)
    return NodeDay(key[0], day, count, figures, slurm, ours, lone["jobs"] if lone else 0, tuple(findings))


def _figures(
    hours: Sequence[Mapping[str, Any]], sensors: Sequence[Sensor], width: Mapping[str, Any] | None
) -> tuple[dict[str, Figure], int]:
    """The figures of a day over the hours that all sensors which saw some of it saw."""
    if not hours:
        return {}, 0
    start = np.array([float(hour["hour_s"]) for hour in hours])
    known = np.array([hour["to_s"] > 0 for hour in hours])
    low = np.where(known, [hour["from_s"] for hour in hours], start)
    high = np.where(known, [hour["to_s"] for hour in hours], start + HOUR_S)
    seen = []
    common = np.ones(len(hours), dtype=bool)
    for sensor in sorted(sensors, key=lambda one: ORDER.index(one.domain)):
        joules, share = sensor.line.seen(low, high)
        good = (share >= COVERED) & np.isfinite(joules)
        if good.any():
            seen.append((sensor, joules))
            common &= good
    if not common.any():
        return {}, 0
    chips_j = sum(int(hour["total_uj"]) for hour, yes in zip(hours, common, strict=True) if yes) / UJ
    below, above = (
        (None, None)
        if width is None
        else (1 - float(width["low"]) / float(width["energy"]), float(width["high"]) / float(width["energy"]) - 1)
    )
    figures = {CHIPS: _figure(chips_j, below, above, _scope(hours))}
    for sensor, joules in seen:
        one = _figure(float(joules[common].sum()), sensor.relative, sensor.relative, sensor.domain)
        there = figures.get(sensor.domain)
        if there is not None:  # two supplies, two plugs
            low_j, high_j = sum_known((there.low, one.low)), sum_known((there.high, one.high))
            one = Figure(there.joules + one.joules, low_j, high_j, sensor.domain)
        figures[sensor.domain] = one
    return figures, int(common.sum())


def _figure(joules: float, below: float | None, above: float | None, scope: str) -> Figure:
    low = None if below is None else joules * max(1 - below, 0.0)
    return Figure(joules, low, None if above is None else joules * (1 + above), scope)


def _scope(hours: Sequence[Mapping[str, Any]]) -> str:
    parts = dict.fromkeys(part for hour in hours for part in (hour["scope"] or "").split("+") if part)
    return "+".join(sorted(parts))


def _nested(figures: Mapping[str, Figure]) -> Iterator[Finding]:
    """Each figure against every one that contains it."""
    names = [name for name in (CHIPS, *ORDER) if name in figures]
    for place, inner in enumerate(names):
        for outer in names[place + 1 :]:
            ratio, low, high = _ratio(figures[inner], figures[outer])
            words = f"{NAMES[inner]} at {ratio:.2f} of the {NAMES[outer]}"
            unsure = _unsure(figures, inner, outer)
            if low > 1:
                yield Finding(
                    ALERT, inner, outer, ratio, low, high, f"{words}, which contains it: wrong plug or node?{unsure}"
                )
            elif high < 1 and inner != CHIPS:
                text = f"{words}: another scope, which leaves out {format_percent(1 - ratio)}{unsure}"
                yield Finding(SCOPE, inner, outer, ratio, low, high, text)


def _slurm_finding(slurm: Figure, ours: Figure) -> list[Finding]:
    ratio, low, high = _ratio(ours, slurm)
    if low > 1:
        text = f"Slurm counted {format_percent(1 / ratio)} of what the chips of the same jobs drew"
        return [Finding(ALERT, CHIPS, SLURM, ratio, low, high, text)]
    if high < 1:
        text = f"Slurm counted {1 / ratio:.2f} times the chips of the same jobs: another scope, such as the whole node"
        return [Finding(SCOPE, CHIPS, SLURM, ratio, low, high, text)]
    return []


def _ratio(inner: Figure, outer: Figure) -> tuple[float, float, float]:
    """Inner over outer, with bounds where their intervals are at opposite ends; an unknown interval has no width."""
    if outer.joules <= 0:
        return float("inf"), float("inf"), float("inf")
    low = (inner.joules if inner.low is None else inner.low) / (outer.joules if outer.high is None else outer.high)
    least = outer.joules if outer.low is None else outer.low
    high = (inner.joules if inner.high is None else inner.high) / least if least > 0 else float("inf")
    return inner.joules / outer.joules, low, high


def _unsure(figures: Mapping[str, Figure], *names: str) -> str:
    unknown = [NAMES[name] for name in names if figures[name].low is None]
    return f" (interval of the {' and the '.join(unknown)} unknown)" if unknown else ""


def sensors_in_series(client: ApiClient, since_s: float, until_s: float) -> dict[str, list[Sensor]]:
    """Sensors of whole nodes that agents send to a Prometheus or VictoriaMetrics, by node."""
    found: dict[str, list[Sensor]] = {}
    for (node, domain), (at_s, joules) in energy_lines(client, ORDER, since_s, until_s).items():
        times = np.array(at_s)
        steps = np.diff(np.array(joules))
        lengths = np.diff(times)
        # A counter that fell was begun again, and a longer step is a gap: neither was observed.
        good = (steps >= 0) & (lengths <= 1.5 * np.median(lengths)) if len(lengths) else np.zeros(0, dtype=bool)
        gathered, observed = (np.concatenate(([0.0], np.cumsum(np.where(good, x, 0.0)))) for x in (steps, lengths))
        found.setdefault(node, []).append(Sensor(domain, MeterLine(times, gathered, observed)))
    return found
