"""Jobs straight from Prometheus or VictoriaMetrics, by the labels that the agents export; for sites without a store.

Counters of the agent begin with the job, so a job's energy is the last value less what it had at the beginning of the
time that is asked for, and so are the ends of its interval. There is no idle share and no state in these series: they
stay unknown. Times are as fine as the steps of the question, of short jobs as fine as `CLOSE_STEPS`. A requeued job is
one job here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everywatt.core.errors import UsageError
from everywatt.ledger.engine import UJ
from everywatt.net.api import ApiClient, Samples, query, query_range
from everywatt.slurm.schema import IDLE_ENDS, sum_known
from everywatt.slurm.site.totals import Wanted

ENERGY: Final = 'everywatt_owner_energy_joules_total{kind="job"}'
LOW: Final = 'everywatt_owner_energy_low_joules_total{kind="job"}'
HIGH: Final = 'everywatt_owner_energy_high_joules_total{kind="job"}'
CPU: Final = 'everywatt_owner_cpu_seconds_total{kind="job"}'
INFO: Final = "everywatt_job_info"
STEPS: Final = 1_000
CLOSE_STEPS: Final = 40_000  # of a period, for short jobs: 16 s of a week
LEAST_STEP_S: Final = 15.0
AT_ONCE: Final = 500  # jobs of one question
LINE_STEP_S: Final = 300.0
MOST_STEPS: Final = 10_000  # of the 11,000 points that Prometheus allows
LOOK_BACK: Final = "5m"
RATE: Final = "2m"
SORTS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "end": lambda row: row["end_s"],
    "latest": lambda row: -row["end_s"],
    "start": lambda row: row["start_s"],
    "energy": lambda row: -row["energy_uj"],
    "time": lambda row: -row["elapsed_s"],
    "user": lambda row: (row["user"].lower(), row["end_s"]),
    "id": lambda row: row["job_id"],
}
NOTE: Final = "from time series: no idle share, coverage unknown"
Place = tuple[str, str, str]  # owner, node and device of a series


@dataclass(slots=True)
class _Job:
    """What the counters of a job rose by, device by device; None: not reported, as by earlier agents."""

    joules: list[float] = field(default_factory=list)
    low_j: list[float | None] = field(default_factory=list)
    high_j: list[float | None] = field(default_factory=list)
    cpu_s: float | None = None
    nodes: set[str] = field(default_factory=set)


def jobs_of_series(
    client: ApiClient, wanted: Wanted, sort: str = "end", limit: int | None = None
) -> list[dict[str, Any]]:
    """The jobs that were there between two instants, as rows of `totals.jobs`."""
    if sort not in SORTS:
        raise UsageError(f"Series cannot be sorted by '{sort}'.", cure=f"one of: {', '.join(SORTS)}")
    step_s = max((wanted.until_s - wanted.since_s) / STEPS, LEAST_STEP_S)
    joules, low_j, high_j, cpu_s = (_risen(client, metric, wanted) for metric in (ENERGY, LOW, HIGH, CPU))
    seen = _seen(client, wanted, step_s)
    known_s = {owner: end_s - start_s for owner, (start_s, end_s) in seen.items()}
    brief = sorted({owner for owner, *_ in joules if owner.isdecimal() and known_s.get(owner, 0.0) < 2 * step_s})
    for first in range(0, len(brief), AT_ONCE):
        seen |= _seen_closely(client, wanted, brief[first : first + AT_ONCE])
    about = _about(client, wanted)
    here = {_job_label(labels) for labels, _ in query(client, INFO, wanted.until_s)}
    jobs: dict[str, _Job] = {}
    for place, value in joules.items():
        job = jobs.setdefault(place[0], _Job())
        job.joules.append(value)
        job.low_j.append(low_j.get(place))
        job.high_j.append(high_j.get(place))
        job.nodes.add(place[1])
    for (owner, _, _), value in cpu_s.items():
        if owner in jobs:
            jobs[owner].cpu_s = (jobs[owner].cpu_s or 0.0) + value
    rows = []
    for owner, job in jobs.items():
        start_s, end_s = seen.get(owner, (wanted.since_s, wanted.until_s))
        runs = owner in here if owner in about else end_s > wanted.until_s - 2 * step_s
        rows.append(_row(owner, job, start_s, end_s, runs, about.get(owner, {})))
    kept = [row for row in rows if _fits(row, wanted)]
    return sorted(kept, key=SORTS[sort])[:limit]


def running_in_series(client: ApiClient, now_s: float) -> list[dict[str, Any]]:
    """Jobs that are here now, the most powerful first: watts of the last two minutes, joules so far, by job."""
    watts, joules, low_j, high_j = (
        {owner: value for (owner, *_), value in _instant(client, f"sum by (owner) ({promql})", now_s).items()}
        for promql in (f"rate({ENERGY}[{RATE}])", ENERGY, LOW, HIGH)
    )
    rows: dict[str, dict[str, Any]] = {}
    for labels, _ in query(client, INFO, now_s):
        owner = _job_label(labels)
        row = rows.get(owner)
        if row is None:
            row = rows[owner] = {name: labels.get(name, "") for name in ("user", "account", "partition")}
            row |= {"job_id": owner, "nodes": [], "power_w": watts.get(owner), "energy_j": joules.get(owner)}
            row |= {"low_j": low_j.get(owner), "high_j": high_j.get(owner)}
            row |= dict.fromkeys(("idle_j", "idle_low_j", "idle_high_j", "waste_j", "elapsed_s", "coverage"))
        row["nodes"] = sorted({*row["nodes"], labels.get("instance", "")})
    return sorted(rows.values(), key=lambda row: -(row["power_w"] or 0.0))


def energy_lines(
    client: ApiClient, domains: Sequence[str], since_s: float, until_s: float
) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Counters of whole nodes by node and domain: unix times, and joules at them. A node is its name without domain."""
    step_s = max((until_s - since_s) / MOST_STEPS, LINE_STEP_S)
    promql = f'sum by (instance, domain) (everywatt_energy_joules_total{{domain=~"{"|".join(domains)}"}})'
    found = {}
    for labels, values in query_range(client, promql, since_s, until_s, step_s):
        node = labels.get("instance", "").partition(":")[0].partition(".")[0]
        found[node, labels.get("domain", "")] = [at_s for at_s, _ in values], [value for _, value in values]
    return found


