"""An agent whose system calls fail, one after another: its counters never go back, and what is lost is visible."""

import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from faulty_io import Fault
from virtual_machine import CARD_NS
from virtual_world import VirtualWorld

from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError
from everywatt.tape.reader import Tape

COUNTERS = ("everywatt_energy_joules_total", "everywatt_owner_energy_joules_total")
DEVICES = {"cpu.0": "cpu", "gpu.0": "gpu"}
CALLS = 240  # what the agent below makes, and a few more
PERIOD_S = 0.5


def carried_out(fault: Fault) -> list[str]:
    """What is wrong after an agent of 6 s with this fault, and another of 2 s without it."""
    folder, wrong, told = Path(tempfile.mkdtemp(prefix="ew")), [], {}
    try:
        with VirtualWorld(folder, cpu="square:30W,90W,0.7s", gpu="constant:200W") as world:
            world.io.faults.append(fault)
            began_ns, said, ended_ns = world.now_ns, [], 0
            for seconds in (6.0, 2.0):
                if seconds < 6.0:
                    world.io.faults.clear()
                try:
                    agent = world.agent(period_s=PERIOD_S, rotate_s=2.0)
                except (EverywattError, OSError) as error:
                    said.append(str(error))  # systemd starts it again
                    continue
                for _ in range(round(seconds / PERIOD_S)):
                    world.sleep(PERIOD_S)
                    for name, (value, _) in agent.values().items():
                        if name.startswith(COUNTERS):
                            if value < told.get(name, 0.0):
                                wrong.append(f"{name} goes back from {told[name]} to {value}")
                            told[name] = value
                try:
                    agent.end()
                except (Exception, AssertionError) as error:
                    wrong.append(f"the agent ends with {type(error).__name__}: {error}")
                said += agent.said
            ended_ns = world.now_ns
            if not told:
                wrong.append("nothing was ever reported")
            for name, device in DEVICES.items():
                mine = sum(value for key, value in told.items() if key.startswith(f'{COUNTERS[0]}{{device="{name}"'))
                drawn, most_w = world.machine.energy_j(device, began_ns, ended_ns), world.machine.curves[device].high_w
                # It counts from the publication before its start, and up to the publication before its last flush.
                if mine > drawn * 1.001 + most_w * CARD_NS / NS:
                    wrong.append(f"{name}: {mine:.1f} J reported, {drawn:.1f} J drawn")
                if mine < drawn - most_w * 3 * PERIOD_S and not said and not gaps(folder):
                    wrong.append(f"{name}: {mine:.1f} J reported, {drawn:.1f} J drawn, and nothing says so")
        return wrong
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def gaps(folder: Path) -> bool:
    """Whether a tape says that something is missing."""
    for path in folder.rglob("*.tape"):
        with Tape.open(path) as tape:
            if any(tape.gaps(group.id) for group in tape.groups) or any(note.kind == "lost" for note in tape.notes()):
                return True
    return False


def check(nth: int, number: int, times: int) -> None:
    wrong = carried_out(Fault("agent", nth, number, None, times))
    if wrong:
        pytest.fail("\n".join([f"call {nth}, {errno.errorcode[number]}, {times} times:", *wrong]), pytrace=False)


@pytest.mark.parametrize("first", range(1, CALLS, 24))
def test_one_call_fails(first):
    for place, nth in enumerate(range(first, first + 24, 3)):
        check(nth, (errno.ENOSPC, errno.EIO, errno.EMFILE)[place % 3], 1)


@pytest.mark.parametrize("nth", [60, 100, 150])
def test_what_cannot_be_written_until_the_end_is_not_reported(nth):
    check(nth, errno.ENOSPC, 10**6)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("times", [1, 4, 40])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS])
def test_every_call_fails_once(number, times):
    for nth in range(1, CALLS):
        check(nth, number, times)
