"""The screen as lines: it fits every size, shows what there is, and obeys the view."""

from dataclasses import replace

import pytest
from snapshots import OWNERS, gpu, snapshot

from everywatt.core.tables import display_width
from everywatt.report.live import format as show
from everywatt.report.live.board import DEVICE_SORTS, HELP, OWNER_SORTS, View, board, plain
from everywatt.report.live.snapshot import Amount, BatchNow, DeviceNow, OwnerNow, Owners, Snapshot, WorkNow


@pytest.mark.parametrize("cards", [0, 1, 2, 4, 8])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (140, 40), (200, 60)])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_it_fits_and_shows_every_device(cards, width, height, ascii_only):
    lines = board(snapshot(cards), View(ascii=ascii_only), width, height)
    text = plain(lines)
    assert len(lines) == height
    assert max(map(len, text.splitlines())) <= width
    assert not ascii_only or text.isascii()
    for name in ("cpu.0", *(f"gpu.{number}" for number in range(cards))):
        assert sum(line.split()[:1] == [name] for line in text.splitlines()) == 1
    assert "python train.py" in text and "idle" in text
    for head in ("POWER", "ENERGY", "OWNER", *(["UTIL", "MEMORY", "TEMP"] if cards else [])):
        assert head in text


def test_a_wider_screen_shows_more():
    narrow, wide = (plain(board(snapshot(2), View(), width, 40)) for width in (80, 200))
    for head in ("15 S", "CLOCK", "LIMIT", "STATE", "NAME"):
        assert head not in narrow and head in wide


def test_a_wide_screen_has_the_whole_reason_for_what_is_unattributed():
    why = "above idle while no process was observed on the device"
    entries = tuple(replace(one, method=why) if one.kind == "unattributed" else one for one in OWNERS.entries)
    shown = snapshot(owners=replace(OWNERS, entries=entries))
    narrow, wide = (plain(board(shown, View(), width, 40)) for width in (120, 200))
    assert why not in narrow and why in wide
    assert max(map(len, wide.splitlines())) <= 200 and "python train.py --epochs 90" in wide


def test_a_very_small_screen_says_what_it_leaves_out():
    text = plain(board(snapshot(8), View(), 60, 12))
    assert "more devices" in text
    assert len(text.splitlines()) <= 12


def test_figures_are_there():
    text = plain(board(snapshot(1), View(), 140, 40))
    line = next(line for line in text.splitlines() if line.startswith(" gpu.0"))
    assert line.split()[1:13] == [
        *("100.0", "W", "100.0", "W", "99.00", "W", "98.00", "W"), *("6000", "J", "±1.0", "%")
    ]  # fmt: skip
    assert "98 %" in line and "4.0/16 G" in line and "47 °C" in line and "1410 MHz" in line
    assert "8400 J" in text.splitlines()[1]


def test_energies_that_began_before_the_view_say_since_when():
    shown = replace(snapshot(1), since="the agent's counters began", elapsed_s=8.0)
    title, total = plain(board(shown, View(), 140, 40)).splitlines()[:2]
    assert "since the agent's counters began" in total and "0:00:08" not in title
    assert "0:00:08" not in plain(board(shown, View(), 80, 24)).splitlines()[0]


def owners_of(view: View) -> list[str]:
    return [owner.label for owner in view.owners(snapshot())]


def test_sorting_cycles_through_the_columns_and_changes_the_order():
    view, orders = View(), {}
    for name in OWNER_SORTS:
        assert view.sort == name
        orders[name] = owners_of(view)
        view = view.next_sort()
    assert view.sort == OWNER_SORTS[0]
    assert orders["power"][:2] == ["python train.py --epochs 90", "idle"]
    assert orders["energy"][0] == "postgres: writer"
    assert orders["owner"] == sorted(orders["owner"])
    assert owners_of(View(reverse=True)) == orders["power"][::-1]
    assert View().next_device_sort().device_sort == DEVICE_SORTS[1]
    devices = [device.name for device in View(device_sort="power").devices(snapshot(2))]
    assert devices == ["gpu.1", "gpu.0", "cpu.0"]


