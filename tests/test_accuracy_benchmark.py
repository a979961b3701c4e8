"""The parts of the accuracy and honesty benchmarks whose answers are known: plans, bounds, rules, scores."""

from __future__ import annotations

import importlib
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A function that imports a module of benchmarks/."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peer_drivers"))
    before = set(sys.modules)

    def find(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield find
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


def test_windows_of_a_plan_do_not_overlap(module) -> None:  # type: ignore[no-untyped-def]
    plan = module("accuracy_lab").plan({0.05: 5, 1.0: 3}, seed=1)
    assert sorted(length for _, length in plan) == [0.05] * 5 + [1.0] * 3
    assert all(b[0] >= a[0] + a[1] + 0.12 for a, b in itertools.pairwise(plan))


def test_the_hand_written_trapezoid(module) -> None:  # type: ignore[no-untyped-def]
    trapezoid = module("smi_polling").trapezoid
    samples = [(0.0, 100.0), (1.0, 100.0), (2.0, 300.0), (3.0, 300.0)]
    assert trapezoid(samples, 0.0, 3.0) == pytest.approx(600.0)
    assert trapezoid(samples, 1.2, 1.7) == pytest.approx(50.0)  # no sample inside: the one before


@pytest.mark.parametrize(("key", "load", "bound"), [("nvml100", "constant", 0.0), ("gauge100", "constant", 0.0)])
def test_perfect_interpolation_of_a_steady_load_is_exact(module, key: str, load: str, bound: float) -> None:  # type: ignore[no-untyped-def]
    lab_module, bounds = module("accuracy_lab"), module("accuracy_bound")
    sensor = lab_module.SENSORS[key]
    made, phases = lab_module.machine(sensor, (load,), seed=1)
    with made.start() as lab:
        windows = [(lab.t0_ns + a, lab.t0_ns + a + 50_000_000) for a in range(10**10, 2 * 10**10, 10**9)]
        assert bounds.bound_pct(sensor, lab, 0, phases[0], windows) == pytest.approx(bound, abs=1e-6)


def test_the_bound_of_a_step_inside_one_cell(module) -> None:  # type: ignore[no-untyped-def]
    """100 to 300 W in the middle of a cell of 100 ms; a window that ends there: 5 J of its 10 J too much by a line."""
    lab_module, bounds = module("accuracy_lab"), module("accuracy_bound")
    sensor = lab_module.SENSORS["nvml100"]
    made, _ = lab_module.machine(sensor, ("step",), seed=1)
    with made.start() as lab:
        step_ns = lab.t0_ns + 22 * 10**9
        found = bounds.bound_pct(sensor, lab, 0, 0.05, [(step_ns - 100_000_000, step_ns)])
    # At the start of the cell a line is right; in its middle it says 10 J where there were 5 J.
    assert found[0, 0] == pytest.approx(50.0, rel=0.01)


def test_a_row_names_the_targets_that_it_misses(module) -> None:  # type: ignore[no-untyped-def]
    row = module("accuracy").Row("telegraph", "nvml100", 0.25, 5.0, 6.0, {"peer": 20.0}, 50)
    assert row.misses() == []
    assert replace(row, ours=6.7).misses() == ["bound"]
    assert replace(row, peers={"peer": 4.0}).misses() == ["lowest"]
    assert replace(row, load="constant", length_s=1.0, ours=0.6, bound=0.0).misses() == ["0.5 %"]
