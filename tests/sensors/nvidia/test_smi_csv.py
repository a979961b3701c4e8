"""nvidia-smi's CSV, from real lines (sources in data/nvidia_smi_csv.txt and beside each line here)."""

from datetime import datetime
from pathlib import Path

import pytest

from everywatt.sensors.nvidia.smi_csv import Parser, parse_csv
from everywatt.sensors.sysfs import short_pci

LINES = (Path(__file__).parent / "data" / "nvidia_smi_csv.txt").read_text().splitlines()


def _rows(title):
    start = LINES.index(title) + 1
    block = [line for line in LINES[start:] if line]
    ends = [place for place, line in enumerate(block) if line.startswith("##")]
    return parse_csv(block[: ends[0]] if ends else block)


def test_values_with_units():
    (row,) = _rows("## units RTX 2080 SUPER 595.71.05")
    assert row.time == datetime(2026, 6, 24, 10, 26, 34, 977000)
    assert row.texts["name"] == "NVIDIA GeForce RTX 2080 SUPER"
    assert row.numbers["power.draw"] == 39.32
    assert row.numbers["memory.used"] == 214 * 2**20
    assert row.numbers["utilization.memory"] == 9
    assert row.numbers["clocks.current.sm"] == 765
    assert row.numbers["power.draw.average"] is None
    assert row.reasons["power.draw.average"] == "N/A"
    assert row.reasons["power.management"] == "Requested functionality has been deprecated"


def test_a_mig_board_has_power_and_no_utilisation():
    (row,) = _rows("## units H100 MIG 590.48.01")
    assert row.numbers["utilization.gpu"] is None
    assert row.numbers["power.draw.instant"] == 447.35


def test_values_without_units():
    first, second = _rows("## nounits A100 535")
    assert (first.numbers["power.draw.instant"], second.numbers["power.draw.instant"]) == (56.12, 60.42)
    assert (second.time - first.time).total_seconds() == pytest.approx(0.030)
    assert first.texts["pstate"] == "P0"


# GTX 770 (Megaminer #235); RTX 2080 Ti (MindMiner #627); driver 440 (i3pystatus #776); as listed by nvidia-smi's help.
@pytest.mark.parametrize(
    "word",
    [
        "[Not Supported]",
        "[Unknown Error]",
        "[N/A]",
        "N/A",
        "[Insufficient Permissions]",
        "[Function Not Found]",
        "[Requested functionality has been deprecated]",
        "[GPU is lost]",
        "",
        "ERR!",
    ],
)
def test_every_word_for_no_value_is_none_with_its_reason(word):
    (row,) = parse_csv(["index, power.draw [W], temperature.gpu", f"0, {word}, 52"])
    assert row.numbers == {"index": 0, "power.draw": None, "temperature.gpu": 52}
    assert row.reasons == {"power.draw": word.strip("[]") or "empty"}


def test_columns_are_found_by_name_in_any_order():
    (row,) = parse_csv(["power.draw [W], index", "12.5, 3"])
    assert row.numbers == {"power.draw": 12.5, "index": 3}


def test_a_header_may_come_again_and_half_lines_are_dropped():
    parser = Parser()
    lines = ["index, power.draw [W]", "0, 10", "0, 1", "0", "power.draw [W], index", "20, 0"]
    rows = [row for row in map(parser.feed, lines) if row]
    assert [row.numbers["power.draw"] for row in rows] == [10, 1, 20]
    assert parser.failures == []


def test_throttle_reasons_are_a_bit_mask():
    (row,) = parse_csv(["index, clocks_throttle_reasons.active", "0, 0x0000000000000004"])
    assert row.numbers["clocks_throttle_reasons.active"] == 4


def test_failures_are_told_from_rows():
    # open-gpu-kernel-modules #387
    lost = "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error"
    parser = Parser()
    assert parser.feed(lost) is None
    assert parser.failures == [lost]
    assert short_pci(lost) == "0000:0b:00.0"
    assert short_pci("Unable to determine the device handle for GPU0: 00000000:0B:00.0: GPU is lost") == "0000:0b:00.0"


@pytest.mark.parametrize(
    "line", ["Failed to initialize NVML: Driver/library version mismatch", "No devices were found"]
)
def test_a_message_is_a_failure_also_where_rows_have_one_column(line):
    parser = Parser()
    parser.feed("power.draw [W]")
    assert parser.feed(line) is None and parser.failures == [line]
    assert parser.feed("[Unknown Error]").reasons == {"power.draw": "Unknown Error"}
    assert parser.feed("2021/08/31 11:37:40.983, 0, [Unknown Error]") is None and parser.failures == [line]
