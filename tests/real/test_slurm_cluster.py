"""The Slurm test cluster itself: what other tests stand on."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hung import can_mount_fuse, hung_mount
from slurm_cluster import Options, SlurmCluster

from everywatt.slurm.node.hooks import Site, hook, make_spool
from everywatt.slurm.node.scontrol import show_jobs

SUPPORT = Path(__file__).resolve().parents[1] / "support"


def output(slurm, name) -> str:
    return (slurm.folder / f"out-{name}").read_text()


def test_a_job_sees_its_pretend_gpu(slurm):
    job = slurm.sbatch("#!/bin/sh\necho on $SLURMD_NODENAME with $CUDA_VISIBLE_DEVICES\n", "--gres=gpu:1")
    assert slurm.wait(job) == {str(job): "COMPLETED"}
    assert output(slurm, job) in {f"on {node} with {gpu}\n" for node in slurm.nodes for gpu in (0, 1)}


def test_an_array_with_a_failed_task_and_what_sacct_says(slurm):
    job = slurm.sbatch("#!/bin/sh\n[ $SLURM_ARRAY_TASK_ID -ne 2 ] || exit 7\n", "--array=0-3", "--job-name=four")
    states = slurm.wait(job)
    assert states == {f"{job}_{n}": "FAILED" if n == 2 else "COMPLETED" for n in range(4)}
    rows = {row["JobID"]: row for row in slurm.sacct(job, columns="JobID,JobName,State,ExitCode,AllocCPUS")}
    assert len(rows) == 8  # each task, and its batch step
    assert (rows[f"{job}_2"]["State"], rows[f"{job}_2"]["ExitCode"]) == ("FAILED", "7:0")
    assert (rows[f"{job}_0"]["JobName"], rows[f"{job}_0.batch"]["State"]) == ("four", "COMPLETED")
    # Several jobs in one call, also with the array's own id, of which Slurm tells all tasks; one that is not there.
    ids = sorted(int(one["JobId"]) for one in slurm.jobs(job))
    told = show_jobs(ids, conf=str(slurm.conf))
    assert (sorted(told), job in told) == (ids, True)
    assert sorted((facts["array_task_id"], facts["state"]) for facts in told.values()) == [
        (task, "FAILED" if task == 2 else "COMPLETED") for task in range(4)
    ]
    assert show_jobs([*ids, 987_654_321], conf=str(slurm.conf)) == {}
    assert show_jobs([job], conf=str(slurm.conf)) == {job: told[job]}


def test_a_requeued_job_is_told_and_runs_again(slurm):
    script = (
        "#!/bin/sh\ntrap 'echo told; exit 1' TERM\necho run ${SLURM_RESTART_COUNT:-0}\n"
        '[ -n "$SLURM_RESTART_COUNT" ] || { sleep 60 & wait; }\n'
    )
    job = slurm.sbatch(script, "--open-mode=append")
    slurm.until(lambda: (slurm.folder / f"out-{job}").exists() and "run 0" in output(slurm, job), "it runs")
    time.sleep(3)  # what has hardly been launched is killed without SIGTERM; on a busy machine launching takes seconds
    slurm.requeue(job)
    slurm.until(lambda: "run 1" in output(slurm, job), "it runs again")
    assert slurm.wait(job) == {str(job): "COMPLETED"}
    lines = [line for line in output(slurm, job).splitlines() if not line.startswith("slurmstepd")]
    assert lines == ["run 0", "told", "run 1"]


def test_a_cancelled_job(slurm):
    job = slurm.sbatch("#!/bin/sh\nsleep 60\n")
    slurm.wait_for(job)
    slurm.cancel(job)
    assert slurm.wait(job) == {str(job): "CANCELLED"}
    (row,) = (row for row in slurm.sacct(job, columns="JobID,State") if row["JobID"] == str(job))
    assert row["State"].startswith("CANCELLED by")


def test_a_node_that_loses_power_and_comes_back(slurm):
    job = slurm.sbatch("#!/bin/sh\nexec sleep 300.25\n", "--nodelist=node2", "--no-requeue")
    slurm.wait_for(job)
    slurm.kill_node("node2", told=True)
    slurm.until(lambda: slurm.node_state("node2").startswith("DOWN"), "the node is missed")
    assert slurm.wait(job) == {str(job): "NODE_FAIL"}
    slurm.restart_node("node2")
    again = slurm.sbatch("#!/bin/sh\necho well\n", "--nodelist=node2")
    assert slurm.wait(again) == {str(again): "COMPLETED"} and output(slurm, again) == "well\n"


def test_by_hand_and_nothing_is_left(slurm, tmp_path_factory):
    """`slurm` is asked for so that this is skipped where that is."""
    folder = tmp_path_factory.mktemp("own")
    words = [sys.executable, str(SUPPORT / "slurm_cluster.py"), str(folder), "--nodes", "1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline().strip()
        assert line == f"export SLURM_CONF={folder}/slurm.conf"
        env = {**os.environ, "SLURM_CONF": line.partition("=")[2]}
        subprocess.run(["sbatch", "--output=/dev/null", "--wrap=sleep 300.75"], env=env, check=True, timeout=240)
        sleeping = lambda: subprocess.run(["squeue", "-h", "-t", "R"], env=env, capture_output=True).stdout  # noqa: E731
        slurm.until(lambda: sleeping() != b"", "the job runs")
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert [pid for pid in ours(str(folder)) if pid != os.getpid()] == []


@pytest.mark.skipif(not can_mount_fuse(), reason="FUSE cannot be mounted here")
def test_a_prolog_whose_program_is_on_a_hung_mount_lets_jobs_run(tmp_path, tmp_path_factory, with_slurm):
    """The program is in a virtual environment on a filesystem that has stopped answering: jobs start all the same."""
    site = Site(tmp_path / "spool", tmp_path, tmp_path / "store", tmp_path / "hung/venv/bin/everywatt")
    make_spool(site.spool)
    prolog = tmp_path / "prolog.sh"
    prolog.write_text(hook("start", site))
    prolog.chmod(0o755)
    with (
        SlurmCluster(tmp_path_factory.mktemp("own"), Options(nodes=1, prolog=prolog)) as cluster,
        hung_mount(tmp_path / "hung"),
    ):
        job = cluster.sbatch("#!/bin/sh\ntrue\n")
        cluster.until(
            lambda: cluster.states(job) == {str(job): "COMPLETED"}, "the job has run", 120
        )  # Slurm may requeue it once
        assert cluster.node_state("node1") in ("IDLE", "COMPLETING", "ALLOCATED", "MIXED")


def test_nodes_are_checked_from_anywhere(slurm, tmp_path):
    """Nothing is installed on these nodes, and each of them says so."""
    words = [sys.executable, "-m", "everywatt", "slurm", "check", "--json", "--nodes=node[1-2]"]
    words += [f"--{name}={tmp_path / name}" for name in ("folder", "spool", "store")]
    env = {**slurm.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*words, f"--slurm-conf={slurm.conf}"], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert list(nodes) == ["node1", "node2"]
    for checks in nodes.values():
        state = {check["name"]: check["verdict"] == "pass" for check in checks}
        assert state.pop("clock", None) is not None  # as this machine's is
        assert {name for name, ok in state.items() if ok} == {"program", "hook time", "GPUs", "recorder"}


def ours(folder: str) -> list[int]:
    """Processes that have this folder among their words or in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and folder.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
