"""stress-ng as the engine: also for steps of less than a second, which its own timer never ends."""

import os
import shutil
import time

import pytest
from loads import needed, workers_below

from everywatt.core.errors import UsageError
from everywatt.stress import Cpu, Load, Program, Step, parse_shape, play, shaped


@pytest.fixture(autouse=True)
def installed():
    needed(shutil.which("stress-ng"), "stress-ng is not installed (make system-packages)")


def test_short_steps_end_and_their_cpu_time_is_counted():
    began = time.monotonic()
    results = play(shaped(Load(cpu_cores=1), {"": parse_shape("steps:60,0,60")}, time_s=2.4), engine="stress-ng")
    assert time.monotonic() - began < 40.0
    busy, idle, again = results
    assert busy.reached["cpu_percent"] > 1 and again.reached["cpu_percent"] > 1
    assert idle.reached["cpu_percent"] == 0
    assert all(result.reached["cpu_percent"] < 85 for result in results)
    assert workers_below(os.getpid()) == []


@pytest.mark.parametrize("kind", ["memory", "branchy"])
def test_kinds_that_it_cannot_do_in_part_are_refused(kind):
    with pytest.raises(UsageError, match=f"cannot control the load of the kind {kind}"):
        play(Program((Step(1.0, Cpu(1, 50.0, kind)),)), engine="stress-ng")


def test_without_it_the_message_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="stress-ng is not installed"):
        play(Program((Step(1.0, Cpu(1, 50.0)),)), engine="stress-ng")
