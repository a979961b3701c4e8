"""Whatever something is called: nothing raises, and the run can be read, listed and exported."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from virtual_world import VirtualWorld

import everywatt
from everywatt.api.run import load
from everywatt.core.jsonio import dumps


class Hostile:
    """An object of a user's program that cannot be turned into text, nor asked for anything."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Opaque:
    to_dict = 5

    def __str__(self) -> str:
        return "opaque \udcff"


def cycle() -> dict[str, Any]:
    made: dict[str, Any] = {"name": "a"}
    made["self"] = made
    made["list"] = [made, made]
    return made


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def laughs() -> list[Any]:
    """Thirty lists that have 2**30 values when they are written out."""
    made: list[Any] = ["ha"]
    for _ in range(30):
        made = [made, made]
    return made


ODD: dict[str, Any] = {
    "file name": "caf\udce9",
    "surrogate": "\ud800",
    "nul": "a\0b",
    "bytes": b"\xff\x00",
    "cycle": cycle(),
    "nested": nested(100_000),
    "laughs": laughs(),
    "range": range(10**12),
    "huge": 10**10_000,
    "hostile": Hostile(),
    "hostile key": {Hostile(): 1, "\udcff": 2},
    "class": everywatt.Meter,
    "opaque": Opaque(),
    "lock": threading.Lock(),
    "generator": (i for i in range(3)),
    "not finite": float("nan"),
    "long": "x" * 10_000_000,
}


@pytest.mark.parametrize("odd", ODD)
def test_anything_may_be_a_name_or_an_attribute(tmp_path: Path, odd: str) -> None:
    value = ODD[odd]
    with VirtualWorld(tmp_path, cpu="constant:100W") as world:
        with everywatt.Meter(
            value, tags={"first": value, "\udcff": "x"}, note=value, sensors=["virtual"], estimate=False
        ) as meter:
            with everywatt.span(value, first=value, **{"\udcff": value}):
                everywatt.log(first=value, **{"\udcff": value})
                world.sleep(1)
            with everywatt.measure("class" if callable(value) else value):
                world.sleep(1)
            meter.open_span("left", second=value).attributes["third"] = value
        assert meter.energy.joules == pytest.approx(200, rel=0.01)
        run = load(meter.run.path)
        assert run.energy().joules == pytest.approx(200, rel=0.01)
        assert len(run.spans) == 4 and len(run.points) == 2
        dumps(run.to_dict()).encode()


@pytest.mark.parametrize("at_ns", [2**70, -(2**70)])
def test_a_time_that_no_tape_can_hold_costs_only_itself(tmp_path: Path, at_ns: int) -> None:
    with VirtualWorld(tmp_path, cpu="constant:100W") as world:
        with everywatt.Meter("work", sensors=["virtual"], estimate=False) as meter:
            meter.open_span("odd", at_ns=at_ns).close()
            world.sleep(2)
        assert load(meter.run.path).energy().joules == pytest.approx(200, rel=0.01)
