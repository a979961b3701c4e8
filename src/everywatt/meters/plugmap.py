"""Which plugs feed which node: `map.toml`, checked, with dates; tables of Lab-IA can be read too.

[[plug]]
meter = "usb0"          # left out where there is one meter
plug = 13
node = "n51"
supply = "left"         # a word for people
phase = 1               # of the voltage that the box measures for it
from = 2026-01-01       # may be left out, as `until`
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from everywatt.core import foreign
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.meters.block import Block

LIVE_V: Final = 20.0
_KEYS: Final = ("meter", "plug", "node", "supply", "phase", "from", "until", "port")


@dataclass(frozen=True, slots=True)
class Feed:
    """One plug that feeds a node from `from_ns` until `until_ns` (UTC; None: without a bound)."""

    plug: int
    node: str
    meter: str = ""
    supply: str = ""
    phase: int | None = None
    from_ns: int | None = None
    until_ns: int | None = None

    def holds(self, start_ns: int | None, end_ns: int | None) -> bool:
        """True where it holds at some time between two instants."""
        begins = self.from_ns is None or end_ns is None or self.from_ns < end_ns
        return begins and (self.until_ns is None or start_ns is None or self.until_ns > start_ns)

    @property
    def label(self) -> str:
        """`plug 13 of usb0`."""
        return f"plug {self.plug}" + (f" of {self.meter}" if self.meter else "")


@dataclass(frozen=True, slots=True)
class PlugMap:
    """All feeds of a map file."""

    feeds: tuple[Feed, ...]

    @property
    def nodes(self) -> list[str]:
        return list(dict.fromkeys(feed.node for feed in self.feeds))

    def feeds_of(
        self, node: str, meter: str = "", start_ns: int | None = None, end_ns: int | None = None
    ) -> list[Feed]:
        """The plugs of a node in a period. UsageError if it has none, or if they change within the period."""
        mine = [feed for feed in self.feeds if feed.node == node and (not meter or feed.meter in ("", meter))]
        if not mine:
            raise UsageError(f"The map has no node '{node}'.", cure=f"one of: {', '.join(self.nodes[:12])}")
        found = [feed for feed in mine if feed.holds(start_ns, end_ns)]
        if not found:
            raise UsageError(f"The map has no entry for node '{node}' in that period.")
        for feed in found:
            if start_ns is not None and feed.from_ns is not None and feed.from_ns > start_ns:
                raise UsageError(
                    f"{feed.label} feeds '{node}' only from some time within the period.",
                    cure="choose a shorter period",
                )
            if end_ns is not None and feed.until_ns is not None and feed.until_ns < end_ns:
                raise UsageError(
                    f"{feed.label} feeds '{node}' for only part of the period.", cure="choose a shorter period"
                )
        return found

    def plugs_of(self, node: str, meter: str | None, start_ns: int, end_ns: int, sample: Block) -> list[int]:
        """The plugs that feed a node in a period, checked against the first rows of the recording, of all plugs."""
        feeds = self.feeds_of(node, meter or "", start_ns, end_ns)
        check_against(feeds, sample)
        return [feed.plug for feed in feeds]

    def own_time(self, node: str, inner: tuple[int, int], outer: tuple[int, int]) -> tuple[int, int]:
        """The part of `outer` around `inner` in which the plugs of a node are the same: before and after it, others may
        feed it, and their rows are not its own."""
        turns = [
            at for feed in self.feeds if feed.node == node for at in (feed.from_ns, feed.until_ns) if at is not None
        ]
        return (
            max([outer[0], *(at for at in turns if at <= inner[0])]),
            min([outer[1], *(at for at in turns if at >= inner[1])]),
        )

    def changes_ns(self, node: str | None, meter: str, after_ns: int) -> int | None:
        """When the plugs of a node (None: of any) next change after an instant; None where they never do."""
        feeds = [f for f in self.feeds if node in (None, f.node) and (not meter or f.meter in ("", meter))]
        turns = [at for f in feeds for at in (f.from_ns, f.until_ns) if at is not None and at > after_ns]
        return min(turns, default=None)


def unchanged(blocks: Iterable[Block], change_ns: int | None, whose: str) -> Iterator[Block]:
    """The same blocks; UsageError where they reach an instant at which the map changes."""
    for block in blocks:
        if change_ns is not None and len(block) and int(block.utc_ns[-1]) >= change_ns:
            day = f"{datetime.fromtimestamp(change_ns / NS, UTC):%Y-%m-%d %H:%M:%S}"
            raise UsageError(
                f"The plugs of {whose} change at {day} UTC, during the recording.",
                cure="restrict the period with --start and --end",
            )
        yield block


def load_map(path: Path) -> PlugMap:
    """A map from TOML, or from a JSON table of Lab-IA. UsageError with the entry that is wrong."""
    try:
        data = foreign.read_json(path) if path.suffix == ".json" else tomllib.loads(foreign.read_text(path))
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    feeds = labia_feeds(data) if path.suffix == ".json" else toml_feeds(data, path)
    if not feeds:
        raise UsageError(f"{path} maps no plugs.", cure='[[plug]] with plug = 1 and node = "name"')
    for one, other in combinations(feeds, 2):
        if (one.plug, one.meter) == (other.plug, other.meter) and one.holds(other.from_ns, other.until_ns):
            raise UsageError(
                f"{path}: {one.label} feeds '{one.node}' and '{other.node}' at the same time.", cure="from, until"
            )
    return PlugMap(tuple(feeds))


def toml_feeds(data: Mapping[str, Any], path: Path) -> list[Feed]:
    entries = data.get("plug", [])
    odd = [key for key in data if key != "plug"]
    if odd or not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise UsageError(f"{path}: '{odd[0] if odd else 'plug'}' is not a list of [[plug]].")
    return [_feed(entry, f"{path}, [[plug]] {number}") for number, entry in enumerate(entries, 1)]


def _feed(entry: Mapping[str, Any], where: str) -> Feed:
    strange = [key for key in entry if key not in _KEYS]
    if strange:
        raise UsageError(f"{where}: unknown key '{strange[0]}'.", cure=f"one of: {', '.join(_KEYS)}")
    plug, node, phase = entry.get("plug"), entry.get("node"), entry.get("phase")
    if not isinstance(plug, int) or isinstance(plug, bool) or plug < 1:
        raise UsageError(f"{where}: plug = {plug!r} is not a number from 1 up.")
    if not isinstance(node, str) or not node.strip():
        raise UsageError(f"{where}: plug {plug} has no node.")
    if phase is not None and phase not in (1, 2, 3):
        raise UsageError(f"{where}: plug {plug}: phase = {phase!r} is not 1, 2 or 3.")
    begin, end = (_instant(entry.get(key), where, key) for key in ("from", "until"))
    if begin is not None and end is not None and end <= begin:
        raise UsageError(f"{where}: plug {plug}: until is not after from.")
    return Feed(plug, node, str(entry.get("meter", "")), str(entry.get("supply", "")), phase, begin, end)


def _instant(value: Any, where: str, key: str) -> int | None:
    """UTC nanoseconds of a TOML date or time; dates begin at midnight UTC, times without a zone are UTC."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise UsageError(f"{where}: {key} is not a date.", cure=f"{key} = 2026-01-31")
    return round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()) * NS


