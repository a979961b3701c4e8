"""The store: appended by many, read as one, the same before and after it is compacted."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from everywatt.core.errors import UsageError
from everywatt.slurm.schema import DeviceEnergy, GpuUse, JobOnNode, NodeHour, StepEnergy
from everywatt.slurm.site.store import MOST_PARTS, Store, connect, safe_node

MIDNIGHT = 1_794_700_800.0  # 2026-11-15T00:00Z
DAY = date(2026, 11, 15)


def job(job_id: int, node: str = "n1", at: float = 100.0, **more: object) -> JobOnNode:
    start = MIDNIGHT + at
    return replace(JobOnNode(job_id, node, start, start + 50, cluster="c", user="u", energy_uj=7), **more)


def ids(store: Store, since: float = MIDNIGHT, until: float = MIDNIGHT + 86_400) -> list[int]:
    return store.jobs(since, until).column("job_id").to_pylist()


def test_what_is_appended_comes_back(tmp_path: Path) -> None:
    whole = job(
        1,
        gpus=("GPU-a",),
        devices=(DeviceEnergy("gpu.0", "gpu", "nvml", 5, 4, 6, 1),),
        gpu_use=(GpuUse("GPU-a", 0.5, 3.0, 9, None),),
        steps=(StepEnergy("batch", 1.0, 2.0, 5),),
        array_job_id=1,
        array_task_id=4,
        written_s=1.0,
    )
    store = Store(tmp_path)
    store.append([whole], "n1")
    (row,) = store.jobs(MIDNIGHT, MIDNIGHT + 86_400).to_pylist()
    assert JobOnNode.of_row(row) == whole
    assert whole.shown_id == "1_4"


def test_eight_nodes_append_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: [store.append([job(100 * n + i, f"n{n}")], f"n{n}") for i in range(5)], range(8)))
    assert ids(store) == sorted(100 * n + i for n in range(8) for i in range(5))


def test_compaction_changes_no_answer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(6):
        store.append([job(number, at=number)], "n1")
    before = store.jobs(MIDNIGHT, MIDNIGHT + 86_400).to_pylist()
    assert store.compact(DAY) == 6
    assert store.compact(DAY) == 0
    assert store.jobs(MIDNIGHT, MIDNIGHT + 86_400).to_pylist() == before
    assert [path.name for path in (tmp_path / "jobs" / "date=2026-11-15").glob("[!.]*")] == ["compact.parquet"]


def test_a_later_record_replaces_and_a_torn_one_does_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([job(1, energy_uj=5, written_s=1.0)], "n1")
    store.compact(DAY)
    store.append([job(1, energy_uj=6, written_s=2.0)], "n1")
    store.append([job(1, energy_uj=1, written_s=3.0, complete=False)], "n1")
    assert store.jobs(MIDNIGHT, MIDNIGHT + 86_400).column("energy_uj").to_pylist() == [6]
    store.compact(DAY)
    assert store.jobs(MIDNIGHT, MIDNIGHT + 86_400).column("energy_uj").to_pylist() == [6]


def test_a_locked_day_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([job(1)], "n1")
    # A lock is a process's, so another one has to hold it.
    held = "import sys; from everywatt.slurm.locks import exclusive; from pathlib import Path\n"
    held += "with exclusive(Path(sys.argv[1])) as mine: print(mine, flush=True); sys.stdin.read()"
    lock = tmp_path / "jobs" / "date=2026-11-15" / ".compacting"
    words = [sys.executable, "-c", held, str(lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        assert store.compact(DAY) == 0
        assert ids(store) == [1]
        other.stdin.close()
        other.wait()
    assert store.compact(DAY) == 1


def test_a_node_that_appends_often_makes_one_file_of_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([job(900, "n1.a")], "n1.a")
    for number in range(MOST_PARTS + 3):
        store.append([job(number % 30, energy_uj=number, written_s=float(number + 1))], "n1")
    files = [path.name for path in (tmp_path / "jobs" / "date=2026-11-15").glob("*.jsonl")]
    assert len([name for name in files if name.startswith("n1.a.")]) == 1
    assert len(files) <= 4
    rows = store.jobs(MIDNIGHT, MIDNIGHT + 86_400, "node = 'n1'").to_pylist()
    latest = {n: max(m for m in range(MOST_PARTS + 3) if m % 30 == n) for n in range(30)}
    assert {row["job_id"]: row["energy_uj"] for row in rows} == latest


def test_days_are_by_the_end_and_others_are_not_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([job(1, at=-25.0), job(2, at=-100.0)], "n1")
    assert [day.isoformat() for day in store.days()] == ["2026-11-14", "2026-11-15"]
    assert ids(store) == [1]
    (tmp_path / "jobs" / "date=2026-11-14" / "bad.parquet").write_bytes(b"no parquet")
    assert ids(store) == [1]


def test_files_of_an_earlier_version_open(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    store = Store(tmp_path)
    (file,) = store.append([replace(job(1), steps=(StepEnergy("batch", 1.0, 2.0, 3, 2, 4),))], "n1")
    store.compact(DAY)
    compact = file.with_name("compact.parquet")
    table = pq.read_table(compact).drop_columns(["waste_uj", "gpu_utilisation", "idle_low_uj", "steps"])
    parts = (("step", pa.string()), ("start_s", pa.float64()), ("end_s", pa.float64()), ("energy_uj", pa.int64()))
    steps = [[{"step": "batch", "start_s": 1.0, "end_s": 2.0, "energy_uj": 3}]]
    table = table.append_column("steps", pa.array(steps, pa.list_(pa.struct(parts))))
    pq.write_table(table, file.with_suffix(".parquet"))
    compact.unlink()
    for _ in range(2):
        (row,) = store.jobs(MIDNIGHT, MIDNIGHT + 86_400).to_pylist()
        assert row["waste_uj"] is None and row["idle_low_uj"] is None
        assert JobOnNode.of_row(row).steps == (StepEnergy("batch", 1.0, 2.0, 3),)
        store.compact(DAY)


def test_hours_of_nodes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append_hours([NodeHour(int(MIDNIGHT), "n1", "cpu.0", "package", "rapl", 10, 5, 3, 2, 1.0)], "n1")
    table = store.query("SELECT sum(total_uj - jobs_uj - idle_uj - system_uj) AS rest FROM nodes", [], 0, 2e9)
    assert table.to_pylist() == [{"rest": 0}]


def test_an_empty_store_answers(tmp_path: Path) -> None:
    assert ids(Store(tmp_path / "none")) == []


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a\nb"])
def test_names_that_are_paths_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        safe_node(name)


def test_a_long_query_draws_no_bar_into_the_json() -> None:
    connection = connect()
    assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]
    connection.close()
