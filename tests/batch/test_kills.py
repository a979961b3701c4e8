"""Random failures, and kills of workers and of the batch itself: nothing is lost, and nothing done is run again."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from waiting import until

from everywatt.batch.journal import DONE, FAILED, read_journal

WORK = (
    'echo "start $1 $$" >> "seen"; sleep 0.0$(( $1 % 5 )); [ $(( $1 % 13 )) != 5 ] || exit 7; echo "end $1" >> "seen"'
)


def workers(batch_pid):
    """The workers of a batch: its children that run worker.py."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == batch_pid and b"worker.py" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def done_in(folder):
    journals = list((folder / "runs").glob("*/batch.jsonl"))
    if not journals:
        return set()
    records = [json.loads(line) for line in journals[0].read_bytes().split(b"\n")[:-1] if line.endswith(b"}")]
    return {record["id"] for record in records if record["kind"] == "end" and record["status"] == DONE}


def chaos(here, count, seed, kills):
    """Run, kill, resume until it ends by itself. Gives the journal, and what was started after it was done."""
    rng = random.Random(seed)
    script = here.script(WORK)
    first = ["--max-retries", "1", "--backoff", "1ms", here.items(*range(count)), "--", script, "{input}"]
    again: list[str] = []
    for turn in range(kills + 1):
        words = first if turn == 0 else ["--max-retries", "1", "--backoff", "1ms", "--resume", "last"]
        if not list((here.folder / "runs").glob("*/batch.jsonl")):
            words = first
        before = done_in(here.folder)
        at = len(_lines(here))
        child = subprocess.Popen(
            here.words("--quiet", *words), env=here.environ, cwd=here.folder, stdout=subprocess.DEVNULL
        )
        if turn < kills:
            _harass(rng, child)
        code = child.wait(timeout=600)
        _wait_for_silence(here)
        again += [n for kind, n, *_ in _lines(here)[at:] if kind == "start" and n in before]
        if code in (0, 1):
            break
    (journal,) = (here.folder / "runs").glob("*/batch.jsonl")
    return read_journal(journal.parent), again


def _harass(rng, child):
    """Kill a worker or two, then the batch."""
    for _ in range(rng.randint(1, 3)):
        time.sleep(rng.uniform(0.2, 1.0))  # a moment at random: no other one is more likely to find a fault
        found = workers(child.pid)
        if found:
            try:
                os.kill(rng.choice(found), signal.SIGKILL)
            except ProcessLookupError:
                pass
    time.sleep(rng.uniform(0.0, 0.5))  # a moment at random
    child.kill()


def _lines(here):
    file = here.folder / "seen"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def _wait_for_silence(here):
    """The killed batch's commands end with it."""

    def silent():
        pids = [int(line[2]) for line in _lines(here)[-20:] if line[0] == "start"]
        return not any(Path(f"/proc/{pid}").exists() and b"work.sh" in _cmdline(pid) for pid in pids)

    until(silent, "commands that outlive the batch that was killed")


def _cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def check(here, count, history, again):
    assert len(history.states) == count
    for state in history.states.values():
        should_fail = int(state.item.id) % 13 == 5
        assert state.status == (FAILED if should_fail else DONE), state
    assert again == [], "what is recorded as done is not run again"
    ended = {line[1] for line in _lines(here) if line[0] == "end"}
    assert ended == {str(n) for n in range(count) if n % 13 != 5}


def test_a_hundred_items_through_kills(place):
    here = place(gpus=["constant:100W"], replicate=4)
    history, again = chaos(here, 100, seed=3, kills=2)
    check(here, 100, history, again)
    found = here.found("summary", "last", code=1)
    assert found["adds_up"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_items_through_kills(place, seed):
    here = place(gpus=["constant:100W"], replicate=8)
    history, again = chaos(here, 1000, seed=seed, kills=8)
    check(here, 1000, history, again)


def test_items_in_flight_are_marked_interrupted_and_run_again(place):
    here = place(gpus=["constant:100W"], replicate=2)
    script = here.script('echo "start $1 $$" >> seen; [ -e fast ] || sleep 30')
    child = subprocess.Popen(
        here.words(here.items("a", "b", "c"), "--", script, "{input}"),
        env=here.environ,
        cwd=here.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: len(_lines(here)) >= 2)
    child.kill()
    child.wait()
    _wait_for_silence(here)
    (here.folder / "fast").touch()
    found = here.found("--resume", "last")
    items = {item["id"]: item for item in found["items"]}
    assert {name: [one["status"] for one in item["tries"]] for name, item in items.items()} == {
        "a": ["interrupted", "done"],
        "b": ["interrupted", "done"],
        "c": ["done"],
    }
    assert found["adds_up"]


def test_a_worker_that_dies_is_replaced_and_its_item_runs_again(place):
    here = place(gpus=["constant:100W"])
    script = here.script("[ -e once ] && exit 0; : > once; kill -9 $PPID; sleep 20")
    found = here.found(here.items("a", "b"), "--", script, "{input}")
    first, second = found["items"]
    assert [one["status"] for one in first["tries"]] == ["interrupted", "done"]
    assert first["tries"][0]["error"] == "its worker died" and second["status"] == "done"


def test_an_item_that_always_takes_its_worker_along_fails_at_last(place):
    here = place(gpus=["constant:100W"])
    script = here.script('[ "$1" = good ] || kill -9 $PPID; sleep 0.1')
    found = here.found(here.items("evil", "good"), "--", script, "{input}", code=1)
    evil, good = found["items"]
    assert (evil["status"], evil["attempts"], good["status"]) == ("failed", 5, "done")


def test_a_batch_killed_while_its_items_were_listed_does_not_pass_for_a_smaller_one(place):
    here = place()

    def batch(*words):
        return subprocess.run(here.words(*words), env=here.environ, cwd=here.folder, capture_output=True, text=True)

    assert batch(here.items("a", "b", "c"), "--", "true", "{input}").returncode == 0
    (journal,) = (here.folder / "runs").glob("*/batch.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    assert [json.loads(line)["kind"] for line in lines[:4]] == ["item", "item", "item", "batch"]
    for listed in range(4):
        journal.write_text("".join(lines[:listed]))
        resumed = batch("--resume", "last")
        assert resumed.returncode == 2 and "none has run" in resumed.stderr, resumed
    journal.write_text("".join(lines[:4]))
    assert batch("--resume", "last").returncode == 0
    assert {key: state.status for key, state in read_journal(journal.parent).states.items()} == dict.fromkeys(
        "abc", DONE
    )
