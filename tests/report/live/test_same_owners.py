"""Given the same intervals and idle levels, all faces charge the same microjoules.

A finished run, `monitor`, the page of `serve`, the agent's series, a Slurm node whose jobs are one process each, and a
benchmark of a server that is each process in turn, with two queries at a time.
"""

import contextlib
import random
from types import SimpleNamespace

import pytest
from fake_clock import FakeClock
from machines import DOMAINS, GPUS, HOST, PROCESSES, Process, process_rows, write_machine
from tapes import UTC_NS, at, counter_group

from everywatt.api.run import Run
from everywatt.bench.llm.energy import bill
from everywatt.bench.llm.records import OK, Answer, Record
from everywatt.core.channels import Row
from everywatt.core.clocks import NS
from everywatt.fleet.device_counters import IdleFinder
from everywatt.fleet.exporting import Exporter
from everywatt.fleet.jobs import Places
from everywatt.fleet.metrics import OWNER_ENERGY, OWNER_LOW_HIGH, samples
from everywatt.fleet.watch import Watcher
from everywatt.ledger.counters import Counters, OwnerKey
from everywatt.ledger.levels import find_levels
from everywatt.ledger.use.owner_use import OwnerUse
from everywatt.report.live.owners import ENDED
from everywatt.report.live.tape_source import TapeSource
from everywatt.report.web.live import shortened
from everywatt.slurm.node.booking import book
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.tape.reader import Tape

SECONDS, REST, CPUS = 12, 4, 4
CPU_W, GPU_W = 10.0, 40.0
NAMES = (OWNER_ENERGY, *OWNER_LOW_HIGH)


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


class OneOwnerEach(Places):
    """Every process is an owner of its own."""

    def owner(self, process):
        return OwnerKey("process", f"{process.pid}:{process.start}")


class GivenIdle(IdleFinder):
    """Idle as it is known, whatever is seen."""

    def level(self):
        return self._known


def of_agent(processes, watts, tables, levels, threads):
    """Microjoules of each owner by the series of an agent that hears of the machine second by second."""
    clock = FakeClock(at(0))
    watcher = Watcher(clock, NS, OneOwnerEach([]), Counters())
    watcher.cpu = OwnerUse(watcher.places.owner, 1.0, 0, CPUS)
    watcher._cpus, watcher.threads_per_core = CPUS, threads  # not this machine's
    infos = [counter_group(device, DOMAINS[device[:3]]) for device in watts]
    watcher.listen([SimpleNamespace(info=one, outage=None, listeners=[], expected_s=seconds_each) for one in
                    (*infos, HOST, PROCESSES, GPUS)])  # fmt: skip
    for line in watcher.lines.all:
        line.idle = GivenIdle(line.kind)
        line.idle.know(levels[line.device].level)
    sources = {source.info.name: source for source in watcher.sources}
    exporter, told, joules, found = Exporter(watcher, ()), {}, dict.fromkeys(watts, 0.0), {}
    for second in range(SECONDS + 1):
        clock.now_ns = at(second)
        busy_s = 50.0 + sum(p.used(second) for p in processes)
        values = {info.name: (joules[info.device],) for info in infos} | {HOST.name: (busy_s, CPUS * second - busy_s)}
        for name, value in values.items():
            watcher.rows(sources[name], [Row(at(second), at(second), at(second), value)])
        watcher.table(sources[PROCESSES.name], at(second), process_rows(processes, second, told))
        watcher.table(sources[GPUS.name], at(second), tables.get(second, []))
        watcher.settle(at(second), anyway=True)
        joules = {device: joules[device] + watts[device][min(second, SECONDS - 1)] for device in watts}
        exporter.update(at(second))
        by_owner = {}
        for name, labels, value in samples(exporter.registry.text()):
            if name in NAMES:
                sums = by_owner.setdefault((labels["kind"], labels["owner"]), dict.fromkeys(NAMES, 0))
                sums[name] += round(value * 1e6)
        found |= by_owner  # what ended is a part of the rest after its last values
    for owner, (amount, low, high) in ((owner, sums.values()) for owner, sums in found.items()):
        assert low <= amount <= high, owner
    return {owner: sums[OWNER_ENERGY] for owner, sums in found.items() if owner[0] != "rest"}


def seconds_each(period_ns):
    return 1.0


def of_view(path):
    """Microjoules of owners as `monitor` prints them and as `serve` sends them to a page, each with its interval."""
    with contextlib.closing(TapeSource(path, 1.0, by="process")) as source:
        snapshot = source.poll()
    assert snapshot.live
    found = []
    for data in (snapshot.to_dict(), shortened(snapshot)):
        entries = data["owners"]["entries"]
        assert all(entry["low"] <= entry["joules"] <= entry["high"] for entry in entries)
        found.append({(e["owner"]["kind"], e["owner"]["id"]): round(e["joules"] * 1e6) for e in entries})
    return found


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


def with_ended_together(found, ended):
    kept = {(kind, id_): amount for (kind, id_), amount in found.items() if id_ not in ended}
    return {**kept, (ENDED.kind.value, ENDED.id): sum(found.values()) - sum(kept.values())}


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("seed", range(12))
def test_every_face_charges_the_same_microjoules(tmp_path, seed, threads):
    processes, watts, tables = machine(seed)
    path = write_machine(
        tmp_path / "box-0001.tape", watts, processes, seconds=SECONDS, everything=True, seal=False, gpu_rows=tables,
        spans=[("idle", 0, REST, {"role": "idle"})], cpus=CPUS, threads_per_core=threads,
    )  # fmt: skip
    with Tape.open(path, verify=False) as tape:
        levels = find_levels(tape, {})
        finished = {
            (entry.owner.kind.value, entry.owner.id): entry.microjoules
            for entry in Run(path, [tape]).ledger("process", between=(0.0, float(SECONDS))).entries
        }
        booked, node_uj = of_slurm(tape, processes, levels)
    monitor, page = of_view(path)
    agent = of_agent(processes, watts, tables, levels, threads)
    served, queries_uj = of_benchmark(tmp_path, processes, watts, tables, threads)
    whole_uj = round(sum(map(sum, watts.values())) * 1e6)
    assert sum(finished.values()) == pytest.approx(whole_uj, abs=2)
    assert sum(agent.values()) == whole_uj
    assert node_uj == pytest.approx(whole_uj, abs=2)
    for owner, amount in (*booked.items(), *served.items(), *queries_uj.items()):
        assert abs(amount - finished.get(owner, 0)) <= 3, owner
    if (ENDED.kind.value, ENDED.id) in monitor:  # live views put owners that ended together
        finished, agent = (
            with_ended_together(found, {p.id for p in processes if p.ended}) for found in (finished, agent)
        )
    for owner in {*finished, *monitor, *page, *agent}:
        amounts = [found.get(owner, 0) for found in (finished, monitor, page, agent)]
        assert max(amounts) - min(amounts) <= 3, (owner, amounts)
