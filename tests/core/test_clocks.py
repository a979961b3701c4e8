"""Clocks and anchors."""

from __future__ import annotations

import os
import resource
import socket
import time

from fake_clock import FakeClock

from everywatt.core.clocks import NS, SystemClock, take_anchor


def test_the_fake_clock_moves_only_when_told():
    clock = FakeClock()
    start = clock.monotonic_ns()
    clock.advance(1.5)
    assert clock.monotonic_ns() - start == 1_500_000_000
    clock.sleep_until(start)  # a deadline that has passed does not turn time back
    assert clock.monotonic_ns() - start == 1_500_000_000
    clock.sleep_until(start + 2 * NS)
    assert clock.monotonic_ns() - start == 2 * NS
    assert clock.sleeps == [start, start + 2 * NS]


def test_a_suspend_shows_on_boottime_only():
    clock = FakeClock()
    before = take_anchor(clock)
    clock.suspended_ns += 5 * NS
    after = take_anchor(clock)
    assert after.boottime_ns - before.boottime_ns - (after.monotonic_ns - before.monotonic_ns) == 5 * NS


def test_an_anchor_takes_the_closest_of_its_tries():
    class Jumpy(FakeClock):
        delays = (9, 9, 4, 4, 1, 1, 7, 7, 8, 8)
        reads = 0

        def monotonic_ns(self):
            self.now_ns += self.delays[self.reads] if self.reads < len(self.delays) else 9
            self.reads += 1
            return self.now_ns

    assert take_anchor(Jumpy()).error_ns == 1


def test_the_real_clocks_agree_with_the_kernel():
    clock = SystemClock()
    anchor = take_anchor(clock)
    assert anchor.error_ns >= 0
    assert abs(anchor.utc_ns - time.time_ns()) < 60 * NS
    assert anchor.boottime_ns >= anchor.monotonic_ns - anchor.error_ns
    deadline = clock.monotonic_ns() + 2_000_000
    clock.sleep_until(deadline)
    assert clock.monotonic_ns() >= deadline


def test_many_open_files():
    """A recorder in a program with thousands of open files hears its clients all the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    mine, other = socket.socketpair()
    try:
        clock = SystemClock()
        assert mine.fileno() > 1024
        assert clock.select([mine], [], (), 0)[:2] == ([], [])
        other.send(b"x")
        assert clock.select([mine.fileno(), other], [other], (), None)[:2] == ([mine.fileno()], [other])
    finally:
        for fd in files:
            os.close(fd)
        mine.close()
        other.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
