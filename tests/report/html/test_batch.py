"""The report's section of a batch, over a batch that really ran on simulated cards."""

from statistics import median

import pytest
from batches import batch_runs

import everywatt
from everywatt.batch.figures import scaling_table
from everywatt.core.format import format_rounded, print_quantity
from everywatt.report.html.batch import batch_of, batch_view, scaling_view
from everywatt.report.html.data import report_document
from everywatt.report.html.page import page


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One batch on one card, one on two."""
    return batch_runs(tmp_path_factory)


def test_every_device_with_its_items_and_what_waiting_cost(runs):
    found = batch_of(runs[1])
    view = batch_view(runs[1], found)
    rows = [dict(zip(view["heads"], row, strict=True)) for row in view["devices"]]
    assert [row["device"] for row in rows] == ["gpu.0", "gpu.1"]
    assert sum(int(row["done"]) for row in rows) == 5 and sum(int(row["failed"]) for row in rows) == 1
    for row, device in zip(rows, found.devices, strict=True):
        assert float(row["power"].removesuffix(" W")) == pytest.approx(100.0, rel=0.25), "of a busy machine"
        assert float(row["J/item"]) == pytest.approx(device.microjoules / 1e6 / device.done, rel=1e-3)
        waited_j = 100.0 * (found.duration_s - device.busy_s)
        assert device.idle.joules == pytest.approx(waited_j, abs=0.25 * 100.0 * found.duration_s), "at 100 W"
    assert [row[0] for row in view["failures"]] == ["i3"] and view["failures"][0][-1] == "exit code 4"
    runtimes = {item.state.item.id: item.runtime_s for item in found.items}
    slow = [name for name, seconds in runtimes.items() if seconds > 3 * median(runtimes.values())]
    assert [row[0] for row in view["stragglers"]] == sorted(slow, key=runtimes.get, reverse=True)


def test_use_over_time_is_a_row_for_each_card(runs):
    heat = batch_view(runs[1], batch_of(runs[1]))["heat"]
    assert [row["device"] for row in heat["rows"]] == ["gpu.0", "gpu.1"]
    for row in heat["rows"]:
        assert 10 <= len(row["cells"]) <= 120
        assert all(value is None or 0 <= value <= 100 for value in row["cells"])


def test_several_batches_give_scaling(runs):
    found = [batch_of(run) for run in runs]
    scaling = scaling_view(found)
    assert [point["gpus"] for point in scaling["points"]] == [1, 2]
    for point, figures in zip(scaling["points"], found, strict=True):
        each = point["joules_per_item"]
        assert each["value"] == pytest.approx(figures.total.joules / 5)
        assert each["high"] == pytest.approx(figures.total.high / 5)
    assert scaling_view(found[:1]) is None


def test_the_document_has_it_and_a_run_that_is_no_batch_has_none(runs, tmp_path):
    data = report_document(runs)
    assert data["scaling"]["rows"] and data["runs"][0]["batch"]["headline"].startswith("6 items: 5 done, 1 failed")
    assert "everywatt.batchSection" in page(data)
    alone = everywatt.load(next(runs[0].path.glob("*.tape")))
    assert report_document([alone])["runs"][0]["batch"] is None


def test_the_cockpit_has_every_item_with_its_attempts_and_causes(runs):
    view = batch_view(runs[1], batch_of(runs[1]))
    items = {item["id"]: item for item in view["items"]}
    assert list(items) == [f"i{n}" for n in range(6)] and view["more_items"] == 0
    failed = items["i3"]
    assert (failed["status"], failed["why"], failed["attempts"][0]["exit_code"]) == ("failed", "exit code 4", 4)
    assert view["causes"] == [["exit code 4", "1", "i3"]]
    for item in items.values():
        (start, end), *_ = [attempt["window_s"] for attempt in item["attempts"]]
        assert end - start == pytest.approx(item["seconds"], abs=0.05) and start >= 0
        assert item["joules"] > 0 and "J" in item["energy"]


def test_joules_per_item_have_an_interval(runs):
    found = batch_of(runs[1])
    each = found.total / found.count("done")
    assert (
        f", {print_quantity(each.value, 'J/item', *each.sides())} on 2 × " in found.headline and "±" in found.headline
    )
    rows = {row[0]: row for row in found.device_table().cells()}
    half, outside_j = found.total.half_width, found.outside_microjoules / 1e6
    assert rows["outside items"][8] == format_rounded("J", half, outside_j)
    assert "±" in scaling_table([found]).cells()[0][6]
