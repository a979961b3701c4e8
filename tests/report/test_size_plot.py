"""What a probe found, drawn: joules a unit and units a second over the size, with the cheapest one named."""

from importlib.util import find_spec

import pytest

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.report.plots import plot_sizes

pytestmark = pytest.mark.skipif(find_spec("altair") is None, reason="altair is not installed")
pytest.importorskip("vl_convert")


def size(number, joules, fits=True):
    energy = {"joules": joules, "low": joules * 0.9, "high": joules * 1.1}
    return {"size": number, "fits": fits, "energy": energy, "units_per_s": number / 2.0 if fits else None}


def test_both_curves_and_the_cheapest(tmp_path):
    found = [size(1, 10.0), size(2, 12.0), size(4, 40.0), size(8, 5.0, fits=False)]
    text = plot_sizes(found, 2, tmp_path / "sizes.svg").read_text()
    assert "Energy (J a unit)" in text and "Throughput (units/s)" in text and "cheapest: 2" in text


def test_what_cannot_be_drawn(tmp_path):
    with pytest.raises(MeasurementRefused, match="No size fits"):
        plot_sizes([size(1, 1.0, fits=False)], None, tmp_path / "x.svg")
    with pytest.raises(UsageError, match="has no known extension"):
        plot_sizes([size(1, 1.0)], 1, tmp_path / "x.txt")
