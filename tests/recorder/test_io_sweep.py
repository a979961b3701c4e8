"""Every system call fails once, one after another: figures hold the truth or say what is missing, programs go on.

Calls that open, write, sync, rename, make folders, accept and send; of the recorder and of the measured program; as the
program sees its figure, and as another process sees it afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import select
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_clock import FakeClock
from fault_plans import LASTING, Outcome, Plan, Program
from faulty_io import Fault
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.recorder.server import Server
from everywatt.recorder.wire import SOCKET

ROLES = ("recorder", "program")


@pytest.fixture
def place() -> Iterator[Path]:
    """Short, whatever folder tests write to: a socket with a long name takes more calls, and calls are counted."""
    with tempfile.TemporaryDirectory(prefix="ew") as folder:
        yield Path(folder) / "w"


def carried_out(folder: Path, fault: Fault | None = None) -> Outcome:
    """One program that is measured for a second and a half, where `fault` happens."""
    curves = {"cpu": "square:30W,90W,0.7s", "gpu": "constant:200W"}
    plan = Plan(0, curves, [Program(0.0, [0.8, 0.6], 0.05)], None, 3600.0, False, length_s=3.5)
    if fault is not None:
        plan.actions.append(lambda world: world.io.faults.append(fault))
    folder.mkdir()
    try:
        return Outcome(plan, folder)
    finally:
        shutil.rmtree(folder)


def sweep(folder: Path, role: str, number: int, times: int = 1) -> None:
    calls = [kind for name, kind in carried_out(folder).world.io.calls if name.startswith(role)]
    assert len(calls) > 10
    wrong = []
    for nth, kind in enumerate(calls, 1):
        found = carried_out(folder, Fault(role, nth, number, None, times)).wrong
        wrong += [f"{role}, call {nth} ({kind}) fails with {errno.errorcode[number]}: {text}" for text in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("role", ROLES)
def test_any_single_call_may_fail(place: Path, role: str) -> None:
    sweep(place, role, errno.EIO)


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("times", [1, 3, LASTING])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EACCES])
def test_calls_may_fail_in_other_ways(place: Path, role: str, number: int, times: int) -> None:
    sweep(place, role, number, times)


@pytest.mark.parametrize("nth", [31, 40])
def test_a_full_disk_is_seen_by_other_processes_too(place: Path, nth: int) -> None:
    found = carried_out(place, Fault("recorder", nth, errno.ENOSPC, "write", LASTING))
    assert not found.wrong
    assert found.plan.programs[0].shown.coverage < 0.9


@pytest.mark.parametrize("nth", [6, 8, 12])
def test_a_program_that_can_send_nothing_more_is_recorded_to_its_end(place: Path, nth: int) -> None:
    found = carried_out(place, Fault("program", nth, errno.EMFILE, None, LASTING))
    assert not found.wrong
    assert found.plan.programs[0].shown.joules is not None


def test_a_recorder_at_its_limit_of_descriptors_does_not_spin(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client.connect(str(tmp_path / "s"))
        server = Server(listener, FakeClock())
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), limits[1]))
        try:
            server._wait(server.clock.monotonic_ns())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not server.connections and listener not in server._listening()[0]
        server.clock.advance(1.0)
        server._wait(server.clock.monotonic_ns())
        assert len(server.connections) == 1 and listener in server._listening()[0]
        next(iter(server.connections.values())).close()


def test_clients_leave_the_recorder_descriptors_for_its_tapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import everywatt.recorder.server as server_module

    with VirtualWorld(tmp_path, cpu="constant:100W") as world, contextlib.ExitStack() as stack:
        first = Meter("work", sensors=["virtual"], estimate=False).start()
        gc.collect()  # descriptors of earlier tests that would become free below the limit
        others = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(30)]
        limit = others[-1].fileno() + 10
        monkeypatch.setattr(server_module, "most_descriptors", lambda: limit, raising=False)
        for other in others:
            other.connect(str(world.runtime / SOCKET))
            world.sleep(0.01)
        closed = sum(not other.recv(1) for other in others if select.select([other], [], [], 0)[0])
        assert 10 <= closed < 30
        world.sleep(1)
        first.stop()
        assert first.energy.coverage == 1
