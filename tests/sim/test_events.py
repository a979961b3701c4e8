"""The list of what changes in a simulated machine, as processes see it that read while it is written."""

import subprocess
import sys
from pathlib import Path

from everywatt.sim.curves import parse_curve
from everywatt.sim.truth import EventLog

# Reads the count as the C side does, in one load, until it is told to end; says how often it went back.
READER = """
import mmap, os, select, sys
fd = os.open(sys.argv[1], os.O_RDWR)
count = memoryview(mmap.mmap(fd, 0))[:8].cast("Q")
print("ready", flush=True)
last = back = 0
while not select.select([0], [], [], 0)[0]:
    for _ in range(2000):
        now = count[0]
        back += now < last
        last = max(now, last)
print(back, last)
"""


def test_a_reader_never_finds_fewer_events_than_before(tmp_path: Path) -> None:
    log = EventLog.create(tmp_path / "events", parse_curve("load:10W,50W"), 1e9)
    words = [sys.executable, "-c", READER, str(tmp_path / "events")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        for number in range(30_000):
            log.append(number * 1e-3, raw_w=10.0 + number % 7)
        reader.stdin.close()
        assert reader.stdout.read().split()[0] == "0"
    assert len(log) == 30_001
    log.close()