def labia_feeds(table: Any) -> list[Feed]:
    """Feeds of Lab-IA's tables: {node: [columns]} or {node: {"columns": […], "alims": […]}}; column = 4 + 2 × plug."""
    if not isinstance(table, Mapping):
        raise UsageError("A table of Lab-IA must be an object of nodes.")
    feeds = []
    for node, entry in table.items():
        columns = entry.get("columns") if isinstance(entry, Mapping) else entry
        supplies = entry.get("alims", []) if isinstance(entry, Mapping) else []
        columns = [columns] if isinstance(columns, int) else columns
        if not isinstance(columns, list) or not all(isinstance(c, int) and c >= 6 and c % 2 == 0 for c in columns):
            raise UsageError(f"Node '{node}': {columns!r} are not power columns (6, 8, 10, …).")
        for place, column in enumerate(columns):
            supply = str(supplies[place]) if isinstance(supplies, list) and place < len(supplies) else ""
            feeds.append(Feed((column - 4) // 2, str(node), supply=supply))
    return feeds


def check_against(feeds: Sequence[Feed], block: Block) -> None:
    """UsageError where a map cannot be right for what a meter measured: no such plug, or a phase without voltage."""
    volts = np.nanmedian(block.volts[block.ok], axis=0) if block.ok.any() else np.full(3, np.nan)
    live = ", ".join(str(phase + 1) for phase in np.flatnonzero(volts >= LIVE_V)) or "none"
    for feed in feeds:
        if feed.plug > block.plugs:
            raise UsageError(f"Node '{feed.node}': {feed.label} does not exist; the meter has {block.plugs} plugs.")
        if feed.phase is not None and volts[feed.phase - 1] < LIVE_V:
            raise UsageError(
                f"Node '{feed.node}': {feed.label} is mapped to phase {feed.phase}, whose voltage is "
                f"{volts[feed.phase - 1]:.1f} V.",
                cure=f"use a live phase: {live}",
            )
