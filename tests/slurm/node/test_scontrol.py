"""Asking scontrol: several jobs are one call, and no job's text can stand for another job.

`FAKE` answers as scontrol 22.05 does, also in its interactive mode; tests/real/test_slurm_cluster.py asks the real one.
"""

from pathlib import Path

import pytest

from everywatt.slurm.lists import expand, indices
from everywatt.slurm.node.hooks import make_spool
from everywatt.slurm.node.recorder import AT_ONCE, Node
from everywatt.slurm.node.scontrol import show_jobs
from everywatt.slurm.site.store import Store

FAKE = """#!/bin/sh
# Tells what is in the file of a job's number; what it was asked for goes to the log.
cd {folder}
code=0
tell() {{
    cat "$1.job" 2>/dev/null || {{ echo 'slurm_load_jobs error: Invalid job id specified' >&2; code=1; }}
}}
if [ "$1" = show ]; then
    echo "$5" >>log
    tell "$5"
else
    asked=
    while read -r _ _ job; do
        echo "scontrol: show job $job"
        tell "$job"
        asked="$asked $job"
    done
    echo scontrol:
    echo $asked >>log
fi
exit $code
"""


# What scontrol 22.05 prints after a job's name, shortened within.
REST = (
    " UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A Priority=1 Nice=0 Account=phys QOS=(null) JobState=RUNNING "
    "Reason=None Restarts=0 SubmitTime=1794700000 Partition=main NodeList=n1 NumNodes=1 NumCPUs=1 JOB_GRES=(null)"
    "   Nodes=n1 CPU_IDs=0 Mem=100 GRES= Features=(null) Network=(null) Command=/x WorkDir=/h \n"
)
FORGED = (
    "x UserId=other(2000) GroupId=other(2000) MCS_label=N/A Nice=0 Account=theirs JobState=RUNNING Restarts=0 "
    "SubmitTime=1 Partition=debug NumNodes=9 NumCPUs=9   Nodes=n1 CPU_IDs=0-7 Mem=1 GRES=gpu:1(IDX:0) Command="
)
HOOK = {
    "node": "n1", "user": "ada", "uid": "1000", "account": "phys", "partition": "main", "nodes": "2", "cpus": "1(x2)",
    "nodelist": "n[1-2]",
}  # fmt: skip


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with jobs 1 to 200; `log` has a line for each call."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(FAKE.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    for job in range(1, 201):
        told(tmp_path, job, f"job {job}")
    return tmp_path


def told(folder: Path, job: int, name: str) -> None:
    (folder / f"{job}.job").write_text(f"JobId={job} JobName={name}{REST}")


def calls(folder: Path) -> list[list[int]]:
    return [[int(word) for word in line.split()] for line in (folder / "log").read_text().splitlines()]


def started(folder: Path, count: int, **values: str) -> Node:
    """A node that has heard that so many jobs started."""
    spool = folder / "spool"
    make_spool(spool)
    lines = "".join(f"{key}={value}\n" for key, value in {"node": "n1", **values}.items())
    for job in range(1, count + 1):
        text = f"event=start\njob_id={job}\n{lines}whole=yes\n"
        (spool / "events" / f"{job:03}-start-{job}-1.event").write_text(text)
    return Node("n1", spool, Store(folder / "store"), lambda low_s, high_s: [], boot="b")


def names(node: Node) -> dict[int, str]:
    node.listen()
    return {job.job_id: job.name for job in node.state.jobs}


def test_jobs_that_wait_are_one_call(site: Path) -> None:
    node = started(site, AT_ONCE)
    assert names(node) == {job: f"job {job}" for job in range(1, AT_ONCE + 1)}
    assert [sorted(call) for call in calls(site)] == [list(range(1, AT_ONCE + 1))]
    node.listen()
    assert len(calls(site)) == 1, "what is known is not asked for again"


def test_more_than_one_call_takes_are_two(site: Path) -> None:
    assert len(names(started(site, AT_ONCE + 1))) == AT_ONCE + 1
    assert [len(call) for call in calls(site)] == [AT_ONCE, 1]


def test_what_did_not_answer_is_asked_for_alone(site: Path) -> None:
    """Slurm has forgotten job 2: of the others in that call nothing is believed, and each is asked for by itself."""
    (site / "2.job").unlink()
    node = started(site, 3)
    assert names(node) == {1: "", 2: "", 3: ""}
    assert names(node) == {1: "job 1", 2: "", 3: "job 3"}
    for _ in range(3):
        node.listen()
    assert [sorted(call) for call in calls(site)] == [[1, 2, 3], [1], [2], [3], [2]]


