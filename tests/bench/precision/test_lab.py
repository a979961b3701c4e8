"""The precision lab in virtual time on a machine of 50 W: its tables do not contradict each other, and passes over
layers change nothing that was finished."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime

import numpy as np
import pytest
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.bench.precision.lab import Conduct, PrecisionLab
from everywatt.bench.precision.plan import Job
from everywatt.bench.precision.variants import WorkerFailed
from everywatt.formats.quantization import old_csv
from everywatt.report.html.trials import precision_document

BATCH_S = {"fp32": 0.04, "bf16": 0.03, "int8": 0.02, "mixed": 0.03}
WEIGHTS = {"fp32": "float32", "bf16": "bfloat16", "int8": "qint8", "mixed": "qint8"}
LAYERS = [{"layer": f"h.{n}.mlp", "type": "Linear", "seconds": 0.01, "calls": 1} for n in range(3)]


class VirtualWorker:
    """In the place of a worker process: batches take their time, answers are right, layers are three."""

    def __init__(self, world, slower, fails) -> None:
        self._world, self._slower, self._fails = world, slower, fails
        self._precision = ""
        self._loops = 0

    def ask(self, do, **told):
        self._precision = told.get("precision", self._precision)
        if (self._precision, do, self._loops) in self._fails or (self._precision, do) in self._fails:
            raise WorkerFailed("out of memory")
        if (self._precision, do, "usage") in self._fails:
            raise WorkerFailed("'tiny:nothing' cannot be imported", usage=True)
        return getattr(self, do)(**told)

    def setup(self, **told):
        return {"seq_length": 8}

    def facts(self):
        kind = WEIGHTS[self._precision]
        operators = {"quantized::linear_dynamic": 3} if kind == "qint8" else {"aten::linear": 3}
        return {"weights": {kind: 100}, "compute": {kind: 3}, "operators": operators, "visible": True}

    def score(self, file, **told):
        right = np.arange(16) % 2
        np.savez(file, items=np.arange(16), outputs=np.eye(2)[right].astype(np.float32))
        return {}

    def warmup(self, iters):
        return {"peak_bytes": 1000}

    def loop(self, iters, seconds):
        """Each loop of a precision may take longer than the one before, as on a machine that slows down."""
        start_ns, each_s = self._world.now_ns, BATCH_S[self._precision] * self._slower(self._world.loops)
        count = max(iters, round(seconds / each_s))
        for _ in range(count):
            self._world.sleep(each_s)
        self._loops += 1
        self._world.loops += 1
        latency_ns = [round(each_s * 1e9)] * count
        return {
            "start_ns": start_ns, "end_ns": self._world.now_ns, "latency_ns": latency_ns, "cpu_s": 0.1,
            "peak_bytes": 1000, "hooks": 0,
        }  # fmt: skip

    def layers(self, passes):
        each_s = BATCH_S[self._precision] / 4
        return {"layers": [{**one, "seconds": each_s} for one in LAYERS], "whole_s": 4 * each_s}

    def sensitivity(self, folder, limit):
        for place in range(len(LAYERS)):
            outputs = np.eye(2)[np.arange(16) % 2] * (1 - 0.01 * (place + 1))
            np.savez(f"{folder}/{place}.npz", items=np.arange(16), outputs=outputs.astype(np.float32))
        return {"layers": [one["layer"] for one in LAYERS]}

    def close(self) -> None: ...


@pytest.fixture
def world(tmp_path):
    with VirtualWorld(tmp_path, cpu="constant:50W") as made:
        made.loops = 0
        yield made


def measured(world, tmp_path, *, precisions="fp32,bf16,int8", slower=lambda loops: 1.0, fails=(), **conduct):
    (tmp_path / "model").mkdir()
    inputs = np.zeros((16, 3))
    np.savez(tmp_path / "data.npz", inputs=inputs, labels=np.arange(16) % 2)
    job = Job(
        str(tmp_path / "model"), "classify", str(tmp_path / "data.npz"), tuple(precisions.split(",")), loop_s=1.0,
        device="cpu",
    )  # fmt: skip
    meter = Meter("precision", sensors=["virtual"])
    meter.start()
    made = Conduct(**{"trials": 4, "cool": False, "idle_s": 1.0} | conduct)
    lab = PrecisionLab(job, made, meter, worker=lambda environ: VirtualWorker(world, slower, fails))
    lab.work()
    run = meter.stop()
    lab.close()
    return lab.result(run)


def told(result):
    return {row["precision"]: row for row in json.loads(json.dumps(result.to_dict()))["precisions"]}


def consistent(result):
    """Percent, ratio, Pareto, panel and CSV are one figure, and power times time is energy."""
    found, panel = told(result), precision_document(result)["ratios"]
    lines = {line["precision"]: line for line in csv.DictReader(io.StringIO(result.to_csv()))}
    for name, row in found.items():
        if row["ratio"] is not None:
            percent = row["percent"]
            assert percent["energy_per_sample"] == pytest.approx(100 * row["ratio"]["value"])
            assert percent["samples_per_joule"] == pytest.approx(100 / row["ratio"]["value"])
            assert percent["power"] * percent["latency_mean"] == pytest.approx(100 * percent["energy_per_sample"])
            assert float(lines[name]["percent_energy_per_sample"]) == pytest.approx(100 * row["ratio"]["value"])
            assert any(
                one["label"] == name and one["value"] == pytest.approx(row["ratio"]["value"]) for one in panel
            ), panel
        if row["energy_per_batch"] is not None:
            assert row["power_w"] * row["latency"]["mean_s"] == pytest.approx(row["energy_per_batch"]["value"])
    return found


def test_a_machine_that_slows_down_does_not_make_the_tables_contradict_each_other(world, tmp_path):
    """int8 takes half as long as fp32 in every block; in the blocks of the mixed plan everything takes five times as
    long."""
    result = measured(world, tmp_path, slower=lambda loops: 5.0 if loops >= 12 else 1.0, sensitivity=True)
    found = consistent(result)
    assert found["int8"]["ratio"]["value"] == pytest.approx(0.5, rel=0.02)
    assert found["mixed"]["ratio"]["value"] == pytest.approx(0.75, rel=0.02)
    assert found["fp32"]["latency"]["mean_s"] == pytest.approx(0.04, rel=0.02), "the trials of the experiment alone"
    assert len(found["fp32"]["trials"]) == 4 and len(found["mixed"]["trials"]) == 4
    assert "int8" in result.pareto() and "mixed" not in result.pareto()


@pytest.mark.parametrize("fails", [("fp32", "sensitivity"), ("fp32", "layers"), ("mixed", "loop"), ("fp32", "loop", 4)])
def test_a_pass_that_fails_leaves_what_was_measured(world, tmp_path, fails):
    result = measured(world, tmp_path, fails=(fails,), sensitivity=True)
    found = consistent(result)
    assert result.baseline.precision == "fp32" and found["fp32"]["failure"] is None
    assert [len(found[name]["trials"]) for name in ("fp32", "bf16", "int8")] == [4, 4, 4]
    assert found["int8"]["ratio"]["value"] == pytest.approx(0.5, rel=0.02)
    said = [*result.notes, *(note for row in result.rows for note in (*row.notes, row.failure or ""))]
    assert any("out of memory" in text for text in said)


def test_a_precision_that_fails_later_keeps_its_trials_and_stays_the_baseline(world, tmp_path):
    result = measured(world, tmp_path, fails=(("fp32", "loop", 2),))
    found = consistent(result)
    assert result.baseline.precision == "fp32" and len(found["fp32"]["trials"]) == 2
    assert any("stopped after 2 trials: out of memory" in note for note in found["fp32"]["notes"])
    assert found["int8"]["ratio"]["value"] == pytest.approx(0.5, rel=0.02)


def test_each_trial_tells_how_its_power_varied_and_how_often_it_was_read(tmp_path):
    """A square of 30 and 90 W: a mean of 60 and a deviation of 30 W."""
    with VirtualWorld(tmp_path, cpu="square:30W,90W,0.5s") as world:
        world.loops = 0
        result = measured(world, tmp_path, precisions="fp32,int8", trials=2)
    for row in told(result).values():
        for trial in row["trials"]:
            power = trial["power"]
            assert power["mean_w"] == pytest.approx(60, rel=0.2) and power["sd_w"] == pytest.approx(30, rel=0.3)
            assert power["min_w"] >= 29 and power["max_w"] <= 91
            assert power["samples"] >= 8 and power["rate_hz"] == pytest.approx(10, rel=0.3)
    assert len(result.trial_table().rows) == 4
    line = next(csv.DictReader(io.StringIO(old_csv("trials", result, datetime.now(UTC)))))
    assert float(line["std_power_w"]) == pytest.approx(30, rel=0.3) and int(line["num_power_samples"]) >= 8


def test_a_wrong_request_is_found_out_once(world, tmp_path):
    """Every row says why, but only the first worker was asked."""
    found = told(measured(world, tmp_path, fails=[("fp32", "setup", "usage"), ("bf16", "setup"), ("int8", "setup")]))
    assert [row["failure"] for row in found.values()] == ["'tiny:nothing' cannot be imported"] * 3


def test_the_only_precision_that_works_ends_when_it_is_known(world, tmp_path):
    result = measured(world, tmp_path, precisions="fp32,bf16", fails=[("bf16", "setup")], trials=None, max_s=60.0)
    assert result.ended == "decided" and len(result.rows[0].trials) < 10


def test_the_only_precision_that_works_has_ten_trials_where_they_scatter(world, tmp_path):
    result = measured(
        world, tmp_path, precisions="fp32,bf16", slower=lambda loops: 1 + loops % 3, fails=[("bf16", "setup")],
        trials=None, max_s=60.0,
    )  # fmt: skip
    assert result.ended == "trials" and len(result.rows[0].trials) == 10


def test_workers_that_all_fail_end_the_experiment(world, tmp_path):
    """The third loop of the only precision fails: two trials are kept, and none is waited for."""
    fails = [("fp32", "loop", 2)]
    result = measured(world, tmp_path, precisions="fp32", fails=fails, trials=None, target=1e-9, max_s=60.0)
    assert result.ended == "failures" and len(result.rows[0].trials) == 2
    assert "stopped after 2 trials: out of memory" in result.rows[0].notes
