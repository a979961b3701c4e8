"""Profiles of Intelligence per Watt, made here in its layout."""

import json

import pytest

from everywatt.api.run import load
from everywatt.bench.llm.result import evaluate_folder
from everywatt.core.errors import UsageError
from everywatt.formats.ipw.exporter import export_ipw
from everywatt.formats.ipw.importer import certainty
from everywatt.tape.importing import import_files

pa = pytest.importorskip("pyarrow")


def metrics(joules, seconds, right=True, cpu=None):
    return {
        "energy_metrics": {"per_query_joules": joules, "cpu_per_query_joules": cpu, "total_joules": joules},
        "latency_metrics": {
            "total_query_seconds": seconds,
            "time_to_first_token_seconds": seconds / 4,
            "median_itl_ms": 8.5,
        },
        "token_metrics": {"input": 20, "output": 100, "total": 120},
        "lm_correctness": right,
        "lm_response": "42",
    }


def profile(folder, all_metrics, model="tiny", **summary):
    folder.mkdir()
    rows = [
        {"problem": f"q{n}", "answer": "42", "subject": "sums", "model_answers": {model: "42"}, "model_metrics": one}
        for n, one in enumerate({model: one} for one in all_metrics)
    ]
    table = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as to,
    ):
        to.write_table(table)
    about = {"model": model, "dataset_name": "own", "generated_at": "2026-09-01T10:00:00", "profiler_config": {}}
    (folder / "summary.json").write_text(json.dumps(about | {"versions": {"ipw": "0.1"}} | summary))
    return folder


def imported(folder, tmp_path):
    import_files("ipw", [folder], tmp_path / "run" / "import-0001.tape")
    return load(tmp_path / "run")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path


def test_joules_tokens_and_verdicts_are_those_of_the_profile(place):
    folder = profile(place / "p", [metrics(50.0, 2.0), metrics(70.0, 3.0, right=False), metrics(30.0, 1.0)])
    run = imported(folder, place)
    assert run.energy(span="query").value == pytest.approx(150.0)
    plan, (found,) = evaluate_folder(run)
    assert (plan.model, plan.dataset.name, found.queries) == ("tiny", "own", 3)
    assert found.bill.gross.value == pytest.approx(150.0) and found.bill.gross.scope == "gpu"
    assert found.accuracy.value == pytest.approx(2 / 3)
    assert found.figures["energy_per_output_token"].value == pytest.approx(0.5)
    assert found.figures["accuracy_per_joule_mean"].value == pytest.approx(2 / 3 / 50)
    assert [item["joules"] for item in found.items] == pytest.approx([50.0, 70.0, 30.0])
    assert [item["ttft_s"] for item in found.items] == pytest.approx([0.5, 0.75, 0.25])
    # The gaps between tokens are not in a profile, so there are none; what it says of them is kept.
    assert found.latency["itl_s"] is None
    assert [s.attributes["latency_metrics.median_itl_ms"] for s in run.spans if s.name == "query"] == [8.5] * 3
    assert plan.warnings == ()


def test_energy_that_the_buffer_truncated_is_flagged(place):
    folder = profile(place / "p", [metrics(300.0, 45.0), metrics(50.0, 10.0)])
    plan, (found,) = evaluate_folder(imported(folder, place))
    (warning,) = plan.warnings
    assert warning.startswith("1 of 2 queries lasted up to ") and "longer than the 30 s" in warning
    assert "truncated, down to 66.7 % of the true value" in warning
    assert warning in found.notes


def test_a_later_version_with_a_long_buffer_is_not_flagged(place):
    config = {"telemetry_buffer_seconds": 7200, "dataset_id": "own"}
    folder = profile(place / "p", [metrics(300.0, 45.0), metrics(50.0, 10.0)], profiler_config=config)
    plan, _ = evaluate_folder(imported(folder, place))
    assert plan.warnings == ()


def test_a_query_without_energy_is_left_out_of_what_is_divided(place):
    folder = profile(place / "p", [metrics(50.0, 2.0), metrics(None, 3.0), metrics(-1.0, 1.0)])
    plan, (found,) = evaluate_folder(imported(folder, place))
    assert plan.warnings == ("2 of 3 queries have no energy or no duration",)
    assert found.figures["energy_per_output_token"].value == pytest.approx(0.5)
    assert found.output_tokens == 300
    assert found.items[1]["joules"] is None


def test_cpu_and_gpu_are_added(place):
    folder = profile(place / "p", [metrics(50.0, 2.0, cpu=10.0), metrics(30.0, 1.0, cpu=5.0)])
    run = imported(folder, place)
    assert run.energy(span="query").value == pytest.approx(95.0)
    assert set(run.energy().scope.split("+")) == {"cpu", "gpu"}


def test_no_profile_and_several_models_are_said(place):
    (place / "empty").mkdir()
    with pytest.raises(UsageError, match="no Arrow or Parquet"):
        imported(place / "empty", place)
    folder = profile(place / "p", [metrics(50.0, 2.0)])
    (folder / "summary.json").write_text("{}")
    assert evaluate_folder(imported(folder, place))[0].model == "tiny"


@pytest.mark.parametrize(
    ("told", "pedigree", "gain_pct"),
    [
        (None, "counter", None),
        ({"joules": 72.0, "low": -34.0, "high": 178.0, "pedigree": "modelled"}, "modelled", 147.2),
        ({"joules": 10.0, "low": 9.5, "high": 10.5, "pedigree": "counter"}, "counter", 5.0),
        ({"joules": None, "refused": "nothing"}, "counter", None),
    ],
)
def test_how_sure_our_own_joules_were_comes_back(told, pedigree, gain_pct):
    found, facts = certainty({} if told is None else {"energy": told})
    assert found == pedigree
    assert facts.gain_pct == (None if gain_pct is None else pytest.approx(gain_pct, abs=0.05))


def test_a_lopsided_interval_comes_back_as_wide_as_its_wide_side():
    _, facts = certainty({"energy": {"joules": 10.0, "low": 0.0, "high": 32.0, "pedigree": "modelled"}})
    assert facts.gain_pct == pytest.approx(220.0)


def test_our_export_means_what_the_tool_means(place):
    """A GPU and a processor: joules apart, time for each token of the whole query, a time of day as a number."""
    folder = profile(place / "p", [metrics(50.0, 2.0, cpu=20.0), metrics(70.0, 4.0, cpu=30.0)])
    run = imported(folder, place)
    files = export_ipw(run, place / "out")
    with pa.memory_map(str(place / "out" / "data-00000-of-00001.arrow")) as source:
        rows = pa.ipc.open_stream(source).read_all().to_pylist()
    told = [row["model_metrics"]["tiny"] for row in rows]
    assert [one["energy_metrics"]["cpu_per_query_joules"] for one in told] == pytest.approx([20.0, 30.0], rel=1e-3)
    assert [one["energy_metrics"]["per_query_joules"] for one in told] == pytest.approx([50.0, 70.0], rel=1e-3)
    assert [one["latency_metrics"]["per_token_ms"] for one in told] == pytest.approx([20.0, 40.0])
    assert told[0]["power_metrics"]["gpu"]["per_query_watts"]["avg"] == pytest.approx(25.0, rel=0.01)
    assert [row["problem"] for row in rows] == ["q0", "q1"] and rows[0]["answer"] == "42"
    summary = json.loads((place / "out" / "summary.json").read_text())
    assert isinstance(summary["generated_at"], float) and len(files) == 4
