"""Machines made of files, whose counters advance with the clock that the sensors are given."""

from trees import tree  # noqa: F401 - a fixture
