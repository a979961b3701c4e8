"""The duty cycle on a clock of its own: whatever a round of work costs, the mean is what was asked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.stress.pacing import Stretch, pace
from everywatt.stress.ram_disk_network import block_bytes

MS = 1_000_000


class Machine:
    """A core on which work takes `cost_ns` of CPU and `stretch` times as long by the wall clock."""

    def __init__(self, cost_ns, stretch=1.0):
        self.now, self.busy, self.cost, self.stretch, self.waits = 0, 0, cost_ns, stretch, 0

    def clock(self):
        return self.now

    def done(self):
        return self.busy / 1e9

    def work(self):
        self.busy += self.cost
        self.now += int(self.cost * self.stretch)

    def wait(self, until_ns):
        self.waits += 1
        self.now = max(self.now, until_ns)


def play(machine, level, seconds, offset=0.0):
    pace(machine, Stretch(0, 0, round(seconds * 1e9), level), machine.wait, offset=offset, clock=machine.clock)
    return machine.busy / (seconds * 1e9)


@settings(deadline=None)
@given(
    level=st.floats(0.01, 1.0),
    cost_us=st.integers(50, 900),
    seconds=st.floats(0.5, 5.0),
    offset=st.floats(0, 0.99),
)
def test_the_share_is_what_was_asked(level, cost_us, seconds, offset):
    machine = Machine(cost_us * 1000)
    assert play(machine, level, seconds, offset) == pytest.approx(level, abs=0.004)
    assert machine.now == pytest.approx(seconds * 1e9, abs=MS), "and it ends when it should"


def test_a_short_step_has_short_slices():
    machine = Machine(200_000)
    assert play(machine, 0.5, 0.1) == pytest.approx(0.5, abs=0.01)
    assert machine.waits >= 10


def test_no_load_sleeps_through():
    machine = Machine(200_000)
    assert play(machine, 0.0, 60.0) == 0
    assert machine.waits == 1


def test_a_busy_machine_gives_less_and_the_step_ends_all_the_same():
    machine = Machine(200_000, stretch=4.0)
    assert play(machine, 0.5, 2.0) == pytest.approx(0.25, abs=0.01)
    assert machine.now < 2.01e9


def test_lost_time_is_made_up_for():
    """For the first half second somebody else has the core."""

    class Late(Machine):
        def work(self):
            self.stretch = 1000.0 if self.now < 500 * MS else 1.0
            super().work()

    machine = Late(200_000)
    assert play(machine, 0.5, 2.0) == pytest.approx(0.5, abs=0.01)


def test_blocks_suit_the_rate():
    assert block_bytes(1e3, 1024, 65536) == 1024
    assert block_bytes(2e6, 1024, 65536) == 10_000
    assert block_bytes(1e9, 1024, 65536) == 65536
