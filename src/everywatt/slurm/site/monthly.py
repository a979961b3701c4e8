"""A month of a site: by user, account, state and day, its costliest jobs, and the proof that all of it adds up."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import numpy as np

from everywatt.ledger.engine import UJ
from everywatt.slurm.schema import arrow
from everywatt.slurm.site.carbon import Factors, added_up, charged, in_all
from everywatt.slurm.site.figures import job_of, nodes_of
from everywatt.slurm.site.periods import day_of, days_of, month_bounds_s
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.totals import Wanted, jobs, node_sums

GROUPS: Final = ("user", "account", "state", "partition", "day")
HEADS: Final = (
    *("month", "by", "group", "jobs", "refused", "elapsed_s", "energy_j", "low_j", "high_j", "idle_j", "waste_j"),
    *("wall_j", "carbon_g", "carbon_varying_g", "uncovered", "cost", "coverage"),
)


@dataclass(frozen=True, slots=True)
class Month:
    """What a report of a month shows; `groups` has rows of `carbon.added_up` for each of GROUPS.

    `days` are all of its days, those without a job too.
    """

    month: str
    total: Mapping[str, Any]
    groups: Mapping[str, list[dict[str, Any]]]
    costliest: list[dict[str, Any]]
    nodes: Mapping[str, int]
    days: tuple[date, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "month": self.month,
            "total": plain(self.total),
            **{f"by_{name}": [{"group": row["group"], **plain(row)} for row in self.groups[name]] for name in GROUPS},
            "costliest": [job_of(row) for row in self.costliest],
            "nodes": nodes_of(self.nodes),
        }

    def csv(self) -> str:
        """A table with one row for each user, account, state, partition and day, and one for all."""
        text = io.StringIO()
        writer = csv.DictWriter(text, HEADS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerow({"month": self.month, "by": "all", "group": "", **plain(self.total)})
        for by in GROUPS:
            for row in self.groups[by]:
                writer.writerow({"month": self.month, "by": by, "group": row["group"], **plain(row)})
        return text.getvalue()


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of sums in joules, grams and money; None is not known."""
    kept = ("jobs", "refused", "elapsed_s", "carbon_g", "carbon_varying_g", "uncovered", "cost", "coverage")
    names = ("energy", "low", "high", "idle", "waste", "wall")
    joules = {f"{name}_j": None if row[f"{name}_uj"] is None else row[f"{name}_uj"] / UJ for name in names}
    return {**{name: row[name] for name in kept}, **joules}


def month_of_site(store: Store, month: str, factors: Factors, most: int = 20) -> Month:
    """A month of a store such as 2026-11, with carbon and cost by these factors."""
    return period_of_site(store, month_bounds_s(month), month, factors, most)


def period_of_site(
    store: Store,
    bounds_s: tuple[float, float],
    name: str,
    factors: Factors,
    most: int = 20,
    user: str | None = None,
) -> Month:
    """Any time of a store, under a name; of one user without what nodes drew."""
    pa, _ = arrow()
    since_s, until_s = bounds_s
    table = charged(store, since_s, until_s, factors, user)
    # A month has half a million jobs and thirty days: each day is written once.
    numbers, of_record = np.unique(np.floor(table.column("end_s").to_numpy() / 86_400), return_inverse=True)
    names = pa.array([day_of(number * 86_400).isoformat() for number in numbers.tolist()], type=pa.string())
    days = pa.DictionaryArray.from_arrays(pa.array(of_record, type=pa.int32()), names)
    table = table.append_column("day", days.cast(pa.string()))
    groups = {by: added_up(table, by) for by in GROUPS}
    groups["day"].sort(key=lambda row: str(row["group"]))
    return Month(
        name,
        in_all(table),
        groups,
        jobs(store, Wanted(since_s, until_s, user), "energy", most),
        node_sums(store, since_s + 3599, until_s) if user is None else {},
        days_of(since_s, until_s),
    )
