"""Jobs straight from Prometheus or VictoriaMetrics, by the labels that the agents export; for sites without a store.

Counters of the agent begin with the job, so a job's energy is the last value less what it had at the beginning of the
time that is asked for. There is no interval, no idle share and no state in these series: they stay unknown. Times are
as fine as the steps of the question. A requeued job is one job here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from everywatt.core.errors import EverywattError, NetworkError, UsageError
from everywatt.ledger.engine import UJ
from everywatt.net.client import Client, Limits
from everywatt.slurm.site.totals import Wanted

ENERGY: Final = 'everywatt_owner_energy_joules_total{kind="job"}'
CPU: Final = 'everywatt_owner_cpu_seconds_total{kind="job"}'
INFO: Final = "everywatt_job_info"
TIMEOUT_S: Final = 60.0
STEPS: Final = 1_000
LEAST_STEP_S: Final = 15.0
LINE_STEP_S: Final = 300.0
MOST_STEPS: Final = 10_000  # of the 11,000 points that Prometheus allows
LOOK_BACK: Final = "5m"
RATE: Final = "2m"
MAX_BYTES: Final = 512 << 20
SORTS: Final[Mapping[str, Any]] = {
    "end": lambda row: row["end_s"],
    "latest": lambda row: -row["end_s"],
    "start": lambda row: row["start_s"],
    "energy": lambda row: -row["energy_uj"],
    "time": lambda row: -row["elapsed_s"],
    "user": lambda row: (row["user"].lower(), row["end_s"]),
    "id": lambda row: row["job_id"],
}
NOTE: Final = "from time series: no interval, no idle share"


def jobs_of_series(url: str, wanted: Wanted, sort: str = "end", limit: int | None = None) -> list[dict[str, Any]]:
    """The jobs that were there between two instants, as rows of `totals.jobs`."""
    if sort not in SORTS:
        raise UsageError(f"Series cannot be sorted by '{sort}'.", cure=f"one of: {', '.join(SORTS)}")
    client = _client(url)
    step_s = max((wanted.until_s - wanted.since_s) / STEPS, LEAST_STEP_S)
    joules, cpu_s = (_risen(client, metric, wanted) for metric in (ENERGY, CPU))
    seen = _seen(client, wanted, step_s)
    about = _about(client, wanted)
    jobs: dict[str, dict[str, Any]] = {}
    for (owner, node, _device), value in joules.items():
        row = jobs.setdefault(owner, {"joules": 0.0, "cpu_s": None, "nodes": set()})
        row["joules"] += value
        row["nodes"].add(node)
    for (owner, _node, _device), value in cpu_s.items():
        if owner in jobs:
            jobs[owner]["cpu_s"] = (jobs[owner]["cpu_s"] or 0.0) + value
    rows = [_row(owner, job, seen.get(owner), about.get(owner, {}), wanted, step_s) for owner, job in jobs.items()]
    kept = [row for row in rows if _fits(row, wanted)]
    return sorted(kept, key=SORTS[sort])[:limit]


def running_in_series(url: str, now_s: float) -> list[dict[str, Any]]:
    """Jobs that are here now, the most powerful first: watts of the last two minutes, joules so far, by job."""
    client = _client(url)
    watts, joules = (
        {owner: value for (owner, *_), value in _instant(client, f"sum by (owner) ({query})", now_s).items()}
        for query in (f"rate({ENERGY}[{RATE}])", ENERGY)
    )
    rows: list[dict[str, Any]] = []
    for entry in _ask(client, "query", {"query": INFO, "time": f"{now_s:.3f}"}):
        labels = entry["metric"]
        owner = _job_label(labels)
        row = next((row for row in rows if row["job_id"] == owner), None)
        if row is None:
            row = {name: labels.get(name, "") for name in ("user", "account", "partition")}
            row |= {"job_id": owner, "nodes": [], "power_w": watts.get(owner), "energy_j": joules.get(owner)}
            rows.append(row | {"idle_j": None, "waste_j": None, "elapsed_s": None})
            row = rows[-1]
        row["nodes"] = sorted({*row["nodes"], labels.get("instance", "")})
    return sorted(rows, key=lambda row: -(row["power_w"] or 0.0))


def energy_lines(
    url: str, domains: Sequence[str], since_s: float, until_s: float
) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Counters of whole nodes by node and domain: unix times, and joules at them. A node is its name without domain."""
    step_s = max((until_s - since_s) / MOST_STEPS, LINE_STEP_S)
    bounds = {"start": f"{since_s:.3f}", "end": f"{until_s:.3f}", "step": f"{step_s:.3f}"}
    query = f'sum by (instance, domain) (everywatt_energy_joules_total{{domain=~"{"|".join(domains)}"}})'
    found = {}
    for entry in _ask(_client(url), "query_range", {"query": query, **bounds}):
        labels, values = entry["metric"], entry.get("values", [])
        node = labels.get("instance", "").partition(":")[0].partition(".")[0]
        found[node, labels.get("domain", "")] = [float(at) for at, _ in values], [float(value) for _, value in values]
    return found


