"""Given the same intervals and idle levels, all faces charge the same microjoules.

A finished run, a live view, the agent, a Slurm node whose jobs are one process each, and a benchmark of a server that
is each process in turn, with two queries at a time.
"""

import random

import pytest
from machines import Process, process_rows, write_machine
from tapes import UTC_NS, at

from everywatt.api.run import Run
from everywatt.bench.llm.energy import bill
from everywatt.bench.llm.records import OK, Answer, Record
from everywatt.ledger.counters import UNATTRIBUTED, Counters, OwnerKey
from everywatt.ledger.levels import find_levels
from everywatt.ledger.use.owner_use import GpuOwnerUse, OwnerUse
from everywatt.report.live.gather import Gatherer
from everywatt.report.live.owners import RunningOwners
from everywatt.slurm.node.booking import book
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.tape.following import Follower
from everywatt.tape.reader import Tape

SECONDS, REST, CPUS = 12, 4, 4
CPU_W, GPU_W = 10.0, 40.0


def machine(seed):
    """Four seconds of rest, then up to four processes on a package and on a card; the first one stays."""
    chance = random.Random(seed)
    processes, sm, watts = [], {}, {"cpu.0": [], "gpu.0": []}
    for number in range(chance.randint(1, 4)):
        rates = [0.0] * REST + [round(chance.uniform(0.05, 0.9), 2) for _ in range(SECONDS - REST)]
        ended = chance.choice([None, chance.randint(REST + 2, SECONDS - 1)]) if number else None
        extra = {"uid": 0, "cgroup": f"/system.slice/slurmstepd.scope/job_{100 + number}/step_0/user/task_0"}
        processes.append(Process(100 + number, rates, ended=ended, name=f"p{number}", extra=extra))
        sm[100 + number] = [0] * REST + [chance.randint(5, 90) for _ in range(SECONDS - REST)]
    for second in range(SECONDS):
        there = [p for p in processes if p.ended is None or second < p.ended]
        watts["cpu.0"].append(CPU_W + 20.0 * sum(p.rates[second] for p in there))
        on_card = second >= REST
        watts["gpu.0"].append(GPU_W + (1.5 * sum(sm[p.pid][second] for p in there) if on_card else 0.0))
    tables = {}
    for second in range(REST + 1, SECONDS + 1):
        rows = [
            {"gpu": 0, "pid": p.pid, "type": "C", "memory_bytes": 1 << 20, "sm": sm[p.pid][second - 1]}
            | ({"gone": True} if second == p.ended else {})
            for p in processes
            if p.ended is None or second <= p.ended
        ]
        if rows:
            tables[second] = rows
    return processes, watts, tables


def of_slurm(tape, processes, levels):
    """Microjoules of each process as a Slurm node books its job, and the rest of the node."""
    start_s = UTC_NS / 1e9
    jobs = [NodeJob(p.pid, 0, start_s - 10) for p in processes]
    accounts = {}
    hours = book(tape, "box", jobs, accounts, start_s, start_s + SECONDS, dict(levels))
    booked = {("process", p.id): sum(accounts[job.key].own_uj.values()) for p, job in zip(processes, jobs, strict=True)}
    whole_uj = sum(hour.total_uj for hour in hours)
    return booked, whole_uj


def of_agent(processes, watts, tables, levels, threads):
    """Microjoules of each process as the agent counts them, fed second by second."""
    counters, gpus = Counters(), GpuOwnerUse()
    place = {p.pid: OwnerKey("process", p.id) for p in processes}
    use = OwnerUse(lambda process: place[process.pid], 1.0, 0)
    told = {}
    for second in range(SECONDS + 1):
        use.feed(at(second), process_rows(processes, second, told))
        use.feed_host(50.0 + sum(p.used(second) for p in processes))
        gpus.feed(at(second), tables.get(second, []))
        uses = use.take().on(None, None if threads is None else CPUS / threads)
        if not second:
            continue
        taken, held = gpus.take(0).by_owner(lambda pid: place.get(pid, UNATTRIBUTED))
        for device, shares in (("cpu.0", (uses, {})), ("gpu.0", (taken, held))):
            whole_uj = round(watts[device][second - 1] * 1e6)
            counters.add(device, whole_uj, 1.0, levels[device].level, *shares, now_ns=second)
    return {owner: sum(amounts.values()) for owner, amounts in counters.uj.items()}


