"""Every parser of what hardware and other tools say: long nonsense in no time, damaged input, input led by coverage."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "fuzz.py"


def _load():
    spec = importlib.util.spec_from_file_location("everywatt_fuzz", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


fuzz = _load()
TARGETS = fuzz.targets()
SLOW = {"slurm-nodes"}  # takes the square of the number of brackets that are not closed
NONSENSE = [
    b"(",
    b"[",
    b" ",
    b"\n",
    b"A ",
    b"A_A",
    b"1/",
    b"1/1 ",
    b"@",
    b"A@1C ",
    b"CPU [",
    b"RAM 1/",
    b"{",
    b"9",
    b"*** ",
]
NONSENSE += [b'{"card0":', b"1.0,", b",", b"\xfe\xfd\xfc\xfb", b"[[plug]]\n", b'{"a":', b"\0"]


@pytest.mark.parametrize("name", TARGETS)
def test_samples_are_understood(name):
    """A harness whose samples are refused would look at the first line of a parser only."""
    understood = 0
    for sample in TARGETS[name].samples:
        with contextlib.suppress(*fuzz.REFUSALS):
            understood += bool(TARGETS[name].parse(sample))
    assert understood > 0


@pytest.mark.parametrize("name", sorted({*TARGETS} - SLOW))
def test_long_nonsense_is_read_in_no_time(name):
    """Each takes milliseconds; one that goes over its text again and again would take minutes."""
    start_s = time.process_time()
    for part in NONSENSE:
        for head in (b"", TARGETS[name].samples[0][:60], fuzz.HEAD.encode()):
            fuzz.check(TARGETS[name], head + part * (100_000 // len(part)))
    assert time.process_time() - start_s < 30


@pytest.mark.parametrize("name", TARGETS)
def test_a_thousand_inputs(name):
    """Others in every run: damaged samples, and some of plain noise."""
    chance = random.Random()
    for _ in range(1000 // TARGETS[name].cost):
        noise = chance.random() < 0.3
        data = chance.randbytes(chance.randrange(200)) if noise else fuzz.damaged(chance, TARGETS[name].samples)
        try:
            fuzz.check(TARGETS[name], data)
        except Exception as error:
            raise AssertionError(f"{name} on {data!r}") from error


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_million_inputs(name):
    assert fuzz.at_random(name, 1_000_000) == 1_000_000 // TARGETS[name].cost


def led(name, runs):
    """A run of atheris in a process of its own; it ends with 0 where it found nothing."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, str(SCRIPT), name, "--led", "--runs", str(max(1, runs // TARGETS[name].cost))]
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=3000)


@pytest.mark.parametrize(
    ("name", "runs"),
    [("omegawatt-text", 1000)] + [pytest.param(name, 100_000, marks=pytest.mark.long) for name in TARGETS],
)
def test_inputs_that_are_led_by_coverage(name, runs, tmp_path):
    pytest.importorskip("atheris")
    done = led(name, runs)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_parser_that_crashes_is_found(capsys, monkeypatch):
    def parse(data):
        return 1 / (b"7" not in data)

    monkeypatch.setattr(fuzz, "targets", lambda: {"bad": fuzz.Target(parse, [b"12345"])})
    with pytest.raises(ZeroDivisionError):
        fuzz.main(["bad", "--runs", "10000"])
    assert "bad: b'" in capsys.readouterr().err, "with the input that does it"
    with pytest.raises(SystemExit):
        fuzz.main(["nothing"])