def test_a_filter_wants_all_its_words():
    assert owners_of(View(filter="PYTHON 90")) == ["python train.py --epochs 90"]
    assert owners_of(View(filter="python writer")) == []
    text = plain(board(snapshot(2), View(filter="gpu.1"), 100, 30))
    assert "gpu.1" in text and "gpu.0" not in text and "filter: gpu.1" in text


def test_a_filter_for_owners_does_not_hide_the_devices():
    text = plain(board(snapshot(1), View(filter="postgres"), 100, 30))
    assert "gpu.0" in text and "postgres" in text and "train.py" not in text


def test_units_change_energies():
    view = View()
    shown = []
    for _ in range(3):
        shown.append(plain(board(snapshot(1), view, 140, 40)))
        view = view.next_unit()
    assert view.unit == "J"
    for text, figure in zip(shown, ("6000 J", "1.667 Wh", "0.002 kWh"), strict=True):
        assert figure in text


def test_scrolling_stays_within_the_list():
    view = View().scrolled(2, 3)
    assert view.scroll == 2
    assert view.scrolled(9, 3).scroll == 3 and view.scrolled(-9, 3).scroll == 0
    text = plain(board(snapshot(), view, 100, 30))
    assert "train.py" not in text and "unattributed" in text


def test_states_have_styles_that_colour_is_not_needed_for():
    hot = replace(snapshot(0), devices=(gpu(0, throttled=True), gpu(1, power_w=250.0)))
    lines = board(hot, View(), 200, 30)
    first = next(line for line in lines if plain([line]).startswith(" gpu.0"))
    second = next(line for line in lines if plain([line]).startswith(" gpu.1"))
    assert ("hot" in {style for _, style in first}) and "throttled" in plain([first])
    assert "warm" in {style for _, style in second}


def test_no_device_and_no_owner_are_said():
    text = plain(board(snapshot(owners=Owners(refused="no process was recorded"), devices=()), View(), 80, 24))
    assert "no device here measures power" in text and "owners: no process was recorded" in text


def test_control_characters_of_names_do_not_reach_the_screen():
    owner = replace(OWNERS.entries[0], label="evil\x1b[2Jname\n")
    text = plain(board(snapshot(owners=Owners("process", (owner,))), View(), 100, 30))
    assert "\x1b" not in text and "evil?[2Jname?" in text


def test_help_and_the_line_that_a_filter_is_typed_in():
    assert "move in time" in plain(board(snapshot(), View(help=True), 80, 24))
    last = plain(board(snapshot(), View(typing=True, filter="pyt"), 80, 24)).splitlines()[-1]
    assert last == " filter: pyt_"


def test_a_batch_log_shows_workers_and_its_last_events():
    worker = WorkNow("gpu.0", 9, 4, 1, 2, 3.25, (0.0, 4.5, 9.0), 2**30, "success", "chunk-7", "2026-11-15T10:00:01Z")
    shown = snapshot(0, owners=None, devices=(), work=(worker,), tail=("10:00:01 success gpu.0 chunk-7",))
    text = plain(board(shown, View(), 120, 30))
    assert "chunk-7" in text and "0/4/9" in text and "FAILED" in text and "10:00:01 success" in text


def test_a_batch_is_drawn_with_its_bars_also_in_ascii():
    worker = WorkNow("gpu.0", 4, 2, 1, 1, 2.5, (0.0, 50.0, 100.0), 2**30, "success", "chunk_1", "2026-01-02T03:04:05")
    worker = replace(worker, power_w=123.4, joules=2500.0, use_trend=(0.0, 50.0, 100.0), memory_trend=(1.0, 2.0))
    shown = Snapshot("batch x", 0, 1.0, work=(worker,), tail=("03:04:05 success  gpu.0  chunk_1",))
    drawn = plain(board(shown, View(), 160, 12))
    assert "123.4 W" in drawn and "2500 J" in drawn and "▁▅█" in drawn and "chunk_1" in drawn
    plainer = plain(board(shown, View(ascii=True), 160, 12))
    assert plainer.isascii() and ".+@" in plainer and "?" not in plainer.replace("? help", "")


