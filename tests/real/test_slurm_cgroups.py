"""Jobs by real cgroups of this kernel: the paths of version 2 and of SLUIDs. test_slurm_agent.py has Slurm's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_site import SOURCE, cgroups_are_ours, remove_cgroups

UNIFIED = Path("/sys/fs/cgroup/unified")
SLUID = "s5K1KKYAYG5D00"

# Goes to a cgroup, uses so many seconds of CPU time there, and says what it used.
WORK = """
import json, os, sys, time
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
while time.process_time() < float(sys.argv[2]):
    pass
json.dump(time.process_time(), sys.stdout)
"""


def test_paths_of_version_2_and_of_sluids(tmp_path: Path) -> None:
    if not cgroups_are_ours(UNIFIED):
        pytest.skip(f"{UNIFIED} is not here, or not ours to write")
    scope = UNIFIED / f"everywatt-test-{os.getpid()}.slice" / "slurmstepd.scope"
    groups = {"77": scope / "job_77/step_0/user/task_0", SLUID: scope / SLUID / "step_batch/user/task_special"}
    own = {"EVERYWATT_HOME": str(tmp_path), "EVERYWATT_RUNTIME_DIR": str(tmp_path / "rt")}
    env = {**os.environ, "PYTHONPATH": str(SOURCE), **own}
    try:
        commands = []
        for name, group in groups.items():
            group.mkdir(parents=True)
            (tmp_path / "work.py").write_text(WORK)
            amount = 0.8 if name == SLUID else 1.2
            commands.append(f"{sys.executable} {tmp_path}/work.py {group} {amount} >{tmp_path}/{name}.used &")
        words = [sys.executable, "-m", "everywatt"]
        script = " ".join(commands) + " wait; sleep 0.5"
        run = [*words, "sim", "--package", "load:10W,50W", "--", *words, "run", "--", "sh", "-c", script]
        subprocess.run(run, env=env, check=True, capture_output=True, timeout=240)
        done = subprocess.run(
            [*words, "ledger", "last", "--by", "step", "--json"], env=env, check=True, capture_output=True, timeout=240
        )
        owners = {owner["owner"]["id"]: owner for owner in json.loads(done.stdout)["owners"]}
        for name, step in (("77", "77.0"), (SLUID, f"{SLUID}.batch")):
            used_s = float(json.loads((tmp_path / f"{name}.used").read_text()))
            assert owners[f"slurm:{step}"]["use"]["cpu_s"] == pytest.approx(used_s, rel=0.1, abs=0.1)
    finally:
        remove_cgroups(scope.parent)
