"""Every generation of tegrastats, from public lines (tests/data/tegrastats names their sources)."""

from __future__ import annotations

import random
import re
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.formats.metric_names import metrics_text
from everywatt.sensors.jetson.tegrastats import Engine, RailPower, TegraLine, parse_line

DATA = Path(__file__).resolve().parents[2] / "data" / "tegrastats"
LINES = [line for line in (DATA / "tegrastats.txt").read_text().splitlines() if line and not line.startswith("#")]
TX1, TX2, NANO, NANO_461, AGX_XAVIER, NX_4, NX_5, ORIN_2023, ORIN_32, ORIN_6, ORIN_62, THOR_70, THOR_72 = LINES


def milliwatts(text):
    line = parse_line(text)
    return {rail.label: rail.current_mw for rail in line.rails}


def test_every_public_line_has_its_power():
    assert [milliwatts(text) for text in LINES] == [
        {"VDD_IN": 2532, "VDD_CPU": 76, "VDD_GPU": 19},
        {
            "VDD_SYS_GPU": 152,
            "VDD_SYS_SOC": 687,
            "VDD_4V0_WIFI": 0,
            "VDD_IN": 3056,
            "VDD_SYS_CPU": 152,
            "VDD_SYS_DDR": 883,
        },
        {"POM_5V_IN": 1022, "POM_5V_GPU": 0, "POM_5V_CPU": 204},
        {"POM_5V_IN": 1750, "POM_5V_GPU": 0, "POM_5V_CPU": 366},
        {"GPU": 0, "CPU": 311, "SOC": 932, "CV": 0, "VDDRQ": 621, "SYS5V": 1482},
        {"VDD_IN": 6140, "VDD_CPU_GPU_CV": 2706, "VDD_SOC": 1074},
        {"VDD_IN": 2763, "VDD_CPU_GPU_CV": 650, "VDD_SOC": 650},
        {"VDD_GPU_SOC": 2399, "VDD_CPU_CV": 400, "VIN_SYS_5V0": 4032, "NC": 0, "VDDQ_VDD2_1V8AO": 301},
        {"VDD_GPU_SOC": 4788, "VDD_CPU_CV": 798, "VIN_SYS_5V0": 3842, "NC": 0, "VDDQ_VDD2_1V8AO": 707},
        {"VDD_GPU_SOC": 3205, "VDD_CPU_CV": 4405, "VIN_SYS_5V0": 4767},
        {"VDD_GPU_SOC": 2412, "VDD_CPU_CV": 1607, "VIN_SYS_5V0": 4707},
        {"VDD_GPU": 1962, "VDD_CPU_SOC_MSS": 5887, "VIN_SYS_5V0": 5635, "VIN": 19780},
        {"VDD_GPU": 37528, "VDD_CPU_SOC_MSS": 18961, "VIN_SYS_5V0": 18331, "VIN": 87426},
    ]


def test_current_average_and_peak():
    assert parse_line(NX_4).rails[0] == RailPower("VDD_IN", 6140, 5510)
    assert parse_line(THOR_72).rails[-1] == RailPower("VIN", 87426, 43713)


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        (NANO, Engine(0, (76,))),
        (NX_5, Engine(0, (114,))),
        (ORIN_6, Engine(0, (305, 305))),
        (THOR_70, Engine(None, (314, 314, 314))),
        (THOR_72, None),
        ("RAM 1/2MB CPU [1%@2] GR3D_FREQ 37% APE 25", Engine(37.0)),
        ("RAM 1/2MB CPU [1%@2] GR3D_FREQ off APE 25", Engine(off=True)),
        ("RAM 1/2MB CPU [1%@2] GR3D_FREQ @624 APE 25", Engine(None, (624,))),
    ],
)
def test_the_gpu_in_all_its_forms(text, gpu):
    assert parse_line(text).gpu == gpu


def test_other_fields():
    line = parse_line(TX2)
    assert [core and (core.percent, core.clocks_mhz) for core in line.cores] == [
        (1, (345,)),
        None,
        None,
        (1, (345,)),
        (0, (345,)),
        (2, (345,)),
    ]
    assert (line.ram.used_bytes, line.ram.total_bytes, line.ram.blocks) == (2344 * 2**20, 7852 * 2**20, 1154)
    assert line.time is None
    assert parse_line(ORIN_2023).time == datetime(2023, 4, 24, 0, 1, 24)
    assert "GPU" not in parse_line(ORIN_2023).temperatures_c  # −256 °C is a sensor that is off
    assert parse_line(ORIN_2023).temperatures_c["tj"] == 42.593
    assert parse_line(AGX_XAVIER).mts_percent == (0, 0)
    assert parse_line(AGX_XAVIER).temperatures_c["GPU"] == 37.5  # and the rail GPU stays a rail
    assert parse_line(ORIN_62).engines["NVENC"] == Engine(79, (166,))
    assert parse_line(ORIN_62).engines["NVDEC"].off
    assert parse_line(ORIN_32).engines["NVJPG1"] == Engine(None, (729,))
    assert parse_line(NX_4).swap.cached_bytes == 280 * 2**20
    assert parse_line(THOR_72.replace("60.406C", "60.406C/61.5C")).temperatures_c["cpu"] == 60.406


