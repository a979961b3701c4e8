"""The truth of a finished simulation as a file: exact joules of each device over any window, asked for afterwards."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.errors import SimError, UsageError
from everywatt.core.files import replace_text
from everywatt.core.jsonio import document, dumps
from everywatt.core.units import parse_duration_s
from everywatt.sim.curves import Curve, parse_curve
from everywatt.sim.events import Event, joules_since_start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from everywatt.sim.machine import Lab


@dataclass(frozen=True)
class Truth:
    """What a simulated machine really drew. Times are CLOCK_MONOTONIC nanoseconds."""

    t0_ns: int
    start_ns: int
    end_ns: int
    utc_offset_ns: int
    curves: Mapping[str, Curve]
    events: Mapping[str, Sequence[Event]]
    terms: Mapping[str, tuple[Mapping[str, float], float]]

    def joules(self, device: str, a_ns: int, b_ns: int) -> float:
        """Exact joules of a device between two instants."""
        if device not in self.terms:
            raise UsageError(f"The simulation had no device '{device}'.", cure=", ".join(self.terms))
        terms, constant_w = self.terms[device]
        a, b = (a_ns - self.t0_ns) / 1e9, (b_ns - self.t0_ns) / 1e9
        total = constant_w * (b - a)
        for name, factor in terms.items():
            curve, events = self.curves[name], self.events[name]
            total += factor * (joules_since_start(curve, events, b) - joules_since_start(curve, events, a))
        return total

    def window(self, a_ns: int, b_ns: int) -> dict[str, Any]:
        """Joules and mean watts of every device in a window, as JSON data."""
        if b_ns <= a_ns:
            raise UsageError("The window ends before it starts.", cure="--between 0s 2s")
        seconds = (b_ns - a_ns) / 1e9
        devices = {}
        for name in self.terms:
            joules = self.joules(name, a_ns, b_ns)
            devices[name] = {"joules": joules, "mean_w": joules / seconds}
        return {"start_ns": a_ns, "end_ns": b_ns, "duration_s": seconds, "devices": devices}

    def instant_ns(self, text: str) -> int:
        """`1.5`, `250ms`: after the command's start; `end`; `mono:8123.5`: CLOCK_MONOTONIC seconds; or an ISO time."""
        if text == "end":
            return self.end_ns
        if text.startswith("mono:"):
            return round(float(text[5:]) * 1e9)
        try:
            return self.start_ns + round(parse_duration_s(text) * 1e9)
        except UsageError:
            pass  # then it has to be a time of day
        try:
            stamp = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(f"'{text}' is not a time.", cure="1.5s, end, mono:8123.5 or 2026-11-15T10:00:00") from None
        return round(stamp.timestamp() * 1e9) - self.utc_offset_ns


def describe(lab: Lab, start_ns: int, end_ns: int, *, command: Sequence[str], code: int) -> dict[str, Any]:
    """The truth of a machine as JSON data. Call it after `lab.settle()`."""
    curves = lab.machine.curves()
    truth = of(lab, start_ns, end_ns)
    devices: dict[str, Any] = truth.window(start_ns, end_ns)["devices"]
    for name, curve in curves.items():
        events = [tuple(event) for event in truth.events[name]]
        devices[name] |= {"curve": _portable(curve.text), "events": events}
    for name, (terms, constant_w) in truth.terms.items():
        devices[name] |= {"terms": dict(terms), "constant_w": constant_w}
    return document(
        "sim-truth",
        {
            "t0_ns": lab.t0_ns,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "duration_s": (end_ns - start_ns) / 1e9,
            "utc_offset_ns": truth.utc_offset_ns,
            "command": list(command),
            "exit_code": code,
            "devices": devices,
            "processes": lab.settle(),
            "nvml_calls": lab.calls(),
        },
    )


def of(lab: Lab, start_ns: int, end_ns: int) -> Truth:
    """The truth of a running machine so far."""
    return Truth(
        lab.t0_ns,
        start_ns,
        end_ns,
        time.time_ns() - time.monotonic_ns(),
        lab.machine.curves(),
        {name: lab.events(name) for name in lab.machine.curves()},
        {name: lab.terms(name) for name in lab.devices()},
    )


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write the file; a truth is derived, so an older one is replaced."""
    try:
        replace_text(path, dumps(data, indent=1) + "\n")
    except OSError as error:
        raise SimError(
            f"The truth cannot be written to {path}: {error}.", cure="--truth FILE in another folder"
        ) from None


def load(path: Path) -> Truth:
    """The truth in a file that `everywatt sim --truth` wrote."""
    try:
        data = json.loads(path.read_text())
        devices = data["devices"]
        if data["kind"] != "sim-truth":
            raise KeyError("kind")
        own = {name: entry for name, entry in devices.items() if "curve" in entry}
        return Truth(
            data["t0_ns"],
            data["start_ns"],
            data["end_ns"],
            data["utc_offset_ns"],
            {name: parse_curve(entry["curve"]) for name, entry in own.items()},
            {name: [_event(row) for row in entry["events"]] for name, entry in own.items()},
            {name: (entry["terms"], entry["constant_w"]) for name, entry in devices.items()},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimError(f"{path} is not a truth file: {error}.", cure="everywatt sim --truth FILE -- CMD") from None


def _event(row: Sequence[float | None]) -> Event:
    return Event(*(math.inf if value is None else float(value) for value in row))


def _portable(text: str) -> str:
    """A replay by its full path, so that the file can be asked from anywhere."""
    kind, _, name = text.partition(":")
    return f"replay:{Path(name).expanduser().resolve()}" if kind == "replay" else text
