"""A server that the benchmark starts ends with it, however the benchmark itself ends."""

import os
import signal
import subprocess
import sys

import pytest
from waiting import until

from everywatt.bench.llm.serving import Serving

PROGRAM = """
import signal
from everywatt.bench.llm.serving import Serving
server = Serving({command!r})
server.prepare()
server.start()
print(server._pid, flush=True)
signal.pause()
"""


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_where_the_benchmark_is_killed(number):
    program = PROGRAM.format(command="sleep 600{port}")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as benchmark:
        pid = int(benchmark.stdout.readline())
        benchmark.send_signal(number)
        benchmark.wait()
    until(lambda: gone(pid), "the end of the server")


def test_stop_leaves_nothing(tmp_path):
    server = Serving("sleep 600{port}")
    shell = server.prepare()
    server.start()
    assert server.alive
    server.stop(tmp_path)
    until(lambda: gone(-shell), "the end of the whole group")