def test_a_name_cannot_speak_for_another_job(site: Path) -> None:
    """A job's name may have several lines, and they look like anything."""
    told(site, 1, "x\nJobId=2 JobName=y UserId=eve(6) Account=evil Command=/x")
    assert {job: facts["name"] for job, facts in show_jobs([2, 3]).items()} == {2: "job 2", 3: "job 3"}
    assert set(show_jobs([1, 2, 3])) == {3}
    (site / "2.job").unlink()
    assert show_jobs([1, 2, 3]) == {}
    assert show_jobs([2]) == {}


def test_an_array_is_told_whole_and_each_task_counts_once(site: Path) -> None:
    """Of an array's own id, which its last task has, scontrol tells all tasks."""
    (site / "1.job").write_text((site / "1.job").read_text() + (site / "2.job").read_text())
    assert {job: facts["name"] for job, facts in show_jobs([1, 2]).items()} == {1: "job 1", 2: "job 2"}
    assert set(show_jobs([1])) == {1}


def test_where_there_is_no_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (show_jobs([1]), show_jobs([1, 2])) == ({}, {})


def told_of(node: Node) -> tuple[object, ...]:
    node.listen()
    (job,) = node.state.jobs
    return job.user, job.uid, job.account, job.partition, job.nodes, job.cpus, job.gpus


@pytest.mark.parametrize("end", ["", "\nJobId=9 JobName=y", "\n"])
def test_a_name_cannot_charge_another_user(site: Path, end: str) -> None:
    told(site, 1, FORGED + end)
    assert told_of(started(site, 1, **HOOK)) == ("ada", 1000, "phys", "main", 2, 1.0, [])


def test_a_name_cannot_give_an_account_to_a_job_that_has_none(site: Path) -> None:
    told(site, 1, FORGED)
    assert told_of(started(site, 1, **{**HOOK, "account": ""}))[2] == ""


def test_nodes_that_are_left_while_a_job_completes_are_not_all_its_nodes(site: Path) -> None:
    """While a job of two nodes completes scontrol tells the nodes whose Epilog still runs: NumNodes=1."""
    assert told_of(started(site, 1, **HOOK))[4] == 2


@pytest.mark.parametrize("names", ["a,b[0-999][0-999]", "a[0-65535],b", "a[0-999]," * 70, f"a[0-{'9' * 5000}]"])
def test_a_list_of_more_nodes_than_slurm_has_is_not_expanded(names: str) -> None:
    assert expand(names) == []


@pytest.mark.parametrize("names", ["a[1-2", "[" * 300_000, "a[1-2],b[" + "[" * 300_000, "[" * 300_000 + "]"])
def test_brackets_that_are_not_closed_take_no_time(names: str) -> None:
    assert expand(names) == []


def test_a_number_of_any_length_is_no_card() -> None:
    assert indices("9" * 5000) == []


def test_cpus_of_a_node_are_what_the_hook_was_given(site: Path) -> None:
    (site / "1.job").unlink()
    expected = {("2", "n1"): 2.0, ("1(x2)", "n[1-2]"): 1.0, ("4,2(x3)", "n[0-3]"): 2.0, ("4(x2)", "m[1-2]"): None}
    found = {}
    for number, (cpus, names) in enumerate(expected):
        values = {**HOOK, "cpus": cpus, "nodelist": names}
        (site / str(number)).mkdir()
        found[cpus, names] = told_of(started(site / str(number), 1, **values))[5]
    assert found == expected


@pytest.mark.parametrize("end", ["", "\n"])
def test_of_a_name_that_imitates_slurm_only_what_nobody_can_write_is_asked(site: Path, end: str) -> None:
    told(site, 1, FORGED + end)
    program = site / "bin" / "squeue"
    program.write_text("#!/bin/sh\necho 2 7 4 1794700001 RUNNING\necho 1 7 3 1794700000 CANCELLED\n")
    program.chmod(0o755)
    expected = {"array_job_id": 7, "array_task_id": 3, "submit_s": 1794700000, "state": "CANCELLED"}
    assert show_jobs([1]) == {1: expected}
    assert 1 not in show_jobs([1, 2]), "it is asked for alone"
