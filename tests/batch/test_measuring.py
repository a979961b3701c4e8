"""What a device did during an item, from tapes whose truth is written down."""

from dataclasses import replace

import pytest
from tapes import at, counter_group, gauge_group, rows, write_tape

from everywatt.api.run import load
from everywatt.batch.figures import AttemptFigures, BatchFigures, DeviceFigures, ItemFigures, item_table, scaling_table
from everywatt.batch.items import Item
from everywatt.batch.journal import DONE, FAILED, Attempt, State
from everywatt.batch.measuring import Watch, drifts, time_drift
from everywatt.core.budget import Budget
from everywatt.core.channels import Domain
from everywatt.core.energy import Energy


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


def batch(pedigree, cpu_s):
    """Items of 10 J each; the last one failed."""
    each = Energy(10.0, Budget(), "machine", pedigree)
    items = []
    for index, seconds in enumerate(cpu_s):
        status = FAILED if index == len(cpu_s) - 1 else DONE
        ended = {"runtime_s": 1.0, "exit_code": 0} | ({} if seconds is None else {"cpu_s": seconds})
        attempt = Attempt(1, "cpu", 0, status=status, ended=ended)
        item = Item(index, f"i{index}", f"i{index}")
        items.append(ItemFigures(State(item, status, [attempt]), (AttemptFigures(attempt, each),), each))
    device = DeviceFigures("cpu", "CPU", 1, 1, len(items), 0, 2.0, each, 10_000_000, None, None, {}, sum_of(cpu_s))
    return BatchFigures("b", 4.0, tuple(items), (device,), replace(each, joules=40.0), 0, 0, outside=each)


def sum_of(seconds):
    return None if None in seconds else sum(seconds)


def test_cpu_time_leads_where_energy_is_modelled():
    found = batch("modelled", [1.0, 2.0, 0.5])
    assert found.cpu_s == 3.5 and found.to_dict()["cpu_s"] == 3.5
    assert "0.5000 items/s, 1.50 s of CPU time/item, 20.00 J/item" in found.headline
    table = found.device_table()
    assert table.headers[4:6] == ["busy", "CPU time"] and [row[5] for row in table.cells()] == ["3.50 s", "", "3.50 s"]
    assert "CPU time" in item_table(found.unfinished()).headers and "CPU time/item" in scaling_table([found]).headers
    three = batch("modelled", [1.0, 1.0, 1.0, 1.0])
    told = drifts(three, batch("modelled", [2.0, 2.0, 2.0, 2.0]), 0.1)[0]
    assert [one.name for one in told] == ["CPU time per item", "energy per item", "time per item"]
    assert (told[0].ratio, told[0].drifted, told[1].ratio) == (0.5, True, 1.0)


def test_an_interrupted_attempt_leaves_the_cpu_time_per_item():
    found = batch("modelled", [1.0, 2.0, None])
    assert found.cpu_s is None and ", 1.50 s of CPU time/item, " in found.headline
    assert "CPU time" not in found.device_table().headers


@pytest.mark.parametrize(("pedigree", "cpu_s"), [("counter", [1.0, 2.0]), ("modelled", [None, 1.0])])
def test_cpu_time_is_not_shown_beside_what_is_measured_or_where_it_is_unknown(pedigree, cpu_s):
    found = batch(pedigree, cpu_s)
    shown = [found.headline, *found.device_table().headers, *scaling_table([found]).headers]
    assert "CPU time" not in " ".join(shown)
    assert "CPU time per item" not in [one.name for one in drifts(found, found, 0.1)[0]]
