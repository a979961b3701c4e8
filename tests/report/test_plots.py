import re
from importlib.util import find_spec

import pytest
from reports import write_run

import everywatt
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.report.plots import metrics_of, plot

pytestmark = pytest.mark.skipif(not (find_spec("altair") and find_spec("vl_convert")), reason="altair is not installed")

STARTS = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return everywatt.load(write_run(tmp_path_factory.mktemp("plots") / "small.tape"))


@pytest.mark.parametrize("ending", STARTS)
@pytest.mark.parametrize("what", ["power", "spans", "energy-by-device"])
def test_files_of_every_kind(run, what, ending, tmp_path):
    data = plot(run, what, tmp_path / f"x{ending}").read_bytes()
    assert data.startswith(STARTS[ending]) and len(data) > 2000


def test_the_words_of_a_picture(run, tmp_path):
    text = plot(run, "spans", tmp_path / "x.svg").read_text()
    assert "Energy (J)" in text and ">epoch<" in text and "±" in text
    assert "<script>" not in text


def test_a_device_has_the_colour_that_it_has_on_a_page(run, tmp_path):
    text = plot(run, "power", tmp_path / "x.svg").read_text()
    strokes = re.findall(r'<path [^>]*stroke="(#[0-9a-f]{6})" stroke-width="1.4"', text)
    assert strokes == ["#d55e00", "#0072b2"], "the package, then the card, whose colour is the first"


@pytest.fixture(scope="module")
def model_run(tmp_path_factory):
    """Queries of 10 to 49 tokens that cost 2 J and 0.5 J a token, at 20 W."""
    from everywatt.bench.experiment import JsonLines
    from everywatt.bench.llm.plan import LlmPlan, Questions
    from everywatt.bench.llm.records import QUERIES, Answer, Record
    from everywatt.core.channels import Channel, Domain, Kind
    from everywatt.meters.series import Part, Table, group, write_part

    folder = tmp_path_factory.mktemp("model")
    table = Table(group("host", "meter", [Channel("host.energy", "J", Kind.COUNTER, "host", Domain.NODE)]))
    spans, at, joules = [], 10**18, 0.0
    table.add(at, [joules])
    for tokens in range(10, 50):
        owed = 2 + 0.5 * tokens
        spans.append(("query", at, at + round(owed / 20 * 1e9), {}))
        at, joules = at + round(owed / 20 * 1e9), joules + owed
        table.add(at, [joules])
    write_part(folder / "h-0001.tape", Part([table], spans=spans), [folder], {})
    journal = JsonLines(folder / QUERIES)
    for n, (_, start, end, _) in enumerate(spans):
        first = start - 10**18 + 10**9
        answer = Answer("ok", "x", sent_ns=first, ended_ns=first + end - start, input_tokens=0, output_tokens=10 + n)
        journal.write(Record(f"i{n}", "concurrency 1", f"{n + 1:08x}", answer).to_dict())
    journal.close()
    LlmPlan("m", client={"client": "x"}, dataset=Questions("d"), boundary="machine").write(folder)
    return everywatt.load(folder)


def test_tokens_against_energy_with_the_slope_that_is_there(model_run, tmp_path):
    text = plot(model_run, "llm-tokens", tmp_path / "x.svg").read_text()
    for words in ("Energy (J)", "Latency (s)", "Power (W)", "Input and output tokens", "0.5 ±", "R² 1.000"):
        assert words in text
    assert plot(model_run, "llm-density", tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    text = plot(model_run, "llm-density", tmp_path / "y.svg").read_text()
    assert "Density" in text and text.count("mark-area") >= 3


def test_a_run_that_asked_no_model_has_no_such_plot(run, tmp_path):
    with pytest.raises(UsageError, match="not a run of `bench llm`"):
        plot(run, "llm-tokens", tmp_path / "x.svg")


def test_two_axes(run, tmp_path):
    path = plot(run, "power", tmp_path / "x.svg", metrics=["gpu.0 power"], second=["gpu.0 temperature"])
    text = path.read_text()
    assert "Power (W)" in text and "Temperature (°C)" in text


def test_a_channel_by_its_own_name(run, tmp_path):
    assert plot(run, "power", tmp_path / "x.svg", metrics=["gpu.0.clock_sm"]).exists()


def test_what_there_is(run):
    found = dict(metrics_of(run))
    assert found["gpu.0 power"] == "W" and found["gpu.0 temperature"] == "°C" and found["loss"] == ""


def test_a_metric_that_is_missing(run, tmp_path):
    with pytest.raises(UsageError, match=r"no metric 'nope'; it has: cpu\.0 power, gpu\.0 power"):
        plot(run, "power", tmp_path / "x.png", metrics=["nope"])
    assert not (tmp_path / "x.png").exists()


def test_units_are_not_mixed_on_one_axis(run, tmp_path):
    with pytest.raises(UsageError, match="An axis has one unit"):
        plot(run, "power", tmp_path / "x.png", metrics=["gpu.0 power", "gpu.0 temperature"])


@pytest.mark.parametrize("name", ["x", "x.jpg", "x.html"])
def test_a_format_that_is_not_known(run, name, tmp_path):
    with pytest.raises(UsageError, match="has no known extension"):
        plot(run, "power", tmp_path / name)


def test_a_ledger_that_is_not_there(run, tmp_path):
    with pytest.raises(MeasurementRefused, match="processes were not recorded"):
        plot(run, "ledger", tmp_path / "x.png")


def test_lines_are_chosen_for_power_only(run, tmp_path):
    with pytest.raises(UsageError, match="apply only to --what power"):
        plot(run, "spans", tmp_path / "x.png", metrics=["gpu.0 power"])
