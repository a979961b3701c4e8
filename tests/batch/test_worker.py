"""The worker by itself: output, codes, what is left behind, and its end when its parent is gone."""

import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from everywatt.batch.devices import CPU, Lane
from everywatt.batch.items import Item
from everywatt.batch.journal import Attempt


@pytest.fixture
def lane():
    made = Lane(0, CPU, os.environ)
    made.start()
    yield made
    made.close()


def told(lane, key, wait_s=240.0):
    """The next message of a kind."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if not hasattr(lane, "told"):
            lane.told = []
        for place, message in enumerate(lane.told):
            if key in message:
                return lane.told.pop(place)[key]
        if select.select([lane], [], [], 0.5)[0]:
            lane.told += lane.messages() or []
    raise AssertionError(f"the worker did not say {key}")


def run(lane, script, **job):
    lane.give(Item(0, "a", "a"), Attempt(1, "cpu", 0), {"words": ["sh", "-c", script], **job})
    told(lane, "started")
    return told(lane, "ended")


def ends(pid):
    """Whether a process comes to its end; nobody may have waited for it yet."""
    until(lambda: _ended(pid))
    return True


def _ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def eventually(file):
    """The process id that a command writes into a file."""
    return int(until(lambda: file.exists() and file.read_text()))


def test_output_is_kept_to_its_end(lane):
    ended = run(lane, "seq 1 20000; printf 'caf\\303\\251 \\377' >&2")
    assert ended["stdout"].endswith("19999\n20000\n") and len(ended["stdout"]) == 4000
    assert ended["stderr"] == "café \ufffd"
    assert ended["exit_code"] == 0 and ended["cpu_s"] >= 0


def test_the_peak_of_a_command_is_its_own_or_is_not_told(lane):
    small = run(lane, "exit 0")
    assert small["max_rss_bytes"] is None and "of the worker cannot be distinguished" in small["max_rss_reason"]
    large = run(lane, f"exec {sys.executable} -c 'x = b\"x\" * (100 << 20)'")
    assert 100 * 2**20 < large["max_rss_bytes"] < 200 * 2**20 and "max_rss_reason" not in large


@pytest.mark.parametrize(("script", "code"), [("exit 9", 9), ("kill -11 $$", 139)])
def test_codes_are_a_shells(lane, script, code):
    assert run(lane, script)["exit_code"] == code


def test_what_is_left_behind_does_not_hold_the_lane_up(lane, tmp_path):
    ended = run(lane, f"sleep 30 & echo $! > {tmp_path}/pid; echo said")
    assert ended["stdout"] == "said\n" and ended["runtime_s"] < 20
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert run(lane, "echo next")["stdout"] == "next\n"


def test_one_that_will_not_end_is_ended(lane):
    lane.give(
        Item(0, "a", "a"), Attempt(1, "cpu", 0), {"words": ["sh", "-c", "trap '' TERM; while :; do sleep 0.2; done"]}
    )
    told(lane, "started")
    time.sleep(0.3)  # for the shell to set its trap, of which nothing is to be seen
    lane.kill()
    ended = told(lane, "ended")
    assert ended["exit_code"] == 137 and ended["killed"]


def test_files_are_described(lane, tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    lane.give(Item(0, "a", "a"), Attempt(1, "cpu", 0), {"words": ["true"], "file": str(tmp_path / "f")})
    deadline = time.monotonic() + 30
    messages = []
    while not messages and time.monotonic() < deadline:
        select.select([lane], [], [], 0.5)
        messages = [one for one in lane.messages() or [] if "file" in one]
    assert messages[0]["file"]["bytes"] == 3
    assert messages[0]["file"]["sha256"].startswith("ba7816bf8f01cfea414140de5dae2223")


def test_its_command_ends_when_the_parent_is_gone(lane):
    lane.give(Item(0, "a", "a"), Attempt(1, "cpu", 0), {"words": ["sh", "-c", "sleep 60; :"]})
    pid = told(lane, "started")
    lane.close()
    assert ends(pid), "the command outlives its batch"


def test_what_its_command_put_in_a_group_of_its_own_ends_too(lane, tmp_path):
    script = f"set -m; sleep 60 & echo $! > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/apart; wait"
    lane.give(Item(0, "a", "a"), Attempt(1, "cpu", 0), {"words": ["bash", "-c", script]})
    told(lane, "started")
    apart = eventually(tmp_path / "apart")
    assert os.getpgid(apart) == apart
    lane.close()
    assert ends(apart), "a part of the command outlives its batch"


def test_its_command_ends_with_it_where_nobody_is_left_to_see_to_it(lane, tmp_path):
    """As when batch and worker are killed in the same moment: neither can do anything any more."""
    script = f"sleep 60 & echo $! > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/child; wait"
    lane.give(Item(0, "a", "a"), Attempt(1, "cpu", 0), {"words": ["sh", "-c", script]})
    pid = told(lane, "started")
    child = eventually(tmp_path / "child")
    os.kill(lane.worker_pid, signal.SIGKILL)
    assert ends(pid) and ends(child), "the command outlives its worker"


def test_what_a_command_leaves_behind_on_purpose_is_left_alone(lane, tmp_path):
    ended = run(lane, f"sleep 60 > /dev/null 2>&1 & echo $! > {tmp_path}/pid")
    pid = int((tmp_path / "pid").read_text())
    assert ended["exit_code"] == 0
    os.kill(lane.worker_pid, signal.SIGKILL)
    time.sleep(0.5)  # the time in which it would be ended by mistake
    assert "sleep" in Path(f"/proc/{pid}/cmdline").read_text()
    os.kill(pid, signal.SIGKILL)


def test_its_command_ends_when_the_worker_is_killed(lane):
    lane.give(Item(0, "a", "a"), Attempt(1, "cpu", 0), {"words": ["sh", "-c", "(sleep 60; :); :"]})
    pid = told(lane, "started")
    os.kill(lane.worker_pid, signal.SIGKILL)
    lane.bury()
    assert ends(pid), "the command outlives its worker"


def test_a_kill_that_arrives_with_its_job_kills_it(lane):
    os.kill(lane.worker_pid, signal.SIGSTOP)  # so that it reads both messages at once
    lane.give(Item(0, "a", "a"), Attempt(1, "cpu", 0), {"words": ["sleep", "300"]})
    lane.kill()
    os.kill(lane.worker_pid, signal.SIGCONT)
    ended = told(lane, "ended")
    assert ended["killed"] and ended["exit_code"] == 128 + signal.SIGTERM
