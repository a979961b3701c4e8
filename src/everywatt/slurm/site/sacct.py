"""What Slurm's own accounting knows of jobs: states, times, accounts, and the energy that it counted, if any.

Text columns with unix times: they are the same in all versions, which the JSON is not.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple

from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.foreign import text_lines
from everywatt.core.format import format_count, format_percent
from everywatt.core.jsonio import ToDict
from everywatt.core.tables import Table
from everywatt.core.units import J_PER_KWH
from everywatt.ledger.engine import UJ
from everywatt.slurm.lists import duration_s, expand, size_bytes
from everywatt.slurm.schema import ID_PARTS, IDLE_ENDS, JobOnNode
from everywatt.slurm.site.figures import COVERED
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.totals import Wanted, jobs, shown_id

COLUMNS: Final = (
    *("JobIDRaw", "JobID", "User", "UID", "Account", "Partition", "JobName", "State", "ExitCode", "Submit", "Start"),
    *("End", "ElapsedRaw", "AllocCPUS", "AllocTRES", "NNodes", "NodeList", "Cluster", "ConsumedEnergyRaw"),
)
TIMEOUT_S: Final = 600.0  # longest time for sacct to list all jobs of a time
CPU_TIME_COLUMNS: Final = ("JobIDRaw", "State", "Start", "End", "TotalCPU")
CPU_TIME_S: Final = 5.0  # longest time for sacct to answer about one job: the node's other jobs wait for it
SLACK_S: Final = 120.0  # a run is looked for so long before and after the times that its node knows
NOT_RECORDED: Final = "everywatt did not record it; Slurm's accounting shows that it ran"
COPIED: Final = (
    *("user", "account", "partition", "name", "state", "exit_code", "nodes", "submit_s", "slurm_energy_j"),
    *ID_PARTS,
)
"""What a record takes over from sacct, where that knows it."""
_NEVER: Final = 2**32 - 10  # what Slurm stores where there is no number


class Accounted(NamedTuple):
    """One run of a job, as sacct reports it: a record without node and energy, of all the nodes that it ran on."""

    record: JobOnNode
    nodes: tuple[str, ...]


def ask(since_s: float, until_s: float, *, conf: str = "") -> str:
    """sacct's own text of all jobs of a time. EverywattError where it does not answer."""
    return accounting(COLUMNS, since_s, until_s, "--duplicates", conf=conf)


def total_cpu_s(job_id: int, start_s: float, end_s: float, conf: str = "") -> float | None:
    """CPU seconds, on all its nodes, of the run of a job that was there then and has ended; None where not known."""
    wanted = ("--duplicates", f"--jobs={job_id}")  # --allocations would leave out steps, and CPU times with them
    between_s = start_s - SLACK_S, end_s + SLACK_S
    try:
        runs = parse(accounting(CPU_TIME_COLUMNS, *between_s, *wanted, conf=conf, timeout_s=CPU_TIME_S))
    except EverywattError:
        return None
    own = [run.record for run in runs if run.record.job_id == job_id]  # an array's id is that of one of its tasks, too
    return max(own, key=lambda run: _overlap_s(run, start_s, end_s)).cpu_s if own else None


def accounting(
    columns: Iterable[str],
    since_s: float,
    until_s: float,
    *options: str,
    conf: str = "",
    timeout_s: float = TIMEOUT_S,
) -> str:
    """sacct's text of these columns of all jobs of a time. EverywattError where it does not answer."""
    command = ["sacct", "--allusers", *options, "--parsable2", f"--format={','.join(columns)}"]
    command += [f"--starttime={_moment(since_s)}", f"--endtime={_moment(until_s)}"]
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "TZ": "UTC", "LC_ALL": "C"}
    if conf:
        environment["SLURM_CONF"] = conf
    try:
        # Bytes: as text, a carriage return in a job's name would become the end of a line.
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, env=environment)
    except FileNotFoundError:
        raise UsageError(
            "sacct is not installed here.", cure="pass a file written by it, or run this on a login node"
        ) from None
    except subprocess.TimeoutExpired:
        raise EverywattError(f"sacct did not respond within {timeout_s:g} s.", cure="choose a shorter period") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace")
        why = said.split("\n") if said.strip() else ["no reason given"]
        last = [line for line in why if line.strip()][-1].removeprefix("sacct: ").strip()
        raise EverywattError(
            f"sacct failed: {last[:200].rstrip('.')}.",
            cure="try `sacct --allusers`; without slurmdbd there is no accounting",
        )
    return done.stdout.decode("utf-8", "replace")


