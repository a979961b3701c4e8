"""Watts of a machine from how busy its CPUs are: pure functions over the numbers in modelled_fit.json.

The numbers are fitted by benchmarks/fit_modelled.py on wall power of servers that was published for SPECpower_ssj2008.
The logarithm of the watts at idle and at 10, 20, … 100 % load is linear in what a machine says of itself: cores of a
socket, sockets, memory for each core, maker, the CPU's generation and its year (and the square), and the TDP where it
is known. Between the loads, watts are interpolated.

The 95 % interval is skewed: from watts × e^(−below) to watts × e^(above), so that it never reaches zero. Each model has
two such pairs for every load, both from servers left out:

seen      servers of the CPU's own generation were in the fit unseen    none was: the pair holds when whole generations
are left out; such a CPU is taken for the newest known one

A guest is so many hardware threads of a host of its CPU generation. How large the host is, and how busy its other
guests keep it, is not known. So the guest model predicts watts for each thread from generation and maker alone, and its
interval holds 95 % of the pairs of a host in the table and a load m of that host from 10 to 100 %, where a guest at
load l is charged, for each of its threads, (idle + l × (watts(m) − idle) / m) / threads of the host. It takes a vCPU
for a hardware thread; a host that sells its threads twice is not covered.

What is not a server (laptop, desktop, board, ARM) is unlike anything in the fit: nothing from a twentieth to twice the
estimate is excluded there. Servers published for SPECpower are tuned and lightly equipped; disks, cards and
accelerators beyond that are not in the estimate.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from everywatt.sensors.cpu.identity import MachineFacts

BASE_YEAR = 2013
NOT_A_SERVER = (math.log(20), math.log(2))  # below, above: a laptop idles at a twentieth of what a server does
_GIB = 1024.0**3


class Curve(NamedTuple):
    """Watts of one machine at each load of the fit, and the logarithms to both ends of their 95 % interval."""

    loads: tuple[float, ...]
    watts: tuple[float, ...]
    below: tuple[float, ...]
    above: tuple[float, ...]

    def at(self, load: float) -> float:
        """Watts at a load from 0 (idle) to 1 (all CPUs busy); beyond that, as at the end."""
        return self._between(self.watts, load)

    def interval_w(self, load: float, shorter: float = 1.0) -> tuple[float, float]:
        """The 95 % interval at a load; `shorter` scales both logarithms to that of another level."""
        watts = self.at(load)
        below, above = self._between(self.below, load), self._between(self.above, load)
        return watts * math.exp(-shorter * below), watts * math.exp(shorter * above)

    def _between(self, values: Sequence[float], load: float) -> float:
        load = min(max(load, 0.0), 1.0)
        for index in range(1, len(self.loads)):
            left, right = self.loads[index - 1], self.loads[index]
            if load <= right:
                share = (load - left) / (right - left)
                return values[index - 1] * (1 - share) + values[index] * share
        return values[-1]


@cache
def shipped() -> Mapping[str, Any]:
    """The fitted numbers that come with everywatt."""
    data: dict[str, Any] = json.loads(Path(__file__).with_name("modelled_fit.json").read_text("utf-8"))
    return data


def estimate(load: float, facts: MachineFacts, fit: Mapping[str, Any] | None = None) -> tuple[float, float, float]:
    """Watts of a machine at a load from 0 to 1, and the 95 % interval: (watts, low, high)."""
    line = curve(facts, fit)
    return (line.at(load), *line.interval_w(load))


def curve(facts: MachineFacts, fit: Mapping[str, Any] | None = None) -> Curve:
    """Everything the model says of one machine."""
    fit = shipped() if fit is None else fit
    name = model_name(facts)
    model = fit["models"][name]
    row = features(name, facts, fit)
    units = facts.threads if name == "guest" else 1
    watts = tuple(
        units * math.exp(sum(weight * value for weight, value in zip(weights, row, strict=True)))
        for weights in model["coefficients"]
    )
    known = facts.generation in fit["generation_years"]
    widths = model["widths"]["seen" if known else "unseen"]
    least = NOT_A_SERVER if facts.kind != "server" and facts.guest is None else (0.0, 0.0)
    below, above = (
        tuple(max(value, floor) for value in widths[side])
        for side, floor in zip(("below", "above"), least, strict=True)
    )
    return Curve(tuple(fit["loads"]), watts, below, above)


def model_name(facts: MachineFacts) -> str:
    """Which of the fitted models serves this machine."""
    if facts.guest is not None:
        return "guest"
    return "server" if facts.tdp_w is None else "server_tdp"


def features(name: str, facts: MachineFacts, fit: Mapping[str, Any]) -> Sequence[float]:
    """What the model `name` multiplies, kept inside the range of the servers it was fitted on."""
    years: Mapping[str, float] = fit["generation_years"]
    newest = max(years.values())
    age = (years.get(facts.generation, newest) if facts.generation else newest) - BASE_YEAR
    row = [1.0, age, age * age, 1.0 if facts.amd else 0.0]
    row += [1.0 if facts.generation == known else 0.0 for known in sorted(years)]
    if name == "guest":
        return row
    ranges: Mapping[str, Sequence[float]] = fit["ranges"]
    gib = 0.0 if facts.memory_bytes is None else facts.memory_bytes / _GIB / facts.cores
    cores, sockets = _log(facts.cores / facts.sockets, ranges["cores"]), _log(facts.sockets, ranges["sockets"])
    row += [
        *(cores, sockets, cores * cores, cores * sockets, sockets * sockets),
        _log(gib or ranges["usual_gib"][0], ranges["gib"]),
    ]
    if name == "server_tdp":
        row.append(_log(facts.tdp_w or 0.0, ranges["tdp_w"]))
    return row


def _log(value: float, limits: Sequence[float]) -> float:
    return math.log(min(max(value, limits[0]), limits[1]))
