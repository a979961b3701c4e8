"""sacct's text: joined to what was recorded, and jobs that were not."""

from dataclasses import replace
from pathlib import Path

import pytest

from everywatt.core.errors import EverywattError, UsageError
from everywatt.slurm.schema import JobOnNode
from everywatt.slurm.site.sacct import COLUMNS, NOT_RECORDED, ask, fill, parse, total_cpu_s
from everywatt.slurm.site.store import Store

T0 = 1_794_700_800


def line(job: str, shown: str, state: str = "COMPLETED", start: int = 0, end: int = 60, **more: object) -> str:
    cells: dict[str, object] = {
        "JobIDRaw": job,
        "JobID": shown,
        "User": "ada",
        "UID": "1000",
        "Account": "phys",
        "Partition": "p",
        "JobName": "train",
        "State": state,
        "ExitCode": "0:0",
        "Submit": T0 - 5,
        "Start": T0 + start,
        "End": T0 + end,
        "ElapsedRaw": end - start,
        "AllocCPUS": "4",
        "AllocTRES": "billing=4,cpu=4,gres/gpu=2,mem=2G,node=2",
        "NNodes": "2",
        "NodeList": "n[1-2]",
        "Cluster": "c",
        "ConsumedEnergyRaw": "0",
        **more,
    }
    return "|".join(str(cells[name]) for name in COLUMNS)


def text(*lines: str) -> str:
    return "\n".join(["|".join(COLUMNS), *lines]) + "\n"


def test_what_a_line_says() -> None:
    ((job, nodes),) = parse(text(line("6", "5_2", "CANCELLED by 1000", ConsumedEnergyRaw="1234")))
    assert (job.job_id, job.shown_id, job.state, job.slurm_energy_j) == (6, "5_2", "CANCELLED", 1234.0)
    assert (nodes, job.cpus, job.memory_bytes) == (("n1", "n2"), 4.0, 2 << 30)
    assert (job.start_s, job.end_s, job.submit_s) == (T0, T0 + 60, T0 - 5)


def test_steps_give_their_energy_to_the_job() -> None:
    (job,) = parse(
        text(
            line("6", "6"),
            line("6.batch", "6.batch", ConsumedEnergyRaw="100"),
            line("6.0", "6.0", ConsumedEnergyRaw="50"),
        )
    )
    assert job.record.slurm_energy_j == 150.0


def test_each_run_of_a_requeued_job_has_its_own_energy() -> None:
    first, second = parse(
        text(
            line("6", "6", "REQUEUED", 0, 60),
            line("6.batch", "6.batch", "CANCELLED", 1, 60, ConsumedEnergyRaw="100"),
            line("6", "6", "COMPLETED", 90, 150),
            line("6.batch", "6.batch", "COMPLETED", 90, 150, ConsumedEnergyRaw="70"),
        )
    )
    assert (first.record.slurm_energy_j, second.record.slurm_energy_j) == (100.0, 70.0)


def test_a_requeued_job_has_two_runs() -> None:
    runs = parse(text(line("6", "6", "NODE_FAIL"), line("6", "6", start=100, end=200)))
    assert [(run.restart, run.state, run.start_s) for run, _ in runs] == [
        (0, "NODE_FAIL", T0),
        (1, "COMPLETED", T0 + 100),
    ]


def test_jobs_that_have_not_ended_or_never_ran_are_left_out() -> None:
    found = parse(text(line("1", "1", "RUNNING"), line("2", "2", Start="Unknown"), line("3", "3", End="Unknown")))
    assert found == []


def test_a_name_with_the_separator() -> None:
    ((job, _),) = parse(text(line("1", "1", JobName="a|b|c")))
    assert (job.name, job.state, job.cluster) == ("a|b|c", "COMPLETED", "c")


