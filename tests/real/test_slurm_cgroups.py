"""Jobs by real cgroups of this kernel: Slurm's own of version 1, and the paths of version 2 and of SLUIDs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_site import SOURCE, SlurmSite

pytestmark = pytest.mark.serial
FREEZER, UNIFIED = Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup/unified")
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


def remove(folder: Path) -> None:
    """What Slurm leaves behind."""
    for path, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(path)
        except OSError:
            pass


def need_cgroups(tree: Path) -> None:
    """These are the kernel's to give: a container may have none that it can write to."""
    if os.geteuid() != 0 or not (tree / "cgroup.procs").exists() or not os.access(tree, os.W_OK):
        pytest.skip(f"{tree} is not here, or not ours to write")


@pytest.fixture
def site(tmp_path: Path, with_slurm: None) -> Iterator[SlurmSite]:
    need_cgroups(FREEZER)
    try:
        with SlurmSite(tmp_path / "site", nodes=1, extra=["ProctrackType=proctrack/cgroup"]) as made:
            yield made
    finally:
        remove(FREEZER / "slurm_node1")


def test_a_process_that_left_its_parents_is_still_its_jobs(site: SlurmSite) -> None:
    """It has a session and a parent of its own; nothing but the cgroup tells whose it is."""
    job = site.sbatch(
        "cat /proc/self/cgroup",
        f"(setsid -f {site.burn('apart', 0.5, 5)} >/dev/null 2>&1)",
        f"while ! [ -e {site.folder}/apart ]; do sleep 0.3; done",
    )
    assert site.cluster.wait(job)[str(job)] == "COMPLETED"
    assert f"/slurm_node1/uid_{os.getuid()}/job_{job}/" in (site.cluster.folder / f"out-{job}").read_text()
    (record,) = site.records(job)
    used_s = float(json.loads((site.folder / "apart").read_text()))
    # The shell that waits, its `sleep`s and the step's daemon are the job's too.
    assert used_s * 0.97 - 0.05 <= record.cpu_s <= used_s * 1.2 + 2
    assert record.low_uj <= site.true_j("apart") * 1e6 <= record.high_uj


def test_paths_of_version_2_and_of_sluids(tmp_path: Path) -> None:
    need_cgroups(UNIFIED)
    scope = UNIFIED / f"everywatt-test-{os.getpid()}.slice" / "slurmstepd.scope"
    groups = {"77": scope / "job_77/step_0/user/task_0", SLUID: scope / SLUID / "step_batch/user/task_special"}
    own = {"EVERYWATT_HOME": str(tmp_path), "EVERYWATT_RUNTIME_DIR": str(tmp_path / "rt")}
    env = {**os.environ, "PYTHONPATH": str(SOURCE), **own}
    try:
        commands = []
        for name, group in groups.items():
            group.mkdir(parents=True)
            (tmp_path / "work.py").write_text(WORK)
            amount = 2.0 if name == SLUID else 3.0
            commands.append(f"{sys.executable} {tmp_path}/work.py {group} {amount} >{tmp_path}/{name}.used &")
        words = [sys.executable, "-m", "everywatt"]
        script = " ".join(commands) + " wait; sleep 1.5"
        run = [*words, "sim", "--package", "load:10W,50W", "--", *words, "run", "--", "sh", "-c", script]
        subprocess.run(run, env=env, check=True, capture_output=True, timeout=120)
        done = subprocess.run(
            [*words, "ledger", "last", "--by", "step", "--json"], env=env, check=True, capture_output=True, timeout=60
        )
        owners = {owner["owner"]["id"]: owner for owner in json.loads(done.stdout)["owners"]}
        for name, step in (("77", "77.0"), (SLUID, f"{SLUID}.batch")):
            used_s = float(json.loads((tmp_path / f"{name}.used").read_text()))
            assert owners[f"slurm:{step}"]["use"]["cpu_s"] == pytest.approx(used_s, rel=0.1, abs=0.1)
    finally:
        remove(scope.parent)
