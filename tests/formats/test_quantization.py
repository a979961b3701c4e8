"""Old result files: each layout by its columns, and what their words really mean."""

import csv
import json
from datetime import UTC, datetime

import pytest

from everywatt.bench.figures import figures
from everywatt.bench.precision.layers import LayerRow, Ranking, Sensitivity
from everywatt.bench.precision.plan import Job
from everywatt.bench.precision.result import Latency, Result, Row
from everywatt.bench.precision.scoring import Score
from everywatt.bench.trials import Candidate, Trial
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.formats.quantization import old_csv, read_old

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRIAL = {
    "precision": "INT8", "total_energy_j": 100.0, "num_iters": 50, "batch_size": 20, "accuracy": 0.9,
    "mean_latency": 0.04, "throughput": 500.0, "mean_power_w": 50.0, "model_size_mb": 255.0, "dtype": "torch.float32",
    "energy_per_inference_mj": 2000.0,
}  # fmt: skip


def test_a_trial_per_inference_is_a_batch(tmp_path):
    folder = tmp_path / "results" / "int8"
    folder.mkdir(parents=True)
    (folder / "trial_1.json").write_text(json.dumps(TRIAL))
    (folder / "trial_1.csv").write_text(",".join(TRIAL) + "\n" + ",".join(map(str, TRIAL.values())) + "\n")
    (one,) = read_old([tmp_path])
    assert (one.energy_per_batch_j, one.energy_per_sample_j) == (2.0, 0.1)
    assert "labelled int8, but its dtype is torch.float32" in one.note
    (folder / "trial_1.json").unlink()
    assert read_old([tmp_path])[0].energy_per_sample_j == 0.1


def test_the_sheet_the_aggregate_and_the_benchmark(tmp_path):
    (tmp_path / "results.csv").write_text(
        "timestamp,precision,batch_size,seq_length,num_samples,accuracy_%,latency_s,throughput_samples_s,avg_power_w,"
        "energy_j,energy_per_sample_mj,notes\n2025-01-01,FP32,50,128,872,91.06,0.163,306,60.8,173,198.58,\n"
    )
    (one,) = read_old([tmp_path / "results.csv"])
    assert (one.precision, one.accuracy) == ("fp32", pytest.approx(0.9106))
    assert one.energy_per_sample_j == pytest.approx(0.19858) and one.energy_per_batch_j == pytest.approx(9.929)
    (tmp_path / "aggregated_comparison.csv").write_text(
        "precision,energy_per_inference_mj_mean,accuracy_mean\nfp16,1836,0.91\n"
    )
    (two,) = read_old([tmp_path / "aggregated_comparison.csv"])
    assert (two.energy_per_batch_j, two.energy_per_sample_j, two.latency_s) == (1.836, None, None)
    (tmp_path / "benchmark_results.csv").write_text(
        "name,mean_latency_ms,energy_per_sample_mj,accuracy\nFP16,0.7,36.72,0.9106\n"
    )
    assert read_old([tmp_path / "benchmark_results.csv"])[0].energy_per_sample_j == pytest.approx(0.03672)


@pytest.mark.parametrize(
    "name, text, why",
    [
        ("a.csv", "x,y\n1,2\n", "not the columns"),
        ("a.json", "{", "not JSON"),
        ("a.json", json.dumps({**TRIAL, "batch_size": "many"}), "batch_size is 'many', not a number"),
        ("a.csv", "", "These files are empty"),
        ("a.csv", 'precision_type,accuracy,inference_time\nfp32,0.9,"1\n', "cannot be read: unexpected end of data"),
    ],
)
def test_other_files_say_what_is_wrong(tmp_path, name, text, why):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=why):
        read_old([tmp_path / name])


