"""`everywatt batch` from the outside: tables that add up, retries, time-outs, resuming, joules against the truth."""

import csv
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from truths import holds
from waiting import until

import everywatt
from everywatt.batch.journal import read_journal
from everywatt.core.clocks import union

NAP = 'echo "$1 $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER" >> seen; sleep 0.2'


def run_of(place, found):
    return everywatt.load(place.folder / "runs" / found["run"])


@pytest.mark.parametrize("count", [1, 4])
def test_the_table_by_gpu_adds_up_to_the_ledger(place, count):
    here = place(gpus=["constant:100W"], replicate=count)
    names = [f"item{n}" for n in range(2 * count)]
    found = here.found(here.items(*names), "--", here.script(NAP), "{input}")
    assert (found["kind"], found["counts"]) == (
        "batch",
        {"items": 2 * count, "done": 2 * count, "failed": 0, "left": 0},
    )
    assert [device["device"] for device in found["by_device"]] == [f"gpu.{n}" for n in range(count)]
    ledger = run_of(here, found).ledger("span")
    devices = sum(device["microjoules"] for device in found["by_device"])
    assert devices + round(found["energy_outside_j"] * 1e6) == ledger.microjoules
    assert found["adds_up"] and ledger.checks.hold
    assert sum(item["energy"]["joules"] for item in found["items"]) == pytest.approx(devices / 1e6, abs=1e-4)
    seen = sorted(line.split() for line in (here.folder / "seen").read_text().splitlines())
    assert [line[0] for line in seen] == sorted(names)
    assert {line[1] for line in seen} == {str(n) for n in range(count)}
    assert {line[2] for line in seen} == {"PCI_BUS_ID"}


