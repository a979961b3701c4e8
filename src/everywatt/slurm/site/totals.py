"""Jobs of a site: each the sum of its nodes, filtered, sorted, and added up by user, account or state.

Errors of sensors of one kind are the same on all nodes, so intervals of a sum are added, not joined in quadrature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from everywatt.core.errors import UsageError
from everywatt.slurm.schema import IDLE_ENDS, ends_sql, sum_known
from everywatt.slurm.schema import shown_id as shown_id
from everywatt.slurm.site.store import SUM_TERMS, Store, day_of, days_of, plain_rows, whole

GROUPS: Final = ("user", "account", "state", "partition", "node", "month", "day")
# In UTC, by the end of a job; as numbers, since to write a date for each job takes longer than the sum.
_DAY: Final = "CAST(floor(end_s / 86400) AS INTEGER)"
_PERIODS: Final = {"month": f"datediff('month', DATE '1970-01-01', DATE '1970-01-01' + {_DAY})", "day": _DAY}
SORTS: Final = {
    "end": "end_s",
    "latest": "end_s DESC, job_id DESC",
    "start": "start_s",
    "energy": "energy_uj DESC NULLS LAST",
    "time": "elapsed_s DESC",
    "waste": "waste_uj DESC NULLS LAST",
    "user": 'lower("user"), end_s',
    "id": "job_id, restart",
}

# Distinguishing jobs is the largest cost of a sum over a year, and only jobs of several nodes have several records.
COUNTED: Final = """count(*) FILTER (nodes <= 1)
  + count(DISTINCT CASE WHEN nodes > 1 THEN hash(cluster, job_id, restart) END)"""

_ON_NODE: Final = "SELECT *, end_s - start_s AS elapsed_s FROM jobs WHERE end_s >= ? AND end_s < ? AND ({where})"

# Of a job these are known where all of its nodes know them.
_ENERGIES: Final = ("energy_uj", "low_uj", "high_uj", "idle_uj", "waste_uj", "wall_uj", *IDLE_ENDS)
_WHOLE: Final = ", ".join(
    f"CAST(CASE WHEN count({name}) = count(*) THEN sum({name}) END AS {kind}) AS {name}"
    for kind, names in (("BIGINT", _ENERGIES), ("DOUBLE", ("cpus", "cpu_s")))
    for name in names
)

_JOBS: Final = f"""
SELECT cluster, job_id, restart,
  first(array_job_id) AS array_job_id, first(array_task_id) AS array_task_id,
  first(het_job_id) AS het_job_id, first(het_offset) AS het_offset,
  first("user") AS "user", first(account) AS account, first("partition") AS "partition", first(name) AS name,
  arg_max(state, complete) AS state, first(exit_code) AS exit_code,
  list(node ORDER BY node) AS nodes, max(nodes) AS nodes_asked,
  min(start_s) AS start_s, max(end_s) AS end_s, max(end_s) - min(start_s) AS elapsed_s,
  CAST(sum(len(gpus)) AS INTEGER) AS gpus,
  {_WHOLE},
  coalesce(sum(coverage * elapsed_s) / nullif(sum(elapsed_s), 0), 0.0) AS coverage,
  array_to_string(list_sort(list_distinct(list(nullif(pedigree, '')))), '+') AS pedigree,
  first(scope) AS scope, min(refused) AS refused, sum(cpus * elapsed_s) AS allocated_cpu_s,
  max(memory_peak_bytes) AS memory_peak_bytes, avg(gpu_utilisation) AS gpu_utilisation,
  max(slurm_energy_j) AS slurm_energy_j,
  bool_and(complete) AND count(*) >= max(nodes) AS complete, string_agg(DISTINCT nullif(note, ''), '; ') AS note