def of_benchmark(folder, processes, watts, tables, threads):
    """Microjoules of each process as `bench llm` charges the server that it is, and of its queries together."""
    found, queries_uj = {}, {}
    spans = [("idle", 0, REST, {"role": "idle"}), ("query", 0, SECONDS, {}), ("query", REST, SECONDS, {})]
    times = tuple(at(second) for second in range(REST + 1, SECONDS))
    answer = Answer(OK, "x", sent_ns=at(REST), ended_ns=at(SECONDS), piece_ns=times)
    for process in processes:
        path = write_machine(
            folder / f"{process.pid}.tape", watts, processes, seconds=SECONDS, everything=True, gpu_rows=tables,
            spans=spans, follow=[process.pid], cpus=CPUS, threads_per_core=threads,
        )  # fmt: skip
        with Tape.open(path, verify=False) as tape:
            owed = bill(Run(path, [tape]), [Record(span, "concurrency 2", span, answer) for span in ("s1", "s2")])
        found["process", process.id] = round(owed.net.value * 1e6)
        queries_uj["process", process.id] = round(sum(query.net_j for query in owed.queries.values()) * 1e6)
    return found, queries_uj


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("seed", range(12))
def test_every_face_charges_the_same_microjoules(tmp_path, seed, threads):
    processes, watts, tables = machine(seed)
    path = write_machine(
        tmp_path / "box-0001.tape", watts, processes, seconds=SECONDS, everything=True, seal=False, gpu_rows=tables,
        spans=[("idle", 0, REST, {"role": "idle"})], cpus=CPUS, threads_per_core=threads,
    )  # fmt: skip
    with Tape.open(path, verify=False) as tape:
        run, levels = Run(path, [tape]), find_levels(tape, {})
        finished = {
            (entry.owner.kind.value, entry.owner.id): entry.microjoules
            for entry in run.ledger("process", between=(0.0, float(SECONDS))).entries
        }
        gatherer = Gatherer(1.0)
        gatherer.adopt(tape)
        gatherer.feed(Follower(tape).look())
        booked, node_uj = of_slurm(tape, processes, levels)
        asker = RunningOwners("process", clock=lambda: 0.0, cpu_clock=lambda: 0.0)
        view = asker.ask(run, gatherer.lines, gatherer.tape_ns, gatherer.last_ns)
    # Each has its interval, or owes nothing.
    assert all(entry.low <= entry.joules <= entry.high for entry in view.entries if entry.joules > 1e-6)
    live = {(entry.kind, entry.id): round(entry.joules * 1e6) for entry in view.entries}
    agent = {tuple(owner): amount for owner, amount in of_agent(processes, watts, tables, levels, threads).items()}
    served, queries_uj = of_benchmark(tmp_path, processes, watts, tables, threads)
    whole_uj = round(sum(map(sum, watts.values())) * 1e6)
    assert sum(finished.values()) == pytest.approx(whole_uj, abs=2)
    assert sum(agent.values()) == whole_uj
    assert node_uj == pytest.approx(whole_uj, abs=2)
    for owner, amount in (*booked.items(), *served.items(), *queries_uj.items()):
        assert abs(amount - finished.get(owner, 0)) <= 3, owner
    for owner in {*finished, *live, *agent}:
        amounts = [found.get(owner, 0) for found in (finished, live, agent)]
        assert max(amounts) - min(amounts) <= 3, (owner, amounts)