def test_resuming_what_is_done_does_nothing(place):
    here = place(gpus=["constant:100W"], replicate=2)
    found = here.found(here.items("a", "b", "c"), "--", here.script(NAP), "{input}")
    tapes = sorted((here.folder / "runs" / found["run"]).iterdir())
    again = here.found("--resume", found["run"])
    assert again == found
    elsewhere = {"EVERYWATT_HOME": here.environ["EVERYWATT_HOME"], "PATH": os.environ["PATH"]}
    said = subprocess.run(
        here.words("--resume", found["run"]),
        env=elsewhere | {"PYTHONPATH": here.environ["PYTHONPATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stderr.startswith("Nothing is left to do")
    assert sorted((here.folder / "runs" / found["run"]).iterdir()) == tapes
    assert len((here.folder / "seen").read_text().splitlines()) == 3
    here.batch("--resume", found["run"], "--", "other", "{input}", code=2)


def test_items_know_what_their_gpu_did_during_them(place):
    """A square wave: between 50 and 250 W, mean 150 W; and the joules are the truth's."""
    here = place(gpus=["square:50W,250W,0.4s"], replicate=2, sensor=["counter_period=20ms", "period=20ms"])
    found = here.found("--period", "20ms", here.items("a", "b", "c", "d"), "--", "sleep", "1.2")
    run = run_of(here, found)
    spans = {span.id: span for span in run.spans}
    for item in found["items"]:
        power = item["during"]["power"]
        assert power["min"] < power["mean"] < power["max"]
        assert power["min"] < 100 and power["max"] > 200
        (attempt,) = item["tries"]
        span = spans[attempt["span"]]
        truth = here.lab.truth(item["device"], span.start_ns, span.end_ns)
        energy = item["energy"]
        assert holds(energy, truth)
        assert attempt["runtime_s"] <= span.duration_s


def test_a_failed_item_stops_nobody_and_counts_are_right(place):
    here = place(gpus=["constant:100W"], replicate=2)
    script = here.script("case $1 in bad) echo oops >&2; exit 3;; flaky) [ -e tried ] || { : > tried; exit 1; };; esac")
    words = ["--max-retries", "2", "--backoff", "20ms", here.items("a", "bad", "flaky", "z"), "--", script, "{input}"]
    found = here.found(*words, code=1)
    items = {item["id"]: item for item in found["items"]}
    assert {name: (item["status"], item["attempts"]) for name, item in items.items()} == {
        "a": ("done", 1),
        "bad": ("failed", 3),
        "flaky": ("done", 2),
        "z": ("done", 1),
    }
    assert [one["exit_code"] for one in items["bad"]["tries"]] == [3, 3, 3]
    assert [one.get("backoff_s") for one in items["bad"]["tries"]] == [0.02, 0.04, None]
    assert items["bad"]["tries"][0]["stderr"] == "oops\n"
    assert sum(device["retries"] for device in found["by_device"]) == 3
    text = here.batch("summary", found["run"], code=1).stdout
    assert "exit code 3: oops" in text
    rows = list(csv.DictReader(here.batch("summary", found["run"], "--to", "csv", code=1).stdout.splitlines()))
    assert [(row["id"], row["status"], row["attempts"]) for row in rows] == [
        *(("a", "done", "1"), ("bad", "failed", "3"), ("flaky", "done", "2"), ("z", "done", "1"))
    ]
    assert [float(row["energy_j"]) for row in rows] == [item["energy"]["joules"] for item in found["items"]]
    again = here.found("--resume", found["run"], "--max-retries", "0", code=1)
    assert {i["id"]: i["attempts"] for i in again["items"]} == {"a": 1, "bad": 4, "flaky": 2, "z": 1}


def test_a_long_last_line_of_a_failed_item_is_cut_with_a_mark(place):
    here = place(gpus=["constant:100W"])
    script = here.script(f"echo {'n' * 80} >&2; exit 3")
    found = here.found("--max-retries", "0", here.items("a"), "--", script, code=1)
    assert f"exit code 3: {'n' * 59}…" in here.batch("summary", found["run"], code=1).stdout


def test_a_command_that_is_not_there_is_not_tried_again(place):
    here = place(gpus=["constant:100W"])
    found = here.found(here.items("a"), "--", "/no/such/program", "{input}", code=1)
    (item,) = found["items"]
    assert (item["status"], item["attempts"], item["exit_code"]) == ("failed", 1, 127)


def test_a_time_out_ends_the_item_with_all_it_started(place):
    here = place(gpus=["constant:100W"])
    script = here.script("sleep 60 & echo $! > child; wait")
    found = here.found("--timeout", "0.3", "--max-retries", "0", here.items("a"), "--", script, code=1)
    (one,) = found["items"][0]["tries"]
    assert one["timed_out"] and 0.3 <= one["runtime_s"] < 6
    child = Path("/proc", (here.folder / "child").read_text().strip())
    until(lambda: not child.exists(), "the end of what it started")


def test_out_of_memory_is_recognised_with_the_memory_that_led_to_it(place):
    here = place(gpus=["constant:100W"])
    script = here.script("sleep 1.5; echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; exit 1")
    found = here.found("--max-retries", "0", here.items("a"), "--", script, code=1)
    (one,) = found["items"][0]["tries"]
    assert one["oom"] == "gpu (torch)"
    assert one["memory_curve"] and all(value == 256 * 2**20 for _, value in one["memory_curve"])


def test_the_callers_mask_is_never_widened(place):
    here = place(gpus=["constant:100W"], replicate=4)
    mask = {"CUDA_VISIBLE_DEVICES": "2,3"}
    found = here.found(here.items(*"abcdef"), "--", here.script(NAP), "{input}", **mask)
    assert {item["device"] for item in found["items"]} == {"gpu.2", "gpu.3"}
    assert {line.split()[1] for line in (here.folder / "seen").read_text().splitlines()} == {"2", "3"}
    assert list(found["energy"]["parts"]) == ["gpu.2", "gpu.3"]
    here.batch("--gpus", "0", "items.txt", "--", "true", code=2, **mask)


def test_workers_of_the_cpu_see_no_gpu(place):
    here = place(gpus=["constant:100W"])
    script = here.script('echo "[$CUDA_VISIBLE_DEVICES]" >> seen; sleep 0.3')
    found = here.found("--cpu-workers", "2", here.items(*"abcdef"), "--", script, "{input}")
    assert {item["device"] for item in found["items"]} == {"gpu.0", "cpu"}
    assert set((here.folder / "seen").read_text().split()) == {"[]", "[0]"}
    for item in found["items"]:
        if item["device"] == "cpu":
            assert item["energy"]["joules"] is None, "an item without a GPU owes nothing that a GPU drew"
            assert item["energy"]["refused"] == "no sensor measures the device it ran on"
    assert found["adds_up"]


def test_a_device_is_busy_while_at_least_one_item_runs_on_it(place):
    here = place(gpus=["constant:100W"])
    found = here.found("--per-gpu", "4", here.items(*"abcd"), "--", "sleep", "0.8")
    (device,) = found["by_device"]
    spans = [
        (span.start_ns, span.end_ns) for span in run_of(here, found).spans if span.attributes.get("role") == "item"
    ]
    assert device["busy_s"] == pytest.approx(sum(end - start for start, end in union(spans)) / 1e9)
    assert device["busy_s"] <= found["duration_s"] < sum(item["runtime_s"] for item in found["items"])


def test_without_a_gpu_items_run_on_the_cpu_with_its_joules(place):
    here = place(packages=["constant:40W"])
    done = here.batch("--json", here.items("a", "b"), "--", "sleep", "0.4")
    found = json.loads(done.stdout)
    assert "Items run on the CPU." in done.stderr
    run = run_of(here, found)
    spans = {span.id: span for span in run.spans}
    for item in found["items"]:
        span = spans[item["tries"][0]["span"]]
        assert holds(item["energy"], 40 * span.duration_s)


def test_where_nothing_measures_there_is_no_figure_and_no_zero(place):
    here = place(gpus=["constant:100W"])
    found = here.found("--sensors", "use", "--no-estimate", here.items("a", "b"), "--", "true")
    assert [item["status"] for item in found["items"]] == ["done", "done"]
    assert found["energy"]["joules"] is None and found["joules_per_item"] is None
    assert found["by_device"][0]["energy"]["joules"] is None
    assert all(item["energy"]["joules"] is None for item in found["items"])
    assert "0.000000" not in here.batch("summary", "last").stdout


def test_columns_sizes_and_the_plan(place):
    here = place(gpus=["constant:100W"], replicate=2)
    (here.folder / "m.csv").write_text("path,rate,size\nx,8,1\ny,16,9\nz,32,4\n")
    plan = here.found("--plan", "m.csv", "--", "true", "{path}")
    assert plan["kind"] == "batch-plan"
    assert [lane["items"] for lane in plan["lanes"]] == [["y"], ["z", "x"]]
    assert not list((here.folder / "runs").glob("*/*")) if (here.folder / "runs").exists() else True
    script = here.script('echo "$@" >> seen')
    here.batch("--gpus", "1", "m.csv", "--", script, "{input}", "{rate}", "{gpu}", "{index}")
    assert (here.folder / "seen").read_text().splitlines() == ["y 16 1 1", "z 32 1 2", "x 8 1 0"]


def test_a_file_equals_flags_and_flags_are_stronger(place):
    here = place(gpus=["constant:100W"])
    here.items("a", "b")
    (here.folder / "b.toml").write_text(
        '[batch]\nitems = "items.txt"\ncommand = ["sh", "-c", "exit 1"]\nmax-retries = 5\nbackoff = "1ms"\n'
    )
    found = here.found("--config", "b.toml", "--max-retries", "1", code=1)
    assert [item["attempts"] for item in found["items"]] == [2, 2]
    (here.folder / "b.toml").write_text("retries = 5\n")
    assert "there is no setting 'retries'" in here.batch("--config", "b.toml", code=2).stderr
    (here.folder / "b.toml").write_text("[bacth]\nmax-retries = 5\n")
    assert "there is no setting 'bacth', did you mean 'batch'?" in here.batch("--config", "b.toml", code=2).stderr
    (here.folder / "b.toml").write_text('[batch]\nitems = "items.txt"\n[slurm]\npartition = "p"\n')
    assert "'slurm' is outside the table [batch]" in here.batch("--config", "b.toml", code=2).stderr


@pytest.mark.parametrize("how", ["finish", "kill"])
def test_ctrl_c_finishes_or_kills_and_resume_goes_on(place, how):
    here = place(gpus=["constant:100W"], replicate=2)
    # What is to be killed lasts until it is: however late that is, it has not ended by itself.
    wait = "sleep 1" if how == "finish" else '[ "$1" = a ] || until [ -e go ]; do sleep 0.1; done'
    script = here.script(f'echo "start $1" >> seen; {wait}; echo "end $1" >> seen')
    words = here.words("--json", "--on-interrupt", how, here.items(*"abcdefgh"), "--", script, "{input}")
    child = subprocess.Popen(words, env=here.environ, cwd=here.folder, stdout=subprocess.PIPE, text=True)
    until(lambda: "end" in _text(here.folder / "seen"))
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=240)
    assert child.returncode == 130
    found = json.loads(out)
    statuses = [item["status"] for item in found["items"]]
    assert statuses.count("interrupted") == 0 if how == "finish" else statuses.count("interrupted") >= 1
    lines = _text(here.folder / "seen").split("\n")
    done = {item["id"] for item in found["items"] if item["status"] == "done"}
    ends = {line for line in lines if line.startswith("end")}
    assert {f"end {name}" for name in done} <= ends
    assert how == "kill" or len(ends) == len(done)
    (here.folder / "go").touch()
    again = here.found("--resume", found["run"])
    assert again["counts"] == {"items": 8, "done": 8, "failed": 0, "left": 0} and again["adds_up"]
    starts = [line for line in _text(here.folder / "seen").split("\n") if line.startswith("start")]
    assert all(starts.count(f"start {name}") == 1 for name in done)


def test_telemetry_of_badc_is_written_and_read(place):
    here = place(gpus=["constant:100W"], replicate=2)
    script = here.script('[ "$1" != bad ] || exit 4')
    words = ["--telemetry", "t/log.jsonl", "--max-retries", "1", "--backoff", "10ms"]
    here.batch(*words, here.items("a", "bad", "c"), "--", script, "{input}", code=1)
    events = [json.loads(line) for line in (here.folder / "t/log.jsonl").read_text().splitlines()]
    assert [event["status"] for event in events].count("start") == 4
    last = next(event for event in reversed(events) if event["chunk_id"] == "bad")
    assert last.keys() == {
        *("chunk_id", "gpu_index", "gpu_name", "status", "timestamp", "finished_at", "runtime_s", "details")
    }
    assert (last["status"], last["details"]["returncode"], last["details"]["attempt"]) == ("failure", 4, 2)
    assert last["details"]["gpu_metrics"]["after"] == {
        "index": last["gpu_index"],
        "utilization": 0,
        "memory_used_mb": 256,
        "memory_total_mb": 16384,
    }
    summary = json.loads((here.folder / "t/log.jsonl.summary.json").read_text())
    assert summary["jobs"]["bad"] | {"worker": "", "last_error": ""} == summary["jobs"]["bad"] | {
        "status": "failed",
        "attempts": 2,
        "retries": 1,
        "worker": "",
        "last_error": "",
    }
    assert sum(worker["failure"] for worker in summary["workers"].values()) == 2
    assert summary["jobs"]["a"]["energy_j"] > 0
    rows = list(csv.DictReader((here.folder / "t/log.jsonl.summary.json.workers.csv").open()))
    assert sum(int(row["jobs"]) for row in rows) == 3
    with (here.folder / "t/log.jsonl").open("a") as file:
        file.write('{"chunk_id": "torn')
    assert json.loads(here.batch("summary", "--to", "json", "t/log.jsonl", code=1).stdout)["jobs"].keys() == {
        "a",
        "bad",
        "c",
    }
    assert "gpu-" in here.batch("summary", "t/log.jsonl.summary.json", code=1).stdout


def test_summaries_drift_and_scaling(place):
    here = place(gpus=["constant:100W"], replicate=2)
    items = here.items(*"abcd")
    fast = here.found(items, "--", "sleep", "0.3")["run"]
    slow = here.found("--gpus", "0", items, "--", "sleep", "0.9")["run"]
    text = here.batch("summary", slow, "--to", "md").stdout
    assert text.startswith(f"## {slow}\n\n4 items: 4 done in ") and "| total | 4 |" in text
    done = here.batch("summary", slow, "--baseline", fast, code=1).stdout
    assert "time per item" in done and "DRIFT" in done
    here.batch("summary", fast, "--baseline", fast)
    rows = here.batch("summary", slow, fast).stdout.splitlines()
    assert [row.split()[1] for row in rows[1:]] == ["1", "2"]
    assert here.batch("summary", "nonsense", code=2).stderr.startswith("Error: There is no run")


def test_the_probe_finds_the_edge_and_the_cheapest_in_the_middle(place):
    """0.3 s + s²/300 of 100 W: 30 J/s + 0.33 J·s a unit, least near s = 9.5; more than 21 does not fit."""
    here = place(gpus=["constant:100W"], sensor=["counter_period=20ms"])
    script = here.script(
        'if [ $1 -gt 21 ]; then echo "CUDA out of memory" >&2; exit 1; fi; ms=$((300 + $1 * $1 * 1000 / 300)); '
        "exec sleep $((ms / 1000)).$(printf %03d $((ms % 1000)))"
    )
    found = here.found("probe", "--period", "20ms", "--", script, "{size}")
    assert (found["largest"], found["smallest_that_fails"], found["ended"]) == (21, 22, "found")
    sizes = {one["size"]: one for one in found["sizes"]}
    assert sizes[22]["fits"] is False and sizes[22]["reason"] == "out of memory: gpu (torch)"
    assert sizes[32]["energy"]["joules"] > 0 and sizes[16]["peak_memory_bytes"] == 256 * 2**20
    assert 6 <= found["cheapest"] <= 15
    assert sizes[8]["joules_per_unit"] == pytest.approx(100 * sizes[8]["runtime_s"] / 8, rel=0.1)
    history = read_journal(here.folder / "runs" / found["run"])
    assert sum(len(state.attempts) for state in history.states.values()) == sum(one["trials"] for one in sizes.values())


def test_a_probe_that_is_interrupted_says_what_fits(place):
    here = place(gpus=["constant:100W"])
    script = here.script('echo "$1" >> seen; if [ $1 -ge 4 ]; then sleep 60; fi')
    words = here.words("probe", "--", script, "{size}")
    child = subprocess.Popen(words, env=here.environ, cwd=here.folder, stdout=subprocess.PIPE, text=True)
    until(lambda: "4" in _text(here.folder / "seen"))
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=240)
    assert child.returncode == 130
    assert "interrupted: 2 fits\n" in out and "no size fits" not in out
    assert next(line for line in out.splitlines() if line.split()[0] == "4").endswith("interrupted")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["none.txt", "--", "x"],
        ["items.txt"],
        ["items.txt", "--", "x", "{nope}"],
        ["--resume", "x"],
        ["probe", "--", "x"],
        ["probe", "--timeout", "0", "--", "true", "{size}"],
        ["items.txt", "--timeout", "0", "--", "true"],
        ["items.txt", "--wrap", " ", "--", "true"],
    ],
)
def test_wrong_words_end_with_2(place, words):
    here = place(gpus=["constant:100W"])
    here.items("a")
    assert here.batch(*words, code=2).stderr


