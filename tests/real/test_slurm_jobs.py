"""Jobs of a real Slurm on simulated machines: what is recorded of them is what they used, whatever happens to them."""

import getpass
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_site import CARD_W, IDLE_W, PER_CPU_S, SlurmSite

import everywatt

# What a job used is known to a few percent only where others do not hold up its cluster.
pytestmark = pytest.mark.serial

SRUN_S = 0.3
FORGED = (
    "x UserId=other(1000) GroupId=other(1000) MCS_label=N/A Account=theirs Partition=debug "
    "Nodes=a[0-99999][0-99999] CPU_IDs=0 Mem=1 Command="
)
ARRAY = "case $SLURM_ARRAY_TASK_ID in 1) d=0.5;; 2) d=0.3;; 3) d=0.6;; *) d=0.2;; esac"


@pytest.fixture(scope="module")
def site(tmp_path_factory, with_slurm):
    """Two nodes of two CPUs and two simulated cards each; `slurm node` records each of them."""
    with SlurmSite(tmp_path_factory.mktemp("site"), gpus=2, every_s=1) as made:
        yield made


def balanced(site, node):
    """Every hour adds up, and what jobs have is what their records say, to the microjoule."""
    site.settled(node)
    hours = site.hours(node)
    assert hours
    for hour in hours:
        assert hour.jobs_uj + hour.idle_uj + hour.system_uj == hour.total_uj
        assert min(hour.jobs_uj, hour.idle_uj, hour.system_uj) >= 0
    of_jobs = sum(row.energy_uj or 0 for row in site.everything() if row.node == node)
    assert sum(hour.jobs_uj for hour in hours) == of_jobs


def off_j(site, record, device="cpu.0"):
    """Idle power is found on a machine that others keep busy: what it is off by, all jobs together are off by."""
    return abs(site.idle_w(record.node, device) - IDLE_W) * (record.end_s - record.start_s)


def near(site, record, true_j, most=0.10, device="cpu.0", besides_s=0.0):
    """A job's share of a device is about the truth, and the truth is in its interval.

    `besides_s` is the CPU time, at most, of what the job runs besides its loads: srun and a daemon for each step.
    """
    found = {part.device: part for part in record.devices}[device]
    most_j = true_j + besides_s * PER_CPU_S
    slack_j = max(most * true_j, 1.0 + off_j(site, record, device))
    assert true_j - slack_j <= found.energy_uj / 1e6 <= most_j + slack_j
    assert found.low_uj <= most_j * 1e6 and true_j * 1e6 <= found.high_uj


def test_a_name_neither_charges_another_nor_stops_the_recorder(site, ran):
    (record,) = site.records(ran.cancelled)
    told = record.user, record.uid, record.account, record.partition, record.nodes, record.cpus
    assert told == (getpass.getuser(), os.getuid(), "own", "main", 1, 1.0)


@dataclass(frozen=True)
class Ran:
    """Jobs that ran beside and after one another, so that the cluster is waited for once."""

    array: int
    requeued: int
    cancelled: int
    suspended: int
    held_s: tuple[float, float]  # how long it was suspended: at least, and at most
    busy: int
    still: int
    parts: int
    steps: int


