"""A real cluster's sacct in a store: accounts, states, jobs that nobody recorded, and what validate says of them."""

import contextlib
import json
import os
import pwd
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from everywatt.cli.main import main
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.sacct import total_cpu_s
from everywatt.slurm.site.store import Store

NODE_W = 50.0


@pytest.fixture(scope="module")
def ran(slurm, slurm_counter):
    """phys: a job on both nodes and an array of two, of which one fails; chem: one job. node1 draws 50 W."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    for account in ("phys", "chem"):
        slurm.run("sacctmgr", "-i", "add", "account", account)
        slurm.run("sacctmgr", "-i", "add", "user", user, f"account={account}")

    def known() -> bool:
        return "Account=chem" in slurm.run("scontrol", "show", "assoc_mgr", "flags=assoc")

    slurm.until(known, "slurmctld knows the accounts")
    with slurm_counter.drawing(NODE_W) if slurm_counter else contextlib.nullcontext():
        return submitted(slurm)


def submitted(slurm) -> tuple[int, int, int]:
    both = slurm.sbatch("#!/bin/sh\nsrun true\n", "--account=phys", "--nodes=2", "--job-name=both|ends")
    array = slurm.sbatch("#!/bin/sh\nexit $SLURM_ARRAY_TASK_ID\n", "--account=phys", "--array=0-1")
    alone = slurm.sbatch("#!/bin/sh\nsleep 4\n", "--account=chem", "--nodelist=node1")
    for job in (both, array, alone):
        slurm.wait(job)
        slurm.sacct(job, columns="JobID,State")
    return both, array, alone


@pytest.fixture
def said(slurm, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_CONF", slurm.environ["SLURM_CONF"])
    monkeypatch.setenv("EVERYWATT_SLURM_STORE", str(tmp_path / "store"))

    def run(*words: str) -> tuple[int, dict]:
        code = main(["slurm", *words, "--json"] if words[0] != "import" else [*words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def mine(rows: list[dict], ran: tuple) -> list[dict]:
    """Of what the cluster has done for all tests, these."""
    return [row for row in rows if row.get("account") in ("phys", "chem")]


def test_import_sacct_by_account_and_validate(slurm, ran, said, tmp_path: Path) -> None:
    both, array, alone = ran
    (row,) = (row for row in slurm.sacct(alone, columns="JobIDRaw,Start,End,Cluster") if "." not in row["JobIDRaw"])
    cluster = row["Cluster"]
    code, found = said("import", "sacct", "--since", "-1d")
    assert (code, found["changed"]) == (0, 0) and found["added"] >= 4
    assert said("import", "sacct", "--since", "-1d")[1] | {"jobs": 0} == found | {"added": 0, "jobs": 0}

    # What a node recorded late counts for more than what sacct alone knew of it, and keeps its energy.
    store = Store(tmp_path / "store")
    known = next(r for r in store.jobs(0, 9e9).to_pylist() if r["job_id"] == int(alone))
    assert known["cluster"] == cluster
    start_s, end_s = known["start_s"], known["end_s"]
    late = JobOnNode(int(alone), "node1", start_s, end_s, cluster=cluster, energy_uj=7_000_000, coverage=1.0)
    store.append([replace(late, low_uj=6_000_000, high_uj=8_000_000)], "node1")
    assert said("import", "sacct", "--since", "-1d")[1]["changed"] == 1

    groups = {row["group"]: row for row in said("jobs", "--by", "account", "--since", "-1d")[1]["groups"]}
    assert (groups["phys"]["jobs"], groups["phys"]["refused"]) == (3, 4)
    assert (groups["chem"]["jobs"], groups["chem"]["refused"], groups["chem"]["energy"]["joules"]) == (1, 0, 7.0)
    rows = {row["id"]: row for row in mine(said("jobs", "--since", "-1d")[1]["jobs"], ran)}
    assert {key: row["state"] for key, row in rows.items()} == {
        str(both): "COMPLETED",
        f"{array}_0": "COMPLETED",
        f"{array}_1": "FAILED",
        str(alone): "COMPLETED",
    }
    assert rows[str(both)]["nodes"] == ["node1", "node2"]
    assert rows[str(both)]["name"] == "both|ends"

    code, checked = said("validate")
    kinds = [(f["kind"], f["job"]) for f in checked["findings"]]
    assert code == 1
    assert [job for kind, job in kinds if kind == "refused" and job == str(both)] == [str(both)] * 2
    assert str(alone) not in {job for _, job in kinds}


def test_cpu_time_of_jobs_that_have_ended(slurm) -> None:
    """The last task of an array has the array's own id."""
    work = "import os, time\nwhile time.process_time() < 0.5 + 0.5 * int(os.environ['SLURM_ARRAY_TASK_ID']): pass"
    array = slurm.sbatch(f'#!/bin/sh\nexec {sys.executable} -c "{work}"\n', "--array=0-1")
    slurm.wait(array)

    def ended() -> dict[str, int]:
        """Tasks that the database says have ended: it is behind the controller."""
        rows = slurm.sacct(array, columns="JobIDRaw,JobID,State")
        return {r["JobID"]: int(r["JobIDRaw"]) for r in rows if r["JobIDRaw"].isdigit() and r["State"] == "COMPLETED"}

    deadline_s = time.monotonic() + 60
    while len(ids := ended()) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.2)  # between two questions
    now_s = time.time()
    for task in (0, 1):
        used_s = total_cpu_s(ids[f"{array}_{task}"], now_s - 60, now_s, slurm.environ["SLURM_CONF"])
        assert used_s is not None and 0.5 + 0.5 * task <= used_s < 0.9 + 0.5 * task