def parse(text: str) -> list[Accounted]:
    """The jobs of sacct's parsable text (either kind, with its header), those that have ended, oldest first."""
    lines = text_lines(text)
    if not lines:
        return []
    heads = [head.strip() for head in lines[0].rstrip("|").split("|")]
    wanted = {name.lower() for name in ("JobIDRaw", "State", "Start", "End")}
    if not wanted <= {head.lower() for head in heads}:
        raise UsageError(
            "The first line of this file does not contain sacct's column names.",
            cure=f"SLURM_TIME_FORMAT=%s sacct -aDP --format={','.join(COLUMNS)}",
        )
    found: dict[tuple[str, int], list[Accounted]] = {}
    energies: dict[tuple[str, int], list[tuple[float, float]]] = {}  # when a step started, and its joules
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("|")
        if len(cells) < len(heads):
            continue  # the last line of a file that was cut off
        # A name may hold the separator; what is before and after it still fits.
        row = _cells(heads, cells)
        raw, _, step = row.get("jobidraw", "").partition(".")
        if not raw.isdecimal():
            raise UsageError(f"Line {number}: '{raw[:40]}' is not a job number.")
        key = (row.get("cluster", ""), int(raw))
        joules = _count(row.get("consumedenergyraw"))
        if step:
            started_s = _time(row.get("start"))
            if joules and started_s is not None:
                energies.setdefault(key, []).append((started_s, joules))
            continue
        job = _job(row, int(raw), joules)
        if job is not None:
            found.setdefault(key, []).append(job)
    jobs = []
    for key, runs in found.items():
        runs.sort(key=lambda job: job.record.start_s)
        for restart, (run, nodes) in enumerate(runs):
            # A job without `srun` has its energy with its batch step only; each run of a requeued job has one.
            of_steps = sum(joules for at_s, joules in energies.get(key, ()) if run.start_s <= at_s <= run.end_s)
            energy_j = run.slurm_energy_j or of_steps or None
            jobs.append(Accounted(replace(run, restart=restart, slurm_energy_j=energy_j), nodes))
    return sorted(jobs, key=lambda job: (job.record.end_s, job.record.job_id))


def join(recorded: Iterable[JobOnNode], accounted: Iterable[Accounted]) -> list[JobOnNode]:
    """What has to be written so that records say what sacct says: those that change, and jobs that were not recorded.

    A record keeps its energy. A job of which there is no record gets one for each node, refused with the reason.
    """
    by_job: dict[int, list[JobOnNode]] = {}
    for row in recorded:
        by_job.setdefault(row.job_id, []).append(row)
    runs: dict[int, list[Accounted]] = {}
    for job in accounted:
        runs.setdefault(job.record.job_id, []).append(job)
    changed: list[JobOnNode] = []
    for job_id, of_job in runs.items():
        rows_of: dict[int, list[JobOnNode]] = {}
        for row in by_job.get(job_id, []):
            nearest = max(range(len(of_job)), key=lambda at: _overlap_s(of_job[at].record, row.start_s, row.end_s))
            if _same_run(row, of_job[nearest].record):
                rows_of.setdefault(nearest, []).append(row)
        for at, job in enumerate(of_job):
            changed += _updated(rows_of.get(at, []), job)
    return changed


def _updated(rows: Iterable[JobOnNode], job: Accounted) -> Iterator[JobOnNode]:
    """Records of one run that have to say something else now, and those of nodes that have none."""
    there = set()
    for row in rows:
        there.add(row.node)
        found = {name: getattr(job.record, name) for name in COPIED}
        facts: dict[str, Any] = {name: value for name, value in found.items() if value not in (None, "")}
        better = replace(row, **facts)
        if better != row:
            yield replace(better, written_s=0.0)
    yield from (_missing(job, node) for node in job.nodes if node not in there)


def fill(store: Store, accounted: Iterable[Accounted]) -> tuple[int, int]:
    """Bring a store up to date with sacct; gives how many records changed, and how many jobs were added."""
    jobs = list(accounted)
    if not jobs:
        return 0, 0
    ends_s = [job.record.end_s for job in jobs]
    since_s, until_s = min(ends_s) - 3600, max(ends_s) + 3600
    recorded = [JobOnNode.of_row(row) for row in store.jobs(since_s, until_s).to_pylist()]
    rows = join(recorded, jobs)
    known = {row.key for row in recorded}
    if rows:
        store.append(rows, "sacct")
    added = {(row.cluster, row.job_id, row.restart) for row in rows if row.key not in known}
    return sum(row.key in known for row in rows), len(added)


