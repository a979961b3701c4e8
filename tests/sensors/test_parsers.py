"""Every parser of what hardware and its tools say: long nonsense in no time, and a million damaged answers."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from everywatt.core.errors import SensorError
from everywatt.sensors.cray import parse_counter
from everywatt.sensors.execute import parse_number
from everywatt.sensors.ipmi import parse_dcmi
from everywatt.sensors.powermetrics import parse_powermetrics
from everywatt.sensors.raspberry import parse_pmic
from everywatt.sensors.rocm_smi import parse_rocm
from everywatt.sensors.shelly import channels_of
from everywatt.sensors.snmp_wire import parse_response
from everywatt.sensors.tegra_line import parse_line

DATA = Path(__file__).resolve().parent.parent / "data"
TEGRASTATS = [line for line in (DATA / "tegrastats" / "tegrastats.txt").read_text().splitlines() if line[:1] != "#"]
DCMI = (DATA / "meters" / "ipmi_dcmi.txt").read_text().split("\n## ")[1:]
ROCM = (DATA / "meters" / "rocm_smi.json.txt").read_text().split("\n## ")[1:4]
HEAD = "*** Sampled system activity (Fri Nov  7 17:15:01 2025 +0100) (1003.25ms elapsed) ***\n"
LETTERS = '0123456789 ./:@%[](){},-+=_"\n\tmWAVCJxé\0'


def shelly(text):
    try:
        return channels_of(json.loads(text))
    except (ValueError, RecursionError):
        return None  # no JSON


def snmp(text):
    try:
        return parse_response(text.encode("latin-1", "replace"), 1)
    except ValueError:
        return None


PARSERS = {
    "tegrastats": (parse_line, TEGRASTATS),
    "dcmi": (parse_dcmi, DCMI),
    "rocm-smi": (parse_rocm, ROCM),
    "powermetrics": (lambda text: parse_powermetrics(text.encode()), [f"{HEAD}CPU Power: 52 mW\nGPU Power: 8 mW\n"]),
    "pmic": (parse_pmic, ["VDD_CORE_A current(7)=2.0A\nVDD_CORE_V volt(15)=0.75V\n"]),
    "cray": (parse_counter, ["100 J 1734094386462336 us"]),
    "exec": (lambda text: parse_number(text, "W"), ["12.5 W\n", "1e3"]),
    "snmp": (snmp, [bytes.fromhex("302802010104067075626c6963a21b020101020100020100301030").decode("latin-1")]),
    "shelly": (shelly, ['{"switch:0": {"apower": 10.7, "aenergy": {"total": 46791.262}}}']),
}
NONSENSE = [
    "(",
    "[",
    " ",
    "\n",
    "A ",
    "A_A",
    "1/",
    "1/1 ",
    "@",
    "A@1C ",
    "CPU [",
    "RAM 1/",
    "{",
    '{"card0":',
    "9",
    "*** ",
]


@pytest.mark.parametrize("name", PARSERS)
def test_long_nonsense_is_read_in_no_time(name):
    """Each takes milliseconds; one that goes over its text again and again would take minutes."""
    parse, _ = PARSERS[name]
    start_s = time.process_time()
    for part in NONSENSE:
        for head in ("", "RAM 1/2MB ", HEAD):
            quietly(parse, head + part * (100_000 // len(part)))
    assert time.process_time() - start_s < 20


def quietly(parse, text):
    try:
        return parse(text)
    except SensorError:
        return None  # the one way in which a parser may refuse


def damaged(chance, texts):
    letters = list(chance.choice(texts))
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(len(letters) + 1)
        what = chance.random()
        if what < 0.4:
            letters[at : at + 1] = chance.choice(LETTERS)
        elif what < 0.6:
            letters.insert(at, chance.choice(LETTERS))
        elif what < 0.8:
            del letters[at : at + chance.randint(1, 20)]
        else:
            other = chance.choice(texts)
            cut = chance.randrange(len(other) + 1)
            letters[at:at] = other[cut : cut + chance.randint(1, 30)]
    return "".join(letters)


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize(
    "count", [1_000, pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])], ids=["few", "many"]
)
def test_damaged_answers(name, count):
    parse, texts = PARSERS[name]
    chance = random.Random(name)
    for _ in range(count):
        quietly(parse, damaged(chance, texts))
