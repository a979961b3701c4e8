"""One machine in virtual time with everything that measures it: recorder, programs, agent, Slurm node.

    with VirtualWorld(tmp_path, cpu="square:30W,90W,0.7s", gpu="constant:200W") as world:
        with Meter("work", sensors=["virtual"]) as meter:
            world.sleep(60)                       # takes milliseconds
        assert meter.energy.joules == pytest.approx(world.machine.total_j(...))

Programs are the product's own code; only time, turns and sensors are made. Failures are injected by `world.io`,
`world.kill`, `world.time.stop`, `world.machine.broken` and so on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import virtual_machine
from faulty_io import FaultyIo, watch
from virtual_machine import VirtualMachine
from virtual_time import Process, VirtualTask, VirtualTime

import everywatt.api.meter
import everywatt.recorder.channel
from everywatt.core.clocks import NS
from everywatt.core.errors import RecorderError
from everywatt.core.machine import Machine
from everywatt.fleet.agent import Agent
from everywatt.fleet.options import AgentOptions
from everywatt.recorder.channel import Patience
from everywatt.recorder.process import server_in
from everywatt.recorder.server import Server
from everywatt.recorder.wire import own_folder

START_S = 0.08  # what starting a recorder takes


class VirtualWorld:
    """See the module. `seed` makes the order of turns random (and repeatable)."""

    def __init__(self, folder: Path, *, seed: int | None = None, **curves: str) -> None:
        self.folder = folder
        self.time = VirtualTime(seed=seed)
        self.machine = VirtualMachine.of(self.time, **(curves or {"cpu": "constant:60W"}))
        self.home, self.runtime = folder / "runs", folder / "rt"
        self.recorders: list[tuple[Process, Server]] = []
        self.crashes: list[str] = []
        self.log: list[str] = []
        self.io: FaultyIo
        self.patch: pytest.MonkeyPatch
        self._stack = contextlib.ExitStack()
        self._names = 0

    def __enter__(self) -> VirtualWorld:
        virtual_machine.here = self.machine
        enter = self._stack.enter_context
        # For tests too: a fixture's patch would be undone after the world's own, and so bring it back.
        self.patch = patch = enter(pytest.MonkeyPatch.context())
        patch.setenv("EVERYWATT_PLUGINS", "virtual=virtual_machine:Sensors")
        patch.setenv("EVERYWATT_RUNTIME_DIR", str(self.runtime))
        patch.setenv("EVERYWATT_HOME", str(self.home))
        patch.setenv("HOME", str(self.folder))
        patch.setenv("EVERYWATT_RECORDER_IDLE_S", "0.2")
        patch.chdir(self.folder)
        patch.setattr(everywatt.recorder.channel, "start", self._start_recorder)
        patch.setattr(everywatt.api.meter, "provenance", _provenance)
        # Meters of programs that were killed here stay open: in another test, measure() would be a span of theirs.
        patch.setattr(everywatt.api.meter, "_open", [])
        enter(self.time.everywhere())
        self.io = enter(watch(self.time, self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        everywatt.api.meter._current.set(None)
        virtual_machine.here = None

    # Time.

    def sleep(self, seconds: float) -> None:
        """Let time pass for the program that has its turn."""
        self.time.sleep(seconds)

    @property
    def now_ns(self) -> int:
        return self.time.now_ns

    def until(self, ready: Callable[[], Any], seconds: float = 60.0, every_s: float = 0.05) -> Any:
        """Sleep until something is so; AssertionError where it is not after so long."""
        deadline_ns = self.now_ns + round(seconds * NS)
        while not (found := ready()):
            assert self.now_ns < deadline_ns, "it did not happen"
            self.sleep(every_s)
        return found

    # Programs.

    def process(self, name: str) -> Process:
        """A process with a name of its own: NAME-1, NAME-2, …"""
        self._names += 1
        return Process(f"{name}-{self._names}")

    def program(self, name: str, function: Callable[[], object]) -> VirtualTask:
        """Run a function as a program of its own."""
        return self.time.start(self.process(name), function)

    def kill(self, process: Process) -> None:
        """As kill -9."""
        self.time.kill(process)

    @property
    def recorder(self) -> Process | None:
        """The recorder that runs."""
        return next((process for process, _ in reversed(self.recorders) if process.alive), None)

    def wait_gone(self, seconds: float = 8.0) -> None:
        """Until no recorder runs."""
        self.until(lambda: self.recorder is None, seconds)

    def _start_recorder(self, patience: Patience) -> None:
        """In place of `recorder.channel.start`: the same server, as a program of this world."""
        process = self.process("recorder")
        made: list[Server | str | None] = []

        def begin() -> None:
            try:
                server = server_in(own_folder(), self.time, self.log.append)
            except OSError as error:
                made.append(f"{error}")
                return
            made.append(server)
            if server is None:
                return
            self.recorders.append((process, server))
            process.on_kill.append(lambda: _hang_up(server))
            try:
                server.run()
            except Exception as error:  # as recorder.process.serve
                self.crashes.append(f"{process.name}: {type(error).__name__}: {error}")
            finally:
                if not process.killed:
                    server.listener.close()
                    if server.stop:
                        server.may_leave()
                    _hang_up(server)

        self.time.start(process, begin)
        self.time.wait(lambda: bool(made) or process.killed, (patience.deadline_ns() - self.now_ns) / NS)
        if not made or isinstance(made[0], str):
            raise RecorderError(f"The recorder did not start: {made[0] if made else 'no response in time.'}")
        self.time.sleep(START_S)

    def agent(self, **options: Any) -> RunningAgent:
        """An agent that is started; `run` has its own turns."""
        return RunningAgent(self, options)


class RunningAgent:
    """An agent as a program of the world: what it says, what a scrape gives, its end."""

    def __init__(self, world: VirtualWorld, options: dict[str, Any]) -> None:
        self.world = world
        self.said: list[str] = []
        self.folder = Path(options.pop("state", world.folder / "agent"))
        self.process = world.process("agent")
        made = AgentOptions(
            **{"listen": "127.0.0.1:0", "sensors": ("virtual",), "estimate": False, "jobs": (), **options},
            state=self.folder,
        )
        providers = made.jobs and None
        machine = Machine(environ=dict(os.environ), clock=world.time)
        self.agent: Agent | None = None
        self.error: Exception | None = None

        def serve() -> None:
            try:
                agent = Agent(made, machine=machine, providers=providers or [], say=self.said.append)
                self.process.on_kill.append(lambda: _let_go(agent))
                agent.start()
                self.agent = agent
                agent.run()
                agent.finish()
            except Exception as error:
                self.error = error
                for end in self.process.on_kill:  # as the kernel does when a process ends
                    end()

        self.task = world.time.start(self.process, serve)
        world.time.wait(lambda: self.agent is not None or self.task.done, 60.0)
        if self.error is not None:
            raise self.error

    def values(self) -> dict[str, tuple[float, int | None]]:
        """What a scrape gives now, by `name{labels}`, with its time (UTC ms)."""
        from agents import parse

        assert self.agent is not None
        return parse(self.agent.text())

    def wait_for(self, head: str, seconds: float = 60.0) -> dict[str, tuple[float, int | None]]:
        """Values, once there is a series that begins like this."""

        def look() -> dict[str, tuple[float, int | None]] | None:
            values = self.values()
            return values if any(key.startswith(head) for key in values) else None

        return self.world.until(look, seconds)  # type: ignore[no-any-return]

    def end(self) -> None:
        """As SIGTERM; returns when it has finished."""
        assert self.agent is not None
        self.agent.stop()
        self.task.join(60.0)
        assert self.task.done
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """As kill -9."""
        self.world.kill(self.process)


def _hang_up(server: Server) -> None:
    """What the kernel closes when a recorder ends."""
    server.listener.close()
    for connection in server.connections.values():
        connection.close()


def _let_go(agent: Agent) -> None:
    if agent._lock is not None:
        agent._lock.close()


def _provenance(command: Any = None, *, mask: bool = True, **more: Any) -> dict[str, Any]:
    """Without asking git and the kernel, which takes longer than all the rest."""
    from everywatt import __version__

    return {
        "everywatt": __version__,
        "host": {"name": "virtual", "cpus": 4},
        "command": list(command or sys.argv[:1]),
        **more,
    }
