"""Logs of tegrastats become tapes: with the time stamps of JetPack 5 and later, or counted from a start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from itertools import groupby
from pathlib import Path
from typing import Any

from everywatt.core import foreign
from everywatt.core.channels import NAN, Channel, GroupInfo
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.meters.series import Part, Table, number, write_part, zone_ns
from everywatt.sensors.jetson.jetson import total_note
from everywatt.sensors.jetson.tegrastats import TegraLine, channel_of, line_values, parse_line
from everywatt.tape.importing import parse_utc_ns

# A log may rest for days and be gone on with; a stamp that is farther away is a clock that was set.
PAUSE_NS = 7 * 86_400 * NS


def import_tegrastats(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape from logs of `tegrastats` (also .gz).

    options: zone_h (hours to subtract from the log's local time to get UTC; 0 if left out), interval_s (between lines
    that have no time; 1), start (UTC time of the first line, where lines have none; else the file's own time counts
    backwards from its last line).
    """
    shift_ns, interval_s = zone_ns(options), number(options.get("interval_s", 1.0))
    if interval_s is None or round(interval_s * NS) <= 0:
        raise UsageError("interval_s must be a number above 0.")
    interval_ns = round(interval_s * NS)
    timed: list[tuple[int, TegraLine]] = []
    lines = odd = stepped = 0
    for path in paths:
        texts = [text for text in foreign.lines(path) if text.strip() and not text.lstrip().startswith("#")]
        found = [line for line in map(parse_line, texts) if line is not None]
        lines, odd = lines + len(found), odd + len(texts) - len(found)
        placed, steps = _times(found, path, interval_ns, shift_ns, options)
        timed, stepped = timed + placed, stepped + steps
    if not timed:
        raise UsageError(f"{paths[0]} contains no tegrastats lines.")
    timed.sort(key=lambda pair: pair[0])
    values = [(at, line_values(line)) for at, line in timed]
    channels = _channels([said for _, said in values])
    if not any(channel.unit == "W" for channel in channels.values()):
        raise UsageError(f"{paths[0]} contains no power.", cure="record tegrastats with sudo")
    info = GroupInfo("tegrastats", "tegrastats", "jetson", tuple(channels.values()))
    meta: dict[str, Any] = {"lines": lines, "lines_not_understood": odd, "clock_steps": stepped}
    note = total_note([rail.label for _, line in timed for rail in line.rails])
    if note:
        meta["note"] = f"jetson: {note}"
    table = Table(info, [(at, tuple(said.get(name, NAN) for name in channels)) for at, said in values])
    return write_part(out, Part([table], meta=meta), paths, options)


def _channels(lines: Sequence[Mapping[str, float]]) -> dict[str, Channel]:
    """The channels of all lines by name, the input first: a field may be absent at first (a GPU that sleeps)."""
    found = {name: channel_of(name) for name in dict.fromkeys(name for line in lines for name in line)}
    return dict(sorted(found.items(), key=lambda pair: (pair[1].unit != "W", pair[1].domain != "soc")))


def _times(
    lines: Sequence[TegraLine], path: Path, interval_ns: int, shift_ns: int, options: Mapping[str, Any]
) -> tuple[list[tuple[int, TegraLine]], int]:
    """A UTC time for each line, and how often the board's clock was set meanwhile.

    Stamps have whole seconds: lines of one second are spread over it. A board without a battery starts its clock in the
    past and sets it later; summer time does so too. Such a step is not time that has passed.
    """
    placed: list[tuple[int, TegraLine]] = []
    steps = correction_ns = 0
    for stamp, same in groupby(lines, key=lambda line: line.time):
        group = list(same)
        next_ns = placed[-1][0] + interval_ns if placed else _start_ns(len(lines), path, interval_ns, options)
        if stamp is None:
            placed += [(next_ns + n * interval_ns, line) for n, line in enumerate(group)]
            continue
        at_ns = round(stamp.replace(tzinfo=UTC).timestamp()) * NS - shift_ns + correction_ns
        if placed and not placed[-1][0] < at_ns < placed[-1][0] + PAUSE_NS:
            steps, correction_ns, at_ns = steps + 1, correction_ns + next_ns - at_ns, next_ns
        placed += [(at_ns + n * NS // len(group), line) for n, line in enumerate(group)]
    return placed, steps


def _start_ns(count: int, path: Path, interval_ns: int, options: Mapping[str, Any]) -> int:
    """When the first line was written, for lines without a time stamp."""
    if options.get("start") is not None:
        return parse_utc_ns(str(options["start"]), "iso", "start")
    return path.stat().st_mtime_ns - interval_ns * (count - 1)
