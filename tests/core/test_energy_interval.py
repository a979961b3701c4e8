"""Intervals of energies: never below zero unless the quantity may be, and what they cover is said."""

from __future__ import annotations

import pytest

from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy, total


def energy(joules, within, **more):
    return Energy(joules, Budget((Term("offset", "offset:a", within),)), "gpu", "integrated", **more)


def test_no_interval_of_an_energy_reaches_below_zero():
    figure = energy(43.0, 59.0)
    assert (figure.low, figure.high) == (0.0, 102.0)
    assert figure.sides() == (43.0, 59.0)
    assert figure.to_dict()["low"] == 0.0
    assert "0 … 102 J" in str(figure)
    assert (figure * 2).low == 0.0 and (figure + figure).low == 0.0
    assert total({"gpu.0": figure, "gpu.1": figure}, scope="gpu").low == 0.0


def test_a_difference_may_be_negative():
    net = energy(43.0, 59.0) - energy(20.0, 10.0)
    assert net.low == pytest.approx(23.0 - 49.0)
    assert (net / 2).low == pytest.approx(-13.0)
    assert (energy(5.0, 1.0) * -1).low == pytest.approx(-6.0)


def test_an_interval_of_sampling_alone_says_so():
    figure = energy(43.0, 5.0, sampling_only=True)
    for one in (figure, figure + energy(1.0, 0.1), figure * 3, total({"gpu.0": figure}, scope="gpu")):
        assert "(95 %, sampling only)" in str(one)
        assert one.to_dict()["sampling_only"] is True
        assert "sampling only" in one._repr_html_()
    assert "sampling_only" not in energy(43.0, 5.0).to_dict()
