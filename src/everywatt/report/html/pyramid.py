"""Ticks made small for a page: exact where that fits, else minima, maxima, means, and exact ticks where it counts.

A long series becomes buckets of equally many ticks; a gap that is longer than a bucket is one of its own. Each bucket
keeps its lowest and highest tick and its mean over time, so nothing that stands out is lost however far one zooms out:
the page makes coarser levels from these, minimum of minima and maximum of maxima. The buckets in which something
happens (they hold a spike, a dip, or a change of level that their neighbours do not have) also keep every tick, so that
zooming in there is exact.
"""

from __future__ import annotations

import base64
import json
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Bytes that one bucket (end, low, high, mean) and one tick (time, value) come to after packing, by experience.
BUCKET_BYTES = 12.0
TICK_BYTES = 5.0
FEWEST_BUCKETS = 400
# Beyond this many ticks for each byte that may be used, not even a constant would fit.
HOPELESS_TICKS_PER_BYTE = 4.0
NEIGHBOURS = 2
MOST_HOLES = 1000  # gaps that are buckets of their own


@dataclass(frozen=True, slots=True)
class Series:
    """Ticks of one quantity for one chart. `t_us` are whole microseconds after the run's start, strictly rising.

    A value holds from the tick before to its own time where `held`; else lines join the ticks. NaN is a hole.
    """

    t_us: Ints
    values: Floats
    held: bool = True

    def __len__(self) -> int:
        return len(self.t_us)


@dataclass(frozen=True, slots=True)
class Buckets:
    """The places of each one's first and last tick, its end time, lowest, highest, mean over time."""

    first: Ints
    last: Ints
    end_us: Ints
    low: Floats
    high: Floats
    mean: Floats

    def __len__(self) -> int:
        return len(self.end_us)


