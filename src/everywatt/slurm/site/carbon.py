"""Carbon and cost of jobs: joules × PUE × grams per kWh, with one figure and with the grid's own at the time.

A record has the energy of a job on a node, not when it was drawn. It is laid over the job's hours as the jobs of that
node drew theirs, and evenly within an hour; where an hour of the node is not known, evenly over the job. A job that a
table over time does not cover in full keeps its energy and its constant figure, and has no time-varying one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from everywatt.core.plugins import arrow
from everywatt.core.units import J_PER_KWH
from everywatt.footprint.carbon import Curve, Factors
from everywatt.ledger.engine import UJ
from everywatt.slurm.schema import IDLE_ENDS, ends_sql
from everywatt.slurm.site.store import Store, connect, plain_rows, whole
from everywatt.slurm.site.totals import COUNTED

Floats = npt.NDArray[np.float64]
HOUR_S: Final = 3600
COLUMNS: Final = (
    *("cluster", "job_id", "restart", "node", '"user"', "account", "state", '"partition"', "start_s", "end_s", "cpus"),
    *("cpu_s", "nodes", "coverage", "energy_uj", "low_uj", "high_uj", "idle_uj", "waste_uj", "wall_uj"),
    *IDLE_ENDS,
)
OUTSIDE: Final = "outside_curve"
SUMS: Final = (
    "energy_uj",
    "low_uj",
    "high_uj",
    "idle_uj",
    *IDLE_ENDS,
    "waste_uj",
    "wall_uj",
    "carbon_g",
    "carbon_varying_g",
    "cost",
)


def charged(
    store: Store,
    since_s: float,
    until_s: float,
    factors: Factors,
    user: str | None = None,
    columns: Sequence[str] = COLUMNS,
) -> Any:
    """Records of jobs that ended in [since, until) as an Arrow table with carbon_g, carbon_varying_g and cost."""
    where, values = ('"user" = ?', [user]) if user is not None else ("true", list[Any]())
    table = store.jobs(since_s, until_s, where, values, columns)
    hours = hours_of(store, table, until_s) if factors.curve is not None else None
    return with_factors(table, hours, factors)


def hours_of(store: Store, table: Any, until_s: float) -> Any:
    """What the jobs of nodes drew hour by hour while those of a table ran; None where it has none."""
    if not len(table):
        return None
    sql = "SELECT node, hour_s, CAST(sum(jobs_uj) AS BIGINT) AS jobs_uj FROM nodes GROUP BY 1, 2"
    return store.query(sql, [], min(table.column("start_s").to_pylist()) - HOUR_S, until_s)


def with_factors(table: Any, hours: Any, factors: Factors) -> Any:
    """The table with grams by the constant, grams by the curve, and cost; null is not known.

    A fourth column says which records have an energy and lie outside of the curve.
    """
    pa, _ = arrow()
    joules = _floats(table, "energy_uj") / UJ
    kwh = joules * (1.0 if factors.pue is None else factors.pue) / J_PER_KWH
    nothing = np.full(len(table), np.nan)
    constant = kwh * factors.intensity.g_per_kwh if factors.intensity is not None else nothing
    varying = kwh * intensity_of(table, hours, factors.curve) if factors.curve is not None else nothing
    cost = kwh * factors.price_per_kwh if factors.price_per_kwh is not None else nothing
    for name, values in (("carbon_g", constant), ("carbon_varying_g", varying), ("cost", cost)):
        table = table.append_column(name, pa.array(values, from_pandas=True, type=pa.float64()))
    outside = np.isfinite(joules) & np.isnan(varying) & (factors.curve is not None)
    return table.append_column(OUTSIDE, pa.array(outside, type=pa.bool_()))


def intensity_of(table: Any, hours: Any, curve: Curve) -> Floats:
    """Grams per kWh of each record, weighted with when its node's jobs drew energy; NaN where the curve ends."""
    pieces = over_hours(table, hours)
    grams = np.bincount(pieces.record, pieces.share * mean_over(curve, pieces.low_s, pieces.high_s), len(table))
    return np.asarray(grams, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Records cut at full hours: `share` of record number `record` fell into its hour, between low and high."""

    record: npt.NDArray[np.int64]
    hour_s: npt.NDArray[np.int64]
    low_s: Floats
    high_s: Floats
    share: Floats


def over_hours(table: Any, hours: Any) -> Pieces:
    """The energy of records laid over their hours; the shares of a record add up to 1."""
    starts, ends = _floats(table, "start_s"), _floats(table, "end_s")
    ends = np.maximum(ends, starts + 1e-6)
    first = np.floor(starts / HOUR_S).astype(np.int64)
    count = np.maximum(np.ceil(ends / HOUR_S).astype(np.int64) - first, 1)
    record = np.repeat(np.arange(len(starts)), count)
    hour = np.repeat(first, count) + np.arange(len(record)) - np.repeat(np.cumsum(count) - count, count)
    low, high = np.maximum(hour * HOUR_S, starts[record]), np.minimum((hour + 1) * HOUR_S, ends[record])
    watts = _node_watts(table.column("node").to_pylist(), record, hour, hours)
    # One hour that is not known makes the whole job even: a guess for a part would tilt the rest.
    unknown = np.bincount(record, ~(watts > 0), len(starts)) > 0
    weights = np.where(unknown[record], 1.0, watts) * (high - low)
    return Pieces(record, hour * HOUR_S, low, high, weights / np.bincount(record, weights, len(starts))[record])


def mean_over(curve: Curve, low_s: Floats, high_s: Floats) -> Floats:
    """The mean of a curve over stretches; NaN for those that it does not cover."""
    edges = np.append(curve.start_s, curve.end_s)
    risen = np.concatenate(([0.0], np.cumsum(curve.g_per_kwh * np.diff(edges))))
    length = np.maximum(high_s - low_s, 1e-9)
    means = (np.interp(high_s, edges, risen) - np.interp(low_s, edges, risen)) / length
    return np.where((low_s >= edges[0]) & (high_s <= edges[-1]), means, np.nan)


def _node_watts(nodes: Sequence[str], record: npt.NDArray[np.int64], hour: npt.NDArray[np.int64], hours: Any) -> Floats:
    """What the jobs of a record's node drew in an hour; NaN where that is not known."""
    if hours is None or not len(hours):
        return np.full(len(record), np.nan)
    numbers = {name: place for place, name in enumerate(dict.fromkeys([*nodes, *hours.column("node").to_pylist()]))}
    known_node = np.array([numbers[name] for name in hours.column("node").to_pylist()], dtype=np.int64)
    known_hour = np.asarray(hours.column("hour_s"), dtype=np.int64) // HOUR_S
    base = int(min(known_hour.min(), hour.min()))
    span = int(max(known_hour.max(), hour.max())) - base + 1
    keys = known_node * span + known_hour - base
    order = np.argsort(keys)
    keys, watts = keys[order], _floats(hours, "jobs_uj")[order] / UJ / HOUR_S
    wanted = np.array([numbers[name] for name in nodes], dtype=np.int64)[record] * span + hour - base
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, watts[place], np.nan)


