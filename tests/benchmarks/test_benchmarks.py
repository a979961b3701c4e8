"""The benchmarks run to their end in their short form, without the peers."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from costs import only_in_ci

ROOT = Path(__file__).resolve().parents[2]
whole_benchmark = only_in_ci("benchmarks measure for seconds, beside peers that only CI installs")


def _bench(*arguments: str, timeout_s: float = 280) -> subprocess.CompletedProcess:
    env = {key: value for key, value in os.environ.items() if key != "BENCH_PYTHON"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    words = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s)


@pytest.fixture
def main(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.__main__ import main

    return main


def test_an_unknown_benchmark_is_a_usage_error(main, capsys):
    assert main(["nonsense"]) == 2
    told = capsys.readouterr().err
    assert "There is no benchmark 'nonsense'; there are:" in told
    for name in ("weight", "windows", "slowdown"):
        assert name in told


def test_the_benchmarks_are_listed():
    done = _bench("list")
    assert done.returncode == 0 and {"weight", "start", "windows"} <= set(done.stdout.split())


def test_comparing_wants_one_known_benchmark(main, capsys):
    with pytest.raises(SystemExit) as end:
        main(["nonsense", "--against", "base"])
    assert end.value.code == 2 and "--against wants one benchmark: accuracy" in capsys.readouterr().err


@whole_benchmark
def test_start_in_short():
    done = _bench("start", "--quick")
    assert done.returncode == 0, done.stderr
    for machine in ("bare VM", "one simulated card"):
        assert f"everywatt run, {machine}, warm recorder: the command starts after" in done.stdout
    assert "CodeCarbon is left out" in done.stderr


def test_ratios_of_interleaved_pairs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks._against import base_commit, number, ratios

    assert len(base_commit()) == 40
    assert [number(text) for text in ("1,234.5 ms", "−3", "12 %", "≤ 4", "")] == [1234.5, -3.0, 12.0, None, None]
    row, other = ("title", "row", "ms"), ("title", "row", "goal")
    pairs = [({row: "10.0", other: "reached"}, {row: "5.0"}), ({row: "20.0"}, {row: "11.0", other: "1"})]
    assert ratios(pairs) == {row: [0.5, 0.55]}


@whole_benchmark
def test_windows_in_short():
    done = _bench("windows", "--quick")
    assert done.returncode == 0, done.stderr
    assert "Many windows at once" in done.stdout
    assert "one cold window of 60 s" in done.stdout


@whole_benchmark
def test_report_time_in_short():
    done = _bench("report_time", "--quick")
    assert done.returncode == 0, done.stderr
    assert "10,000 ticks, one channel" in done.stdout


@whole_benchmark
def test_weight_in_short():
    done = _bench("weight", "--quick")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("everywatt (host + recorder)"))
    assert line.split()[-2] == "2", "one host and one recorder"
    assert "import everywatt" in done.stdout


@whole_benchmark
def test_slowdown_in_short():
    done = _bench("slowdown", "--quick")
    assert done.returncode == 0, done.stderr
    assert "gpu-like" in done.stdout


@whole_benchmark
def test_ledger_cost_in_short():
    done = _bench("ledger_cost", "--quick")
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if line.startswith(("everywatt ", "psutil ", "Kepler's way"))]
    assert len(table) == 3, done.stdout


@whole_benchmark
@pytest.mark.parametrize("name", ["use_cost", "agent_cost"])
def test_costs_have_rows_that_can_be_compared_with_the_base(name):
    from benchmarks import _against

    found = _against.tables(name, _against.ROOT, _against.ROOT / "src", quick=True)
    numbers = [cell for cell in found.values() if _against.number(cell) is not None]
    assert len(numbers) >= 4, found


def test_attribution_of_a_folder_of_recordings(tmp_path):
    """Two programs of one price on a machine whose threads draw 8 W each above 27 W."""
    folder = tmp_path / "micro_no_HT_made"
    folder.mkdir()
    alone = [f"{name},{threads},{27 + 8 * threads}" for name in ("one", "two") for threads in range(1, 7)]
    (folder / "alone.csv").write_text("\n".join(["program,threads,package_w", "idle,0,14", *alone]) + "\n")
    together = (
        "a,a_threads,b,b_threads,package_w,a_cycles,b_cycles,scaphandre_a_w,scaphandre_b_w,powerapi_a_w,powerapi_b_w"
    )
    (folder / "together.csv").write_text(f"{together}\none,1,two,3,59,1,3,8,24,4,12\n")
    done = _bench("attribution", "--data", str(tmp_path))
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.split("\n") if line.startswith("everywatt "))
    assert float(line.split()[2]) < 0.01
    assert "intervals hold 100.0%" in done.stdout and "wakes from 14 to 27 W" in done.stdout


@pytest.mark.parametrize(
    ("alone", "columns", "rows", "said"),
    [
        pytest.param(range(1, 7), "a,a_threads,b,b_threads,package_w", ["one,1,two,3,59"], "hold 100", id="few"),
        pytest.param(
            range(1, 13), "a,a_threads,b,b_threads,c,c_threads,package_w",
            ["one,1,two,3,one,4,91", "one,2,two,2,,,59"], "hold 100", id="three programs",
        ),
        pytest.param([4], "a,a_threads,b,b_threads,package_w", ["one,4,two,4,91"], "hold 100", id="one thread count"),
        pytest.param(
            range(1, 7), "a,a_threads,b,b_threads,package_w,a_cycles,b_cycles",
            ["one,1,two,3,,1,3", "one,2,two,2,59,,"], "hold 100", id="blanks",
        ),
        pytest.param(
            [1, 1.5, 2, 6], "a,a_threads,b,b_threads,package_w", ["one,1.5,two,2,55"], "hold 100", id="capped",
        ),
        pytest.param(range(1, 7), "a,a_threads,b,b_threads,package_w", ["x,1,two,3,59"], "no programs", id="unknown"),
    ],
)  # fmt: skip
def test_attribution_of_other_layouts(tmp_path, alone, columns, rows, said):
    folder = tmp_path / "other_machine"
    folder.mkdir()
    watts = [f"{name},{threads},{27 + 8 * threads}" for name in ("one", "two") for threads in alone]
    (folder / "alone.csv").write_text("\n".join(["program,threads,package_w", "idle,0,14", "two,1,", *watts]) + "\n")
    (folder / "together.csv").write_text("\n".join([columns, *rows]) + "\n")
    done = _bench("attribution", "--data", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert said in done.stdout + done.stderr, done.stdout


def test_built_tapes_are_what_recording_would_leave(tmp_path, monkeypatch):
    """Every checksum holds, and windows agree with the sum of the counter's steps."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks._tapes import build

    import everywatt
    from everywatt.tape.columns import load_columns

    assert build(tmp_path / "a.tape", 9_000) == 360_000
    run = everywatt.load(tmp_path / "a.tape")
    tape = run.tapes[0]
    assert run.trouble == [] and list(tape.problems()) == []
    columns = load_columns(tape, 1, ["gpu.0.energy", "gpu.0.power"])
    counts = columns.values["gpu.0.energy"]
    assert np.array_equal(columns.accumulated["gpu.0.energy"], counts - counts[0])
    truth = (counts[8_500] - counts[100]) * 1e-3
    assert run.energies([10.0], [850.0], device="gpu.0")[0] == pytest.approx(truth, rel=1e-12)
    assert run.energy(between=(10.0, 850.0), device="gpu.0").joules == pytest.approx(truth, rel=1e-12)
    watts = columns.values["gpu.0.power"][1:]
    assert columns.accumulated["gpu.0.power"][-1] == pytest.approx(float(watts.sum()) * 1e8, rel=1e-12)