@pytest.fixture(scope="module")
def ran(site):
    cluster = site.cluster
    array = site.sbatch(
        ARRAY, f"exec {site.burn('array-$SLURM_ARRAY_TASK_ID', '$d', 4)}", options=["--array=1-4", "--account=phys"]
    )
    requeued = site.sbatch(
        f"exec {site.burn('run-$SLURM_RESTART_COUNT', 0.5, 4)}", options=["--requeue", "-w", "node1"]
    )
    cancelled = site.sbatch(
        f"exec {site.burn('cancelled', 0.3, 60)}", options=["-w", "node2", f"--job-name={FORGED}", "--account=own"]
    )
    suspended = site.sbatch(f"exec {site.burn('suspended', 0.8, 6)}", options=["-w", "node2"])
    for job in (requeued, cancelled, suspended):
        cluster.wait_for(job)
    time.sleep(2)  # of work of each of them
    # Two jobs with one card each on one node: one keeps it busy to a half, the other leaves it alone.
    cards = ["-w", "node1", "--gres=gpu:1"]
    busy = site.sbatch(site.on_gpu("on-card", 0.5, 0, 4), options=[*cards, "--job-name=busy"])
    still = site.sbatch("sleep 4", options=cards)
    before = time.monotonic()
    cluster.run("scontrol", "suspend", suspended)
    began = time.monotonic()
    cluster.cancel(cancelled)
    cluster.requeue(requeued)
    time.sleep(3)  # of standing still, which the ledger must not charge
    ended = time.monotonic()
    cluster.run("scontrol", "resume", suspended)
    held_s = (ended - began, time.monotonic() - before)
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(
            cluster.run, "salloc", "-n1", "srun", "-n1", *site.burn("inside", 0.5, 3).split(), timeout=240
        )
        parts = site.sbatch(
            "#SBATCH -n1 -w node1", "#SBATCH hetjob", "#SBATCH -n1 -w node2",
            f"srun --het-group=0,1 sh -c '{site.burn('part-$SLURMD_NODENAME', 0.5, 3)}'",
        )  # fmt: skip
        steps = site.sbatch(
            f"srun -n2 sh -c '{site.burn('wide-$SLURMD_NODENAME', 0.6, 3)}'",
            f"srun -N1 -n1 -w node1 {site.burn('narrow', 0.4, 3)}",
            options=["-N2", "-n2"],
        )  # fmt: skip
        inside.result()
    jobs = (array, requeued, cancelled, suspended, busy, still, parts, steps)
    states = {job: set(cluster.wait(job).values()) for job in jobs}
    assert states == {job: {"CANCELLED" if job == cancelled else "COMPLETED"} for job in jobs}
    return Ran(array, requeued, cancelled, suspended, held_s, busy, still, parts, steps)


def test_an_array_of_known_shares(site, ran):
    records = site.records(ran.array, 4)
    assert sorted(record.array_task_id for record in records) == [1, 2, 3, 4]
    assert {record.shown_id for record in records} == {f"{ran.array}_{task}" for task in (1, 2, 3, 4)}
    for record in records:
        near(site, record, site.true_j(f"array-{record.array_task_id}"))
        about = (record.user, record.account, record.partition, record.cluster, record.state, record.cpus)
        assert about == ("root", "phys", "main", "test", "COMPLETED", 1.0)
        assert record.coverage == pytest.approx(1.0, abs=0.01)
        assert record.complete
        assert record.idle_uj / 1e6 == pytest.approx((IDLE_W / 2) * (record.end_s - record.start_s), rel=0.1)
        (batch,) = record.steps
        assert (batch.step, batch.energy_uj) == ("batch", record.energy_uj)
        assert record.start_s - 1.5 <= batch.start_s < batch.end_s <= record.end_s + 1.5


def test_steps_of_a_job_on_two_nodes(site, ran):
    """A step of one task on each node, then one of a single task: the job is the sum of its nodes."""
    first, second = site.records(ran.steps, 2)
    assert (first.node, second.node, first.nodes, second.nodes) == ("node1", "node2", 2, 2)
    near(site, first, site.true_j("wide-node1") + site.true_j("narrow"), besides_s=SRUN_S)
    near(site, second, site.true_j("wide-node2"), besides_s=SRUN_S)
    by_step = {step.step: step.energy_uj / 1e6 for step in first.steps}
    for step, load in (("0", "wide-node1"), ("1", "narrow")):
        true_j = site.true_j(load)
        slack_j = max(0.15 * true_j, 1.5 + off_j(site, first))
        assert true_j - slack_j <= by_step[step] <= true_j + SRUN_S * PER_CPU_S + slack_j
    assert sum(step.energy_uj for step in first.steps) == sum(
        part.energy_uj for part in first.devices if part.device == "cpu.0"
    )
    for node in site.names:
        balanced(site, node)


def test_cards_by_uuid_and_use(site, ran):
    (used,), (unused,) = site.records(ran.busy), site.records(ran.still)
    assert used.gpus[0].startswith("GPU-") and unused.gpus[0].startswith("GPU-") and used.gpus != unused.gpus
    assert used.gpu_use[0].uuid == used.gpus[0]
    # How long it was busy is known to what it took to say so; the job had the card alone, so all of it is the job's.
    least_s, most_s = json.loads((site.folder / "on-card").read_text())
    length_s = used.end_s - used.start_s
    share = used.gpu_use[0].mean_utilisation
    # Utilisation is read, not counted: a machine that is held up reads late what has started or ended.
    assert 0.5 * (least_s - 1) / length_s <= share <= 0.5 * (most_s + 1) / length_s
    assert used.gpu_use[0].memory_peak_bytes >= 2**30
    active_w = (CARD_W[1] - CARD_W[0]) * 0.5
    (card,) = [part for part in used.devices if part.device == "gpu.0"]
    assert 0.98 * active_w * least_s - 1 <= card.energy_uj / 1e6 <= 1.02 * active_w * most_s + 1
    assert card.low_uj <= active_w * most_s * 1e6 and card.high_uj >= active_w * least_s * 1e6
    assert unused.gpu_use[0].mean_utilisation == pytest.approx(0.0, abs=0.01)
    assert unused.gpu_use[0].idle_uj / 1e6 == pytest.approx(20.0 * (unused.end_s - unused.start_s), rel=0.1)
    assert unused.waste_uj >= 0.9 * unused.gpu_use[0].idle_uj
    assert unused.gpu_utilisation == pytest.approx(0.0, abs=0.01)


