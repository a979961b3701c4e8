"""`batch --resume`: the options of the first session, its telemetry, and items that end during a kill."""

import json
import os
import signal
import subprocess
from pathlib import Path

from waiting import until

import everywatt
from everywatt.batch.journal import read_journal

WAIT = 'echo "$1 $CUDA_VISIBLE_DEVICES" >> seen; until [ -e go ]; do sleep 0.05; done'


def started(here, *words):
    """A batch in the background, once its first item runs."""
    child = subprocess.Popen(
        here.words(*words),
        env=here.environ,
        cwd=here.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until((here.folder / "seen").exists, "the first item")
    return child


def end(child):
    child.kill()
    child.wait()


def test_resume_keeps_the_options_and_shows_them(place):
    here = place(gpus=["constant:100W"], replicate=2)
    options = ["--gpus", "1", "--timeout", "900ms", "--max-retries", "0", "--no-hash", "--tag", "a=b"]
    end(started(here, *options, here.items("a", "b"), "--", here.script(WAIT), "{input}"))
    done = here.batch("--resume", "last", "--max-retries", "1", "--backoff", "1ms", code=1)
    assert "gpus 1" in done.stderr and "timeout 900 ms" in done.stderr, done.stderr
    assert "changed by you: backoff, max-retries" in done.stderr
    history = read_journal(next((here.folder / "runs").glob("*/batch.jsonl")).parent)
    assert {attempt.device for state in history.states.values() for attempt in state.attempts} == {"gpu.1"}
    again = [attempt for attempt in history.states["a"].attempts if attempt.status == "failed"]
    assert again and all(attempt.ended["timed_out"] for attempt in again), "also the timeout"
    command = everywatt.load(next((here.folder / "runs").iterdir())).meta["command"]
    assert command[:2] == ["everywatt", "batch"] and command[-4:] == ["a=b", "--", "./work.sh", "{input}"]
    assert command[2:7] == ["items.txt", "--gpus", "1", "--max-retries", "0"]
    assert history.options == {
        "gpus": "1",
        "timeout": 0.9,
        "max-retries": 1,
        "no-hash": False,
        "backoff": 0.001,
        "tag": ["a=b"],
    }
    assert "changed by you: none" in here.batch("--resume", "last", code=1).stderr


def test_telemetry_goes_on_and_has_a_summary_after_a_kill(place):
    here = place(gpus=["constant:100W"])
    log = here.folder / "t/log.jsonl"
    end(started(here, "--telemetry", "t/log.jsonl", here.items("a", "b"), "--", here.script(WAIT), "{input}"))
    summary = log.with_name("log.jsonl.summary.json")
    assert json.loads(summary.read_text())["jobs"]["a"]["status"] == "in_progress"
    (here.folder / "go").touch()
    here.batch("--resume", "last")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(event["chunk_id"], event["status"]) for event in events] == [
        ("a", "start"),
        *(("a", "start"), ("a", "success"), ("b", "start"), ("b", "success")),
    ]
    jobs = json.loads(summary.read_text())["jobs"]
    assert jobs["a"]["status"] == "completed" and jobs["a"]["attempts"] == 2 and jobs["b"]["energy_j"] > 0


def test_an_item_that_ended_while_everything_was_killed_is_not_repeated(place):
    here = place(gpus=["constant:100W"])
    child = started(here, here.items("a"), "--", here.script(f"{WAIT}; echo end >> seen"), "{input}")
    os.kill(child.pid, signal.SIGSTOP)  # from here on the batch cannot write a line
    worker = next(pid for pid in _children(child.pid) if b"worker.py" in _read(pid, "cmdline"))
    command = _children(worker)
    assert command
    (here.folder / "go").touch()
    until(lambda: not _children(worker), "the end of the command")
    end(child)
    until(lambda: not Path(f"/proc/{worker}").exists(), "the end of the worker")
    found = here.found("--resume", "last")
    assert [item["status"] for item in found["items"]] == ["done"]
    assert [line.split()[0] for line in (here.folder / "seen").read_text().splitlines()] == ["a", "end"]


def test_the_summary_shows_items_that_may_have_run_twice(place):
    here = place(gpus=["constant:100W"])
    end(started(here, here.items("a", "b"), "--", here.script(WAIT), "{input}"))
    (here.folder / "go").touch()
    assert "1 item was interrupted and run again" in here.batch("--resume", "last").stderr


def test_the_summary_for_notes_shows_them_too(place):
    here = place(gpus=["constant:100W"])
    end(started(here, here.items("a", "b"), "--", here.script(WAIT), "{input}"))
    (here.folder / "go").touch()
    here.batch("--resume", "last")
    assert "- 1 item was interrupted and run again" in here.batch("summary", "last", "--to", "md").stdout


def _children(pid):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (text := _read(int(entry.name), "stat")):
            words = text.rpartition(b")")[2].split()
            if int(words[1]) == pid and words[0] != b"Z":
                found.append(int(entry.name))
    return found


def _read(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def test_an_item_of_a_killed_batch_is_not_running(place):
    here = place(gpus=["constant:100W"])
    child = started(here, here.items("a", "b"), "--", here.script(WAIT), "{input}")
    summary = [*here.words("summary", "last")]
    until(
        lambda: b"running" in subprocess.run(summary, env=here.environ, cwd=here.folder, capture_output=True).stdout,
        "a recording of the item",
    )
    end(child)
    done = here.batch("summary", "last", code=1).stdout
    assert "interrupted" in done and "running" not in done and "1 item was not started" in done


def test_many_failures_of_one_cause_are_one_row(place):
    here = place(gpus=["constant:100W"])
    items = here.items(*(f"x{n}" for n in range(8)), "y")
    work = here.script('echo "no such model" >&2; [ "$1" = y ] && exit 4; exit 3')
    done = here.batch("--max-retries", "0", items, "--", work, "{input}", code=1).stdout
    assert "exit code 3: no such model" in done and "x0, x1, x2, x3, x4 …" in done
    assert "exit code 4: no such model" in done and "x7" not in done