def buckets(series: Series, per: int) -> Buckets:
    """The finest level of the pyramid: `per` ticks each. Minima and maxima are those of the ticks, without holes."""
    n = len(series)
    starts = np.arange(0, n, per)
    values, weights = series.values, _lengths_us(series)
    holes = not np.isfinite(values).all()
    if holes:
        long = np.flatnonzero(~np.isfinite(values) & (weights > weights.sum() / len(starts)))
        long = long[np.argsort(-weights[long], kind="stable")[:MOST_HOLES]]
        starts = np.unique(np.concatenate((starts, long, long + 1)))
        starts = starts[starts < n]
    lowest, highest = (np.fmin, np.fmax) if holes else (np.minimum, np.maximum)
    weights = np.where(np.isfinite(values), weights, 0.0) if holes else weights
    area = np.add.reduceat(np.nan_to_num(values) * weights if holes else values * weights, starts)
    length = np.add.reduceat(weights, starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = area / length
    low, high = lowest.reduceat(values, starts), highest.reduceat(values, starts)
    # Rounding must not put a mean outside of what it is the mean of.
    mean = np.where(length > 0, np.clip(mean, low, high), np.nan)
    last = np.append(starts[1:], n) - 1
    return Buckets(starts, last, series.t_us[last], low, high, mean)


def _lengths_us(series: Series) -> Floats:
    """The time that each tick stands for: since the tick before (the first: as the second)."""
    lengths = np.empty(len(series))
    np.subtract(series.t_us[1:], series.t_us[:-1], out=lengths[1:], casting="unsafe")
    lengths[0] = lengths[1] if len(lengths) > 1 else 1.0
    return lengths


def surprise(level: Buckets) -> Floats:
    """For each bucket how far it reaches beyond its neighbours, up, down or in its mean; NaN counts as nothing."""

    def beyond(values: Floats) -> Floats:
        around = np.stack([_shifted(values, by) for by in range(-NEIGHBOURS, NEIGHBOURS + 1) if by])
        return np.nan_to_num(values - np.nanmedian(around, axis=0))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all neighbours may be holes
        score = np.maximum(beyond(level.high), beyond(-level.low))
        score = np.maximum(score, np.abs(np.nan_to_num(level.mean - _shifted(level.mean, 1))))
    for extreme in (np.nanargmax, np.nanargmin):
        values = level.high if extreme is np.nanargmax else level.low
        if np.isfinite(values).any():
            score[extreme(values)] = np.inf
    return score


def _shifted(values: Floats, by: int) -> Floats:
    """Values moved by some places; at the ends the outermost is repeated."""
    places = np.clip(np.arange(len(values)) - by, 0, len(values) - 1)
    return np.asarray(values[places])


def shrink(series: Series, most_bytes: float | None) -> dict[str, Any]:
    """The series as the page reads it, in about `most_bytes` of packed data (None: every tick, whatever it takes).

    `exact` says whether every tick is in it; otherwise `parts` are the buckets whose ticks, `pn` of each, are in it.
    """
    head = {"n": len(series), "held": series.held}
    if most_bytes is None or len(series) <= HOPELESS_TICKS_PER_BYTE * most_bytes:
        whole = pack({"t": series.t_us, "v": series.values})
        if most_bytes is None or packed_bytes(whole) <= most_bytes:
            return {**head, "exact": True, "data": whole}
    count = max(FEWEST_BUCKETS, int(most_bytes / 2 / BUCKET_BYTES))
    per = max(2, -(-len(series) // count))
    level = buckets(series, per)
    chosen = _chosen(level, int(most_bytes / 2 / TICK_BYTES / per))
    first, last = level.first[chosen], level.last[chosen]
    inside = np.concatenate(
        [np.arange(start, end + 1) for start, end in zip(first.tolist(), last.tolist(), strict=True)]
    )
    data = pack(
        {
            "t": level.end_us,
            "low": level.low,
            "high": level.high,
            "mean": level.mean,
            "parts": chosen,
            "pn": last - first + 1,
            "pt": series.t_us[inside],
            "pv": series.values[inside],
        }
    )
    first_us = int(series.t_us[0] - _lengths_us(series)[0])
    return {**head, "exact": False, "first_us": first_us, "data": data}


def _chosen(level: Buckets, most: int) -> Ints:
    """The buckets that keep their ticks, in order of time: those that stand out, and what lies beside the tallest."""
    score = surprise(level)
    order = np.argsort(-score, kind="stable")[: max(2, min(most, len(level)))]
    wanted = dict.fromkeys(order[score[order] > 0].tolist() or [0])
    top = [int(place) for place in np.flatnonzero(np.isinf(score))]
    for place in top:  # seen on both sides, so that one can look around it
        wanted.update(dict.fromkeys(b for b in (place - 1, place, place + 1) if 0 <= b < len(level)))
    return np.array(sorted(wanted), dtype=np.int64)


def share_out(sizes: list[int], most_bytes: float) -> list[float]:
    """Bytes for each of several series of so many ticks: none gets more than it needs, the rest is shared equally."""
    needs = [TICK_BYTES * 2 * size + 200 for size in sizes]
    shares = [0.0] * len(sizes)
    left = most_bytes
    for place, index in enumerate(sorted(range(len(sizes)), key=needs.__getitem__)):
        shares[index] = min(needs[index], left / (len(sizes) - place))
        left -= shares[index]
    return shares


def pack(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """`{"columns": [[name, type, n]…], "deflate": base64}`.

    Whole numbers are written as differences (`i4`, or `f8` where one does not fit), because times then deflate to a
    third. Others are written in single precision (`f4`, seven digits); NaN is a hole.
    """
    arrays = {name: _typed(values) for name, values in columns.items()}
    raw = b"".join(array.tobytes() for array in arrays.values())
    heads = [[name, array.dtype.str[1:], len(array)] for name, array in arrays.items()]
    return {"columns": heads, "deflate": _deflated(raw)}


def pack_json(value: object) -> dict[str, str]:
    """Plain data as `{"deflate": base64}`, for what is long and much alike."""
    return {"deflate": _deflated(json.dumps(value, separators=(",", ":")).encode())}


def _deflated(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw)).decode("ascii")


def _typed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype.kind == "f":
        return values.astype("<f4")
    steps = np.diff(values, prepend=0)
    return steps.astype("<i4" if np.abs(steps).max(initial=0) < 2**31 else "<f8")


def packed_bytes(packed: dict[str, Any]) -> int:
    """Bytes of a block before base64."""
    return len(packed["deflate"]) * 3 // 4
