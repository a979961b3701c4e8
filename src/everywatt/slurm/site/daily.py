"""The daily work of a site: sacct joined, days made compact, carbon and cost summed, a folder for each user.

Everything is derived from the store and replaced as a whole, so doing it twice changes nothing.

    STORE/daily/2026-11-15.json                               the day by user, account and state
    STORE/users/ada/jobs/date=2026-11-15/compact.parquet      her jobs, for her alone
    STORE/users/ada/daily/2026-11-15.json                     her day
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import UsageError
from everywatt.core.files import replace_text
from everywatt.core.format import format_count, format_quantity
from everywatt.core.jsonio import document, dumps
from everywatt.core.plugins import arrow
from everywatt.core.tables import Table
from everywatt.core.units import J_PER_KWH
from everywatt.footprint.carbon import Factors
from everywatt.slurm.site.carbon import OUTSIDE, added_up, charged, in_all
from everywatt.slurm.site.figures import nodes_of, partly_covered
from everywatt.slurm.site.monthly import sums_of
from everywatt.slurm.site.store import Store, day_bounds_s
from everywatt.slurm.site.totals import node_sums
from everywatt.slurm.site.users import Person, folder_of, make_folder, person, put

LOCK: Final = ".daily.lock"
GROUPS: Final = ("user", "account", "state", "partition")
PRIVATE: Final = ("jobs", "nodes", "daily")


@dataclass(slots=True)
class Done:
    """What a daily run did."""

    day: date
    compacted: dict[str, int] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    users: list[str] = field(default_factory=list)
    without_account: list[str] = field(default_factory=list)
    sacct: dict[str, int] | None = None  # what Slurm's accounting added; None where it was not asked

    def to_dict(self) -> dict[str, Any]:
        names = ("compacted", "users", "without_account", "sacct")
        return {"date": self.day.isoformat(), **{name: getattr(self, name) for name in names}, "day": self.summary}

    def tables(self) -> list[Table]:
        total, joined = self.summary["total"], self.sacct
        energy = "no energy"
        if (energy_j := total["energy_j"]) is not None:
            ends_j = (energy_j if total.get(end) is None else total[end] for end in ("low_j", "high_j"))
            value, low, high = (1000 * each / J_PER_KWH for each in (energy_j, *ends_j))
            energy = f"{format_quantity(value, 'Wh', value - low, high - value)}{partly_covered(total.get('coverage'))}"
        refused = format_count(total["refused"], "record")
        lines = [f"{self.day}: {format_count(total['jobs'], 'job')}, {energy}, {refused} without energy"]
        if joined is not None:
            names = (("jobs", "job", ""), ("changed", "record", " changed"), ("added", "job", " added"))
            counts = (f"{format_count(joined[name], noun)}{done}" for name, noun, done in names)
            lines.append(f"sacct: {', '.join(counts)}")
        lines += [f"compact: {name} ({format_count(count, 'file')})" for name, count in self.compacted.items()]
        return [Table.lines(*lines, f"users: {', '.join(self.users) or 'none'}")]


def compact_past(store: Store, until: date) -> dict[str, int]:
    """Make every day up to and with `until` compact; gives how many files each had that was not."""
    found = {}
    for kind in ("jobs", "nodes"):
        for day in store.days(kind):
            if day <= until and (count := store.compact(day, kind)):
                found[f"{kind}/{day.isoformat()}"] = count
    return found


def daily(store: Store, day: date, factors: Factors) -> Done:
    """Compact, sum up and hand out. The caller holds the lock."""
    done = Done(day, compact_past(store, day))
    # A record that came late makes its day again.
    late = [date.fromisoformat(name[5:]) for name in done.compacted if name.startswith("jobs/")]
    for each in sorted({day, *late}):
        table = charged(store, *day_bounds_s(each), factors, columns=("*",))
        summary = {"date": each.isoformat(), **summed_up(table, store, each), "factors": factors.lines()}
        folder = store.path / "daily"
        folder.mkdir(exist_ok=True)
        replace_text(folder / f"{each.isoformat()}.json", dumps(document("slurm-day", summary), indent=2) + "\n")
        if each == day:
            done.summary = summary
        for who, part in _by_person(table, done):
            _hand_out(store.path, who, each, part, factors)
            if who.name not in done.users:
                done.users.append(who.name)
    return done


def summed_up(table: Any, store: Store | None = None, day: date | None = None) -> dict[str, Any]:
    """The sums of a charged table: in all, and by user, account, state and partition."""
    data = sums_of(in_all(table), {by: added_up(table, by) for by in GROUPS})
    if store is not None and day is not None:
        since_s, until_s = day_bounds_s(day)
        data["nodes"] = nodes_of(node_sums(store, since_s + 3599, until_s))
    return data


def protect(store: Path, group: str) -> None:
    """The store for a group of administrators; others may pass through it to their own folder."""
    for name in PRIVATE:
        folder = store / name
        folder.mkdir(exist_ok=True)
        try:
            shutil.chown(folder, group=group)
        except LookupError:
            raise UsageError(f"There is no group '{group}'.", cure="groupadd, or another --group") from None
        except PermissionError:
            raise UsageError(f"{folder} cannot be given to the group {group}.", cure="run this as root") from None
        folder.chmod(0o2750)
    store.chmod(store.stat().st_mode & 0o2000 | 0o711)


def open_to_all(store: Path) -> bool:
    """Whether every user of the machine can read everyone's jobs."""
    with suppress(OSError):
        return bool(store.stat().st_mode & 0o001 and (store / "jobs").stat().st_mode & 0o005 == 0o005)
    return False


def _by_person(table: Any, done: Done) -> Iterator[tuple[Person, Any]]:
    users = table.column("user").to_pylist()
    uids = dict(zip(users, table.column("uid").to_pylist(), strict=True))
    places: dict[str, list[int]] = {}
    for place, user in enumerate(users):
        places.setdefault(user or "", []).append(place)
    for user, rows in sorted(places.items()):
        who = person(user, uids.get(user))
        if who is None:
            if user not in done.without_account:
                done.without_account.append(user)
            continue
        yield who, table.take(rows)


def _hand_out(store: Path, who: Person, day: date, table: Any, factors: Factors) -> None:
    _, pq = arrow()
    make_folder(store, who)
    folder = folder_of(store, who.name)
    content = io.BytesIO()
    kept = table.drop_columns(["carbon_g", "carbon_varying_g", "cost", OUTSIDE])
    pq.write_table(kept, content, compression="zstd")
    put(who, folder / "jobs" / f"date={day.isoformat()}" / "compact.parquet", content.getvalue())
    summary = {"date": day.isoformat(), "user": who.name, **summed_up(table), "factors": factors.lines()}
    text = dumps(document("slurm-day", summary), indent=2) + "\n"
    put(who, folder / "daily" / f"{day.isoformat()}.json", text.encode())