def _overlap_s(run: JobOnNode, start_s: float, end_s: float) -> float:
    """For how much of a time a run was there; below zero how far they are apart."""
    return min(run.end_s, end_s) - max(run.start_s, start_s)


def _same_run(row: JobOnNode, job: JobOnNode) -> bool:
    """Whether a record is of this run of the job: a requeued one has several, which differ by their times."""
    if row.cluster and job.cluster and row.cluster != job.cluster:
        return False
    return _overlap_s(job, row.start_s, row.end_s) > -SLACK_S


def _missing(job: Accounted, node: str) -> JobOnNode:
    record, share = job.record, job.record.nodes
    return replace(
        record,
        node=node,
        cpus=None if record.cpus is None else record.cpus / share,
        cpu_s=None,
        memory_bytes=None if record.memory_bytes is None else record.memory_bytes // share,
        refused=NOT_RECORDED,
        complete=False,
        note="from sacct",
    )


def _cells(heads: list[str], cells: list[str]) -> dict[str, str]:
    surplus = len(cells) - len(heads)
    names = [head.lower() for head in heads]
    if surplus > 0 and "jobname" in names:
        at = names.index("jobname")
        cells = [*cells[:at], "|".join(cells[at : at + surplus + 1]), *cells[at + surplus + 1 :]]
    return dict(zip(names, cells, strict=False))


def _job(row: Mapping[str, str], job_id: int, joules: float | None) -> Accounted | None:
    start_s, end_s = _time(row.get("start")), _time(row.get("end"))
    state = (row.get("state") or "").split(" ")[0].rstrip("+")
    if start_s is None or end_s is None or state in ("RUNNING", "PENDING", "SUSPENDED"):
        return None
    tres = dict(part.partition("=")[::2] for part in (row.get("alloctres") or "").split(",") if part)
    listed = row.get("nodelist") or ""
    nodes = () if listed == "None assigned" else tuple(expand(listed))
    # `123_4` is task 4 of array 123, `123+0` component 0 of job 123.
    parts = re.fullmatch(r"(\d+)([_+])(\d+)", row.get("jobid") or "")
    ids = ID_PARTS[:2] if parts and parts[2] == "_" else ID_PARTS[2:]
    facts: dict[str, Any] = {name: row.get(name) or "" for name in ("cluster", "user", "account", "partition")}
    facts |= dict(zip(ids, (int(parts[1]), int(parts[3])), strict=True)) if parts else {}
    record = JobOnNode(
        job_id,
        "",
        start_s,
        end_s,
        **facts,
        name=row.get("jobname") or "",
        exit_code=row.get("exitcode") or None,
        uid=int(row["uid"]) if (row.get("uid") or "").isdecimal() else None,
        state=state,
        submit_s=_time(row.get("submit")),
        cpus=_count(row.get("alloccpus")) or _count(tres.get("cpu")),
        memory_bytes=size_bytes(tres.get("mem", "")),
        nodes=max(len(nodes), 1),
        slurm_energy_j=joules or None,
        cpu_s=duration_s(row.get("totalcpu") or ""),
    )
    return Accounted(record, nodes)


def _time(text: str | None) -> float | None:
    """Unix seconds; `Unknown` and `None` give None. Local times cannot be distinguished from others: refused."""
    if text is None or text in ("", "Unknown", "None", "NONE"):
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"sacct's time '{text[:40]}' has no zone.", cure="SLURM_TIME_FORMAT=%s in front of sacct"
        ) from None