@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_large_screen_has_a_large_chart_of_power(ascii_only):
    small, large = (plain(board(snapshot(1), View(ascii=ascii_only), *size)) for size in ((100, 24), (200, 60)))
    full = "@" if ascii_only else "█"
    assert sum(full * 3 in line for line in large.splitlines()) > sum(full * 3 in line for line in small.splitlines())
    assert any(line.startswith("    0.000 W") or line.strip().startswith("0") for line in large.splitlines())


def test_the_columns_of_a_chart_are_as_high_as_their_values():
    drawn = show.chart([0.0, 5.0, 10.0], 3, 2)
    assert drawn == ["  █", " ██"]
    assert show.bar(0.5, 4) == "██░░" and show.bar(0.5, 4, ascii_only=True) == "##.."


def test_the_progress_of_a_batch():
    worker = WorkNow("gpu.0", 4, 2, 1, 1, 2.5, None, None, "success", "chunk_1", "2026-01-02T03:04:05")
    made = Snapshot("batch x", 0, 1.0, work=(worker,), batch=BatchNow(40, 31, 2, 4, 83.0, 12.34))
    text = plain(board(made, View(), 120, 30))
    assert "31/40 done  2 failed" in text and "about 0:01:23 left" in text and "12.34 J/item" in text


def test_owners_that_are_older_than_the_total_say_so():
    assert " OWNER  " in plain(board(snapshot(owners=replace(OWNERS, age_s=1.0)), View(), 80, 24))
    assert "OWNER (until 9 s ago)" in plain(board(snapshot(owners=replace(OWNERS, age_s=9.2)), View(), 80, 24))


def test_owners_of_an_ended_run_have_means_and_say_so():
    for width in (80, 120):
        assert "OWNER (means of the run)" in plain(board(snapshot(owners=OWNERS, live=False), View(), width, 24))
        assert "means" not in plain(board(snapshot(owners=OWNERS), View(), width, 24))


def test_processes_of_one_name_differ_by_their_pid():
    process = replace(OWNERS.entries[0], label="python " + "x" * 90)
    shown = snapshot(owners=Owners("process", tuple(replace(process, id=f"{pid}:77") for pid in (4117, 4118))))
    text = plain(board(shown, View(), 80, 24))
    assert "… [4117]" in text and "… [4118]" in text and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 120])
def test_names_of_wide_characters_keep_the_columns_in_place(width):
    entries = (replace(OWNERS.entries[0], label="計算プロセス" * 20), *OWNERS.entries[1:])
    lines = plain(board(snapshot(owners=Owners("process", entries)), View(), width, 40)).splitlines()
    assert max(map(display_width, lines)) <= width
    rows = [line for line in lines if "計算" in line or line.startswith(" idle ")]
    ends = {display_width(line[: line.index(" W ") + 2]) for line in rows}
    assert len(rows) == 2 and len(ends) == 1, rows


def test_help_is_whole_on_a_narrow_screen():
    text = plain(board(snapshot(), View(help=True), 80, 24))
    assert all(line.rstrip() in text for line in HELP)


def test_columns_of_owners_without_a_value_leave_their_room_to_others():
    entries = tuple(replace(one, gpu_pct=None) for one in OWNERS.entries)
    shown = snapshot(0, owners=Owners("process", entries))
    assert "GPU" not in plain(board(shown, View(), 80, 24)) and "GPU" in plain(board(snapshot(1), View(), 80, 24))


