"""The report's section of a batch, over a batch that really ran on simulated cards."""

import random
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from batches import batch_runs

import everywatt
from everywatt.api.run import Run
from everywatt.batch.figures import AttemptFigures, BatchFigures, ItemFigures, scaling_table
from everywatt.batch.items import Item
from everywatt.batch.journal import FAILED, Attempt, State
from everywatt.core.energy import Energy
from everywatt.core.format import format_energy, print_quantity
from everywatt.report.html.batch import batch_figures, batch_of, batch_view, scaling_view
from everywatt.report.html.data import ledger_of, ledger_view, quality_view, report_document
from everywatt.report.html.lines import lines_of
from everywatt.report.html.page import page
from everywatt.report.html.pyramid import Series
from everywatt.report.html.spans import flames, phases_of
from everywatt.report.text import summary


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
        waited_j = 100.0 * (found.duration_s - device.busy_s)
        assert device.idle.joules == pytest.approx(waited_j, abs=0.25 * 100.0 * found.duration_s), "at 100 W"
    assert [item["id"] for item in view["items"] if item["status"] == FAILED] == ["i3"]
    runtimes = {item.state.item.id: item.runtime_s for item in found.items}
    middle = median(runtimes.values())
    slow = [name for name, seconds in runtimes.items() if seconds > max(3 * middle, middle + 0.1)]
    assert [row[0] for row in view["stragglers"]] == sorted(slow, key=runtimes.get, reverse=True)


def test_cpu_time_of_an_item_leads_where_its_energy_is_modelled(runs):
    measured = batch_of(runs[1])
    assert [one["label"] for one in batch_figures(measured)] == ["Items done", "Energy per item"]
    modelled = replace(measured, total=replace(measured.total, pedigree="modelled"))
    done, cpu, energy = batch_figures(modelled)
    assert (done["label"], cpu["label"], energy["label"]) == ("Items done", "CPU time per item", "Energy per item")
    assert f"{cpu['value']} of CPU time/item" in modelled.headline
    assert energy["about"] == "modelled energy of the batch / items done"


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
    assert [item["cause"] for item in view["items"] if item["cause"]] == ["exit code 4"], "what a click searches for"
    for item in items.values():
        (start, end), *_ = [attempt["window_s"] for attempt in item["attempts"]]
        assert end - start == pytest.approx(item["seconds"], abs=0.05) and start >= 0
        assert item["joules"] > 0 and "J" in item["energy"]


def test_a_batch_from_standard_input_is_reproduced_with_its_items(runs, monkeypatch):
    words = ["everywatt", "batch", "-", "--gpus", "0", "--", "./work.sh", "{input}"]
    monkeypatch.setattr(Run, "meta", {**runs[0].meta, "command": words, "cwd": "/data"})
    items = "printf '%s\\n' i0 i1 i2 i3 i4 i5"
    shown = report_document(runs[:1])["runs"][0]["reproduce"]
    assert shown == f"cd /data && {items} | everywatt batch - --gpus 0 -- ./work.sh '{{input}}'"
    monkeypatch.setattr("everywatt.report.html.data.MOST_PIPED", 5)
    shown = report_document(runs[:1])["runs"][0]["reproduce"]
    assert shown.endswith("'{input}' < items.txt  # with the 6 items of standard input, one per line")


def test_joules_per_item_have_an_interval(runs):
    found = batch_of(runs[1])
    each = found.total / found.count("done")
    assert (
        f", {print_quantity(each.value, 'J/item', *each.sides())} on 2 × " in found.headline and "±" in found.headline
    )
    assert "±" in scaling_table([found]).cells()[0][6]


def test_energy_outside_items_has_the_interval_of_the_waiting_cards(runs):
    found = batch_of(runs[0])
    (card,) = found.devices
    rows = {row[0]: row for row in found.device_table().cells()}
    assert rows["outside items"][8] == format_energy(card.idle), "with one card it is the same energy"


def test_the_page_and_the_table_use_one_name_and_one_figure(runs):
    found = batch_of(runs[1])
    heads = batch_view(runs[1], found)["heads"]
    assert heads[-1] == found.device_table().columns[-1].name == "idle energy"
    assert "J/item" not in heads, "the headline has it, of all energy"


def failed_batch(**ended):
    """A batch of items that ended like this, by their names."""
    none = Energy.refuse("not measured")

    def item(name, how):
        attempt = Attempt(1, "gpu.0", 0, None, FAILED, ended=how)
        return ItemFigures(State(Item(0, name, name), FAILED), (AttemptFigures(attempt, none),), none)

    return BatchFigures("b", 3.0, tuple(item(*one) for one in ended.items()), (), none, 0, 0)


