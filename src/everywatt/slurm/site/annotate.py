"""Energy of jobs in Slurm's own accounting: the field AdminComment, which `sacct` and `sacctmgr` show.

Only on request, only of jobs that have ended, and never over what another tool wrote there: the field is read first. A
user's own comment (`sbatch --comment`) is another field and is not touched.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everywatt.core.errors import EverywattError
from everywatt.footprint.carbon import J_PER_KWH
from everywatt.ledger.engine import UJ
from everywatt.slurm.site.sacct import accounting
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.totals import Wanted, jobs, shown_id

MARK: Final = "everywatt: "
COLUMNS: Final = ("JobIDRaw", "Cluster", "AdminComment")
ANSWER_S: Final = 30.0


@dataclass(slots=True)
class Annotated:
    """What a run of `annotate` did."""

    written: int = 0
    same: int = 0
    foreign: list[str] = field(default_factory=list)  # jobs whose comment is another tool's
    unknown: list[str] = field(default_factory=list)  # jobs that sacct does not know
    failed: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: getattr(self, name) for name in ("written", "same", "foreign", "unknown", "failed")}


def comment_of(row: Mapping[str, Any]) -> str | None:
    """What is written of a job; None where it has no figure or is not whole.

    In ASCII, without quotes, in kWh and in small letters, because sacctmgr turns letters into small ones: MWh and mWh
    would become the same.
    """
    if row["energy_uj"] is None or row["low_uj"] is None or row["high_uj"] is None or not row["complete"]:
        return None
    used, low, high = (_kwh(row[name]) for name in ("energy_uj", "low_uj", "high_uj"))
    text = f"{MARK}{used} kwh (95% {low} to {high})"
    return text if row["idle_uj"] is None else f"{text}, idle share {_kwh(row['idle_uj'])} kwh"


def _kwh(microjoules: int) -> str:
    return f"{microjoules / UJ / J_PER_KWH:.4g}"


def annotate(
    store: Store, since_s: float, until_s: float, *, dry: bool = False, longest_s: float = 3600.0
) -> Annotated:
    """Write the energy of jobs that ended in [since, until) to Slurm. EverywattError where sacct does not answer.

    A requeued job has one comment: that of its last run.
    """
    found = Annotated()
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for row in jobs(store, Wanted(since_s, until_s), "id"):
        latest[row["cluster"], row["job_id"]] = row
    wanted = {key: (row, text) for key, row in latest.items() if (text := comment_of(row)) is not None}
    if not wanted:
        return found
    first_s = min(row["start_s"] for row, _ in wanted.values())
    there = existing(accounting(COLUMNS, first_s, until_s, "--allocations", "--noheader"))
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
