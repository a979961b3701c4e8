"""A month of a site: by user, account, state and day, its costliest jobs, and the proof that all of it adds up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

import numpy as np

from everywatt.core.errors import UsageError
from everywatt.core.format import (
    format_count,
    format_duration,
    format_joules,
    format_money,
    format_percent,
)
from everywatt.core.plugins import arrow
from everywatt.core.tables import Table, csv_text
from everywatt.core.units import J_PER_KWH
from everywatt.footprint.carbon import Factors
from everywatt.ledger.engine import UJ
from everywatt.slurm.site.carbon import added_up, charged, in_all
from everywatt.slurm.site.figures import (
    COVERED,
    job_of,
    joules,
    nodes_of,
    percent,
    rounded,
    short,
    shown_run,
    sums_table,
    waste,
)
from everywatt.slurm.site.store import Store, day_of, days_of
from everywatt.slurm.site.totals import Wanted, jobs, node_sums

RECENT_S: Final = 31 * 86_400.0  # jobs that ended longer ago are not among the last ones
MOST_JOBS: Final = 20  # the costliest that are listed
GROUPS: Final = ("user", "account", "state", "partition", "day")
HEADS: Final = (
    *("month", "by", "group", "jobs", "refused", "elapsed_s", "energy_j", "low_j", "high_j", "idle_j", "waste_j"),
    *("wall_j", "carbon_g", "carbon_varying_g", "uncovered", "cost", "coverage", "idle_low_j", "idle_high_j"),
)


def month_bounds_s(text: str) -> tuple[float, float]:
    """First instant of a month such as 2026-11, and of the one after it, so its last day is inside."""
    match = re.fullmatch(r"(\d{4})-(\d{2})", text)
    if not match or not 1 <= int(match[2]) <= 12 or int(match[1]) < 1970:
        raise UsageError(f"'{text}' is not a month.", cure="such as 2026-11")
    year, month = int(match[1]), int(match[2])
    after = (year + 1, 1) if month == 12 else (year, month + 1)
    return tuple(datetime(y, m, 1, tzinfo=UTC).timestamp() for y, m in ((year, month), after))  # type: ignore[return-value]


def month_of(unix_s: float) -> str:
    """`2026-11`."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m}"


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
        return {
            "month": self.month,
            **sums_of(self.total, self.groups),
            "costliest": [job_of(row) for row in self.costliest],
            "nodes": nodes_of(self.nodes),
        }

    def tables(self) -> list[Table]:
        """By user, account and state, and the sum."""
        heads = ("JOBS", "ENERGY", "IDLE SHARE", "WASTE")
        groups = [sums_table(by, heads, self.groups[by], notes=[""]) for by in ("user", "account", "state")]
        count = self.total["jobs"]
        total = f"{format_count(count, 'job')}, {short(self.total)}" if count else "no jobs"
        return [*groups, Table.lines(f"{self.month}: {total}")]

    def csv(self) -> str:
        """A table with one row for each user, account, state, partition and day, and one for all."""
        rows = [("all", "", self.total), *((by, row["group"], row) for by in GROUPS for row in self.groups[by])]
        return csv_text(HEADS, [[self.month, by, group, *map(plain(row).get, HEADS[3:])] for by, group, row in rows])


def sums_of(total: Mapping[str, Any], groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Sums for JSON: of all, and by user, account and so on."""
    by = {f"by_{name}": [{"group": row["group"], **plain(row)} for row in rows] for name, rows in groups.items()}
    return {"total": plain(total), **by}


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of sums in joules, grams and money; None is not known."""
    kept = ("jobs", "refused", "elapsed_s", "carbon_g", "carbon_varying_g", "uncovered", "cost", "coverage")
    names = ("energy", "low", "high", "idle", "waste", "wall", "idle_low", "idle_high")
    joules = {f"{name}_j": None if row[f"{name}_uj"] is None else row[f"{name}_uj"] / UJ for name in names}
    return {**{name: row[name] for name in kept}, **joules}


def month_of_site(store: Store, month: str, factors: Factors) -> Month:
    """A month of a store such as 2026-11, with carbon and cost by these factors."""
    return period_of_site(store, month_bounds_s(month), month, factors)


def period_of_site(
    store: Store,
    bounds_s: tuple[float, float],
    name: str,
    factors: Factors,
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
        jobs(store, Wanted(since_s, until_s, user), "energy", MOST_JOBS),
        node_sums(store, since_s + 3599, until_s) if user is None else {},
        days_of(since_s, until_s),
    )


@dataclass(frozen=True, slots=True)
class UserMonth:
    """A month of one user, and the last jobs; `currency` is that of the cost."""

    user: str
    month: str
    total: Mapping[str, Any]
    recent: Sequence[Mapping[str, Any]]
    currency: str = ""

    def to_dict(self) -> dict[str, Any]:
        last = [job_of(row) for row in self.recent]
        return {"user": self.user, "month": self.month, **plain(self.total), "last": last}

    def tables(self) -> list[Table]:
        """One line for the month, and one for each of the last jobs, the latest first."""
        count = format_count(self.total["jobs"], "job")
        first = f"everywatt: {self.user}, {self.month}: {count}, {', '.join(self.facts())}"
        none = f"everywatt: no job of {self.user} ended in {self.month}."
        return [Table.lines(first if self.total["jobs"] else none, *map(_job_line, reversed(self.recent)))]

    def facts(self) -> list[str]:
        """Energy, carbon and cost for people; what is not known is left out or said."""
        total = self.total
        energy_j, low_j, high_j = (joules(total, name) for name in ("energy_uj", "low_uj", "high_uj"))
        if energy_j is None:
            return ["energy unknown"]
        shown = format_joules(energy_j, energy_j - (low_j or 0.0), (high_j or 0.0) - energy_j)
        facts = [f"{shown} ({rounded(total, 'Wh', 1000 * energy_j / J_PER_KWH)})"]
        if total["carbon_varying_g"] is not None:
            gap = f" without {format_count(total['uncovered'], 'job')}" if total["uncovered"] else ""
            facts.append(f"{rounded(total, 'g CO2e', total['carbon_varying_g'])}{gap} (grid intensity at the time)")
        if total["carbon_g"] is not None:
            facts.append(rounded(total, "g CO2e", total["carbon_g"]))
        if total["cost"] is not None:
            facts.append(format_money(total["cost"], self.currency))
        if total["waste_uj"]:
            facts.append(f"{waste(total)} for allocated but unused hardware")
        if total["coverage"] is not None and total["coverage"] < COVERED:
            facts.append(f"coverage {format_percent(total['coverage'])}")
        if total["refused"]:
            facts.append(f"{total['refused']} without energy")
        return facts


def _job_line(row: Mapping[str, Any]) -> str:
    used = [f"CPU {percent(row['cpu_s'], row['allocated_cpu_s']) or '-'}"]
    used += [f"GPU {format_percent(row['gpu_utilisation'])}"] if row["gpu_utilisation"] is not None else []
    time = format_duration(row.get("elapsed_s") or 0.0)
    return f"  {shown_run(row):<10} {row['state']:<10} {time:>12}  {short(row):>16}  {', '.join(used)}"


def month_of_user(store: Store, user: str, factors: Factors, now_s: float, last: int) -> UserMonth:
    """This month of a user, and the `last` jobs of the last 31 days."""
    month = month_of(now_s)
    total = in_all(charged(store, *month_bounds_s(month), factors, user))
    recent = jobs(store, Wanted(now_s - RECENT_S, now_s + 1, user=user))[-last:] if last else []
    return UserMonth(user, month, total, recent, factors.currency)
