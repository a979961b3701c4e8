"""Files of an Omegawatt become a tape: one channel of power a plug, at the wall.

They are opened with care: plain, gzip, zip (also Lab-IA's), Parquet; bombs and foreign paths are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.errors import UsageError
from everywatt.core.foreign import Limits, pieces
from everywatt.meters.block import Block, Oddities, forwards
from everywatt.meters.omegawatt_csv import read_blocks
from everywatt.meters.plugmap import check_against, load_map, unchanged
from everywatt.meters.series import Part, Table, write_part
from everywatt.tape.importing import parse_utc_ns, usual_period_s

LIMITS: Final = Limits(total_bytes=200 << 30)  # years of fifty readings a second are read block by block


def blocks_of(
    path: Path,
    odd: Oddities,
    start_ns: int | None = None,
    end_ns: int | None = None,
    plugs: Sequence[int] | None = None,
) -> Iterator[Block]:
    """Blocks of one file of an Omegawatt, times rising, between two instants. UsageError where it is no such file.

    With `plugs` (from 1) a block has these, in this order.
    """
    if path.suffix.lower() == ".parquet":
        from everywatt.meters.parquet import read_parquet

        found = read_parquet(path, start_ns, end_ns, plugs)
    else:
        found = _chosen(read_blocks(pieces(path, LIMITS), odd, str(path)), plugs, path)
    for block in forwards(found, odd):
        chosen = block.between(start_ns, end_ns)
        if len(chosen):
            yield chosen


def blocks_of_files(
    paths: Sequence[Path],
    odd: Oddities,
    start_ns: int | None = None,
    end_ns: int | None = None,
    plugs: Sequence[int] | None = None,
) -> Iterator[Block]:
    """Blocks of files of one meter, given in any order, as `blocks_of` gives those of each. UsageError where their
    numbers of plugs differ."""
    heads = []
    for path in paths if len(paths) > 1 else ():
        first = next(blocks_of(path, Oddities(), start_ns, end_ns, plugs), None)
        if first is not None:
            heads.append((int(first.utc_ns[0]), path, first.plugs))
    if len({count for _, _, count in heads}) > 1:
        raise UsageError("The files come from meters with different numbers of plugs.", cure="read one meter at a time")
    files = [path for _, path, _ in sorted(heads)] or paths
    found = (block for path in files for block in blocks_of(path, odd, start_ns, end_ns, plugs))
    yield from forwards(found, odd)


def _chosen(blocks: Iterator[Block], plugs: Sequence[int] | None, path: Path) -> Iterator[Block]:
    for block in blocks:
        if plugs and max(plugs) > block.plugs:
            raise UsageError(
                f"{path} has {block.plugs} plugs; there is no plug {max(plugs)}.", cure=f"plugs 1 to {block.plugs}"
            )
        yield block.only(plugs) if plugs else block


# Assumed where nothing is said: a meter of class 1 (IEC 62053-21, 1 % of the reading), and one step of what it prints.
GAIN_PCT: Final = 1.0
OFFSET_W: Final = 0.1
QUANTUM_W: Final = 0.1


def plug_numbers(value: Any) -> list[int]:
    """`1,5`, `[1, 5]` or `1-6` as numbers from 1. UsageError for anything else."""
    words = value if isinstance(value, list | tuple) else str(value).split(",")
    found: list[int] = []
    for word in words:
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", str(word))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise UsageError(f"'{word}' is not a plug number.", cure="numbers from 1, such as 1,5 or 1-6")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def import_omegawatt(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape from CSV, TSV, gzip, zip or Parquet files of one box, in any order.

    options: plugs (`1,5`; all where left out), map (map.toml: channels are then of nodes), meter (its name in the map),
    start and end (ISO 8601), gain_pct and offset_w of the box.
    """
    odd = Oddities()
    start_ns, end_ns = (
        parse_utc_ns(str(options[key]), "iso", key) if options.get(key) else None for key in ("start", "end")
    )
    plugs = plug_numbers(options["plugs"]) if options.get("plugs") else None
    blocks = blocks_of_files(paths, odd, start_ns, end_ns)
    first = next(blocks, None)
    if first is None:
        raise UsageError(f"{paths[0]} contains no rows{' in that period' if start_ns or end_ns else ''}.")
    names, change_ns = _names(first, plugs, options)
    chosen = [plug - 1 for plug in names]
    rows: list[tuple[int, tuple[float, ...]]] = []
    for block in unchanged(chain((first,), blocks), change_ns, "the meter"):
        # The good rows, also those that repeat the one before: each is held back over the time since that one.
        watts = map(tuple, block.watts[block.ok][:, chosen].tolist())
        rows += zip(block.utc_ns[block.ok].tolist(), watts, strict=True)
    period_s = usual_period_s([at for at, _ in rows])
    meta = {"oddities": odd.sentences(), "plugs": first.plugs}
    return write_part(out, Part([Table(_group(names, period_s, options), rows, period_s)], meta=meta), paths, options)


def _names(first: Block, plugs: list[int] | None, options: Mapping[str, Any]) -> tuple[dict[int, str], int | None]:
    """The chosen plugs with the device each becomes: `wall.5`, or by a map `wall.n51.5`; and when the map changes."""
    if options.get("map"):
        table = load_map(Path(str(options["map"])))
        meter = str(options.get("meter", ""))
        feeds = [feed for feed in table.feeds if not meter or feed.meter in ("", meter)]
        at_ns = int(first.utc_ns[0])
        feeds = [feed for feed in feeds if feed.holds(at_ns, at_ns + 1) and (plugs is None or feed.plug in plugs)]
        check_against(feeds, first)
        if not feeds:
            raise UsageError("The map has no plug of this meter in that period.")
        names = {feed.plug: f"wall.{feed.node}.{feed.plug}" for feed in feeds}
        return names, table.changes_ns(None, meter, at_ns)
    chosen = plugs or list(range(1, first.plugs + 1))
    if max(chosen) > first.plugs:
        raise UsageError(f"The meter has {first.plugs} plugs; there is no plug {max(chosen)}.")
    return {plug: f"wall.{plug}" for plug in chosen}, None


def _group(names: Mapping[int, str], period_s: float, options: Mapping[str, Any]) -> GroupInfo:
    facts = Facts(
        period_s=period_s,
        window_s=period_s,
        quantum=QUANTUM_W,
        gain_pct=float(options.get("gain_pct", GAIN_PCT)),
        offset_w=float(options.get("offset_w", OFFSET_W)),
        cards="omegawatt",
    )
    channels = tuple(
        Channel(f"{device}.power", "W", Kind.GAUGE, device, Domain.WALL, pedigree=Pedigree.INTEGRATED, facts=facts)
        for device in names.values()
    )
    return GroupInfo("omegawatt", "omegawatt", "wall", channels, label="Omegawatt")