def _count(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < 2**63 and value not in (_NEVER, 2**32 - 2, 2**32 - 1, 2**64 - 2) else None


def _moment(unix_s: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(max(unix_s, 0.0), UTC).strftime("%Y-%m-%dT%H:%M:%S")


MARK: Final = "everywatt: "
COMMENT_COLUMNS: Final = ("JobIDRaw", "Cluster", "AdminComment")
ANSWER_S: Final = 30.0  # longest time for sacctmgr to set one comment


@dataclass(slots=True)
class Annotated(ToDict):
    """What `annotate` did to the field AdminComment, which `sacct` and `sacctmgr` show.

    Only jobs that have ended, and never what another tool wrote there: the field is read first. A user's own comment
    (`sbatch --comment`) is another field and is not touched.
    """

    JSON: ClassVar[str] = "written same foreign unknown failed dry"
    dry: bool = False
    written: int = 0
    same: int = 0
    foreign: list[str] = field(default_factory=list)  # jobs whose comment is another tool's
    unknown: list[str] = field(default_factory=list)  # jobs that sacct does not know
    failed: dict[str, str] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        jobs = f"{format_count(self.written, 'job')} {'would get' if self.dry else 'got'} a comment"
        return [Table.lines(f"{jobs}, {self.same} had it, {len(self.failed)} failed.")]


def comment_of(row: Mapping[str, Any]) -> str | None:
    """What is written of a job; None where it has no figure or is not whole.

    In ASCII, without quotes, in kWh and in small letters, because sacctmgr turns letters into small ones: MWh and mWh
    would become the same.
    """
    if row["energy_uj"] is None or row["low_uj"] is None or row["high_uj"] is None or not row["complete"]:
        return None
    used, low, high = (_kwh(row[name]) for name in ("energy_uj", "low_uj", "high_uj"))
    covered = f", coverage {format_percent(row['coverage'])}" if row["coverage"] < COVERED else ""
    text = f"{MARK}{used} kwh (95% {low} to {high}{covered})"
    if row["idle_uj"] is None:
        return text
    ends = [row[name] for name in IDLE_ENDS]
    between = "" if None in ends else f" ({' to '.join(map(_kwh, ends))})"
    return f"{text}, idle share {_kwh(row['idle_uj'])} kwh{between}"


def _kwh(microjoules: int) -> str:
    return f"{microjoules / UJ / J_PER_KWH:.4g}"


def annotate(
    store: Store, since_s: float, until_s: float, *, dry: bool = False, longest_s: float = 3600.0
) -> Annotated:
    """Write the energy of jobs that ended in [since, until) to Slurm. EverywattError where sacct does not answer.

    A requeued job has one comment: that of its last run.
    """
    found = Annotated(dry)
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for row in jobs(store, Wanted(since_s, until_s), "id"):
        latest[row["cluster"], row["job_id"]] = row
    wanted = {key: (row, text) for key, row in latest.items() if (text := comment_of(row)) is not None}
    if not wanted:
        return found
    first_s = min(row["start_s"] for row, _ in wanted.values())
    there = existing(accounting(COMMENT_COLUMNS, first_s, until_s, "--allocations", "--noheader"))
    ends_s = time.monotonic() + longest_s
    for (cluster, job_id), (row, text) in wanted.items():
        old = there.get((cluster, job_id), there.get(("", job_id)))
        if old is None:
            found.unknown.append(shown_id(row))
        elif old == text:
            found.same += 1
        elif old and not old.startswith(MARK):
            found.foreign.append(shown_id(row))
        elif time.monotonic() > ends_s:
            found.failed[shown_id(row)] = "out of time"
        elif (why := "" if dry else _write(cluster, job_id, text)) == "":
            found.written += 1
        else:
            found.failed[shown_id(row)] = why
    return found


def existing(text: str) -> dict[tuple[str, int], str]:
    """Comments by cluster and job, and by job alone under an empty cluster (records may not name theirs)."""
    found: dict[tuple[str, int], str] = {}
    for line in text.split("\n"):
        job_id, _, rest = line.partition("|")
        cluster, sign, comment = rest.partition("|")
        if job_id.isdecimal() and sign:
            found[cluster, int(job_id)] = found["", int(job_id)] = comment
    return found


def _write(cluster: str, job_id: int, text: str) -> str:
    """Set the comment of a job; "" or why it failed."""
    where = [f"jobid={job_id}", *([f"cluster={cluster}"] if cluster else [])]
    words: Sequence[str] = ["sacctmgr", "-i", "modify", "job", "where", *where, "set", f"AdminComment={text}"]
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=ANSWER_S, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise EverywattError(
            "sacctmgr is not installed here.", cure="run this where Slurm's administrators work"
        ) from None
    except subprocess.TimeoutExpired:
        return f"sacctmgr did not respond within {ANSWER_S:g} s"
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return "" if done.returncode == 0 else (said.split("\n")[-1][:200] or f"sacctmgr ended with {done.returncode}")
