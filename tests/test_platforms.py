"""macOS and Windows, simulated: recordings are read there, and measuring says that it needs Linux."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SRC = HERE.parent / "src"
# What needs Linux by its nature: recorder, agent and worker processes, simulated machines, serial ports, Slurm nodes.
LINUX_ONLY = (
    "api.own_cgroup", "batch.", "bench.", "cli.", "doctor.", "fleet.", "meters.", "net.server", "recorder.process",
    "formats.badc", "formats.metric_names", "formats.labia", "report.live", "report.web", "sim.", "slurm.",
    "stress.", "integrations.",
)  # fmt: skip
IMPORTS = """
import importlib, pkgutil, sys, everywatt
failed = []
for module in pkgutil.walk_packages(everywatt.__path__, "everywatt."):
    name = module.name.removeprefix("everywatt.")
    if not name.endswith("__main__") and not name.startswith(LINUX_ONLY):
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed.append(f"{name}: {error!r}")
sys.exit("; ".join(failed) or 0)
"""
VERBS = """
import sys
from everywatt.cli.main import main
for words in (["run", "--", "true"], ["sensors"], ["agent", "--check"], ["demo"]):
    print(*words, "->", main(words), flush=True)
for words in (["import", "powermetrics", "mac.txt"], ["show", "last"], ["list"], ["ledger", "last"], ["why", "last"],
              ["export", "last", "--to", "csv"], ["report", "last"], ["validate", "last"], ["plugins"]):
    assert main(words) == 0, words
import everywatt
with everywatt.measure("work") as work:
    done = True
print("measure ->", work.energy)
"""
SAMPLE = """*** Sampled system activity (Mon Nov 10 10:00:0{} 2025 +0000) (1000.02ms elapsed) ***

CPU Power: 1200 mW
GPU Power: 300 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 1500 mW
"""


def elsewhere(platform, code, folder):
    env = {**os.environ, "PYTHONPATH": str(SRC), "HOME": str(folder), "TERM": "dumb"}
    words = [sys.executable, str(HERE / "support" / "elsewhere.py"), platform, code]
    return subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_recordings_are_read_and_measuring_is_refused(platform, name, tmp_path):
    (tmp_path / "mac.txt").write_text("".join(SAMPLE.format(second) for second in range(1, 6)))
    done = elsewhere(platform, VERBS, tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("run -- true", "sensors", "agent --check", "demo"):
        assert f"{words} -> 4" in done.stdout
    assert done.stderr.count(f"everywatt measures on Linux only, and this is {name}") == 4
    assert ("everywatt import powermetrics FILE" in done.stderr) == (platform == "darwin")
    assert f"measure -> refused: everywatt measures on Linux only, and this is {name}" in done.stdout
    assert "6.000 J" in done.stdout, "four seconds at 1.5 W, imported and shown"


def test_what_reads_recordings_imports_without_posix(tmp_path):
    done = elsewhere("win32", f"LINUX_ONLY = {LINUX_ONLY!r}\n{IMPORTS}", tmp_path)
    assert done.returncode == 0, done.stderr