FROM ({_ON_NODE}) GROUP BY cluster, job_id, restart
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs: those that ended in [since, until), of this user, account, state, partition or node, or by id."""

    since_s: float
    until_s: float
    user: str | None = None
    account: str | None = None
    state: str | None = None
    partition: str | None = None
    node: str | None = None
    job_id: int | None = None

    @property
    def states(self) -> list[str]:
        """The wanted prefixes of states, from `FAILED,TIMEOUT`. UsageError if there are none."""
        found = [part.strip().upper() for part in (self.state or "").split(",") if part.strip()]
        if not found:
            raise UsageError(f"'{self.state}' is not a state.", cure="COMPLETED, or FAILED,TIMEOUT")
        return found

    def sql(self) -> tuple[str, list[Any]]:
        """The condition, and its values."""
        terms, values = ["true"], list[Any]()
        for name in ("user", "account", "partition", "node"):
            if (value := getattr(self, name)) is not None:
                terms.append(f'"{name}" = ?')
                values.append(value)
        if self.state is not None:
            terms.append(f"({' OR '.join(['starts_with(upper(state), ?)'] * len(self.states))})")
            values += self.states
        if self.job_id is not None:
            terms.append("(job_id = ? OR array_job_id = ? OR het_job_id = ?)")
            values += [self.job_id] * 3
        return " AND ".join(terms), values


def jobs(store: Store, wanted: Wanted, sort: str = "end", limit: int | None = None) -> list[dict[str, Any]]:
    """The jobs as plain rows (see `_JOBS` for the columns), in an order of `SORTS`."""
    if sort not in SORTS:
        raise UsageError(f"Jobs cannot be sorted by '{sort}'.", cure=f"one of: {', '.join(SORTS)}")
    where, values = wanted.sql()
    if limit is not None:
        keys = _first(store, wanted, sort, limit)
        if not keys:
            return []
        # What else is known of these jobs is read of their days only: a job's nodes end between its start and its end.
        since_s = max(min(row["start_s"] for row in keys), wanted.since_s)
        until_s = min(max(row["end_s"] for row in keys) + 1, wanted.until_s)
        where += f" AND job_id IN ({', '.join(str(row['job_id']) for row in keys)})"
        wanted = replace(wanted, since_s=since_s, until_s=until_s)
    sql = f"SELECT * FROM ({_JOBS.format(where=where)}) ORDER BY {SORTS[sort]}"
    if limit is None:
        return _rows(store, sql, [wanted.since_s, wanted.until_s, *values], wanted)
    near = {day for row in keys for day in days_of(row["start_s"], row["end_s"] + 1)}
    without = [day for day in store.days() if day not in near]
    since_s, until_s = wanted.since_s, wanted.until_s
    rows = plain_rows(store.query(sql, [since_s, until_s, *values], since_s, until_s, without))
    chosen = {(row["cluster"], row["job_id"], row["restart"]) for row in keys}
    return [row for row in rows if (row["cluster"], row["job_id"], row["restart"]) in chosen]


def jobs_where(
    store: Store, since_s: float, until_s: float, where: str, values: Sequence[Any]
) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Jobs that ended in [since, until) as `jobs` gives them, by cluster, id and restart. `where` is SQL with `?`."""
    found = plain_rows(store.query(_JOBS.format(where=where), [since_s, until_s, *values], since_s, until_s))
    return {(row["cluster"], row["job_id"], row["restart"]): row for row in found}


