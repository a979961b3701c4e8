"""What a device did during an item, from tapes whose truth is written down."""

import pytest
from tapes import at, counter_group, gauge_group, rows, write_tape

from everywatt.api.run import load
from everywatt.batch.measuring import Watch, time_drift
from everywatt.core.channels import Domain


@pytest.mark.parametrize("kind", ["counter", "gauge"])
def test_mean_power_is_of_the_time_in_which_it_was_observed(tmp_path, kind):
    """As on a busy machine: the last readings of an item are missing."""
    gpu = counter_group("gpu.0", Domain.GPU) if kind == "counter" else gauge_group()
    readings = rows((lambda t: 100.0 * t) if kind == "counter" else (lambda t: 100.0), 0, 6, 0.1)
    tape = write_tape(tmp_path / "box-0001.tape", [(gpu, 0.1, readings)], [("item", 1, 10, None, {})])
    power = Watch(load(tape).tapes[0]).during("gpu.0", at(1), at(10))["power"]
    assert power.mean == pytest.approx(100.0, rel=0.02)
    assert power.low == pytest.approx(100.0, rel=0.02)


def test_the_ratio_of_times_ends_at_zero():
    found = time_drift([0.3, 0.3, 0.3, 1.5], [0.3, 0.3, 0.3, 9.0], tolerance=0.1)
    assert found.low == 0.0 < found.ratio < found.high
