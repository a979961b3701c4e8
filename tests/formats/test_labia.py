"""Lab-IA's tables and trees: both generations, once each, sorted; read back with the ends that are missing."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import known_site
import pytest
from known_site import T0

from everywatt.api.run import load
from everywatt.core.errors import UsageError
from everywatt.formats.labia import HEADS, add_rows, read_tree, spoken, table_row, write_job
from everywatt.tape.importing import import_files


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_means_of_memory() -> None:
    known = {"memory_mean_bytes": 1_500_000_000, "gpu_memory_mean_bytes": 7_250_000_000}
    row = dict(zip(HEADS["labia"], table_row(replace(known_site.jobs()[1], **known), "labia") or [], strict=True))
    assert (row["Avg. GPU RAM USAGE (Gb)"], row["Avg. CPU RAM USAGE (Gb)"]) == ("7.250", "1.500")


def test_the_old_columns() -> None:
    job = known_site.jobs()[1]
    row = table_row(replace(job, cpu_s=43_200.0, cpus=8.0), "labia") or []
    assert dict(zip(HEADS["labia"], row, strict=True)) == {
        "node name": "n1",
        "job_id": "2",
        "start date": "2026-11-15 12:00:00",
        "Total Duration (sec)": "10800",
        "GPU Consumption  (kWH)": f"{(2 + 0.6588) / 3.6:.6f}",
        "Avg. GPU RAM USAGE (Gb)": "",
        "GPU SM Usage (%)": "45.00",
        "CPU Consumption (kWH)": f"{1 / 3.6:.6f}",
        "Avg. CPU RAM USAGE (Gb)": "",
        "CPU usage (%)": "50.00",
    }


def test_the_columns_with_emissions() -> None:
    row = table_row(known_site.jobs()[0], "co2", (40.0, 52.0)) or []
    named = dict(zip(HEADS["co2"], row, strict=True))
    assert (named["Total Duration"], named["CPU Consumption (WH)"]) == ("1h0min0s", f"{4e6 / 3600:.6f}")
    assert named["CPU Emission RTE (gCO2eq)"] == f"{4 / 3.6 * 40:.4f}"
    assert named["CPU Emission ADEME (gCO2eq)"] == f"{4 / 3.6 * 52:.4f}"
    assert (table_row(known_site.jobs()[0], "co2") or [])[-4:] == [""] * 4


@pytest.mark.parametrize(("seconds", "text"), [(3723, "1h2min3s"), (62, "1min2s"), (5, "5s"), (3600, "1h0min0s")])
def test_durations_as_they_were(seconds: float, text: str) -> None:
    assert spoken(seconds) == text


def test_a_job_without_a_figure_or_a_duration_has_no_row() -> None:
    assert table_row(known_site.jobs()[4], "labia") is None
    assert table_row(known_site.job(1, "a", 1, 0, 5), "labia") is None


def test_old_rows_stay_and_all_is_sorted(tmp_path: Path) -> None:
    old = ["n9", "77", "2026-11-15 11:30:00", "5", "1", "2", "3", "4", "5", "6"]
    with (tmp_path / "ada.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADS["labia"], old, old])
    new = [table_row(job, "labia") or [] for job in known_site.jobs()[:2][::-1]]
    assert add_rows(tmp_path, "ada", new, "labia") == 2
    assert add_rows(tmp_path, "ada", new, "labia") == 0
    assert rows(tmp_path / "ada.csv") == [list(HEADS["labia"]), new[1], old, new[0]]


def test_another_generation_is_refused(tmp_path: Path) -> None:
    add_rows(tmp_path, "ada", [], "labia")
    with pytest.raises(UsageError, match="different columns"):
        add_rows(tmp_path, "ada", [], "co2")
    with pytest.raises(UsageError):
        add_rows(tmp_path, "../ada", [], "labia")


def test_exports_at_once_leave_one_sorted_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    from everywatt.slurm.site.store import Store

    made = [known_site.job(n, "ada", 10 - n / 100, 1, n * 10**9) for n in range(1, 41)]
    Store(store).append(made, "n1")
    command = [sys.executable, "-m", "everywatt", "slurm", "export", "--to", "labia-csv", "-o", str(tmp_path / "out")]
    command += ["--store", str(store), "--since", "2026-11-01", "--until", "2026-12-01"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 3
    assert sorted(int(text.split(": ")[1].split()[0]) for text in told) == [0] * 2 + [40]
    found = rows(tmp_path / "out" / "ada.csv")[1:]
    assert [row[1] for row in found] == [str(n) for n in range(40, 0, -1)]
    assert [row[2] for row in found] == sorted(row[2] for row in found)


def log(folder: Path, start: str, watts: list[float], meta: dict[str, object], **gpu: object) -> None:
    folder.mkdir(parents=True)
    (folder / "meta_data.json").write_text(json.dumps(meta))
    lines = []
    for number, power in enumerate(watts):
        cpu = {"intel_power": 2 * power, "rel_intel_power": {"10": power * 0.75, "11": power * 0.25}}
        at = f"{start}:{2 * number:02d}.000000"
        lines.append(json.dumps({"date": at, "metrics": {"cpu": cpu, **({"gpu": gpu} if gpu else {})}}))
    (folder / "power_metrics.json").write_text("\n".join([*lines, '"END OF RECORDING SEGMENT"', '{"torn']))


def test_a_tree_is_read_with_missing_ends_and_the_months_last_day(tmp_path: Path) -> None:
    told = {"node_id": "n102", "jobid": "41", "start_date": "2026-11-30 23:58:00", "job_name": "train"}
    log(tmp_path / "2026_11" / "ada" / "41", "2026-11-30 23:58", [100.0] * 4, told)
    gpu = {"per_gpu_power_draw": {"0": 50.0}, "per_gpu_attributable_power": {"0": 40.0, "all": 40.0}}
    more = {"node_id": ["n4"], "jobid": "42", "end_date": "2026-11-30 23:59:06", "start_date": "2026-11-30 23:59:00"}
    log(tmp_path / "2026_11" / "bob" / "42", "2026-11-30 23:59", [30.0] * 4, more, **gpu)
    (tmp_path / "2026_11" / "bob" / "43").mkdir()
    (tmp_path / "2026_11" / "bob" / "43" / "meta_data.json").write_text("{}")
    found = read_tree(tmp_path)
    first, second = found.jobs
    assert (first.user, first.job_id, first.node, first.name) == ("ada", 41, "n102", "train")
    assert (first.end_s - first.start_s, first.complete) == (6.0, False)
    assert (first.energy_uj, first.low_uj, first.high_uj) == (600_000_000, 0, 1_200_000_000)
    assert "last reading" in first.note
    assert (second.complete, second.node) == (True, "n4")
    assert {part.device: part.energy_uj for part in second.devices} == {"cpu.0": 180_000_000, "gpu.0": 240_000_000}
    assert [path.name for path, _ in found.problems] == ["43"]


def test_hours_of_a_zone(tmp_path: Path) -> None:
    log(tmp_path / "j" / "41", "2026-11-15 01:00", [1.0] * 2, {"jobid": "41", "node_id": "n1"})
    (job,) = read_tree(tmp_path, {"zone_h": 1}).jobs
    assert job.start_s == T0


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    made = [replace(job, uid=None) for job in known_site.jobs()[:3]]
    folders = [write_job(tmp_path, job) for job in made]
    assert [str(folder.relative_to(tmp_path)) for folder in folders if folder] == [
        "2026_11/ada/1",
        "2026_11/ada/2",
        "2026_11/ada/2-n2",
    ]
    assert write_job(tmp_path, made[0]) is None
    back = {(job.job_id, job.node): job for job in read_tree(tmp_path).jobs}
    first = back[1, "n1"]
    assert (first.start_s, first.end_s) == (made[0].start_s, made[0].end_s)
    assert first.energy_uj == pytest.approx(4_000_000_000_000, abs=2)
    assert back[2, "n1"].energy_uj == pytest.approx(3_658_800_000_000, abs=2)


def test_a_folder_without_jobs_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no Lab-IA jobs"):
        read_tree(tmp_path)


def test_a_hole_in_a_log_is_not_charged(tmp_path: Path) -> None:
    """100 W every 2 s for 20 s, nothing for ten minutes, and one more reading: 20 s and one period are covered.

    The node drew 200 W; in the hole the job may have drawn up to twice its mean power, 100 W.
    """
    folder = tmp_path / "2026_11" / "ada" / "7"
    folder.mkdir(parents=True)
    (folder / "meta_data.json").write_text(json.dumps({"jobid": "7", "node_id": "n1"}))
    stamps = [f"2026-11-15 10:{s // 60:02d}:{s % 60:02d}.000000" for s in (*range(0, 21, 2), 620)]
    metrics = {"cpu": {"intel_power": 200.0, "rel_intel_power": {"1": 100.0}}}
    lines = [json.dumps({"date": stamp, "metrics": metrics}) for stamp in stamps]
    (folder / "power_metrics.json").write_text("\n".join(lines) + "\n")
    (job,) = read_tree(tmp_path).jobs
    assert (job.energy_uj, job.low_uj) == (2_200_000_000, 0)
    assert job.high_uj == pytest.approx((22 * 200 + 598 * 2 * 100) * 10**6)
    assert job.coverage == pytest.approx(22 / 620)


def test_a_job_is_covered_as_its_device_that_was_seen_least(tmp_path: Path) -> None:
    told = {"node_id": "n4", "jobid": "42", "start_date": "2026-11-30 23:59:00", "end_date": "2026-11-30 23:59:18"}
    gpu = {"per_gpu_power_draw": {"0": 50.0}, "per_gpu_attributable_power": {"0": 40.0, "all": 40.0}}
    log(tmp_path / "2026_11" / "bob" / "42", "2026-11-30 23:59", [30.0] * 10, told, **gpu)
    path = tmp_path / "2026_11" / "bob" / "42" / "power_metrics.json"
    lines = [json.loads(text) for text in path.read_text().splitlines()[:10]]
    for entry in lines[5:]:
        entry["metrics"].pop("gpu")  # nvidia-smi did not answer any more
    path.write_text("\n".join(map(json.dumps, lines)))
    (job,) = read_tree(tmp_path).jobs
    assert job.coverage == pytest.approx(8 / 18, abs=0.12)


def test_a_record_has_the_joules_that_a_run_of_the_same_readings_has(tmp_path: Path) -> None:
    """Powers that vary, written at uneven times: what `import csv` and `Run.energy` make of them is the figure."""
    seconds = (0.0, 2.0, 4.0, 7.5, 9.5, 11.5, 13.6, 15.6, 17.6, 21.0)
    watts = [80.0 + 37 * (place % 4) for place in range(len(seconds))]
    stamps = [f"2026-11-15 10:00:{second:09.6f}" for second in seconds]
    folder = tmp_path / "2026_11" / "ada" / "7"
    folder.mkdir(parents=True)
    (folder / "meta_data.json").write_text(json.dumps({"jobid": "7", "node_id": "n1"}))
    metrics = [{"cpu": {"intel_power": 2 * power, "rel_intel_power": {"1": power}}} for power in watts]
    lines = [json.dumps({"date": at, "metrics": one}) for at, one in zip(stamps, metrics, strict=True)]
    (folder / "power_metrics.json").write_text("\n".join(lines) + "\n")
    table = tmp_path / "power.csv"
    table.write_text("time,watts\n" + "".join(f"{at},{w}\n" for at, w in zip(stamps, watts, strict=True)))
    described = {"time": "time", "values": "watts", "unit": "W", "device": "cpu.0", "domain": "package"}
    energy = load(import_files("csv", [table], tmp_path / "power.tape", described)).energy()
    (job,) = read_tree(tmp_path).jobs
    assert job.energy_uj == pytest.approx(energy.value * 1e6, abs=1)
    assert job.high_uj == pytest.approx(2 * energy.value * 1e6, abs=2)
