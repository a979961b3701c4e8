"""Agent and `slurm node` killed at random moments, in virtual time: what a node drew is in its hours, to the joule."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from virtual_time import VirtualTask
from virtual_world import VirtualWorld

from everywatt.core.clocks import NS
from everywatt.ledger.idle import Idle
from everywatt.slurm.node.hooks import make_spool
from everywatt.slurm.node.recorder import Node
from everywatt.slurm.node.tapes import tapes_in
from everywatt.slurm.schema import JobOnNode, NodeHour
from everywatt.slurm.site.store import Store

IDLE_W, BUSY_W = 20.0, 120.0


def start_node(world: VirtualWorld, known: dict[str, Idle] | None = None) -> VirtualTask:
    """`slurm node --tape` as a program of its own: it listens each second and books every other.

    `known` are idle levels that it has from earlier tapes.
    """

    def serve() -> None:
        node = Node(
            "n1",
            world.folder / "spool",
            Store(world.folder / "store"),
            tapes_in(world.folder / "agent" / "tape"),
            ask=lambda jobs, name, conf: {job: {} for job in jobs},
            pids=lambda job, name, conf: {},
            cpu_time_s=lambda *job: None,
            clock=world.time,
            boot="b",
        )
        node.state.idle.update(known or {})
        for turn in range(100_000):
            node.listen()
            if turn % 2:
                node.settle()
            world.sleep(1.0)

    return world.program("node", serve)


def announce(world: VirtualWorld, kind: str, job: int) -> float:
    """What a hook writes; gives the time (UTC)."""
    values = {"event": kind, "job_id": job, "node": "n1", "uid": 1000, "cpus": 1, "gpus": "0", "whole": "yes"}
    path = world.folder / "spool" / "events" / f"{kind}-{job}.event"
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    now_ns = world.time.utc_ns()
    os.utime(path, ns=(now_ns, now_ns))
    return now_ns / NS


def outage(
    folder: Path,
    seed: int,
    gpu: str = f"step:{IDLE_W:g}W,{BUSY_W:g}W,9s",
    every_s: float = 0.1,
    known: dict[str, Idle] | None = None,
) -> tuple[VirtualWorld, list[JobOnNode], list[NodeHour]]:
    """A job has the card alone from 9 s on, while it draws 120 W; both programs are killed for some seconds, twice.

    The card publishes its counter `every_s`.
    """
    chance = random.Random(seed)
    with VirtualWorld(folder, seed=seed, gpu=gpu) as world:
        world.machine.card_ns = round(every_s * NS)
        make_spool(folder / "spool")
        agent, node = world.agent(period_s=1.0), start_node(world, known)
        world.sleep(9.0 - (world.now_ns - world.machine.origin_ns) / NS)
        announce(world, "start", 1)
        for _ in range(2):
            world.sleep(chance.uniform(4, 14))
            agent.kill()
            world.kill(node.process)
            world.sleep(chance.uniform(5, 9))
            agent, node = world.agent(period_s=1.0), start_node(world, known)
        world.sleep(chance.uniform(6, 9))
        announce(world, "end", 1)
        world.sleep(20)
        agent.end()
        world.kill(node.process)
        store = Store(folder / "store")
        jobs = [JobOnNode.of_row(row) for row in store.jobs(0, 1e12).to_pylist()]
        return world, jobs, [NodeHour(**row) for row in store.query("SELECT * FROM nodes", [], 0, 1e12).to_pylist()]


def off_j(world: VirtualWorld, seconds: tuple[float, float], joules: float) -> float:
    start_ns, end_ns = (round(at_s * NS) - world.time.utc_ns() + world.now_ns for at_s in seconds)
    return joules - world.machine.energy_j("gpu", start_ns, end_ns)


@pytest.mark.parametrize("seed", (0, 3))
def test_a_card_over_two_outages(tmp_path: Path, seed: int) -> None:
    world, (job,), (hour,) = outage(tmp_path, seed)
    assert abs(off_j(world, (hour.from_s, hour.to_s), hour.total_uj / 1e6)) < 2
    assert hour.jobs_uj + hour.idle_uj + hour.system_uj == hour.total_uj
    assert hour.jobs_uj == job.energy_uj
    true_j = (BUSY_W - IDLE_W) * (job.end_s - job.start_s)
    assert hour.jobs_low_uj <= true_j * 1e6 <= hour.jobs_high_uj
    assert hour.total_low_uj <= hour.total_uj - off_j(world, (hour.from_s, hour.to_s), hour.total_uj / 1e6) * 1e6
    assert hour.total_high_uj >= hour.total_uj - off_j(world, (hour.from_s, hour.to_s), hour.total_uj / 1e6) * 1e6
    assert job.idle_low_uj <= IDLE_W * (job.end_s - job.start_s) * 1e6 <= job.idle_high_uj
    assert job.low_uj <= true_j * 1e6 <= job.high_uj
    assert job.energy_uj / 1e6 == pytest.approx(true_j, rel=0.01)


@pytest.mark.parametrize("seed", (0, 1))
def test_a_constant_card_may_have_had_nothing_above_idle(tmp_path: Path, seed: int) -> None:
    """A counter that is published each second: when that was is badly known after a start, and on a bridge."""
    known = {"gpu.0": Idle(100.0, 0.01, "measured")}
    _, (job,), (hour,) = outage(tmp_path, seed, "constant:100W", 1.0, known)
    assert hour.jobs_uj > 0 and hour.system_uj > 0  # the error of the instants: what the test is about
    assert job.low_uj == hour.jobs_low_uj == hour.system_low_uj == 0
    for had, seconds in ((hour, hour.to_s - hour.from_s), (job, job.end_s - job.start_s)):
        assert had.idle_low_uj <= 100e6 * seconds <= had.idle_high_uj
    assert max(hour.jobs_high_uj, hour.system_high_uj) < hour.total_high_uj - hour.total_low_uj
