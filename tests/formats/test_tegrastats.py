"""Logs of tegrastats as tapes: every line, the right total, times that are true."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from everywatt.api.run import load
from everywatt.core.errors import UsageError
from everywatt.tape.importing import import_files

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "tegrastats" / "tegrastats.txt"
LINE = "RAM 3168/6851MB (lfb 2x4MB) CPU [23%@1397] GR3D_FREQ 5% VDD_IN {w}mW/1mW VDD_SOC 650mW/711mW"


def stamped(rows):
    return "".join(f"{stamp} {LINE.format(w=w)}\n" for stamp, w in rows)


def energy(tmp_path, text, **options):
    log = tmp_path / "log.txt"
    log.write_text(text)
    run = load(import_files("tegrastats", [log], tmp_path / "out.tape", options))
    return run, run.energy()


def test_every_line_of_the_samples_is_read(tmp_path):
    run = load(import_files("tegrastats", [SAMPLES], tmp_path / "out.tape"))
    meta = run.tapes[0].meta
    assert (meta["lines"], meta["lines_not_understood"]) == (13, 0)
    assert run.duration_s < 60  # boards of different years are not years of recording


def test_the_input_is_the_total_and_the_rails_are_not_added(tmp_path):
    text = stamped((f"07-09-2024 13:31:{second:02d}", 5000) for second in range(30))
    run, found = energy(tmp_path, text)
    assert found.scope == "soc"
    assert found.joules == pytest.approx(5.0 * run.duration_s, rel=1e-6)
    assert run.duration_s == pytest.approx(29.0, abs=1.0)


def test_without_an_input_the_rails_are_added(tmp_path):
    text = "".join(f"07-09-2024 13:31:{s:02d} RAM 1/2MB A 3000mW/1mW B 500mW/1mW NC 9mW/9mW\n" for s in range(20))
    run, found = energy(tmp_path, text)
    assert found.scope == "rail" and found.joules == pytest.approx(3.5 * run.duration_s, rel=1e-6)
    assert "carrier board" in run.tapes[0].meta["note"]


def test_lines_without_a_time_are_counted(tmp_path):
    log = tmp_path / "log.txt.gz"
    log.write_bytes(gzip.compress("".join("RAM 1/2MB VDD_IN 4000/4000\n" for _ in range(21)).encode()))
    os.utime(log, ns=(0, 1_700_000_000 * 10**9))
    run = load(import_files("tegrastats", [log], tmp_path / "out.tape", {"interval_s": 0.5}))
    assert run.duration_s == pytest.approx(10.0, abs=0.6)
    assert run.energy().joules == pytest.approx(4.0 * run.duration_s, rel=1e-6)


def test_a_clock_that_is_set_is_not_time_that_passes(tmp_path):
    early = [(f"01-01-1970 00:00:{s:02d}", 5000) for s in range(10)]
    later = [(f"07-09-2024 13:31:{s:02d}", 5000) for s in range(10)]
    back = [(f"07-09-2024 12:31:{s:02d}", 5000) for s in range(10, 20)]
    run, found = energy(tmp_path, stamped([*early, *later, *back]))
    assert run.duration_s == pytest.approx(29.0, abs=1.0)
    assert found.coverage == pytest.approx(1.0)
    assert run.tapes[0].meta["clock_steps"] == 2


def test_lines_of_one_second_are_spread_over_it(tmp_path):
    rows = [(f"07-09-2024 13:31:{s:02d}", 5000 if n % 2 else 1000) for s in range(20) for n in range(4)]
    run, found = energy(tmp_path, stamped(rows))
    assert found.joules == pytest.approx(3.0 * run.duration_s, rel=0.05)


def test_what_holds_nothing_is_refused(tmp_path):
    for text, words in (("hello\n", "no tegrastats lines"), ("RAM 1/2MB CPU [1%@2]\n", "no power")):
        with pytest.raises(UsageError, match=words):
            energy(tmp_path, text)
    with pytest.raises(UsageError, match="interval_s"):
        energy(tmp_path, "RAM 1/2MB VDD_IN 4000/4000\n", interval_s="x")