def test_daily_asks_sacct(ran, said, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    from datetime import UTC, datetime

    today = datetime.now(UTC).date().isoformat()
    code, found = said("daily", "--date", today)
    assert code == 0 and found["sacct"]["added"] >= 4
    assert said("daily", "--date", today)[1]["sacct"]["added"] == 0
    by_account = {row["group"]: row["jobs"] for row in found["day"]["by_account"]}
    assert (by_account["phys"], by_account["chem"]) == (3, 1)
    assert "root" in found["users"]


def test_what_slurm_counted_stands_beside_ours(slurm, slurm_counter, ran, said, tmp_path: Path, capsys) -> None:
    """Slurm read a counter of the node; a job without `srun` has that with its batch step only."""
    if slurm_counter is None:
        pytest.skip("nothing can be mounted here, so Slurm has no counter to read")
    _, _, alone = ran
    rows = {row["JobID"]: row for row in slurm.sacct(alone, columns="JobID,State,ElapsedRaw,ConsumedEnergyRaw")}
    counted_j = float(rows[f"{alone}.batch"]["ConsumedEnergyRaw"])
    elapsed_s = float(rows[str(alone)]["ElapsedRaw"])
    assert NODE_W * (elapsed_s - 2) <= counted_j <= NODE_W * (elapsed_s + 2), "it reads once a second"
    assert said("import", "sacct", "--since", "-1d")[0] == 0
    (job,) = said("job", str(alone))[1]["jobs"]
    assert (job["slurm_j"], job["ours_over_slurm"]) == (counted_j, None), "nobody recorded it"
    store = Store(tmp_path / "store")
    known = next(row for row in store.jobs(0, 9e9).to_pylist() if row["job_id"] == alone)
    own = {"energy_uj": 7_000_000, "low_uj": 6_000_000, "high_uj": 8_000_000, "idle_uj": 100_000_000, "coverage": 1.0}
    store.append(
        [JobOnNode(alone, "node1", known["start_s"], known["end_s"], cluster=known["cluster"], **own)], "node1"
    )
    assert said("import", "sacct", "--since", "-1d")[1]["changed"] == 1
    (job,) = said("job", str(alone))[1]["jobs"]
    assert (job["slurm_j"], job["ours_over_slurm"]) == (counted_j, pytest.approx(107 / counted_j - 1))
    assert main(["slurm", "job", str(alone)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  Slurm "))
    assert f"ours with the idle share: {100 * (107 / counted_j - 1):+.1f} %".replace("-", "−") in line


def test_the_energy_of_a_job_is_written_to_slurms_accounting(slurm, ran, said, tmp_path: Path) -> None:
    alone = int(ran[2])
    said("import", "sacct", "--since", "-1d")
    store = Store(tmp_path / "store")
    known = next(r for r in store.jobs(0, 9e9).to_pylist() if r["job_id"] == alone)
    record = JobOnNode(alone, "node1", known["start_s"], known["end_s"], cluster=known["cluster"], complete=True)
    store.append(
        [replace(record, coverage=1.0, energy_uj=7_200_000_000, low_uj=3_600_000_000, high_uj=10_800_000_000)], "node1"
    )
    assert said("annotate", "--since", "-1d")[1]["written"] == 1
    again = said("annotate", "--since", "-1d")[1]
    assert (again["written"], again["same"], again["failed"]) == (0, 1, {})
    (row,) = (row for row in slurm.sacct(alone, columns="JobIDRaw,AdminComment") if "." not in row["JobIDRaw"])
    assert row["AdminComment"].startswith("everywatt: 0.002 kwh (95% 0.001 to 0.003)")
