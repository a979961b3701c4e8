"""What a simulated machine really draws: limits and loads while it runs, and exact joules over any window afterwards.

What changes while it runs is an append-only list in a mapped file. Each event holds the joules at its time, so the
truth at t needs the last event before t and nothing older. Every process of the machine maps the same file; the C side
reads it without a lock and appends limits under the same lock.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import struct
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everywatt.core.errors import SimError, UsageError
from everywatt.core.files import replace_text
from everywatt.core.jsonio import document, dumps
from everywatt.core.units import parse_duration_s
from everywatt.sim.curves import Curve, Load, parse_curve

if TYPE_CHECKING:
    from everywatt.sim.machine import Lab

_HEADER = struct.Struct("<QQ48x")
_EVENT = struct.Struct("<dddd")
_COUNT = struct.Struct("<Q")
ROOM_LIMITS = 4_096
ROOM_LOADS = 8_000_000  # a sparse file of 256 MB: a day of changes every 10 ms


class Event(NamedTuple):
    """From `t_s` on: the joules so far, the power that is asked for (load curves), and the limit."""

    t_s: float
    joules: float
    raw_w: float
    limit_w: float


def joules_since_start(curve: Curve, events: Sequence[Event], t_s: float) -> float:
    """The exact joules from the machine's start to `t_s`."""
    event = events[max(bisect_right(events, t_s, key=lambda event: event.t_s) - 1, 0)]
    if isinstance(curve, Load):
        return event.joules + min(event.raw_w, event.limit_w) * (t_s - event.t_s)
    return event.joules + curve.energy_j(event.t_s, t_s, event.limit_w)


class EventLog(Sequence[Event]):
    """The events of one device."""

    def __init__(self, path: Path, curve: Curve) -> None:
        self.path = path
        self.curve = curve
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._fd, 0)
        # One store of eight bytes: struct writes them one by one, and a reader in between would find no event at all.
        self._count = memoryview(self._map)[: _COUNT.size].cast("Q")

    @classmethod
    def create(cls, path: Path, curve: Curve, limit_w: float) -> EventLog:
        """A new list whose first event is the machine's start."""
        room = ROOM_LOADS if isinstance(curve, Load) else ROOM_LIMITS
        with path.open("wb") as file:
            file.write(_HEADER.pack(1, room))
            file.write(_EVENT.pack(0.0, 0.0, curve.low_w, limit_w))
            file.truncate(_HEADER.size + room * _EVENT.size)
        return cls(path, curve)

    def __len__(self) -> int:
        return int(self._count[0])

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        """One event, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return Event(*_EVENT.unpack_from(self._map, _HEADER.size + place * _EVENT.size))

    def joules(self, t_s: float) -> float:
        """The exact joules from the machine's start to `t_s`."""
        return joules_since_start(self.curve, self, t_s)

    def append(self, t_s: float, *, raw_w: float | None = None, limit_w: float | None = None) -> None:
        """From `t_s` on, another power that is asked for, or another limit."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            count, last = len(self), self[-1]
            at = max(t_s, last.t_s)
            raw = last.raw_w if raw_w is None else raw_w
            limit = last.limit_w if limit_w is None else limit_w
            where = _HEADER.size + count * _EVENT.size
            if where + _EVENT.size > len(self._map):
                raise SimError(f"The simulated device of {self.path.name} changed more often than its file can hold.")
            _EVENT.pack_into(self._map, where, at, self.joules(at), raw, limit)
            self._count[0] = count + 1
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        self._count.release()
        self._map.close()
        os.close(self._fd)


Terms = tuple[Mapping[str, float], float]
"""A device as a sum of devices with a curve times factors, plus a constant in watts."""


@dataclass(frozen=True)
class Truth:
    """What a simulated machine really drew. Times are CLOCK_MONOTONIC nanoseconds."""

    t0_ns: int
    start_ns: int
    end_ns: int
    utc_offset_ns: int
    curves: Mapping[str, Curve]
    events: Mapping[str, Sequence[Event]]
    terms: Mapping[str, Terms]

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
    except OSError as error:
        raise SimError(f"{path} cannot be read: {error.strerror}.", cure="everywatt sim --truth FILE -- CMD") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SimError(f"{path} is not a truth file: {error}.", cure="everywatt sim --truth FILE -- CMD") from None


def _event(row: Sequence[float | None]) -> Event:
    return Event(*(math.inf if value is None else float(value) for value in row))


def _portable(text: str) -> str:
    """A replay by its full path, so that the file can be asked from anywhere."""
    kind, _, name = text.partition(":")
    return f"replay:{Path(name).expanduser().resolve()}" if kind == "replay" else text