def test_the_chart_of_a_tall_screen_takes_a_third_of_it():
    lines = plain(board(snapshot(1), View(), 200, 60)).splitlines()
    labels = (show.watts(max(snapshot(1).history_w)), show.watts(0.0))
    top, bottom = (max(n for n, line in enumerate(lines) if line.startswith(f"{label:>9} ")) for label in labels)
    assert bottom - top + 1 == 20


PEAK_AGO = (900.0, *(100.0 for _ in range(230)))  # the peak has left every screen


def test_the_axis_of_the_chart_is_that_of_what_is_drawn():
    lines = plain(board(replace(snapshot(1), history_w=PEAK_AGO), View(), 120, 60)).splitlines()
    axis = next(n for n, line in enumerate(lines) if line.startswith(f"{show.watts(0.0):>9} "))
    assert not any("900.0 W" in line for line in lines)
    assert any(line.startswith("  100.0 W ███") for line in lines[:axis])


def test_the_line_of_a_device_is_scaled_by_what_is_drawn():
    device = replace(gpu(0), history_w=PEAK_AGO)
    text = plain(board(replace(snapshot(1), devices=(device,)), View(), 120, 24))
    assert next(line for line in text.splitlines() if line.startswith(" gpu.0")).endswith("███")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_figures_have_the_digits_that_their_interval_leaves(width):
    energy = Amount(16.59, 5.9, 40.3, "modelled")
    host = DeviceNow("host", "estimated", 3.322, (3.32, 3.32, 3.321), energy, history_w=(3.3,) * 60, age_s=0.2)
    owner = OwnerNow("process", "7:1", "python", 0.3766, 0.7167, low=0.1, high=2.1)
    owners = Owners("process", (owner,), 2.0, 0.002)
    shown = plain(board(snapshot(0, devices=(host,), total_w=3.322, averages_w=(3.32,) * 3, total=energy,
                                 history_w=(3.322,) * 60, owners=owners), View(), width, 30))  # fmt: skip
    assert "≈ 3.3 W" in shown and "≈ 17 J" in shown and "≈ 0.38 W" in shown and "≈ 0.72 J" in shown
    assert "3.32" not in shown and "16.6" not in shown and "0.37" not in shown


def test_figures_with_narrow_intervals_have_four_digits():
    shown = plain(board(snapshot(1), View(), 200, 40))
    assert "40.00 W" in shown and "2400 J" in shown and "100.0 W" in shown


def test_a_very_narrow_interval_fits_its_column():
    assert show.half_width(Amount(1000.0, 999.93, 1000.07)) == "<0.1 %"
    assert show.half_width(Amount(1000.0, 999.0, 1001.0)) == "±0.1 %"


def test_what_is_modelled_has_no_false_digits():
    total = Amount(21.0, 7.0, 51.0)
    worker = WorkNow("cpu", 4, 2, 1, 1, 2.5, None, None, "success", "chunk_1", "2026-01-02T03:04:05")
    made = Snapshot("batch x", 0, 1.0, total=total, work=(worker,), batch=BatchNow(40, 31, 2, 4, 83.0, 0.9510))
    assert "  ≈ 0.95 J/item" in plain(board(made, View(), 120, 30))
    assert show.energy(1443.6, "Wh", 0.7) == "≈ 0.40 Wh"
    assert show.energy(7200.0, "Wh", 0.7) == "≈ 2.0 Wh"
    assert show.energy(6000.0, "kWh", 0.002) == "0.002 kWh"


def test_an_interval_and_a_pid_are_whole_in_ascii():
    wide = OwnerNow(
        "process", "4711:1", "python train.py --epochs … --config a.toml", 10.0, 100.0, low=85.1, high=114.9
    )
    text = plain(board(Snapshot("here", 0, 1.0, owners=Owners("owner", (wide,))), View(ascii=True), 80, 24))
    assert "[4711]" in text and "+/-15 %" in text
