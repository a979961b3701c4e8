"""Widths that a model told beside its watts: an interval for each row, wider where its inputs were new to it."""

from __future__ import annotations

import numpy as np

from everywatt.core.channels import Pedigree
from everywatt.core.lazy_dataclass import dataclass
from everywatt.energy.sources import Source
from everywatt.tape.columns import load_columns

SIDES = ("low", "high", "outside")
TO_95 = 1.96 / 1.645  # an interval of 90 % as one of 95 %


@dataclass(frozen=True, slots=True)
class Told:
    """95 % half-widths as shares of the watts, below and above, and the share of rows with inputs never learnt."""

    below: float
    above: float
    outside: float


def told_widths(source: Source, start_ns: int, end_ns: int) -> Told | None:
    """What the model said of its rows between two instants; None where it told no interval.

    Errors of one model are taken as one error: rows do not make each other surer.
    """
    info = source.group.info
    names = [f"{info.sensor}.{side}" for side in SIDES]
    known = {channel.name for channel in info.channels}
    if source.channel.pedigree is not Pedigree.MODELLED or not known.issuperset(names):
        return None
    rows = load_columns(source.tape, source.group.id, [source.channel.name, *names], start_ns, end_ns)
    # A row is about the time up to it, so the first one after the end counts too.
    before = np.concatenate([rows.published[:1], rows.published[:-1]])
    inside = (rows.published > start_ns) & (before < end_ns)
    watts, low, high, outside = (rows.values[name][inside] for name in (source.channel.name, *names))
    fine = np.isfinite(watts + low + high + outside) & (watts > 0)
    if not fine.any():
        return None
    whole = float(watts[fine].sum())
    below, above = float((watts - low)[fine].sum()) / whole, float((high - watts)[fine].sum()) / whole
    return Told(min(TO_95 * below, 1.0), TO_95 * above, float(outside[fine].mean()))
