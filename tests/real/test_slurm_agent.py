"""The agent on a Slurm node whose jobs have cgroups: it labels jobs, and `slurm node` books its tape."""

import json
import os
import re
import time
import urllib.request

import pytest
from slurm_site import FREEZER, PER_CPU_S, SlurmSite, cgroups_are_ours, remove_cgroups
from waiting import until

from everywatt.slurm.node.spool import AGENT, NODE


@pytest.fixture(scope="module")
def site(tmp_path_factory, with_slurm):
    """One node with an agent, and `slurm node` beside it."""
    tracked = ["ProctrackType=proctrack/cgroup"] if cgroups_are_ours(FREEZER) else []
    try:
        with SlurmSite(tmp_path_factory.mktemp("site"), nodes=1, agent=True, extra=tracked) as made:
            yield made
    finally:
        remove_cgroups(FREEZER / "slurm_node1")


@pytest.fixture(scope="module")
def ran(site):
    """Two jobs beside one another: a plain one, and one whose program has left its parents."""
    agent = site.folder / "node1.agent"
    site.until(lambda: "/metrics" in agent.read_text(), "the agent says where it listens")
    told = site.sbatch(f"exec {site.burn('told', 0.6, 7)}", options=["--account=phys", "--uid=0", "--job-name=told"])
    apart = site.sbatch(
        "cat /proc/self/cgroup",
        f"(setsid -f {site.burn('apart', 0.5, 5)} >/dev/null 2>&1)",
        f"while ! [ -e {site.folder}/apart ]; do sleep 0.3; done",
    )
    site.cluster.wait_for(told)
    return told, apart


def metrics(site):
    """What the agent tells."""
    found = re.search(r"http://\S+/metrics", (site.folder / "node1.agent").read_text())
    assert found, (site.folder / "node1.agent").read_text()
    with urllib.request.urlopen(found[0], timeout=240) as answer:
        return answer.read().decode()


def test_jobs_are_owners_of_the_agent_and_records_of_its_tape(site, ran):
    assert len({site.recorder("node1", AGENT), site.recorder("node1", NODE), None}) == 3
    job, _ = ran
    # Who the job is comes from Slurm, which a busy machine answers later than its first joules are charged.
    signs = (f'owner="{job}"', f'everywatt_job_info{{job="{job}"')
    text = until(lambda: _with(signs, metrics(site)), f"job {job} as an owner")
    (info,) = [line for line in text.splitlines() if line.startswith(signs[1])]
    assert 'user="root"' in info and 'partition="main"' in info
    site.cluster.wait(job)
    (record,) = site.records(job)
    true_j = site.true_j("told")
    assert record.low_uj <= true_j * 1e6 <= record.high_uj
    assert record.account == "phys"
    wanted = re.compile(rf'everywatt_owner_energy_joules_total{{[^}}]*owner="{job}"[^}}]*}} (\S+)')
    site.until(lambda: _sum(wanted, metrics(site)) > 0.8 * true_j, "the agent's figure for the job")
    assert _sum(wanted, metrics(site)) == pytest.approx(true_j, rel=0.25, abs=2.0)
    assert site.spool("node1") == []


def test_a_process_that_left_its_parents_is_still_its_jobs(site, ran):
    """It has a session and a parent of its own; nothing but the cgroup tells whose it is."""
    if not cgroups_are_ours(FREEZER):
        pytest.skip(f"{FREEZER} is not here, or not ours to write")
    _, job = ran
    assert site.cluster.wait(job)[str(job)] == "COMPLETED"
    assert f"/slurm_node1/uid_{os.getuid()}/job_{job}/" in (site.cluster.folder / f"out-{job}").read_text()
    (record,) = site.records(job)
    used_s = float(json.loads((site.folder / "apart").read_text()))
    # The shell that waits, its `sleep`s and the step's daemon are the job's too.
    assert used_s * 0.97 - 0.05 <= record.cpu_s <= used_s * 1.2 + 2
    assert record.low_uj <= site.true_j("apart") * 1e6 <= record.high_uj


def _with(signs, text):
    """The text, if it has all signs."""
    return text if all(sign in text for sign in signs) else ""


def _sum(wanted, text):
    return sum(float(value) for value in wanted.findall(text))


@pytest.mark.long
def test_a_minute_of_mixed_load_is_within_two_percent(site):
    """Jobs beside one another and after one another, then some whose children come and go, for more than a minute."""
    time.sleep(20)  # idle power is found on an idle machine
    # The job is its program, the shell above that and the step's daemon above them.
    leave = f"cat /proc/$PPID/stat /proc/$$/stat >{site.folder}/above-$SLURM_ARRAY_TASK_ID"
    steady = site.sbatch(
        "d=0.$((SLURM_ARRAY_TASK_ID + 1))", site.burn("mixed-$SLURM_ARRAY_TASK_ID", "$d", 30), leave,
        options=["--array=1-4"],
    )  # fmt: skip
    child = [f"{site.burn('child-$SLURM_ARRAY_TASK_ID-$i', 0.9, 0.4)} &", "wait $!", "sleep 0.2"]
    churn = site.sbatch("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do", *child, "done", options=["--array=1-2"])
    site.cluster.wait(churn, 240)
    for record in site.records(steady, 4, 60):
        stats = (site.folder / f"above-{record.array_task_id}").read_text().splitlines()
        above = [sum(map(int, line.rpartition(") ")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK") for line in stats]
        true_j = site.true_j(f"mixed-{record.array_task_id}") + PER_CPU_S * sum(above)
        print(f"task {record.array_task_id}: {record.energy_uj / 1e6 / true_j - 1:+.2%}")
        assert record.energy_uj / 1e6 == pytest.approx(true_j, rel=0.02)
        assert record.low_uj <= true_j * 1e6 <= record.high_uj
    for record in site.records(churn, 2, 60):
        true_j = sum(site.true_j(f"child-{record.array_task_id}-{i}") for i in range(1, 13))
        # What Python takes to end, and the shell to start it, is not in what the children say.
        print(f"task {record.array_task_id} with children: {record.energy_uj / 1e6 / true_j - 1:+.2%}")
        assert record.low_uj <= true_j * 1e6 <= record.high_uj
