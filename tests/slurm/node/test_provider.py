"""Slurm's jobs for the agent: by cgroup, by the slurmstepd above, with what hooks said of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from everywatt.fleet import jobs
from everywatt.fleet.jobs import Job, Places
from everywatt.ledger.counters import OwnerKey
from everywatt.ledger.use.facts import ProcessFacts
from everywatt.slurm.node.hooks import make_spool
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.node.provider import SlurmJobs
from everywatt.slurm.node.spool import AGENT, holder

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root's slurmstepd is believed")

SLUID = "sEKNKTV3WPV500"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    make_spool(tmp_path / "spool")
    return tmp_path / "spool"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """slurmd 10, a step of job 7 (11) with a shell (12) and a program (13); somebody's program of that name (20)."""
    folder = tmp_path / "proc"
    for pid, parent, name, line in (
        (10, 1, "slurmd", "slurmd -D"),
        (11, 10, "slurmstepd", "slurmstepd: [7.batch]"),
        (12, 11, "sh", "/bin/sh job"),
        (13, 12, "a ) b", "python x.py"),
        (20, 1, "slurmstepd", "slurmstepd: [8.0]"),
        (21, 1, "sleep", "slurmstepd: [9.0]"),
    ):
        add(folder, pid, parent, name, line)
    os.chown(folder / "20", 54321, 54321)
    return folder


def add(proc: Path, pid: int, parent: int, name: str, line: str, start: int = 500) -> None:
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    rest = ["S", str(parent), *["0"] * 17, str(start), *["0"] * 30]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(rest)}")
    (proc / str(pid) / "cmdline").write_bytes(line.replace(" -", "\0-").encode() + b"\0")


def event(spool: Path, job: int, **values: object) -> None:
    lines = {"event": "start", "job_id": job, **values, "whole": "yes"}
    path = spool / "events" / f"start-{job}.event"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))


def test_by_the_step_above_a_process(spool: Path, proc: Path) -> None:
    event(spool, 7, user="ada", uid=1000, account="phys", partition="gpu")
    known = SlurmJobs(spool, proc)
    ada = Job("7", "ada", "phys", "gpu")
    assert [known.job_of("/", pid, 1000) for pid in (10, 11, 12, 13)] == [None, ada, ada, ada]
    assert known.job_of(None, 20, 54321) is None, "anybody may take that name"
    assert known.job_of(None, 21, 0) is None, "a title is not a name"
    for name in ("stat", "cmdline"):
        (proc / "13" / name).unlink()
    assert known.job_of("/", 13, 1000) == ada, "it has ended, and is remembered"
    add(proc, 13, 1, "cron", "cron", start=900)
    assert known.job_of("/", 13, 0) is None, "the number is another's now"


@pytest.mark.parametrize(
    "cgroup",
    [
        "/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0",
        "/system.slice/node1_slurmstepd.scope/job_7/step_0/user/task_0",
        "/slurm/uid_1000/job_7/step_0/task_0",
        f"/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0",
    ],
)
def test_by_the_cgroup(spool: Path, proc: Path, cgroup: str) -> None:
    event(spool, 7, user="ada", account="phys", partition="gpu", sluid=SLUID)
    assert SlurmJobs(spool, proc).job_of(cgroup, 99, 1000) == Job("7", "ada", "phys", "gpu")


def test_what_slurm_node_has_taken_is_known_too(spool: Path, proc: Path) -> None:
    known = SlurmJobs(spool, proc)
    assert known.job_of(None, 12, 0) == Job("7", "root")
    assert not known.refresh(1)
    (spool / "node.json").write_text(json.dumps({"jobs": [NodeJob(7, 0, 1.0, user="ada").to_dict()]}))
    assert known.refresh(2)
    assert known.job_of(None, 12, 0) == Job("7", "ada")
    (spool / "node.json").write_text("{")
    known.refresh(3)
    assert known.job_of(None, 12, 0) == Job("7", "ada"), "what was known stays"


def test_hooks_know_of_it(spool: Path, proc: Path) -> None:
    known = SlurmJobs(spool, proc)
    assert holder(spool, AGENT) == os.getpid()
    known.close()
    assert holder(spool, AGENT) is None
    assert SlurmJobs(spool / "not" / "there", proc).job_of(None, 12, 0) is not None


def test_the_agent_asks_for_each_process(spool: Path, proc: Path) -> None:
    places = Places([SlurmJobs(spool, proc)])

    def owner(pid: int, parent: int) -> OwnerKey:
        return places.owner(ProcessFacts(pid, 500, "x", parent, uid=0, cgroup="/"))

    assert owner(10, 1) == OwnerKey("user", "root")
    assert owner(12, 11) == OwnerKey("job", "7")
    assert owner(77, 12) == OwnerKey("job", "7"), "it came and went: its parent tells"
    assert places.jobs["7"].id == "7"


def test_it_is_light() -> None:
    code = "import sys; import everywatt.slurm.node.provider; print({'numpy', 'click', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_it_has_a_name(monkeypatch: pytest.MonkeyPatch, spool: Path) -> None:
    monkeypatch.setenv("EVERYWATT_SLURM_SPOOL", str(spool))
    (made,) = jobs.make(["slurm"])
    assert isinstance(made, SlurmJobs)
    assert holder(spool, AGENT) == os.getpid()
    made.close()
