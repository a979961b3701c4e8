"""Telemetry in BADC's layout: JSON lines of events, a summary of jobs and workers, and the workers as CSV.

All its field names are written and read; ours are added beside them. A torn last line is left out.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everywatt.batch.devices import GpuNow, GpuState
from everywatt.batch.figures import BatchFigures
from everywatt.batch.journal import DONE, now
from everywatt.batch.runner import Event
from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.files import replace_text, usable
from everywatt.core.jsonio import ToDict, dumps
from everywatt.core.tables import Table

MOST_OUTPUT = 500  # characters of the end of stdout and stderr, as BADC keeps them
START, SUCCESS, FAILURE = "start", "success", "failure"
SUMMARY_EVERY_S = 1.0  # at most so often the summary is written
SUMMARY_SHARE = 100  # a summary of very many jobs takes long: at most a hundredth of the time goes into it
NEW_JOB: Mapping[str, Any] = {
    "status": "",
    "attempts": 0,
    "retries": 0,
    "output": None,
    "worker": "",
    "recording_id": None,
    "last_backoff_s": None,
    "last_error": None,
}
WORKER_COLUMNS = ("worker", "jobs", "success", "failure", "retries", "failed_retries")


class TelemetryLog:
    """Writes one line for each start and end of an attempt, to a new log or to that of an earlier session.

    The summary beside it is written again every second or so, so there is one also where the batch is killed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gpus = GpuNow()
        self._before: dict[int, GpuState | None] = {}
        with usable(path, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._summary = summarise(_events(path), str(path))
        self._summary_due_s = 0.0

    def event(self, event: Event) -> None:
        record = self._record(event)
        os.write(self._file, dumps(record).encode() + b"\n")
        self._summary.add(record)
        began_s = time.monotonic()
        if began_s >= self._summary_due_s:
            _write(self._summary, self.path)
            took_s = time.monotonic() - began_s
            self._summary_due_s = began_s + max(SUMMARY_EVERY_S, SUMMARY_SHARE * took_s)

    def close(self) -> None:
        os.close(self._file)

    def _record(self, event: Event) -> dict[str, Any]:
        attempt, item, device = event.attempt, event.state.item, event.device
        seen = self._gpus.read(device)
        ended = attempt.ended
        details: dict[str, Any] = {"attempt": attempt.number, "output": item.row.get("output"), "runner": "custom"}
        if event.kind == "start":
            self._before[event.lane] = seen
            details["gpu_metrics"] = {"before": seen, "after": None}
        else:
            details["gpu_metrics"] = {"before": self._before.pop(event.lane, None), "after": seen}
            details["stdout"] = str(ended.get("stdout", ""))[-MOST_OUTPUT:]
        status = START if event.kind == "start" else SUCCESS if attempt.status == DONE else FAILURE
        if status == FAILURE:
            details["returncode"] = attempt.exit_code
            details["stderr"] = str(ended.get("stderr", ended.get("error", "")))[-MOST_OUTPUT:]
            details["backoff_s"] = event.backoff_s
            details |= {key: ended[key] for key in ("timed_out", "oom") if key in ended}
        return {
            "chunk_id": item.id,
            "gpu_index": int(device.index) if device.is_gpu else None,
            "gpu_name": device.title if device.is_gpu else None,
            "status": status,
            "timestamp": attempt.at,
            "finished_at": None if status == START else now(),
            "runtime_s": attempt.runtime_s,
            "details": details,
        }


def read_telemetry(path: Path) -> list[dict[str, Any]]:
    """The events of a log; a torn last line is left out, and so is what is not an event. Raises UsageError."""
    events = list(_events(path))
    if not events:
        raise UsageError(f"{path} contains no telemetry events.")
    return events


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for line in foreign.lines(path):
        try:
            record = foreign.parse_json(line) if line.strip() else None
        except ValueError:
            continue
        if isinstance(record, dict) and {"chunk_id", "status"} <= record.keys():
            yield record


@dataclass(frozen=True, slots=True)
class Summary(ToDict):
    """`workers` and `jobs` as in BADC's summary.json."""

    JSON = "telemetry_log=log workers jobs"

    log: str
    workers: dict[str, dict[str, int]] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Count an event. Failures are counted, one each; attempt numbers are never added up."""
        details, index, status = event.get("details") or {}, event.get("gpu_index"), event["status"]
        worker = "cpu" if index is None else f"gpu-{index}"
        counts = self.workers.setdefault(worker, dict.fromkeys(WORKER_COLUMNS[2:], 0))
        job = self.jobs.setdefault(str(event["chunk_id"]), {**NEW_JOB, "worker": worker})
        again = int(details.get("attempt") or 1) > 1
        job["status"] = {START: "in_progress", SUCCESS: "completed", FAILURE: "failed"}.get(status, status)
        if status == START:
            job["attempts"] += 1
            job["retries"] += again
            counts["retries"] += again
        elif status == SUCCESS:
            counts["success"] += 1
            job["last_error"] = None
        elif status == FAILURE:
            counts["failure"] += 1
            counts["failed_retries"] += again
            job["last_backoff_s"] = details.get("backoff_s")
            job["last_error"] = details.get("stderr") or f"exit code {details.get('returncode')}"
        job["worker"] = worker
        job["output"] = details.get("output") or job["output"]

    def workers_table(self) -> Table:
        jobs = Counter(job.get("worker") for job in self.jobs.values())
        rows = [
            [name, *map(str, (jobs[name], *(counts.get(key, 0) for key in WORKER_COLUMNS[2:])))]
            for name, counts in self.workers.items()
        ]
        return Table.of(*WORKER_COLUMNS, rows=rows, right=range(1, len(WORKER_COLUMNS)))


def summarise(events: Iterable[Mapping[str, Any]], log: str = "") -> Summary:
    summary = Summary(log)
    for event in events:
        summary.add(event)
    return summary


def with_figures(summary: Summary, found: BatchFigures) -> Summary:
    """The summary with the joules of each job, beside BADC's fields."""
    energies = {item.state.item.id: item for item in found.items}
    jobs = {}
    for name, job in summary.jobs.items():
        item = energies.get(name)
        more: dict[str, Any] = {}
        if item is not None:
            recording = item.state.item.row.get("recording_id")
            more = {"recording_id": recording, "energy_j": item.energy.joules}
            more |= {"energy_low_j": item.energy.low, "energy_high_j": item.energy.high}
        jobs[name] = {**job, **more}
    return Summary(summary.log, summary.workers, jobs)


def write_summary(path: Path, found: BatchFigures | None) -> Sequence[Path]:
    """Write `LOG.summary.json` and `LOG.summary.json.workers.csv` beside a log; gives the two paths."""
    summary = summarise(read_telemetry(path), str(path))
    if found is not None:
        summary = with_figures(summary, found)
    return _write(summary, path)


def _write(summary: Summary, path: Path) -> tuple[Path, Path]:
    target = path.with_name(f"{path.name}.summary.json")
    table = target.with_name(f"{target.name}.workers.csv")
    for file, text in ((target, dumps(summary.to_dict(), indent=2) + "\n"), (table, summary.workers_table().csv())):
        replace_text(file, text)
    return target, table


def read_summary(path: Path) -> Summary:
    """A summary.json. UsageError where it is something else."""
    try:
        data = foreign.read_json(path)
        return Summary(str(data.get("telemetry_log", "")), dict(data["workers"]), dict(data["jobs"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a telemetry summary: {error}.") from None
