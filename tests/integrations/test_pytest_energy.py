"""The pytest plug-in in a machine of exactly 50 W: a test that sleeps for 0.2 s takes 10 J."""

import json
import re
import subprocess
import sys

import pytest

from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy
from everywatt.integrations import pytest_energy
from everywatt.integrations.pytest_energy import Baselines, over, over_baseline

TESTS = """
import os, time
import pytest

@pytest.mark.max_energy("4 kJ")
def test_cheap():
    time.sleep(0.2)

@pytest.mark.max_energy("5 J")
def test_dear():
    time.sleep(0.4)

@pytest.mark.max_energy("+20%")
def test_stored():
    time.sleep(float(os.environ["NAP"]))

def test_block(energy):
    with energy.measure() as block:
        time.sleep(0.3)
    assert 14.5 < block.energy.joules
    energy.at_most(block.energy, "4 kJ")
    with pytest.raises(pytest.fail.Exception, match="too much energy"):
        energy.at_most(block.energy, "1 J")

def test_plain():
    pass
"""


@pytest.fixture
def suite(simulated_package, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environ = simulated_package.environment() | {"HOME": str(tmp_path)}

    def run(*more, nap="0.3", **extra):
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin(), *more]
        return subprocess.run(
            words, env=environ | {"NAP": nap} | extra, cwd=tmp_path, capture_output=True, text=True, timeout=240
        ).stdout

    run.folder = tmp_path
    return run


def plugin():
    """The entry point loads it where everywatt is installed."""
    from importlib.metadata import entry_points

    installed = any(point.value == "everywatt.testing" for point in entry_points(group="pytest11"))
    return [] if installed else ["-p", "everywatt.testing"]


def test_limits_baselines_and_the_summary(suite):
    out = suite()
    assert "1 failed, 4 passed" in out
    assert "too much energy:" in out and "exceeds the limit of 5 J" in out
    assert "no baseline in energy-baselines.json; pytest --energy-update stores" in out
    assert "test_it.py::test_cheap: " in out and "test_plain:" not in out
    stored = suite("--energy-update", "-k", "stored")
    assert "1 passed" in stored and "undecided" not in stored
    told = json.loads((suite.folder / "energy-baselines.json").read_text())["tests"]["test_it.py::test_stored"]
    assert told["joules"] > 14.5 and told["scope"] == "cpu"
    again = suite("-k", "stored", nap=str(2 * told["joules"] / 50 + 1))
    assert "1 failed" in again and "against a baseline of" in again


def test_a_wrong_mark_says_how(suite):
    (suite.folder / "test_it.py").write_text("import pytest\n@pytest.mark.max_energy\ndef test_x(): pass\n")
    assert 'write @pytest.mark.max_energy("5 J")' in suite()


def figure(joules, own, shared):
    return Energy(joules, Budget((Term("edges", f"e{joules}", own), Term("gain", "g", shared))), "cpu", "counter")


def test_over_under_and_undecided():
    assert over(figure(10, 1, 0), 8) is True
    assert over(figure(10, 1, 0), 12) is False
    assert over(figure(10, 1, 0), 10.5) is None
    assert over(Energy.refuse("no sensor"), 1) is None


def test_on_one_machine_the_gain_does_not_count(tmp_path):
    file = Baselines(tmp_path / "b.json", update=True)
    file.put("t", figure(10, 0.1, 8))
    stored = file.get("t")
    assert over_baseline(figure(12, 0.1, 9), stored, 0.1)[0] is True
    assert over_baseline(figure(10.5, 0.1, 9), stored, 0.1)[0] is False
    assert over_baseline(figure(12, 0.1, 9), stored | {"host": "another"}, 0.1)[0] is None
    assert over_baseline(Energy(1.0, scope="gpu"), stored, 0.1)[0] is None
    assert list(tmp_path.iterdir()) == [tmp_path / "b.json"]


MODELLED = Energy(0.3, Budget((Term("model", "m", 0.25),)), "machine", "modelled")