def _client(url: str) -> Client:
    limits = Limits(silence_s=TIMEOUT_S, total_s=TIMEOUT_S, body_bytes=MAX_BYTES)
    return Client(url.rstrip("/"), limits=limits, proxies=True)


def _row(
    owner: str,
    job: Mapping[str, Any],
    seen: tuple[float, float] | None,
    about: Mapping[str, str],
    wanted: Wanted,
    step_s: float,
) -> dict[str, Any]:
    start_s, end_s = seen or (wanted.since_s, wanted.until_s)
    unknown = (
        *("array_job_id", "array_task_id", "het_job_id", "het_offset", "low_uj", "high_uj", "idle_uj", "waste_uj"),
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
        "state": "RUNNING" if end_s > wanted.until_s - 2 * step_s else "UNKNOWN",
        "nodes": sorted(job["nodes"]),
        "start_s": start_s,
        "end_s": end_s,
        "elapsed_s": end_s - start_s,
        "energy_uj": round(job["joules"] * UJ),
        "cpu_s": job["cpu_s"],
        "note": NOTE,
    }


def _fits(row: Mapping[str, Any], wanted: Wanted) -> bool:
    if wanted.node is not None and wanted.node not in row["nodes"]:
        return False
    if wanted.state is not None and not row["state"].startswith(tuple(wanted.states)):
        return False
    return all(getattr(wanted, name) in (None, row[name]) for name in ("user", "account", "partition"))


def _risen(client: Client, metric: str, wanted: Wanted) -> dict[tuple[str, str, str], float]:
    """By owner, node and device: what counters rose by."""
    length_s = max(int(wanted.until_s - wanted.since_s), 1)
    last = _instant(client, f"max_over_time({metric}[{length_s}s])", wanted.until_s)
    before = _instant(client, f"last_over_time({metric}[{LOOK_BACK}])", wanted.since_s)
    return {key: max(value - before.get(key, 0.0), 0.0) for key, value in last.items()}


def _seen(client: Client, wanted: Wanted, step_s: float) -> dict[str, tuple[float, float]]:
    """By owner: when it was here, by the series that says so, else while its energy rose.

    An agent repeats the counter of a job that has ended.
    """
    bounds = {"start": f"{wanted.since_s:.3f}", "end": f"{wanted.until_s:.3f}", "step": f"{step_s:.3f}"}
    found = {}
    for entry in _ask(client, "query_range", {"query": f"sum by (owner) ({ENERGY})", **bounds}):
        values = [(float(at), float(value)) for at, value in entry.get("values", [])]
        if values:
            risen_s = next(at for at, value in values if value == values[-1][1])
            found[str(entry["metric"].get("owner", ""))] = values[0][0], risen_s
    for entry in _ask(client, "query_range", {"query": f"max by (job, exported_job) ({INFO})", **bounds}):
        times = [float(at) for at, _ in entry.get("values", [])]
        if times:
            found[_job_label(entry["metric"])] = times[0], times[-1]
    return found


def _job_label(labels: Mapping[str, str]) -> str:
    """The job of `everywatt_job_info`: a scrape has a `job` of its own, and moves the agent's aside."""
    return str(labels.get("exported_job") or labels.get("job", ""))


def _about(client: Client, wanted: Wanted) -> dict[str, dict[str, str]]:
    length_s = max(int(wanted.until_s - wanted.since_s), 1)
    query = {"query": f"last_over_time({INFO}[{length_s}s])", "time": f"{wanted.until_s:.3f}"}
    found = {}
    for entry in _ask(client, "query", query):
        found[_job_label(entry["metric"])] = dict(entry["metric"])
    return found


def _instant(client: Client, query: str, at_s: float) -> dict[tuple[str, str, str], float]:
    found = {}
    for entry in _ask(client, "query", {"query": query, "time": f"{at_s:.3f}"}):
        labels = entry["metric"]
        key = (str(labels.get("owner", "")), str(labels.get("instance", "")), str(labels.get("device", "")))
        found[key] = float(entry["value"][1])
    return found


def _ask(client: Client, kind: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the server answers. EverywattError where it does not, or refuses."""
    address = f"{client.url.shown}/api/v1/{kind}"
    form = urlencode(values).encode()
    try:
        response = client.request(
            "POST", f"/api/v1/{kind}", body=form, content_type="application/x-www-form-urlencoded", repeatable=True
        )
    except NetworkError as error:
        raise EverywattError(f"{address} does not respond: {error.reason}.") from None
    if response.status != 200:
        raise EverywattError(f"{address} responded with {response.status}: {response.text[:300]}")
    try:
        data = response.json()
    except ValueError:
        data = response.text[:200]
    if not isinstance(data, dict) or data.get("status") != "success":
        raise EverywattError(f"{address} is not a Prometheus server, or refused the query: {str(data)[:200]}")
    return list(data["data"]["result"])