def result():
    trials = [Trial(0, block, 0, None, 0, 0.5, 0.1, None, energy=Energy(25.0 + block)) for block in range(3)]
    (found,) = figures([Candidate(0, "fp32", "fp32", ())], trials)
    layer = LayerRow("h.0", "Conv1D", "mlp", 0.5, 1.0, 1.0, 26.0)
    row = Row("fp32", iters=6, seq_length=40, latency=Latency.of([0.5] * 6), figures=found, layers=(layer,),
              score=Score("accuracy", 0.75, 0.7, 0.8, 436), batches=(2, 2, 2), batch_size=10)  # fmt: skip
    ranking = Ranking((Sensitivity("h.0", 0.25, -0.125, 1.0, 0.5, 1.5),), ())
    return Result(Job(batch_size=10), (row, Row("int8", failure="x")), "trials", None, sensitivity=ranking)


def test_what_is_written_is_read_back(tmp_path):
    (tmp_path / "results.csv").write_text(old_csv("sheet", result(), NOW))
    (one,) = read_old([tmp_path / "results.csv"])
    assert one.energy_per_sample_j == pytest.approx(2.6) and one.energy_j == pytest.approx(26.0 * 6)
    assert (one.accuracy, one.throughput, one.latency_s) == (0.75, 20.0, 0.5)
    (tmp_path / "aggregated.csv").write_text(old_csv("aggregated", result(), NOW))
    (two,) = read_old([tmp_path / "aggregated.csv"])
    assert two.energy_per_batch_j == pytest.approx(26.0) and two.power_w == pytest.approx(52.0)
    (three,) = csv.DictReader(old_csv("layers", result(), NOW).splitlines())
    assert (three["layer_name"], three["energy_mj"], three["percent_total"]) == ("h.0", "26000.0", "100.0")
    (tmp_path / "per_layer_energy.csv").write_text(old_csv("layers", result(), NOW))
    (layer,) = read_old([tmp_path / "per_layer_energy.csv"])
    assert (layer.layer, layer.kind, layer.seconds, layer.share, layer.energy_j) == ("h.0", "Conv1D", 0.5, 1.0, 26.0)


def test_trials_and_impact_are_written_and_read_back(tmp_path):
    (tmp_path / "trial.csv").write_text(old_csv("trials", result(), NOW))
    found = read_old([tmp_path / "trial.csv"])
    assert [one.energy_per_batch_j for one in found] == [25.0, 26.0, 27.0]
    assert [one.energy_j for one in found] == [50.0, 52.0, 54.0] and found[0].power_w == 50.0
    assert (found[0].energy_per_sample_j, found[0].throughput, found[0].accuracy) == (2.5, 20.0, 0.75)
    (tmp_path / "prediction_impact.csv").write_text(old_csv("impact", result(), NOW))
    (layer,) = read_old([tmp_path / "prediction_impact.csv"])
    assert (layer.layer, layer.kind, layer.kl, layer.logit_l2) == ("h.0", "Conv1D", 0.25, 1.5)
    assert (layer.change, layer.impact) == (0.125, 1.75)


def test_the_study_own_impact_and_training(tmp_path):
    (tmp_path / "prediction_impact.csv").write_text(
        "layer_name,kl_divergence,logit_l2,perplexity_change,impact_score,layer_type\n"
        "transformer.h.0.attn.c_attn,0.31,4.2,1.75,4.51,Conv1D\nlm_head,,,,,Linear\n"
    )
    first, second = read_old([tmp_path / "prediction_impact.csv"])
    assert (first.kl, first.change, first.impact) == (0.31, 1.75, 4.51) and "set to zero" in first.note
    assert (second.layer, second.kl, second.impact) == ("lm_head", None, None)
    training = {"precision": "AMP", "train_time_s": 60.0, "total_energy_j": 3000.0, "mean_power_w": 50.0,
                "final_val_acc": 0.9, "train_losses": [0.7, 0.3]}  # fmt: skip
    (tmp_path / "training.json").write_text(json.dumps(training))
    (one,) = read_old([tmp_path / "training.json"])
    assert (one.precision, one.energy_j, one.accuracy, one.note) == ("amp", 3000.0, 0.9, "a training run of 60 s")
