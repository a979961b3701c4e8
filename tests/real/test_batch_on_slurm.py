"""`everywatt batch --executor slurm` on a real cluster: two nodes (both this host) with two simulated cards each."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from waiting import until

import everywatt
from everywatt.batch.journal import read_journal

WORK = 'echo "$1 $CUDA_VISIBLE_DEVICES" >> seen; sleep 0.4'
TOGETHER = """: > "began-$SLURM_ARRAY_TASK_ID"
n=0
while [ "$(ls began-* | wc -l)" -lt 2 ] && [ "$n" -lt 600 ]; do sleep 0.1; n=$((n + 1)); done
"""  # no task ends before the other has begun, whenever the controller starts them


class Here:
    """A folder, a simulated machine and the cluster, to run batches in."""

    def __init__(self, folder, lab, slurm):
        self.folder, self.lab, self.slurm = folder, lab, slurm
        self.environ = {**slurm.environ, **lab.environment(), "SLURM_CONF": str(slurm.conf)}
        self.environ |= {"EVERYWATT_HOME": str(folder / "runs"), "EVERYWATT_RECORDER_IDLE_S": "1"}
        self.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self.environ.pop("CUDA_VISIBLE_DEVICES", None)

    def start(self, *words):
        command = [sys.executable, "-m", "everywatt", "batch", *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=self.environ, cwd=self.folder, **pipes)

    def batch(self, *words, code=0):
        process = self.start(*words)
        out, err = process.communicate(timeout=200)
        assert process.returncode == code, err + out
        return out, err

    def items(self, count):
        (self.folder / "items.txt").write_text("".join(f"i{n}\n" for n in range(count)))
        return "items.txt"

    def script(self, text):
        file = self.folder / "work.sh"
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return "./work.sh"

    def run(self, name):
        return self.folder / "runs" / name


@pytest.fixture
def here(slurm, sim_machine, tmp_path):
    machine = sim_machine(gpus=["constant:100W"], replicate=2, packages=["constant:40W"])
    return Here(tmp_path, machine, slurm)


def check_script(file):
    assert subprocess.run(["bash", "-n", str(file)]).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    else:
        assert os.environ.get("CI") != "true", "shellcheck is not installed (make system-packages)"


def test_an_array_comes_back_as_one_batch_and_no_joule_counts_twice(here):
    words = ["--executor", "slurm", "--tasks", "2", "--sbatch=--gres=gpu:1", "--json"]
    out, err = here.batch(*words, here.items(6), "--", here.script(TOGETHER + WORK), "{input}")
    found = json.loads(out)
    assert "Submitted as job" in err
    assert found["counts"] == {"items": 6, "done": 6, "failed": 0, "left": 0}
    assert found["adds_up"]
    seen = dict(line.split() for line in (here.folder / "seen").read_text().splitlines())
    assert sorted(seen) == [f"i{n}" for n in range(6)]
    assert all(item["device"] == f"gpu.{seen[item['id']]}" for item in found["items"]), "the GPU that Slurm gave"
    assert {one["task"] for item in found["items"] for one in item["tries"]} == {"0", "1"}

    run = everywatt.load(here.run(found["run"]))
    (tape,) = run.tapes
    assert len(tape.meta["joined_from"]) == 2, "both tasks recorded the processors of this host at the same time"
    package = dict(run.energy().parts)["cpu.0"].joules
    assert package == pytest.approx(40 * run.duration_s, rel=0.02)
    spans = {span.id: span for span in run.spans}
    for item in found["items"]:
        span = spans[item["tries"][0]["span"]]
        own = item["energy"]["parts"][item["device"]]
        assert own["low"] <= 100 * span.duration_s, "a card of 100 W, which two tasks may share"
        assert item["energy"]["parts"]["cpu.0"]["joules"] <= 40 * span.duration_s * 1.03
    for device in found["by_device"]:  # a card is recorded while its task runs
        mine = [
            spans[item["tries"][0]["span"]].duration_s for item in found["items"] if item["device"] == device["device"]
        ]
        assert 95 * max(mine) <= device["energy_own"]["joules"] <= 105 * run.duration_s

    again, said = here.batch("--resume", found["run"], "--json")
    assert "Nothing is left to do" in said and json.loads(again) == found
    (script,) = here.run(found["run"]).glob("parts/1/array.sh")
    check_script(script)


def test_a_requeued_task_goes_on_and_what_was_in_flight_is_marked(here):
    text = 'echo "$1" >> started; if [ "$1" = i2 ] && [ ! -e free ]; then sleep 60; fi; sleep 0.1; echo "$1" >> ended'
    words = ["--executor", "slurm", "--tasks", "1", "--sbatch=--gres=gpu:1", "--json"]
    process = here.start(*words, here.items(4), "--", here.script(text), "{input}")
    until(lambda: "i2" in text_of(here.folder / "started"))
    (job,) = here.folder.glob("runs/*/parts/1/job")
    (here.folder / "free").touch()
    here.slurm.requeue(f"{job.read_text().strip()}_0")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    found = json.loads(out)
    items = {item["id"]: item for item in found["items"]}
    assert {name: item["status"] for name, item in items.items()} == dict.fromkeys(items, "done")
    assert [one["status"] for one in items["i2"]["tries"]] == ["interrupted", "done"]
    assert [len(items[name]["tries"]) for name in ("i0", "i1", "i3")] == [1, 1, 1]
    assert sorted(text_of(here.folder / "ended").split()) == ["i0", "i1", "i2", "i3"]
    assert found["adds_up"]


def test_a_cancelled_array_is_collected_and_its_rest_is_submitted_again(here):
    text = 'if [ "$1" != i0 ] && [ ! -e free ]; then sleep 60 || exit 1; fi; echo "$1" >> ended'
    words = ["--executor", "slurm", "--tasks", "2", "--no-wait"]
    _, err = here.batch(*words, here.items(4), "--", here.script(text), "{input}")
    assert "are not finished" in err
    (part,) = here.folder.glob("runs/*/parts/1")
    job = (part / "job").read_text().strip()
    until(lambda: "i0" in text_of(here.folder / "ended"))
    here.slurm.cancel(job)
    here.slurm.wait(job)
    (here.folder / "free").touch()
    out, _ = here.batch("--resume", "last", "--json")
    found = json.loads(out)
    assert found["counts"]["done"] == 4
    assert sorted(text_of(here.folder / "ended").split()) == ["i0", "i1", "i2", "i3"], "what was done is not run again"
    assert read_journal(part.parent.parent).collected == {"1", "2"}


def test_the_script_can_be_printed_and_submitted_by_hand(here):
    words = ["--print-script", "--tasks", "3", "--sbatch=--time=5", "--max-retries", "0", "--wrap", "env A=1"]
    out, err = here.batch(*words, here.items(3), "--", here.script('echo "$1 $A" >> seen'), "{input}")
    file = here.folder / "printed.sh"
    file.write_text(out)
    check_script(file)
    assert "#SBATCH --array=0-2" in out and "#SBATCH --time=5" in out and "--max-retries 0" in out
    run = err.split("--resume ")[1].split()[0]
    assert "has not been submitted yet" in here.batch("--resume", run, code=2)[1]
    job = here.slurm.sbatch(file, "--output=/dev/null", cwd=here.folder, env=here.environ)
    assert set(here.slurm.wait(job).values()) == {"COMPLETED"}
    found = json.loads(here.batch("--resume", run, "--json")[0])
    assert found["counts"]["done"] == 3
    assert sorted((here.folder / "seen").read_text().splitlines()) == ["i0 1", "i1 1", "i2 1"]


def test_what_sbatch_refuses_leaves_nothing_behind(here):
    words = ["--executor", "slurm", "--sbatch=--partition=nowhere", here.items(2), "--", "true"]
    assert "invalid partition" in here.batch(*words, code=1)[1].lower()
    assert not list(here.folder.glob("runs/*"))
    plan = json.loads(here.batch("--plan", "--json", "--tasks", "2", *words)[0])
    assert [lane["items"] for lane in plan["lanes"]] == [["i0"], ["i1"]]


def text_of(file):
    return file.read_text() if file.exists() else ""