@whole_benchmark
def test_batch_cost_in_short():
    done = _bench("batch_cost", "--quick")
    assert done.returncode == 0, done.stderr
    assert "40 items of 5 ms" in done.stdout
    ours = next(line for line in done.stdout.splitlines() if line.startswith("everywatt batch  "))
    theirs = next(line for line in done.stdout.splitlines() if line.startswith("power before and after"))
    worst = [float(line.split("%")[2]) for line in (ours, theirs)]
    assert worst[0] < worst[1]


@pytest.mark.ml
@pytest.mark.long  # three processes with GPT-2; what it shows is in tests/bench/precision/test_torch.py for one
def test_layer_pass_in_short():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    done = _bench("layer_pass", "--quick")
    assert done.returncode == 0, done.stderr
    assert "hooks on the model in measured loops: 0 (aim 0: reached)" in done.stdout
    assert "functions called more than where layers are never timed: +0 (aim 0: reached)" in done.stdout
    assert "overhead of the per-layer pass on the measured run: none" in done.stdout
    assert "never against never (A/A)" in done.stdout


@whole_benchmark
def test_stress_duty_in_short():
    done = _bench("stress_duty", "--quick")
    assert done.returncode == 0, done.stderr
    for kind in ("integer", "float", "vector", "memory", "branchy"):
        assert sum(line.startswith(kind) for line in done.stdout.splitlines()) == 2
    if "no verdict" not in done.stdout:
        assert float(done.stdout.partition("worst: ")[2].split()[0]) < 5.0, done.stdout


@whole_benchmark
def test_the_energy_of_single_queries_in_short():
    done = _bench("llm_energy", "--quick")
    assert done.returncode == 0, done.stderr
    errors = {
        tuple(words[:2]): float(words[2].rstrip("%"))
        for line in done.stdout.splitlines()
        if len(words := line.split()) == 5
    }
    assert errors["8", "everywatt"] < 30 < errors["8", "before−after"]


@whole_benchmark
def test_a_comparison_sees_the_rows_of_honesty(monkeypatch):
    """`--against base` takes half-widths by recording from what the benchmark prints."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks._against import number, tables

    monkeypatch.setenv("BENCH_DATA", str(ROOT / "tests" / "energy" / "data"))
    cells = tables("honesty", ROOT, ROOT / "src", quick=True)
    widths = {row: number(cell) for (_, row, _), cell in cells.items()}
    assert {"A100_square 1 s", "RTX3090_step 3 s"} <= set(widths) and all(widths.values())