def test_items_that_timed_out_have_one_cause():
    how = {"timed_out": True, "exit_code": -9}
    found = failed_batch(a={**how, "runtime_s": 1.50}, b={**how, "runtime_s": 1.54})
    assert found.causes() == [("timed out", ["a", "b"])]


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("ValueError: volume {n} has no affine", "ValueError: volume … has no affine"),
        ("ValueError: {id} is empty", "ValueError: … is empty"),
        ("[Errno 2] No such file or directory: '/data/{id}/T1.nii'", "[Errno 2] No such file or directory: …"),
        (
            "{n} of 40 slices of this volume have no header with a pixel spacing",
            "… of 40 slices of this volume have no ",
        ),
    ],
)
def test_messages_that_name_their_items_are_one_cause(said, cause):
    ends = {name: {"exit_code": 1, "stderr": said.format(n=n, id=name)} for n, name in ((8, "eve"), (10, "bob"))}
    found = failed_batch(**ends, other={"exit_code": 2, "stderr": said.format(n=9, id="other")})
    (first, ids), (_, alone) = found.causes()
    assert first.startswith(f"exit code 1: {cause}") and (ids, alone) == (["eve", "bob"], ["other"])
    assert len(first) <= len("exit code 1: ") + 60


def test_owners_without_any_energy_are_one_row(runs):
    """Processes that never used the card, the only device: five of them stood above idle, which has all joules."""
    lines = [line for line in summary(runs[0]) if line.startswith("  owner ")]
    assert lines[0].endswith(" owners") and lines[0].split()[1:3] == ["0.00", "J"]
    assert not any("sleep" in line for line in lines)
    shown = ledger_view(ledger_of(runs[0]))
    assert [row for row in shown["owners"] if row["owner"]["kind"] == "process"] == []
    assert shown["rest"]["owners"] > 1


def test_an_owner_has_one_interval_in_the_list_and_in_the_graph(runs):
    owners = ledger_of(runs[1])
    *_, graph = flames(runs[1], owners, phases_of(runs[1]))
    listed = {row["owner"]["label"]: row["energy"] for row in ledger_view(owners)["owners"]}
    assert graph["title"] == "Owners and devices" and graph["root"]["children"]
    for node in graph["root"]["children"]:
        assert node["shown"] == listed[node["name"]]["shown"], node["name"]


def test_the_page_has_one_figure_of_what_everywatt_used():
    found = {"gaps": [], "groups": {}, "sealed": True, "meter": [{"cpu_s": 0.133}, None, {"cpu_s": 0.103}]}
    assert quality_view(found)["meter"] == "everywatt itself used 236 ms of CPU time"


def test_a_page_with_two_thousand_failed_items_is_below_a_megabyte(runs, monkeypatch):
    run, found = runs[1], batch_of(runs[1])
    (failed,) = [item for item in found.items if item.state.status == FAILED]
    noise = random.Random(1)

    def item(n):
        said = " ".join(noise.choices(["tensor", "shape", "cuda", "error", "line", str(n)], k=120))
        last = replace(failed.last, attempt=replace(failed.last.attempt, ended={"stderr": said, "exit_code": 4}))
        state = replace(
            failed.state, item=replace(failed.state.item, id=f"volume-{n:04d}", input=f"volume-{n:04d}.nii")
        )
        return replace(failed, state=state, attempts=(last, last, last))

    many = replace(found, items=tuple(item(n) for n in range(2000)))
    monkeypatch.setattr("everywatt.report.html.data.batch_of", lambda run: many)
    ticks = Series(np.arange(10**6) * 1000, np.random.default_rng(1).normal(100, 20, 10**6), held=True)
    line = replace(lines_of(run)[0], series=ticks)
    monkeypatch.setattr("everywatt.report.html.data.lines_of", lambda run, tell: [line])
    assert len(page(report_document([run])).encode()) < 1_000_000


def test_lanes_and_use_are_of_the_same_time(runs):
    view = batch_view(runs[1], batch_of(runs[1]))
    windows = [attempt["window_s"] for item in view["items"] for attempt in item["attempts"]]
    assert view["heat"]["from_s"] == pytest.approx(min(start for start, _ in windows), abs=1e-3)
    assert view["heat"]["to_s"] == pytest.approx(max(end for _, end in windows), abs=1e-3)
