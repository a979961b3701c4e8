"""What scontrol says of a job and a hook cannot: array, name, times, memory. Hooks themselves never ask it.

Who a job belongs to and what it was given is taken from the hooks alone: there Slurm gives it to root, and in
scontrol's text a user could imitate it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from everywatt.slurm.lists import duration_s, expand, number, size_bytes
from everywatt.slurm.schema import ID_PARTS

TIMEOUT_S: Final = 5.0
# Facts of a job that are taken from scontrol, beside its state and restarts.
TAKEN: Final = frozenset({*ID_PARTS, "name", "submit_s", "suspended_s", "memory_bytes", "stdout"})
_FIELD = re.compile(r"(?:^|\s)(\w[\w:/]*)=(.*?)(?=\s+\w[\w:/]*=|\s*$)")
_OWN = re.compile(r" UserId=\S+\(\d+\) GroupId=\S+\(\d+\) MCS_label=")


def show_jobs(job_ids: Sequence[int], node: str = "", conf: str = "") -> dict[int, dict[str, Any]]:
    """Facts of jobs for `NodeJob.update`, by id, from one call; those that scontrol does not know are absent.

    `scontrol show job` takes one id, or lists every job of the site. Several are asked for in its interactive mode,
    which all versions have: one process, and a small question to the controller for each.
    """
    if len(job_ids) == 1:
        _, said = _ask(["show", "job", "-d", "-o", str(job_ids[0])], conf)
    else:
        code, said = _ask(["-d", "-o"], conf, "".join(f"show job {job_id}\n" for job_id in job_ids))
        if code:
            return {}  # a user's line may stand for a job that Slurm has forgotten
    lines: dict[int, dict[str, None]] = {}
    for line in said.split("\n"):
        found = re.match(r"(?:scontrol: )?(JobId=(\d{1,18}) .*)", line)
        if found is not None:
            lines.setdefault(int(found[2]), {})[found[1]] = None
    answered = {job_id: lines[job_id] for job_id in job_ids if job_id in lines}
    # A name may have lines that look like another job's. Of one job alone the first line is Slurm's own.
    if len(job_ids) == 1:
        # Of an array's own id all tasks are listed. Any other second line is of the job's own name.
        rows = [line for line in said.split("\n") if line.strip()]
        clean = len(rows) == 1 or all(re.match(r"JobId=\d+ ArrayJobId=", row) for row in rows)
        return {
            job_id: (clean and parse_job(next(iter(of)), node)) or _plain_facts(job_id, conf)
            for job_id, of in answered.items()
        }
    if not all(re.fullmatch(r"(?:scontrol:)?\s*(?:(?:show job|JobId=)\s?\d.*)?", line) for line in said.split("\n")):
        return {}  # a line of a name: each of these jobs is asked for alone
    parsed = {job_id: parse_job(next(iter(of)), node) for job_id, of in answered.items() if len(of) == 1}
    return {job_id: facts for job_id, facts in parsed.items() if facts}


def _plain_facts(job_id: int, conf: str) -> dict[str, Any]:
    """What squeue says of a job whose own text imitates scontrol's: only what no user can write."""
    said = _ask(["-h", "-t", "all", "-j", str(job_id), "-o", "%A %F %K %V %T"], conf, program="squeue")[1]
    for line in said.split("\n"):
        match = re.fullmatch(rf"{job_id} (\d+) (\S+) (\d+) (\w+)", line)
        if match is not None:
            array = {"array_job_id": int(match[1]), "array_task_id": int(match[2])} if match[2].isdecimal() else {}
            return {**array, "submit_s": int(match[3]), "state": match[4]}
    return {}


def list_pids(job_id: int, node: str = "", conf: str = "") -> dict[int, tuple[int, str]]:
    """Job and step of each process of a job that slurmd knows on this node, by pid; {} where it cannot be asked."""
    return parse_pids(_ask(["listpids", str(job_id), *([node] if node else [])], conf)[1])


def parse_pids(text: str) -> dict[int, tuple[int, str]]:
    """What `scontrol listpids` prints: columns PID, JOBID, STEPID, LOCALID, GLOBALID."""
    found = {}
    for line in text.split("\n"):
        match = re.fullmatch(r"(\d+)\s+(\d+)\s+(\w+)\s+\S+\s+\S+\s*", line.strip())
        if match is not None:
            found[int(match[1])] = (int(match[2]), match[3])
    return found


def _ask(words: list[str], conf: str, lines: str = "", program: str = "scontrol") -> tuple[int, str]:
    """How scontrol or squeue ended and what it printed; 1 and nothing where it is missing or slow."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C", "TERM": "dumb"}
    try:
        done = subprocess.run(
            [program, *words],
            input=lines.encode(),
            capture_output=True,  # as bytes: a carriage return in a job's name is not the end of a line
            timeout=TIMEOUT_S,
            env={**environment, **({"SLURM_CONF": conf} if conf else {})},
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")


def parse_job(line: str, node: str = "") -> dict[str, Any]:
    """One line of `scontrol show job -d -o`; `node` chooses the allocation of that node. {} where it is ambiguous.

    Users choose the name, which comes first, and everything from the command on. What is Slurm's own lies between and
    starts with `_OWN`: where that is there twice, a name or a path imitates it, and nothing is taken.
    """
    parts = _OWN.split(line)
    if len(parts) != 2:
        return {}
    ids, _, name = parts[0].partition(" JobName=")
    own = parts[1].partition(" Command=")[0]
    fields = dict(
        reversed(_FIELD.findall(f"{ids} MCS_label={own}"))
    )  # of a field that is there twice the first is Slurm's
    facts: dict[str, Any] = {
        "array_job_id": number(fields.get("ArrayJobId")),
        "array_task_id": number(fields.get("ArrayTaskId")),
        "het_job_id": number(fields.get("HetJobId")),
        "het_offset": number(fields.get("HetJobOffset")),
        "restart": number(fields.get("Restarts")),
        "name": _text(name),
        "submit_s": number(fields.get("SubmitTime")),
        "state": _text(fields.get("JobState")),
        "suspended_s": _suspended_s(fields),
        "memory_bytes": _memory_bytes(own, node),
        "stdout": _stdout(line) if fields.get("BatchHost", "").partition(".")[0] == node.partition(".")[0] else None,
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _stdout(line: str) -> str | None:
    """Where a job's script writes to. Users choose it, so whatever is done with it is done with their rights."""
    found = re.findall(r"\sStdOut=(/.*?)(?=\s+[A-Z]\w*=|\s*$)", line)
    return found[-1] if found and "%" not in found[-1] and len(found[-1]) < 4096 else None


def _suspended_s(fields: Mapping[str, str]) -> float | None:
    """How long a job was suspended: its run time is without that."""
    start, end = number(fields.get("StartTime")), number(fields.get("EndTime"))
    ran_s = duration_s(fields.get("RunTime", ""))
    if start is None or end is None or ran_s is None or fields.get("SuspendTime", "None") in ("None", "Unknown"):
        return None
    return max(end - start - ran_s, 0.0)


def _memory_bytes(own: str, node: str) -> int | None:
    """The memory on this node, as `-d` prints it: `Nodes=n[1-2] CPU_IDs=0-3 Mem=2048 GRES=gpu:2(IDX:0-1)`."""
    for nodes, size in re.findall(r"\sNodes=(\S+) CPU_IDs=\S* Mem=(\d{1,17}[KMGT]?)\s", own):
        if not node or node in expand(nodes):
            return size_bytes(size, 1 << 20) or None
    return None


def _text(text: str | None) -> str | None:
    return None if text in (None, "", "(null)", "N/A", "Unknown") else text
