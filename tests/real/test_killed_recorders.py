"""Real agents and `slurm node` killed at random moments, on a simulated machine whose power is known.

A card draws 20 W, and 120 W from a job's start on. What series and records say must hold that, though nothing ran for a
third of the time.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from agents import SRC, AgentProcess, home_of, told_on

from everywatt.core.clocks import NS
from everywatt.fleet.segments import segments
from everywatt.slurm.node.hooks import make_spool
from everywatt.slurm.schema import JobOnNode, NodeHour
from everywatt.slurm.site.store import Store

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.long,  # it takes two minutes, and each seed of SEED kills at other moments
    pytest.mark.skipif(find_spec("duckdb") is None, reason="the store needs duckdb"),
]
IDLE_W, BUSY_W, STEP_S = 20.0, 120.0, 9.0
KILLS = 3
CARD = tuple(sorted({"device": "gpu.0", "domain": "gpu", "pedigree": "counter"}.items()))
EDGE_S = 0.6  # by how much the instant of a sample may be off while the period of a card is not known


def hook(spool: Path, kind: str) -> None:
    """What Prolog and Epilog write."""
    values = {"event": kind, "job_id": 1, "node": "n1", "uid": 1000, "cpus": 1, "gpus": "0", "whole": "yes"}
    path = spool / "events" / f"{kind}-1.event"
    part = path.with_suffix(".part")
    part.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    part.rename(path)


def slurm_node(env: dict[str, str], folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "everywatt", "slurm", "node", "--node", "n1", "--spool", str(folder / "spool")]
    command += ["--store", str(folder / "store"), "--every", "2s", "--quiet", *words]
    return subprocess.Popen(command, env={**env, "PYTHONPATH": str(SRC)}, stderr=subprocess.DEVNULL)


def stored(folder: Path) -> tuple[list[JobOnNode], list[NodeHour]]:
    store = Store(folder / "store")
    jobs = [JobOnNode.of_row(row) for row in store.jobs(0, 1e12).to_pylist()]
    return jobs, [NodeHour(**row) for row in store.query("SELECT * FROM nodes", [], 0, 1e12).to_pylist()]


@pytest.mark.parametrize("with_agent", [True, False], ids=["beside an agent", "by itself"])
def test_no_joule_is_lost(sim_machine, tmp_path: Path, with_agent: bool) -> None:
    lab = sim_machine(gpus=[f"step:{IDLE_W:g}W,{BUSY_W:g}W,{STEP_S:g}s"], packages=["constant:40W"])
    env, chance = home_of(tmp_path, lab.environment()), random.Random(os.environ.get("SEED", "1"))
    make_spool(tmp_path / "spool")
    state = str(tmp_path / "agent")
    words = ["--tape", f"{state}/tape"] if with_agent else ["--period", "1s"]
    running: list[subprocess.Popen] = []

    def start() -> None:
        if with_agent:
            running.append(AgentProcess(env, "--state", state, "--quiet", listen=False).process)
        running.append(slurm_node(env, tmp_path, *words))

    def kill() -> None:
        for process in running:
            process.kill()
            process.wait(60)
        running.clear()

    try:
        start()
        time.sleep(max(STEP_S - lab.seconds(time.monotonic_ns()), 0.0))  # until the card draws more
        hook(tmp_path / "spool", "start")
        for _ in range(KILLS):
            time.sleep(chance.uniform(3, 8))  # a moment at random
            kill()
            time.sleep(chance.uniform(2, 5))  # nothing runs
            start()
        time.sleep(chance.uniform(4, 7))  # the job goes on
        hook(tmp_path / "spool", "end")
        deadline = time.monotonic() + 120
        while not stored(tmp_path)[0] and time.monotonic() < deadline:
            time.sleep(1)  # for the record of the job
        time.sleep(4)  # for the hour, which is written after it
    finally:
        kill()
    utc_ns = time.time_ns() - time.monotonic_ns()
    (job,), hours = stored(tmp_path)
    true_uj = (BUSY_W - IDLE_W) * (job.end_s - job.start_s) * 1e6
    assert job.low_uj <= true_uj <= job.high_uj, job
    assert job.energy_uj == pytest.approx(true_uj, rel=0.1), (job, hours)
    # The job has a share of the package's idle power too, which is as sure as the use of this machine lets it be.
    (card,) = (part for part in job.devices if part.device == "gpu.0")
    assert card.idle_low_uj <= 1e6 * IDLE_W * (job.end_s - job.start_s) <= card.idle_high_uj, card
    for hour in hours:
        assert hour.jobs_uj + hour.idle_uj + hour.system_uj == hour.total_uj
        truth_uj = 1e6 * lab.truth(hour.device, round(hour.from_s * NS) - utc_ns, round(hour.to_s * NS) - utc_ns)
        slack_uj = 1e6 * EDGE_S * BUSY_W
        assert hour.total_low_uj - slack_uj <= truth_uj <= hour.total_high_uj + slack_uj, hour
    if with_agent:
        told = told_on(segments(Path(state) / "tape"))
        names = (
            "everywatt_energy_joules_total",
            "everywatt_energy_low_joules_total",
            "everywatt_energy_high_joules_total",
        )
        energy, low, high = (told[name, CARD] for name in names)
        assert list(energy.values()) == sorted(energy.values()), "no counter goes back"
        first, last = min(energy), max(energy)
        truth_j = lab.truth("gpu.0", first * 10**6 - utc_ns, last * 10**6 - utc_ns)
        assert low[last] - low[first] - EDGE_S * BUSY_W <= truth_j <= high[last] - high[first] + EDGE_S * BUSY_W