def test_the_first_generation_has_one_clock_for_all_cores():
    line = parse_line("RAM 855/3995MB (lfb 586x4MB) cpu [3%,0%,off,7%]@102 EMC 7%@408 AVP 0%@12 GR3D 0%@76 EDP limit 0")
    assert [core and (core.percent, core.clocks_mhz) for core in line.cores] == [
        (3.0, (102,)),
        (0.0, (102,)),
        None,
        (7.0, (102,)),
    ]
    assert line.gpu == Engine(0.0, (76,)) and line.emc == Engine(7.0, (408,))
    assert list(line.engines) == ["AVP"], "a limit is no engine"


def test_the_modes_of_denver_cores_are_no_engines():
    line = parse_line("RAM 1/2MB CPU [1%@345,off] GR3D_FREQ 0%@114 APE 150 MTS fg 1% bg 2% VDD_IN 1985/1985")
    assert list(line.engines) == ["APE"] and line.mts_percent == (1.0, 2.0)


def test_negative_watts_are_kept():
    assert milliwatts("RAM 1/2MB VDD_GPU -392mW/-392mW VIN 19780mW/19780mW") == {"VDD_GPU": -392, "VIN": 19780}


def test_other_units_are_not_taken_for_milliwatts():
    assert milliwatts("RAM 1/2MB VIN 5W/6W") == {"VIN": 5000}
    assert milliwatts("RAM 1/2MB VIN 5mW/6mW NEW 3/4 OTHER 7C/8C") == {"VIN": 5}


@pytest.mark.parametrize("text", ["", "hello", "## Jetson", "NVMAP version 1/2", "Sat Jan 1 10:00", "NC 0mW/0mW"])
def test_what_is_not_a_line(text):
    assert parse_line(text) is None


def words(text):
    """The fields of a line: what may be moved as a whole."""
    pattern = (
        r"RAM \S+ \([^)]*\)|SWAP \S+ \([^)]*\)|CPU \[[^\]]*\]|MTS fg \S+ bg \S+|\w+@\S+|IRAM \S+\([^)]*\)|\w+\s+\S+"
    )
    stamp = re.match(r"\d\d-\d\d-\d{4} \d\d:\d\d:\d\d ", text)
    rest = text[stamp.end() :] if stamp else text
    return (stamp.group() if stamp else ""), re.findall(pattern, rest)


NEW = ["XYZ_FREQ 3%@[1,2]", "foo@12.5C/13C", "NEW 17", "QQ off", "ZAP(7)", "DLA [1,2]", "A=b", "lfb 3x4MB", "%", "@"]


@given(st.integers(0, len(LINES) - 1), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_fields_may_be_moved_added_and_left_out(which, seed):
    """No rail changes its watts because of what stands around it."""
    chance = random.Random(seed)
    stamp, fields = words(LINES[which])
    truth = milliwatts(LINES[which])
    kept = [word for word in fields if chance.random() < 0.8]
    expected = {word.split()[0] for word in kept if re.match(r"\w+\s+-?\d+(mW)?/", word)} & set(truth)
    kept += chance.sample(NEW, chance.randint(0, 4))
    chance.shuffle(kept)
    line = parse_line(stamp + "   ".join(kept))
    if line is None:
        assert not any(word.startswith(("RAM", "CPU [")) for word in kept)
    else:
        assert {r.label: r.current_mw for r in line.rails} == {label: truth[label] for label in expected}


@given(st.integers(0, len(LINES) - 1), st.integers(0, 700))
@settings(max_examples=200, deadline=None)
def test_a_line_that_was_cut_has_no_wrong_watts(which, end):
    whole = milliwatts(LINES[which])
    line = parse_line(LINES[which][:end])
    for rail in line.rails if line else ():
        assert rail.current_mw == whole[rail.label]


@given(st.text(max_size=300) | st.sampled_from(LINES).flatmap(lambda t: st.integers(0, 9).map(lambda s: shaken(t, s))))
@settings(max_examples=200, deadline=None)
def test_anything_gives_a_line_or_none(text):
    line = parse_line(text)
    assert line is None or isinstance(line, TegraLine)
    if line is not None:
        assert metrics_text(line, 0).endswith("\n")


def shaken(text, seed):
    chance = random.Random(seed)
    letters = list(text)
    for _ in range(chance.randint(1, 30)):
        letters[chance.randrange(len(letters))] = chance.choice("0123456789/@%[],mW C-x\x00é")
    return "".join(letters)


@pytest.mark.parametrize(
    ("file", "text"),
    [("test_tegrastats_nx_jp411.txt", NX_4), ("test_tegrastats_xaviernano_jp461.txt", NANO_461)],
)
def test_the_text_of_jetson_exporter(file, text):
    assert metrics_text(parse_line(text), 1701465532) == (DATA / file).read_text()
