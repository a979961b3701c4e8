"""SIGTERM ends work as Ctrl-C does, and what `timeout` does, which sends it twice in one moment, is one request."""

import io
import os
import signal
from types import SimpleNamespace

import pytest

from everywatt.cli.batch import common as batch_common
from everywatt.cli.batch.common import stopping
from everywatt.cli.common.metering import terminable
from everywatt.cli.common.output import Output


def send(number):
    """To ourselves; the handler runs before the next line."""
    os.kill(os.getpid(), number)


def test_a_second_sigterm_does_not_break_into_keeping_what_there_is():
    kept = []
    with terminable() as code:
        try:
            send(signal.SIGTERM)
            raise AssertionError("it goes on")
        except KeyboardInterrupt:
            pass
        finally:
            send(signal.SIGTERM)
            kept.append("result")
        assert (kept, code()) == (["result"], 128 + signal.SIGTERM)


class Runner:
    def __init__(self):
        self.asked = []

    def stop(self, how):
        self.asked.append(how)


@pytest.mark.parametrize(("number", "apart_s", "asked"), [("SIGTERM", 0.0, 1), ("SIGTERM", 9.0, 2), ("SIGINT", 0.0, 2)])
def test_a_batch_takes_twins_for_one(monkeypatch, number, apart_s, asked):
    now = [100.0]
    monkeypatch.setattr(batch_common, "time", SimpleNamespace(monotonic=lambda: now[0]))
    runner, output = Runner(), Output(stdout=io.StringIO(), stderr=io.StringIO())
    with stopping("finish", output) as (ready, caught):
        ready(runner)
        send(getattr(signal, number))
        now[0] += apart_s
        send(getattr(signal, number))
        assert len(runner.asked) == len(caught) == asked