def _row(owner: str, job: _Job, start_s: float, end_s: float, runs: bool, about: Mapping[str, str]) -> dict[str, Any]:
    unknown = (
        *("array_job_id", "array_task_id", "het_job_id", "het_offset", "idle_uj", *IDLE_ENDS, "waste_uj"),
        *("allocated_cpu_s", "gpu_utilisation", "exit_code", "wall_uj", "slurm_energy_j", "coverage"),
    )
    return {
        **dict.fromkeys(unknown),
        "job_id": int(owner) if owner.isdecimal() else owner,
        "restart": 0,
        "user": about.get("user", ""),
        "account": about.get("account", ""),
        "partition": about.get("partition", ""),
        "name": "",
        "state": "RUNNING" if runs else "UNKNOWN",
        "nodes": sorted(job.nodes),
        "start_s": start_s,
        "end_s": end_s,
        "elapsed_s": end_s - start_s,
        "energy_uj": round(sum(job.joules) * UJ),
        "low_uj": _microjoules(job.low_j),
        "high_uj": _microjoules(job.high_j),
        "cpu_s": job.cpu_s,
        "note": NOTE,
    }


def _microjoules(joules: list[float | None]) -> int | None:
    found = sum_known(joules)
    return None if found is None else round(found * UJ)


def _fits(row: Mapping[str, Any], wanted: Wanted) -> bool:
    if wanted.node is not None and wanted.node not in row["nodes"]:
        return False
    if wanted.state is not None and not row["state"].startswith(tuple(wanted.states)):
        return False
    return all(getattr(wanted, name) in (None, row[name]) for name in ("user", "account", "partition"))


def _risen(client: ApiClient, metric: str, wanted: Wanted) -> dict[Place, float]:
    """What counters rose by."""
    last = _instant(client, f"max_over_time({metric}[{_length_s(wanted)}s])", wanted.until_s)
    before = _instant(client, f"last_over_time({metric}[{LOOK_BACK}])", wanted.since_s)
    return {key: max(value - before.get(key, 0.0), 0.0) for key, value in last.items()}


def _length_s(wanted: Wanted) -> int:
    return max(int(wanted.until_s - wanted.since_s), 1)


def _seen(client: ApiClient, wanted: Wanted, step_s: float) -> dict[str, tuple[float, float]]:
    """By owner: when it was here, by the series that says so, else while its energy rose.

    An agent repeats the counter of a job that has ended.
    """

    def ranged(promql: str) -> Iterable[Samples]:
        return (one for one in query_range(client, promql, wanted.since_s, wanted.until_s, step_s) if one.values)

    found = {}
    for labels, values in ranged(f"sum by (owner) ({ENERGY})"):
        risen_s = next(at_s for at_s, value in values if value == values[-1][1])
        found[labels.get("owner", "")] = values[0][0], risen_s
    for labels, values in ranged(f"max by (job, exported_job) ({INFO})"):
        found[_job_label(labels)] = values[0][0], values[-1][0]
    return found


def _seen_closely(client: ApiClient, wanted: Wanted, owners: Sequence[str]) -> dict[str, tuple[float, float]]:
    """When jobs were here by the times of their samples, in steps that are too fine to ask for long ones."""
    these = ENERGY.replace("}", f',owner=~"{"|".join(owners)}"}}')
    length_s = _length_s(wanted)
    times = f"timestamp({these})[{length_s}s:{math.ceil(length_s / CLOSE_STEPS)}s]"
    first, last = (
        _instant(client, f"{end} by (owner) ({end}_over_time({times}))", wanted.until_s) for end in ("min", "max")
    )
    return {owner: (at_s, last[owner, node, device]) for (owner, node, device), at_s in first.items()}


def _job_label(labels: Mapping[str, str]) -> str:
    """The job of `everywatt_job_info`: a scrape has a `job` of its own, and moves the agent's aside."""
    return labels.get("exported_job") or labels.get("job", "")


def _about(client: ApiClient, wanted: Wanted) -> dict[str, Mapping[str, str]]:
    found = query(client, f"last_over_time({INFO}[{_length_s(wanted)}s])", wanted.until_s)
    return {_job_label(labels): labels for labels, _ in found}


def _instant(client: ApiClient, promql: str, at_s: float) -> dict[Place, float]:
    return {
        (labels.get("owner", ""), labels.get("instance", ""), labels.get("device", "")): values[-1][1]
        for labels, values in query(client, promql, at_s)
    }