def test_a_cut_file_keeps_what_is_whole() -> None:
    whole = text(line("1", "1"), line("2", "2"))
    assert [job.record.job_id for job in parse(whole[:-60])] == [1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("JobID|State\n1|x\n", "does not contain"), (text(line("1", "1", Start="2026-11-15T10:00:00")), "no zone")],
)
def test_what_cannot_be_read_is_said(wrong: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(wrong)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(tmp_path)
    row = JobOnNode(6, "n1", T0 + 0.5, T0 + 59.5, cluster="c", user="ada", energy_uj=5_000_000, state="FAILED")
    opened.append([row], "n1")
    return opened


def test_records_keep_their_energy_and_get_their_state(store: Store) -> None:
    jobs = parse(text(line("6", "5_2", "TIMEOUT", ConsumedEnergyRaw="70"), line("7", "7")))
    assert fill(store, jobs) == (1, 2)  # n2 of job 6 and both of job 7 were not recorded
    rows = {(row["job_id"], row["node"]): JobOnNode.of_row(row) for row in store.jobs(0, 2e9).to_pylist()}
    known = rows[6, "n1"]
    assert (known.energy_uj, known.state, known.account, known.slurm_energy_j) == (5_000_000, "TIMEOUT", "phys", 70.0)
    assert (known.shown_id, known.complete) == ("5_2", True)
    assert {key for key, row in rows.items() if row.refused == NOT_RECORDED} == {(6, "n2"), (7, "n1"), (7, "n2")}
    assert rows[7, "n1"].cpus == 2.0


def test_twice_changes_nothing(store: Store) -> None:
    jobs = parse(text(line("6", "6"), line("7", "7")))
    fill(store, jobs)
    assert fill(store, jobs) == (0, 0)


def test_a_record_that_comes_late_wins_over_the_gap(store: Store) -> None:
    fill(store, parse(text(line("7", "7"))))
    late = JobOnNode(7, "n1", T0, T0 + 60, cluster="c", energy_uj=1)
    store.append([late], "n1")
    row = next(row for row in store.jobs(0, 2e9).to_pylist() if (row["job_id"], row["node"]) == (7, "n1"))
    assert replace(JobOnNode.of_row(row), written_s=0.0) == late


def test_runs_of_a_requeued_job_are_told_apart(store: Store) -> None:
    jobs = parse(text(line("8", "8", "NODE_FAIL", NodeList="n1"), line("8", "8", start=65, end=90, NodeList="n1")))
    fill(store, jobs)
    assert fill(store, jobs) == (0, 0)
    found = [(row["restart"], row["state"]) for row in store.jobs(0, 2e9).to_pylist() if row["job_id"] == 8]
    assert sorted(found) == [(0, "NODE_FAIL"), (1, "COMPLETED")]


def test_a_sacct_that_fails_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sacct"
    program.write_text(
        "#!/bin/sh\necho 'sacct: error: lookup failed' >&2\necho 'sacct: fatal: No source' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EverywattError, match=r"^sacct failed: fatal: No source\. Try"):
        ask(0.0, 1.0)


@pytest.mark.parametrize("sign", ["\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r"])
def test_a_name_cannot_forge_or_hide_a_job(sign: str) -> None:
    forged = line("777", "777", User="other", UID="0", Account="theirs")
    jobs = parse(text(line("6", "6", JobName=f"x{sign}{forged}"), line("7", "7", JobName=f"y{sign}z")))
    assert [job.record.job_id for job in jobs] == [6, 7]
    assert {job.record.user for job in jobs} == {"ada"}


def test_the_cpu_time_of_each_run_of_a_requeued_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sacct 22.05 printed of a job that was requeued, and ran again 15 s later."""
    said = """JobIDRaw|State|Start|End|TotalCPU
4|REQUEUED|1794963496|1794963500|00:00.912
4.batch|CANCELLED|1794963496|1794963500|00:00.912
4|COMPLETED|1794963515|1794963523|00:02.079
4.batch|COMPLETED|1794963515|1794963523|00:02.079
5|COMPLETED|1794963515|1794963523|01:02.079
"""
    program = tmp_path / "sacct"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert total_cpu_s(4, 1794963496.2, 1794963500.3) == 0.912
    assert total_cpu_s(4, 1794963515.2, 1794963523.3) == 2.079
    assert total_cpu_s(6, 1794963515.2, 1794963523.3) is None
    program.write_text("#!/bin/sh\nexit 1\n")
    assert total_cpu_s(4, 1794963496.2, 1794963500.3) is None, "no slurmdbd"
