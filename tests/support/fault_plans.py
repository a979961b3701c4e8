"""Seeded plans of faults, carried out in a virtual world, and what must hold after any of them.

    python tests/support/fault_plans.py 17        # the plan of seed 17, and what came of it

A plan is made from its seed alone and the world repeats exactly, so a failure is replayed by its number.

What must hold: a program's figure holds the truth, or its coverage or a refusal says what is missing. A program sees no
exception and waits no longer than it may. Tapes open. Counters that were exported never go back and never count more
than was drawn. A Slurm job whose start and end were announced is recorded once.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from faulty_io import KILL, LOST, Fault
from virtual_machine import CARD_NS
from virtual_time import Process
from virtual_world import RunningAgent, VirtualWorld

from everywatt.api.meter import Meter
from everywatt.api.run import load
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError
from everywatt.slurm.node.hooks import make_spool
from everywatt.slurm.node.recorder import Node
from everywatt.slurm.node.tapes import tapes_in
from everywatt.slurm.site.store import Store
from everywatt.tape.reader import Tape

CURVES = ("constant:80W", "square:30W,90W,0.7s", "square:100W,300W,1.3s", "sine:150W,100W,2.1s", "ramp:20W,220W,9s")
GROUPS = {
    "cpu": "virtual.package",
    "gpu": "virtual.card",
    "board": "virtual.board",
    "temperature": "virtual.temperature",
    "processes": "use.processes",
}
DEVICES = {"cpu.0": "cpu", "gpu.0": "gpu", "gpu.1": "board"}
ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EACCES)
LASTING = 10**9
# Two seconds for recorders that hang; the rest is starting one, finding the phases of cards, the last publications.
MOST_BLOCKED_S = 5.0
EDGE_S = 0.005  # between an instant that a program knows and the edge of its span
SLACK = 0.002  # of a figure: an interval is of 95 %
COUNTERS = ("everywatt_energy_joules_total", "everywatt_owner_energy_joules_total")


@dataclass
class Program:
    """A measured program: when it starts, how long its steps take; and what came of it."""

    start_s: float
    steps_s: list[float]
    pause_s: float
    task: Any = None
    began_ns: int = 0
    ended_ns: int = 0
    blocked_s: float = 0.0
    energy: Energy | None = None
    shown: Energy | None = None
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None
    error: BaseException | None = None


@dataclass
class Plan:
    """What happens in one world."""

    seed: int
    curves: dict[str, str]
    programs: list[Program]
    agent_period_s: float | None
    rotate_s: float
    with_slurm: bool
    faults: list[str] = field(default_factory=list)
    actions: list[Callable[[VirtualWorld], None]] = field(default_factory=list)
    length_s: float = 0.0

    def __str__(self) -> str:
        programs = ", ".join(f"at {p.start_s:.1f} s for {sum(p.steps_s):.1f} s" for p in self.programs)
        agent = f"; agent every {self.agent_period_s:g} s" if self.agent_period_s else ""
        return f"seed {self.seed}: {self.curves}; programs {programs}{agent}; {'; '.join(self.faults)}"


def make_plan(seed: int, kinds: tuple[str, ...] | None = None) -> Plan:
    """The plan of a seed; `kinds` limits its faults to some of `KINDS`."""
    chance = random.Random(seed)
    devices = chance.sample(("cpu", "gpu", "board"), chance.choice((1, 2, 3)))
    programs = [
        Program(
            chance.uniform(0, 2),
            [chance.choice((0.05, 0.4, 1.0, 2.5)) * chance.uniform(0.5, 1.5) for _ in range(chance.choice((1, 2, 4)))],
            chance.choice((0.0, 0.05)),
        )
        for _ in range(chance.choice((1, 1, 2, 3)))
    ]
    with_agent = chance.random() < 0.4
    plan = Plan(
        seed,
        {device: chance.choice(CURVES) for device in sorted(devices)},
        programs,
        chance.choice((0.2, 0.5, 1.0)) if with_agent else None,
        chance.choice((3.0, 3600.0)),
        with_agent and chance.random() < 0.4,
    )
    plan.length_s = max(p.start_s + sum(p.steps_s) + p.pause_s * len(p.steps_s) for p in programs) + 2.0
    for _ in range(chance.choice((1, 1, 2, 3))):
        KINDS[chance.choice(kinds or tuple(KINDS))](plan, chance)
    return plan


def _role(chance: random.Random, plan: Plan) -> str:
    return chance.choice(("recorder", "program", *(("agent",) if plan.agent_period_s else ())))


def _when(chance: random.Random, plan: Plan) -> float:
    return chance.uniform(0.05, plan.length_s)


def _at(plan: Plan, at_s: float, text: str, action: Callable[[VirtualWorld], None]) -> None:
    plan.faults.append(f"{text} at {at_s:.3f} s")
    plan.actions.append(lambda world: world.time.at(world.machine.origin_ns + round(at_s * NS), lambda: action(world)))


def _add_kill(plan: Plan, chance: random.Random) -> None:
    role, at_s = _role(chance, plan), _when(chance, plan)
    _at(plan, at_s, f"kill {role}", lambda world: [world.kill(one) for one in living(world, role)[:1]] and None)


def _add_stop(plan: Plan, chance: random.Random) -> None:
    role, at_s, for_s = _role(chance, plan), _when(chance, plan), chance.choice((0.3, 1.5, 5.0, 40.0))
    _at(
        plan,
        at_s,
        f"stop {role} for {for_s} s",
        lambda world: [world.time.stop(one, for_s) for one in living(world, role)[:1]] and None,
    )


def _io(plan: Plan, text: str, fault: Fault) -> None:
    plan.faults.append(text)
    plan.actions.append(lambda world: world.io.faults.append(fault))


def _add_failing_call(plan: Plan, chance: random.Random) -> None:
    role, number, kind = (
        _role(chance, plan),
        chance.choice(ERRORS),
        chance.choice((None, None, "open", "write", "send")),
    )
    nth, times = round(chance.paretovariate(0.4)), chance.choice((1, 1, 5))
    text = f"{kind or 'system'} call {nth} of {role} fails with {errno.errorcode[number]} {times} times"
    _io(plan, text, Fault(role, nth, number, kind, times))


def _add_full_disk(plan: Plan, chance: random.Random) -> None:
    """Writes fail from the n-th on, until the end."""
    role, nth = _role(chance, plan), round(chance.paretovariate(0.4))
    _io(plan, f"the disk of {role} is full from write {nth} on", Fault(role, nth, errno.ENOSPC, "write", LASTING))


def _add_killed_call(plan: Plan, chance: random.Random) -> None:
    role, nth = _role(chance, plan), round(chance.paretovariate(0.4))
    _io(plan, f"{role} is killed at its system call {nth}", Fault(role, nth, KILL))


def _add_lost_message(plan: Plan, chance: random.Random) -> None:
    role, nth = chance.choice(("recorder", "program")), chance.randint(1, 8)
    _io(plan, f"message {nth} of {role} is lost", Fault(role, nth, LOST, "send"))


def _add_clock_set(plan: Plan, chance: random.Random) -> None:
    by_s = chance.choice((-3600.0, -2.0, 0.5, 3600.0))
    _at(plan, _when(chance, plan), f"clock set by {by_s} s", lambda world: world.time.set_utc(by_s))


def _add_suspend(plan: Plan, chance: random.Random) -> None:
    for_s = chance.choice((0.5, 20.0, 3600.0))
    _at(plan, _when(chance, plan), f"suspend for {for_s} s", lambda world: world.time.suspend(for_s))


def _add_broken_sensor(plan: Plan, chance: random.Random) -> None:
    group, at_s, for_s = chance.choice(tuple(GROUPS.values())), _when(chance, plan), chance.choice((0.2, 1.0, 4.0))
    how = chance.choice(("the device is lost", "vanish"))
    _at(plan, at_s, f"{group} breaks ({how})", lambda world: world.machine.broken.update({group: how}))
    _at(plan, at_s + for_s, f"{group} works again", lambda world: world.machine.broken.clear())


def _add_slow_sensor(plan: Plan, chance: random.Random) -> None:
    group, at_s = chance.choice(tuple(GROUPS.values())), _when(chance, plan)
    _at(plan, at_s, f"{group} takes 0.4 s", lambda world: world.machine.slow_ns.update({group: 400_000_000}))
    _at(plan, at_s + 1.5, f"{group} is quick again", lambda world: world.machine.slow_ns.clear())


KINDS: dict[str, Callable[[Plan, random.Random], None]] = {
    "kill": _add_kill,
    "stop": _add_stop,
    "failing call": _add_failing_call,
    "full disk": _add_full_disk,
    "killed call": _add_killed_call,
    "lost message": _add_lost_message,
    "clock set": _add_clock_set,
    "suspend": _add_suspend,
    "broken sensor": _add_broken_sensor,
    "slow sensor": _add_slow_sensor,
}


def living(world: VirtualWorld, role: str) -> list[Process]:
    """Processes of a role that are alive, oldest first."""
    found = {id(task.process): task.process for task in world.time._tasks if task.process.name.startswith(role)}
    return [process for process in found.values() if process.alive]


class Outcome:
    """A plan that is being carried out, and what is wrong afterwards."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.wrong: list[str] = []
        self._told: dict[str, float] = {}
        with VirtualWorld(folder, seed=plan.seed, **plan.curves) as world:
            self.world = world
            for action in plan.actions:
                action(world)
            for program in plan.programs:
                program.task = world.program("program", lambda program=program: self._measure(program))
            if plan.agent_period_s:
                self._jobs: dict[int, list[float]] = {}
                self._run_agent()
            for program in plan.programs:
                program.task.join(600.0)
                if not program.task.done:
                    self.wrong.append("a program has not ended after ten minutes")
            world.io.faults.clear()
            world.machine.broken.clear()
            if world.recorder is not None:
                world.time.wait(lambda: world.recorder is None, 120.0)
            self._check_programs()
            self._check_tapes()
            self.wrong += [f"crash: {text}" for text in world.crashes]

    # A measured program.

    def _measure(self, program: Program) -> None:
        world = self.world
        world.sleep(program.start_s)
        try:
            meter = Meter("work", sensors=["virtual"], estimate=False, period=0.1)
            program.task.process.on_kill.append(lambda: meter.recording and meter.recording._channel.close())
            self._blocked(program, meter.start)
            program.folder = None if meter.recording is None else meter.recording.path.parent
            program.began_ns = world.now_ns
            for number, step_s in enumerate(program.steps_s):
                with self._span(program, meter, f"step {number}"):
                    world.sleep(step_s)
                self._blocked(program, lambda number=number: meter.log(step=number))
                world.sleep(program.pause_s)
            program.ended_ns = world.now_ns
            recording = meter.recording
            self._blocked(program, meter.stop)
            program.energy = meter.energy
            if recording is not None:
                program.notes = recording.notes
                # Where the recorder was replaced just then, the span began before `start` returned.
                program.began_ns = min(span.start_ns for span in recording.top_spans.values())
        except Exception as error:
            program.error = error

    def _span(self, program: Program, meter: Meter, name: str) -> Any:
        outcome = self

        class Span:
            def __enter__(self) -> None:
                self.handle = outcome._blocked(program, lambda: meter.open_span(name))

            def __exit__(self, *_: object) -> None:
                outcome._blocked(program, self.handle.close)

        return Span()

    def _blocked(self, program: Program, call: Callable[[], Any]) -> Any:
        """Call into everywatt, and see how long the program waits; while it is stopped itself it waits for nobody."""
        before_ns = self.world.now_ns
        try:
            return call()
        finally:
            stopped_ns = max(0, program.task.process.stopped_until_ns - before_ns)
            program.blocked_s = max(program.blocked_s, (self.world.now_ns - before_ns - stopped_ns) / NS)

    def _check_programs(self) -> None:
        for number, program in enumerate(self.plan.programs):
            name = f"program {number}"
            if program.error is not None:
                self.wrong.append(f"{name} sees {type(program.error).__name__}: {program.error}")
            if program.blocked_s > MOST_BLOCKED_S:
                self.wrong.append(f"{name} waits for {program.blocked_s:.1f} s")
            if program.energy is not None:
                self.wrong += [f"{name}: {text}" for text in self._doubts(program, program.energy)]
            # A socket loses no message by itself. Where a plan does, only the program knows what was in it.
            whole = not any("is lost" in fault for fault in self.plan.faults)
            if whole and program.energy is not None and program.folder is not None:
                try:
                    run = load(program.folder)
                    program.shown = run.energy()
                except EverywattError:
                    continue  # says what is missing
                if not run.spans:  # none of its messages arrived: the figure is of the whole recording
                    program.began_ns = min(start_ns for tape in run.windows() for start_ns, _ in tape)
                self.wrong += [f"{name}, shown: {text}" for text in self._doubts(program, program.shown)]

    def _doubts(self, program: Program, energy: Energy) -> Iterator[str]:
        if energy.joules is None:
            if not energy.refused:
                yield "a figure is refused without a reason"
            return
        machine, length_s = self.world.machine, (program.ended_ns - program.began_ns) / NS
        if any("cover different scopes" in note for note in energy.notes):
            return  # segments with a recorder and without one: the figure says that it is no sum over all devices
        measured = {DEVICES[name.split()[0]] for name, _ in energy.parts}
        for device in machine.curves.keys() - measured:
            if not any(GROUPS[device] in note.partition("Not recorded: ")[2] for note in program.notes):
                yield f"{device} is missing in {energy}, and nothing says so"
        most_w = sum(machine.curves[device].high_w for device in measured)
        truth = sum(machine.energy_j(device, program.began_ns, program.ended_ns) for device in measured)
        # What was not observed may have been anything that the devices can draw.
        slack = EDGE_S * most_w + SLACK * truth
        missing = sum(
            (1 - part.coverage) * length_s * machine.curves[DEVICES[name.split()[0]]].high_w
            for name, part in energy.parts
        )
        told = f"{energy} for {truth:.2f} J in {length_s:.2f} s"
        if not 0 <= energy.coverage <= 1 + 1e-9:
            yield f"coverage of {energy.coverage}: {told}"
        if energy.low is not None and energy.low > truth + slack:
            yield f"too much: {told}"
        if energy.high is not None and energy.high + missing + slack < truth:
            yield f"too little: {told}"

    # Files.

    def _check_tapes(self) -> None:
        for path in sorted(self.world.folder.rglob("*.tape")):
            if not path.stat().st_size:
                continue  # killed while it was made
            try:
                with Tape.open(path) as tape:
                    tape.spans()
            except EverywattError as error:
                self.wrong.append(f"{path.name} does not open: {error}")
        for program in self.plan.programs:
            if program.folder is not None and program.energy is None:
                try:
                    load(program.folder).energy()
                except EverywattError:
                    pass  # says what is missing

    # The agent, and a Slurm node that reads its tape.

    def _run_agent(self) -> None:
        world, plan = self.world, self.plan
        end_ns = world.now_ns + round((plan.length_s + 1.0) * NS)
        agent, node = self._start_agent(), None
        if plan.with_slurm:
            make_spool(world.folder / "spool")
            node = self._start_node()
        step = 0
        while world.now_ns < end_ns or (world.io.faults.clear() or False):
            world.sleep(0.5)
            step += 1
            if agent is None or not agent.process.alive:
                agent = self._start_agent()
            self._scrape(agent)
            if node is not None:
                self._announce(step)
                if node.done and node.process.killed:
                    node = self._start_node()
        world.machine.broken.clear()
        if agent is not None and agent.process.alive:
            world.time.wait(lambda: agent.process.stopped_until_ns <= world.now_ns, 60.0)
            world.sleep(1.0)
            self._scrape(agent)
            try:
                agent.end()
            except (Exception, AssertionError) as error:
                self.wrong.append(f"the agent ends with {type(error).__name__}: {error}")
        if node is not None:
            self._check_jobs()

    def _start_agent(self) -> RunningAgent | None:
        try:
            return self.world.agent(period_s=self.plan.agent_period_s, rotate_s=self.plan.rotate_s)
        except (EverywattError, OSError):
            return None  # it says why; systemd starts it again

    def _scrape(self, agent: RunningAgent | None) -> None:
        if agent is None or agent.agent is None or agent.process.stopped_until_ns > self.world.now_ns:
            return
        for name, (value, _) in agent.values().items():
            if name.startswith(COUNTERS):
                if value < self._told.get(name, 0.0):
                    self.wrong.append(f"{name} goes back from {self._told[name]} to {value}")
                self._told[name] = value
        machine = self.world.machine
        for name, device in DEVICES.items():
            told = sum(value for key, value in self._told.items() if key.startswith(f'{COUNTERS[0]}{{device="{name}"'))
            drawn = machine.energy_j(device, machine.origin_ns, self.world.now_ns) if told else 0.0
            # It counts from the publication before its start. A gauge that is read now and then may be off by more.
            before = machine.curves[device].high_w * CARD_NS / NS if told else 0.0
            if told > drawn * (1 + SLACK) + before and device != "board":
                self.wrong.append(f"the counter of {name} tells {told:.1f} J, and {drawn:.1f} J were drawn")

    def _start_node(self) -> Any:
        world = self.world
        process = world.process("node")

        def serve() -> None:
            node = Node(
                "n1", world.folder / "spool", Store(world.folder / "store"), tapes_in(world.folder / "agent" / "tape"),
                ask=lambda jobs, name, conf: {job: {"account": "phys", "name": f"job {job}"} for job in jobs},
                pids=lambda job, name, conf: {}, clock=world.time, boot="b",
            )  # fmt: skip
            for turn in range(100_000):
                node.listen()
                if turn % 3 == 2:
                    node.settle()
                world.sleep(1.0)

        return world.time.start(process, serve)

    def _announce(self, step: int) -> None:
        """What Prolog and Epilog write: a job every two seconds, for three seconds."""
        for kind, job in (("start", step // 4), ("end", (step - 6) // 4)):
            if (step - (6 if kind == "end" else 0)) % 4 == 0 and job >= 1:
                values = {
                    "event": kind,
                    "job_id": job,
                    "node": "n1",
                    "user": "ada",
                    "uid": 1000,
                    "cpus": 1,
                    "whole": "yes",
                }
                path = self.world.folder / "spool" / "events" / f"{kind}-{job}.event"
                path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
                now_ns = self.world.time.utc_ns()
                os.utime(path, ns=(now_ns, now_ns))
                self._jobs.setdefault(job, []).append(now_ns / NS)

    def _check_jobs(self) -> None:
        ended = {job for job, times in self._jobs.items() if len(times) == 2}
        store = Store(self.world.folder / "store")

        def rows() -> list[dict[str, Any]]:
            return list(store.jobs(0, 1e12).to_pylist())

        self.world.time.wait(lambda: False, 80.0)
        recorded = [row["job_id"] for row in rows()]
        for job in ended:
            if recorded.count(job) != 1:
                self.wrong.append(f"job {job} is recorded {recorded.count(job)} times")


def check(seed: int, kinds: tuple[str, ...] | None = None) -> list[str]:
    """What is wrong after the plan of a seed; nothing, it is hoped."""
    folder = Path(tempfile.mkdtemp(prefix="ew"))
    try:
        return Outcome(make_plan(seed, kinds), folder).wrong
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        low, _, high = word.partition("-")
        for seed in range(int(low), int(high or low) + 1):
            print(make_plan(seed))
            print("   ", "\n    ".join(check(seed)) or "all is well")
