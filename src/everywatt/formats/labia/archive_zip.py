"""A recording as Lab-IA keeps it: one zip a day, named after the day on which it ends, and a small copy beside.

    DIR/omegawatt/11_16_2026_USB0.zip             every row, in `log_omegawatt_of_the_day`
    DIR/omegawatt_subsample/11_16_2026_USB0.zip   one row a second: its mean, where Lab-IA has every 100th line

The text begins as wattmetre-read's own log does: a log line, then another one that the header is glued to.
"""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np

from everywatt.core.clocks import NS
from everywatt.core.files import replacing
from everywatt.meters.block import Block
from everywatt.meters.downsample import downsample
from everywatt.meters.omegawatt_csv import write_csv

FULL, SMALL, MEMBER = "omegawatt", "omegawatt_subsample", "log_omegawatt_of_the_day"
_MARK: Final = "everywatt, from UTC ns "


def write_zips(archive: Path, meter: str, turn: tuple[int, int], blocks: Callable[[], Iterable[Block]]) -> list[Path]:
    """Both zips of a recording (`blocks` gives it, each time from its start); none where they are there already.

    A second recording of a day gets `_2` behind its name: nothing is overwritten.
    """
    first = next(iter(blocks()), None)
    if first is None:
        return []
    began_ns = int(first.utc_ns[0])
    written = []
    for folder, rows in ((FULL, blocks), (SMALL, lambda: by_second(blocks))):
        path = _free(archive / folder, day_name(meter, began_ns, turn), began_ns)
        if path is not None:
            _write(path, meter, began_ns, first.plugs, rows())
            written.append(path)
    return written


def day_name(meter: str, utc_ns: int, turn: tuple[int, int]) -> str:
    """`11_16_2026_USB0`: the day of the first turn after an instant, and the port."""
    at = datetime.fromtimestamp(utc_ns / NS)
    if (at.hour, at.minute) >= turn:
        at += timedelta(days=1)
    port = re.search(r"usb\d+", meter, re.IGNORECASE)
    return f"{at:%m_%d_%Y}_{port[0].upper() if port else meter}"


def _free(folder: Path, name: str, began_ns: int) -> Path | None:
    """A path that is not taken; None where this very recording is there."""
    number = 1
    while (path := folder / f"{name}{f'_{number}' if number > 1 else ''}.zip").exists():
        with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as packed:
            if packed.comment == f"{_MARK}{began_ns}".encode():
                return None
        number += 1
    return path


def _write(path: Path, meter: str, began_ns: int, plugs: int, blocks: Iterable[Block]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.comment = f"{_MARK}{began_ns}".encode()
        with packed.open(MEMBER, "w", force_zip64=True) as raw, io.TextIOWrapper(raw, "ascii") as file:
            at = datetime.fromtimestamp(began_ns / NS)
            log = f"{at:%Y/%m/%d-%H:%M:%S};{at:%a %b %e %H:%M:%S %Y};INFO;"
            file.write(f"{log}Starting logging on '{meter}' plugcount=0\n{log}detect '{plugs}' plugs.")
            write_csv(blocks, file)


def by_second(blocks: Callable[[], Iterable[Block]]) -> Iterator[Block]:
    """One row for every second that was observed, at its end: power by energy, volts and amperes as means of rows."""
    means = _row_means(blocks())
    for cells in downsample(blocks(), 1.0):
        seen = (cells.observed_s > 0) & (cells.rows > 0)
        if not seen.any():
            continue
        others = [next(means) for _ in range(int((cells.rows > 0).sum()))]
        kept = [row for row, good in zip(others, seen[cells.rows > 0], strict=True) if good]
        volts, amps = (np.array(columns) for columns in zip(*kept, strict=True))
        ends = cells.start_ns[seen] + cells.length_ns
        yield Block(ends, np.ones(len(ends), dtype=np.bool_), volts, amps, cells.mean_w()[seen])


def _row_means(blocks: Iterable[Block]) -> Iterator[tuple[list[float], list[float]]]:
    """Mean volts and amperes of the good rows of every second that has any."""
    second, count = -1, 0
    volts, amps = np.zeros(3), np.zeros(0)
    for block in blocks:
        good = block.take(block.ok)
        if not len(good):
            continue
        places = good.utc_ns // NS
        starts = np.flatnonzero(np.concatenate(([True], np.diff(places) > 0)))
        sums = (np.add.reduceat(good.volts, starts, axis=0), np.add.reduceat(good.amps, starts, axis=0))
        sizes = np.diff(np.append(starts, len(good)))
        for place, size, of_volts, of_amps in zip(places[starts], sizes, *sums, strict=True):
            if place == second:
                volts, amps, count = volts + of_volts, amps + of_amps, count + int(size)
                continue
            if count:
                yield (volts / count).tolist(), (amps / count).tolist()
            second, volts, amps, count = int(place), of_volts, of_amps, int(size)
    if count:
        yield (volts / count).tolist(), (amps / count).tolist()
