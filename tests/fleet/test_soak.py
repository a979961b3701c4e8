"""Two hours of real time: an agent that is scraped and sends, and a recorder beside it on the same machine.

`SOAK_HOURS` sets another length; `make test-long` waits for it, every test run does some seconds of it. What half a day
does to memory and disk is shown in virtual time (`test_time.py`); this is for what only real processes have:
descriptors, threads, sockets.
"""

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from agents import SRC, AgentProcess, Receiver, home_of

from everywatt.api.run import load

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.realtime
HOURS = float(os.environ.get("SOAK_HOURS", "2"))
DEVICES = {"gpu.0": "gpu", "gpu.1": "gpu", "cpu.0": "package"}
SCRAPE_S = 15.0
WARM_S = 600.0  # in less, memory is still that of a start
SETTLED = 6  # memory is compared with that after a sixth of the time
MORE_BYTES = 4 * 2**20
# An allocator keeps what the most processes at once took: 2.5 and 4.9 KB for each of 1,500 that lived for 15 s.
PROCESS_BYTES = 5000
LINES_AN_HOUR = 60
EDGES_J = 3 * 610  # a scrape is up to a period and a read old at both ends; the machine draws 610 W at most


def of_process(pid: int) -> tuple[int, int, int]:
    """Resident bytes, open descriptors and threads; not the files of /proc, of which there is one for each process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    files = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()]
    opened = sum(not name.startswith("/proc/") for name in files)
    return pages * os.sysconf("SC_PAGE_SIZE"), opened, len(os.listdir(f"/proc/{pid}/task"))


class Census(threading.Thread):
    """How many processes the machine had at most so far, by two looks a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self._over = 0, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.5):
            self.most = max(self.most, sum(name.isdigit() for name in os.listdir("/proc")))

    def end(self) -> None:
        self._over.set()
        self.join()


def goes_on(name: str) -> bool:
    """Whether it is a counter of what stays; a user whose processes ended comes back with a counter at zero."""
    metric = name.partition("{")[0]
    stays = any(f'kind="{kind}"' in name for kind in ("idle", "unattributed", "rest"))
    return metric.endswith("_total") and (stays or not metric.startswith("everywatt_owner_"))


def series(device: str) -> str:
    return f'everywatt_energy_joules_total{{device="{device}",domain="{DEVICES[device]}",pedigree="counter"}}'


def soak(sim_machine, tmp_path, seconds: float) -> str:
    lab = sim_machine(gpus=["square:100W,300W,2s", "telegraph:80W,250W,0.4s,7"], packages=["constant:60W"])
    env = {**home_of(tmp_path, lab.environment()), "EVERYWATT_HOME": str(tmp_path / "runs")}
    words = ["--state", str(tmp_path / "s"), "--period", "1s", "--rotate", "10m", "--retention", "30m"]
    with (
        Receiver() as receiver,
        AgentProcess(env, *words, "--remote-write", receiver.url) as agent,
        ExitStack() as leaving,
    ):
        values = agent.wait_for(series("gpu.0"))
        started_s = time.monotonic()
        recorded = subprocess.Popen(
            [sys.executable, "-m", "everywatt", "run", "--tag", "soak", "--", "sleep", str(seconds)],
            env={**env, "PYTHONPATH": str(SRC)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        leaving.callback(recorded.terminate)
        census = Census()
        census.start()
        leaving.callback(census.end)
        first, began_ns = values, time.monotonic_ns()
        early, early_most, slowest_s, scrapes = None, 0, 0.0, 0
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(SCRAPE_S, seconds / 12, left))  # the soak itself
            asked = time.monotonic()
            later = agent.values()
            slowest_s, scrapes = max(slowest_s, time.monotonic() - asked), scrapes + 1
            back = {
                name: (value, later[name][0])
                for name, (value, _) in values.items()
                if goes_on(name) and name in later and later[name][0] < value
            }
            assert not back
            values = later
            if early is None and left < seconds * (1 - 1 / SETTLED):
                early, early_most = of_process(agent.process.pid), census.most
        ended_ns = time.monotonic_ns()
        late = of_process(agent.process.pid)
        for device in DEVICES:
            seen = values[series(device)][0] - first[series(device)][0]
            assert seen == pytest.approx(lab.truth(device, began_ns, ended_ns), rel=1e-4, abs=EDGES_J), device
        assert recorded.wait(120) == 0
        took_s = time.monotonic() - started_s
        assert agent.end() == 0
    assert early is not None
    if seconds >= WARM_S:
        more_bytes = MORE_BYTES + PROCESS_BYTES * (census.most - early_most)
        assert late[0] - early[0] < more_bytes, (early, late, early_most, census.most)
        assert late[1] <= early[1] + 3 and late[2] <= early[2] + 1, (early, late)
    assert len(agent.log) < 10 + LINES_AN_HOUR * seconds / 3600, agent.log
    assert all(status < 300 for status, _ in receiver.posts)
    run = load(next((tmp_path / "runs").iterdir()))
    energy = run.energy()
    inside = next(span for span in run.spans if span.parent is None)
    assert energy.low is not None and energy.high is not None and energy.coverage > 0.999
    assert seconds <= run.duration_s <= took_s
    truth = sum(lab.truth(device, inside.start_ns, inside.end_ns) for device in DEVICES)
    assert energy.low <= truth <= energy.high
    return (
        f"{seconds / 3600:.2f} h: {scrapes} scrapes, the slowest {slowest_s * 1e3:.0f} ms; memory "
        f"{early[0] / 1e6:.1f} MB after a sixth of it and {late[0] / 1e6:.1f} MB at the end, with {early_most} and "
        f"{census.most} processes at most; "
        f"{sum(n for _, n in receiver.posts)} samples sent; run {energy}, true {truth:.1f} J"
    )


def test_a_soak_in_short(sim_machine, tmp_path):
    print(soak(sim_machine, tmp_path, 8.0))


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_soak_of_two_hours(sim_machine, tmp_path):
    print(soak(sim_machine, tmp_path, HOURS * 3600))
