import pytest
from reports import write_run

import everywatt
from everywatt.core.errors import MeasurementRefused, UsageError

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from everywatt.report.plots import metrics_of, plot

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
    with pytest.raises(UsageError, match="One axis has one unit"):
        plot(run, "power", tmp_path / "x.png", metrics=["gpu.0 power", "gpu.0 temperature"])


@pytest.mark.parametrize("name", ["x", "x.jpg", "x.html"])
def test_a_format_that_is_not_known(run, name, tmp_path):
    with pytest.raises(UsageError, match="does not say a format"):
        plot(run, "power", tmp_path / name)


def test_a_ledger_that_is_not_there(run, tmp_path):
    with pytest.raises(MeasurementRefused, match="processes were not recorded"):
        plot(run, "ledger", tmp_path / "x.png")


def test_lines_are_chosen_for_power_only(run, tmp_path):
    with pytest.raises(UsageError, match="go with --what power"):
        plot(run, "spans", tmp_path / "x.png", metrics=["gpu.0 power"])