def test_salloc_and_a_job_of_several_parts(site, ran):
    (record,) = [
        row for row in site.everything() if any(word in row.name for word in ("interactive", "salloc", "srun"))
    ]
    assert record.state == "COMPLETED"
    near(site, record, site.true_j("inside"), besides_s=SRUN_S)
    records = site.records(ran.parts, 2)
    # A controller that is busy may not have said in time that the first one has parts; the second one has its own id.
    shown = {record.shown_id for record in records}
    assert f"{ran.parts}+1" in shown and shown <= {f"{ran.parts}", f"{ran.parts}+0", f"{ran.parts}+1"}
    assert {record.het_job_id for record in records} <= {ran.parts, None}
    for record in records:
        near(site, record, site.true_j(f"part-{record.node}"), besides_s=SRUN_S)


def test_cancelled_requeued_and_suspended(site, ran):
    (record,) = site.records(ran.cancelled)
    assert (record.state, record.complete) == ("CANCELLED", True)
    assert record.energy_uj > 0
    (record,) = site.records(ran.suspended)
    near(site, record, site.true_j("suspended"), 0.15)
    least_s, most_s = (record.end_s - record.start_s - held_s for held_s in reversed(ran.held_s))
    # Suspended it holds nothing; Slurm tells how long that was in whole seconds.
    assert 0.9 * (least_s - 1) <= record.idle_uj / 1e6 / (IDLE_W / 2) <= 1.1 * (most_s + 1)
    first, second = site.records(ran.requeued, 2)
    assert (first.restart, second.restart, first.state, second.state) == (0, 1, "REQUEUED", "COMPLETED")
    if second.complete:
        near(site, second, site.true_j("run-1"), 0.5)
    else:  # rarely the Prolog's event of a run that was requeued is missing: then its record says so
        assert (second.coverage, second.start_s) == (0.0, second.end_s) and "start" in second.note
    assert first.end_s <= second.start_s


def test_the_tape_has_a_span_for_each_job(site, ran):
    (record,) = site.records(ran.busy)
    (folder,) = {path.parent for path in (site.folder / "home-node1").glob("*/*.tape")}
    run = everywatt.load(folder)
    (span,) = [span for span in run.spans if span.name == str(ran.busy)]
    facts = {key: span.attributes[key] for key in ("user", "partition", "job_name", "state", "cpus")}
    assert facts == {"user": "root", "partition": "main", "job_name": "busy", "state": "COMPLETED", "cpus": 1.0}
    of_cards_j = 2 * CARD_W[0] * (record.end_s - record.start_s)
    assert run.energy(span).joules > of_cards_j
    assert (span.end_ns - span.start_ns) / 1e9 == pytest.approx(record.end_s - record.start_s, abs=0.2)


def test_many_short_tasks(site):
    """Each has a record: a figure, or why there is none."""
    many_tasks(site, 12)


@pytest.mark.long
def test_a_thousand_short_tasks(site):
    cost_s = many_tasks(site, 1000, 1200)
    print(f"recording a task: {cost_s:.3f} s of CPU time")
    assert cost_s < 0.5


def many_tasks(site, count, timeout_s=240):
    """Gives the CPU seconds that booking and asking took for each task."""
    recorders = [site.recorder(node) for node in site.names]
    before_s = sum(map(cpu_s, recorders))
    job = site.sbatch("sleep 1", options=[f"--array=1-{count}"])
    site.cluster.wait(job, timeout_s)
    records = site.records(job, count, 120)
    assert sorted(record.array_task_id for record in records) == list(range(1, count + 1))
    assert all((record.energy_uj is None) == bool(record.refused) for record in records)
    assert sum(record.energy_uj is not None for record in records) > 0.9 * count
    for node in site.names:
        assert site.spool(node) == []
        balanced(site, node)
    return (sum(map(cpu_s, recorders)) - before_s) / count