def added_up(table: Any, by: str) -> list[dict[str, Any]]:
    """Sums of a charged table by one of its columns, the largest first.

    Beside the sums: `jobs`, `refused` (records without an energy), `uncovered` (jobs with an energy outside of
    the curve), `elapsed_s` (of jobs: one that ran on several nodes counts once), `coverage` (of their time). A sum of
    nothing but nulls is None.
    """
    sums = {name: f"sum({name})" for name in SUMS} | ends_sql(IDLE_ENDS)
    terms = ", ".join(f"{whole(term) if name.endswith('_uj') else term} AS {name}" for name, term in sums.items())
    sql = f"""
      SELECT "{by}" AS "group", {COUNTED} AS jobs, {terms},
        count(*) - count(energy_uj) AS refused,
        count(DISTINCT hash(cluster, job_id, restart)) FILTER ({OUTSIDE}) AS uncovered,
        sum((end_s - start_s) / greatest(nodes, 1)) AS elapsed_s,
        sum(coverage * (end_s - start_s)) / nullif(sum(end_s - start_s), 0) AS coverage
      FROM charged_table GROUP BY 1 ORDER BY energy_uj DESC NULLS LAST, 1"""
    with connect() as connection:
        connection.register("charged_table", table)
        return plain_rows(connection.sql(sql).to_arrow_table())


def in_all(table: Any) -> dict[str, Any]:
    """The sums of a whole charged table; zeros where it has no row."""
    pa, _ = arrow()
    rows = added_up(table.append_column("all", pa.array(["all"] * len(table), type=pa.string())), "all")
    nothing: dict[str, Any] = {**dict.fromkeys(SUMS), "jobs": 0, "refused": 0, "uncovered": 0, "elapsed_s": 0.0}
    return rows[0] if rows else {"group": "all", **nothing, "coverage": None}


def _floats(table: Any, name: str) -> Floats:
    return np.asarray(table.column(name).to_numpy(), dtype=np.float64)
