"""A server that the benchmark starts ends with it, however the benchmark itself ends."""

import signal
import subprocess
import sys

import pytest
from loads import gone, group

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_where_the_benchmark_is_killed(number):
    program = PROGRAM.format(command="sleep 600{port}")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as benchmark:
        pid = int(benchmark.stdout.readline())
        benchmark.send_signal(number)
        benchmark.wait()
    assert gone([pid])


def test_stop_leaves_nothing(tmp_path):
    server = Serving("sleep 600{port}")
    shell = server.prepare()
    server.start()
    assert server.alive and group(shell)
    server.stop(tmp_path)
    assert gone(group(shell))
