"""A disk that is full until the end, for real: a small tmpfs in a namespace of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
mount -t tmpfs -o size=600k none "$1" && cd "$1" || exit 99
"$2" -m everywatt run --no-estimate --json="$3" -- sh -c 'sleep 1; cat /dev/zero > full 2>&-; sleep 3; exit 6'
code=$?
sleep 1
"$2" -m everywatt show --json last > "$4"
exit $code
"""


def may_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="no tmpfs may be mounted here")
def test_a_disk_that_is_full_until_the_end(sim_machine, tmp_path: Path) -> None:
    lab = sim_machine(packages=["constant:100W"])
    (tmp_path / "runs").mkdir()
    mine, theirs = tmp_path / "mine.json", tmp_path / "theirs.json"
    environ = lab.environment() | {"EVERYWATT_RECORDER_IDLE_S": "0.2", "EVERYWATT_RUNTIME_DIR": str(tmp_path / "r")}
    environ.pop("EVERYWATT_HOME", None)
    words = ["unshare", "-rm", "bash", "-c", SCRIPT, "sh", tmp_path / "runs", sys.executable, mine, theirs]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 6, done.stderr
    for file in (mine, theirs):
        found = json.loads(file.read_text())
        energy, truth = found["energy"], 100 * found["duration_s"]
        assert found["duration_s"] > 3.9
        assert energy["joules"] is None or energy["high"] + (1 - energy["coverage"]) * truth >= truth * 0.99


FAILING = """
mount -t tmpfs -o size=600k none "$1" && cd "$1" && seq 40 > items && head -c 8k /dev/zero > spare || exit 99
cat /dev/zero > full 2>&-
rm spare
"$2" -m everywatt batch items --gpus none --max-retries 0 --no-estimate -- \\
    sh -c 'echo {input} >> "$0"; [ {input} != 33 ]' "$3"
"""


@pytest.mark.skipif(not may_mount(), reason="no tmpfs may be mounted here")
def test_a_batch_on_a_full_disk_counts_what_ran(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    ran = tmp_path / "ran"
    environ = {key: value for key, value in os.environ.items() if key != "EVERYWATT_HOME"}
    environ["HOME"] = str(tmp_path)
    words = ["unshare", "-rm", "bash", "-c", FAILING, "sh", tmp_path / "runs", sys.executable, ran]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
    assert sorted(map(int, ran.read_text().split())) == list(range(1, 41)), done.stderr
    assert done.returncode == 1 and "40 items in this session: 39 done, 1 failed" in done.stderr