def _first(store: Store, wanted: Wanted, sort: str, limit: int) -> list[dict[str, Any]]:
    """The first jobs of an order: key, start and end of each. Of a year that is all that is read of the others.

    Only jobs of several nodes have several records and have to be put together. The latest jobs are looked for in the
    last days first.
    """
    where, values = wanted.sql()
    columns = "cluster, job_id, restart"
    sums_of = ", ".join(f"CASE WHEN count({n}) = count(*) THEN sum({n}) END AS {n}" for n in ("energy_uj", "waste_uj"))
    sql = f"""
      SELECT {columns}, start_s, end_s FROM (
        SELECT {columns}, start_s, end_s, end_s - start_s AS elapsed_s, energy_uj, waste_uj, "user" FROM jobs
          WHERE end_s >= ? AND end_s < ? AND ({where}) AND nodes <= 1
        UNION ALL BY NAME
        SELECT {columns}, min(start_s) AS start_s, max(end_s) AS end_s, max(end_s) - min(start_s) AS elapsed_s,
          {sums_of}, first("user") AS "user" FROM jobs
          WHERE end_s >= ? AND end_s < ? AND ({where}) AND nodes > 1 GROUP BY {columns})
      ORDER BY {SORTS[sort]} LIMIT {int(limit)}"""
    since_s = wanted.since_s
    if sort == "latest":
        length_s = 86_400.0
        while (since_s := max(wanted.until_s - length_s, wanted.since_s)) > wanted.since_s:
            part = [since_s, wanted.until_s, *values]
            found = plain_rows(store.query(sql, [*part, *part], since_s, wanted.until_s))
            # One that has nodes before this is at its place all the same: it is the end of the last that counts.
            if len(found) >= limit:
                return found
            length_s *= 8
    part = [since_s, wanted.until_s, *values]
    return plain_rows(store.query(sql, [*part, *part], since_s, wanted.until_s))


def sums(store: Store, wanted: Wanted, by: str) -> list[dict[str, Any]]:
    """Jobs added up by user, account, state, partition or node, the largest first; by month or day the latest first.

    What a job did on a node without a figure adds nothing, and is counted in `refused`; a sum of nothing is None.
    """
    if by not in GROUPS:
        raise UsageError(f"Jobs cannot be added up by '{by}'.", cure=f"one of: {', '.join(GROUPS)}")
    where, values = wanted.sql()
    sums_of = {name: f"sum({name})" for name in _ENERGIES if name != "wall_uj"} | ends_sql(IDLE_ENDS)
    group = _PERIODS.get(by, f'"{by}"')
    order = "1 DESC" if by in _PERIODS else "energy_uj DESC NULLS LAST, 1"
    sql = f"""
      SELECT {group} AS "group", {COUNTED} AS jobs,
        count(*) - count(energy_uj) AS refused,
        {", ".join(f"{whole(term)} AS {name}" for name, term in sums_of.items())},
        sum(elapsed_s / greatest(nodes, 1)) AS elapsed_s, sum(cpu_s) AS cpu_s,
        sum(cpus * elapsed_s) FILTER (cpu_s IS NOT NULL) AS allocated_cpu_s, sum(len(gpus) * elapsed_s) AS gpu_s,
        sum(coverage * elapsed_s) / nullif(sum(elapsed_s), 0) AS coverage
      FROM ({_ON_NODE.format(where=where)}) GROUP BY 1 ORDER BY {order}"""
    rows = _rows(store, sql, [wanted.since_s, wanted.until_s, *values], wanted)
    return [{**row, "group": _period(by, row["group"])} for row in rows] if by in _PERIODS else rows


def _period(by: str, number: int) -> str:
    """`2026-11` or `2026-11-15`, by the number of months or days since 1970."""
    return f"{1970 + number // 12}-{number % 12 + 1:02d}" if by == "month" else day_of(number * 86_400).isoformat()


def node_sums(store: Store, since_s: float, until_s: float, node: str | None = None) -> dict[str, int]:
    """Microjoules of all nodes, or of one, in all hours of a time: jobs_uj + idle_uj + system_uj is total_uj.

    Beside them `covered_ms` of `known_ms`: how long their devices were observed.
    """
    known = store.day_sums(since_s, until_s) if node is None else {}  # they are of all nodes
    sql = f"SELECT {SUM_TERMS} FROM nodes WHERE hour_s > ? AND hour_s < ? AND node = coalesce(?, node)"
    (rest,) = plain_rows(store.query(sql, [since_s - 3600, until_s, node], since_s - 3600, until_s, known.keys()))
    parts = [*known.values(), *([rest] if rest["known_ms"] or not known else [])]  # a sum of no rows has no ends
    return {name: sum_known(part[name] for part in parts) for name in rest}


def _rows(store: Store, sql: str, values: Sequence[Any], wanted: Wanted) -> list[dict[str, Any]]:
    return plain_rows(store.query(sql, values, wanted.since_s, wanted.until_s))