def test_where_energy_is_modelled_cpu_time_decides(tmp_path):
    file = Baselines(tmp_path / "b.json", update=False)

    def verdict(limit, cpu_s, cpu=None, energy=MODELLED):
        return pytest_energy.decide(energy, limit, "t", file, cpu_s=cpu_s, cpu=cpu)[0]

    assert verdict("0.2 J", 1.0) is None, "the interval of the model holds the limit"
    assert verdict("0.2 J", 1.0, cpu="0.5 s") is True
    assert verdict("0.2 J", 0.4, cpu="0.5 s") is False
    assert verdict("0.2 J", 0.501, cpu="0.5 s") is None
    assert verdict("0.2 J", 0.4, cpu="0.5 s", energy=figure(10, 1, 0)) is True, "where it is measured, energy decides"
    file.put("t", MODELLED, 2.0)
    assert verdict("+10%", 3.0) is True
    assert verdict("+10%", 2.1) is False
    assert verdict("+10%", 2.1, energy=Energy.refuse("no sensor")) is False


def test_a_limit_that_cpu_time_decides_is_reported_as_such(suite):
    (suite.folder / "test_it.py").write_text("""
import pytest
@pytest.mark.max_energy("5 J", cpu="10 ms")
def test_x(): sum(range(3_000_000))
@pytest.mark.max_energy()
def test_y(): pass
""")
    out = suite(EVERYWATT_SENSORS="modelled")
    assert re.search(r"too much CPU time: \S+ ms exceeds the limit of 10 ms; energy is only modelled here", out)
    assert re.search(r"test_x: \S+ ms of CPU time, ≈ ", out), "what is certain comes first"
    assert "write @pytest.mark.max_energy" in out and "pytest_energy.py" not in out


def test_a_baseline_is_printed_as_every_energy(tmp_path):
    file = Baselines(tmp_path / "b.json", update=False)
    file.put("t", figure(12345.6, 100, 0))
    _, text = over_baseline(figure(12345.6, 100, 0), file.get("t"), 0.1)
    assert "against a baseline of 12.35 kJ +10% = 13.58 kJ" in text and "(here ± " in text


def test_an_undecided_limit_is_shown_and_fails_when_strict(suite):
    out = suite("-k", "stored")
    assert "1 passed" in out and "1 limit undecided" in out and "--energy-strict" in out
    assert "1 failed" in suite("-k", "stored", "--energy-strict")


def test_blocks_of_the_fixture_are_in_the_summary_with_what_is_undecided(suite):
    (suite.folder / "test_it.py").write_text("""
import time
def test_block(energy):
    with energy.measure("one") as block:
        time.sleep(0.3)
    energy.at_most(block, f"{block.energy.joules} J")
    with energy.measure("two") as block:
        time.sleep(0.1)
    energy.at_most(block, "4 kJ")
""")
    out = suite("-p", "no:warnings")
    assert "1 passed" in out and "1 limit undecided" in out
    assert "test_it.py::test_block: " in out and "undecided: " in out


def test_a_limit_on_cpu_time_holds_beside_a_percentage(tmp_path):
    file = Baselines(tmp_path / "b.json", update=False)

    def verdict(cpu_s, energy=MODELLED):
        return pytest_energy.decide(energy, "+10%", "t", file, cpu_s=cpu_s, cpu="0.5 s")[0]

    assert verdict(1.0) is True, "no baseline is stored, and CPU time is above its limit"
    assert verdict(0.2) is None, "no baseline is stored"
    file.put("t", MODELLED, 0.3)
    assert verdict(0.6) is True and verdict(0.4) is True and verdict(0.31) is False
    file.put("t", figure(10, 0.1, 0), 0.3)
    assert verdict(1.0, figure(10, 0.1, 0)) is False, "where it is measured, energy decides"


def test_a_baseline_that_is_too_uncertain_does_not_pass(tmp_path):
    file = Baselines(tmp_path / "b.json", update=False)
    file.put("t", figure(10, 3, 0))
    assert over_baseline(figure(10, 0.1, 0), file.get("t"), 0.1)[0] is None
    assert over_baseline(figure(5, 0.1, 0), file.get("t"), 0.1)[0] is False


@pytest.mark.parametrize("mark", ['"5 parsecs"', '"5 J", cpu="many"', '"ten%"'])
def test_a_limit_that_cannot_be_read_is_one_line(suite, mark):
    text = f"import pytest\n@pytest.mark.max_energy({mark})\ndef test_x(): pass\n"
    (suite.folder / "test_it.py").write_text(text)
    out = suite()
    assert "1 failed" in out and "is not a" in out
    assert "pytest_energy.py" not in out and "units.py" not in out