def _text(path):
    return path.read_text() if path.exists() else ""


def test_chosen_items_run_under_other_words(place):
    here = place(gpus=["constant:100W"])
    script = here.script('echo "$1 ${PROFILE:-plain}" >> seen')
    found = here.found(
        "--wrap", "env PROFILE=out-{index}", "--wrap-items", "b,2", here.items(*"abcd"), "--", script, "{input}"
    )
    seen = sorted((here.folder / "seen").read_text().splitlines())
    assert seen == ["a plain", "b out-1", "c out-2", "d plain"]
    assert [item["id"] for item in found["items"] if item["tries"][0].get("wrapped")] == ["b", "c"]
    assert "no item 'x'" in here.batch("--wrap", "env", "--wrap-items", "x", "items.txt", "--", "true", code=2).stderr
    assert "needs --wrap" in here.batch("--wrap-items", "a", "items.txt", "--", "true", code=2).stderr


def test_items_are_nvtx_ranges_where_nvtx_is_installed(place):
    """A module in its place that writes down what it is asked for: the real one tells a profiler, which is not here."""
    here = place(gpus=["constant:100W"])
    (here.folder / "nvtx.py").write_text(
        "def note(*words):\n    open('ranges', 'a').write(' '.join(words) + '\\n')\n"
        "def start_range(message, domain):\n    note('start', message, domain)\n    return message\n"
        "def end_range(handle):\n    note('end', handle)\n"
    )
    path = f"{here.folder}{os.pathsep}{here.environ['PYTHONPATH']}"
    here.batch(here.items("a", "b"), "--", "true", PYTHONPATH=path)
    ranges = (here.folder / "ranges").read_text().splitlines()
    assert ranges == ["start a everywatt", "end a", "start b everywatt", "end b"]


def test_a_command_that_outlived_batch_and_worker_is_ended_by_resume(place):
    here = place(gpus=["constant:100W"])
    script = here.script("if [ -e again ]; then exit 0; fi; echo $$ > pid; exec sleep 300")
    words = here.words("--quiet", here.items("a"), "--", script, "{input}")
    child = subprocess.Popen(words, env=here.environ, cwd=here.folder)
    pid = int(_awaited(here.folder / "pid"))
    worker = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(child.pid, signal.SIGSTOP)  # so that it cannot see the worker's end
    os.kill(worker, signal.SIGKILL)
    child.kill()
    child.wait()
    os.kill(pid, 0)  # the command is still there
    (here.folder / "again").touch()
    found = here.found("--resume", "last")
    assert [one["status"] for one in found["items"][0]["tries"]] == ["interrupted", "done"]
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def _awaited(file):
    until(lambda: _text(file).strip())
    return _text(file)