def cpu_s(pid):
    """CPU seconds of a process and of the children that it has waited for."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def lost(site):
    """A job whose node goes down, when that was last heard of, and a job after it; beside what happens to node1."""

    def story():
        job = site.sbatch(f"exec {site.burn('lost', 0.4, 60)}", options=["-w", "node2", "--no-requeue"])
        site.cluster.wait_for(job)
        known_s = time.time() + 2
        site.until(lambda: site.state("node2")["seen_s"] > known_s, "the job is known for a while")
        seen_s = site.reboot("node2")
        (record,) = site.records(job)  # the recorder is at work again
        after = site.sbatch(f"exec {site.burn('after', 0.4, 4)}", options=["-w", "node2"])
        site.cluster.wait(after)
        return record, seen_s, site.records(after)[0]

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(story)


def test_hooks_harm_no_node(site, lost):
    """A recorder that hangs, and a spool that somebody removes: jobs run, and nodes are up."""
    hung = site.recorder("node1")
    os.kill(hung, signal.SIGSTOP)
    try:
        first = site.sbatch(f"exec {site.burn('while-hung', 0.5, 2)}", options=["-w", "node1"])
        assert site.cluster.wait(first)[str(first)] == "COMPLETED"
    finally:
        os.kill(hung, signal.SIGCONT)
    (record,) = site.records(first)
    near(site, record, site.true_j("while-hung"), 0.2)
    (site.folder / "node1").rename(site.folder / "removed")  # at once: the recorder may be writing to it
    lost = site.sbatch("sleep 1", options=["-w", "node1"])
    assert site.cluster.wait(lost)[str(lost)] == "COMPLETED"
    site.until(lambda: site.recorder("node1") == hung, "the recorder's place is there again")
    (record,) = site.records(site.sbatch(f"exec {site.burn('after-all', 0.5, 2)}", options=["-w", "node1"]))
    near(site, record, site.true_j("after-all"), 0.2)
    assert site.cluster.node_state("node1") == "IDLE"


def test_what_jobs_use_while_a_killed_recorder_is_away_is_charged_later(site):
    """The job runs on. Without Python the next Prolog does nothing; with it, it starts a recorder that goes on."""
    site.until(lambda: site.recorder("node1") is not None, "the recorder's place is there")
    site.until(lambda: site.recorder("node1") is not None, "node1 is recorded")
    killed = site.recorder("node1")
    job = site.sbatch(f"exec {site.burn('bereft', 0.5, 10, go_on=True)}", options=["-w", "node1"])
    site.cluster.wait_for(job)
    time.sleep(2.5)  # of work before the recorder is killed
    os.kill(killed, signal.SIGKILL)
    python = site.started.rename(site.folder / "gone")
    try:
        short = site.sbatch("sleep 1", options=["-w", "node1"])
        assert site.cluster.wait(short)[str(short)] == "COMPLETED"
    finally:
        python.rename(site.started)
    assert site.recorder("node1") is None
    again = site.sbatch("sleep 2", options=["-w", "node1"])
    assert site.cluster.wait(again)[str(again)] == "COMPLETED"
    site.until(lambda: site.recorder("node1") not in (None, killed), "the Prolog's recorder")
    back_s = time.time()
    site.until(lambda: site.state("node1")["seen_s"] > back_s + 1, "its first look at processes")
    site.end_of("bereft")
    assert site.cluster.wait(job)[str(job)] == "COMPLETED"
    assert site.cluster.node_state("node1") == "IDLE"
    (record,) = site.records(job)
    # Of a busy machine the last table of processes may be seconds old: the interval has to hold what that leaves open.
    near(site, record, site.true_j("bereft"), 1.0)
    (missed,) = site.records(short)
    assert missed.refused or missed.coverage < 0.5
    balanced(site, "node1")


def test_a_node_that_goes_down_leaves_an_incomplete_record(site, lost):
    record, seen_s, after = lost.result()
    assert (record.complete, record.state) == (False, "NODE_FAIL")
    assert "went down" in record.note
    assert record.energy_uj is None or record.energy_uj > 0
    assert record.end_s == pytest.approx(seen_s) and record.end_s > record.start_s + 1.5
    near(site, after, site.true_j("after"), 0.25)
    assert site.cluster.node_state("node2") == "IDLE"
