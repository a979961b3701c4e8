"""How followed processes ended: the kernel's exit records, matched to the members of a tree."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from everywatt.sensors import procfs
from everywatt.sensors.usage.exits import Exit, ExitRecords

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from everywatt.sensors.usage.member import Member

_TICK_S = 1.0 / procfs.TICKS_PER_S
_ROUNDING_S = 2 * _TICK_S  # /proc gives user and system time in whole ticks


def open_records() -> tuple[ExitRecords | None, str]:
    """The exit records, or None and why there are none."""
    try:
        return ExitRecords(), ""
    except PermissionError:
        return None, "exit records require CAP_NET_ADMIN"
    except (OSError, ValueError) as error:
        return None, f"no exit records: {error}"


def of_whom(records: Iterable[Exit], known: Iterable[int]) -> dict[int, int]:
    """The known pid above each process that ended (its own, if it is known itself); those of others are left out.

    A parent that ended unseen between a known one and its child is in the records too.
    """
    below: dict[int, list[Exit]] = {}
    for record in records:
        below.setdefault(record.ppid, []).append(record)
    owner = {pid: pid for pid in known}
    waiting = [parent for parent in below if parent in owner]
    while waiting:
        parent = waiting.pop()
        for record in below.pop(parent, ()):
            if record.pid not in owner:
                owner[record.pid] = owner[parent]
                waiting.append(record.pid)
    return owner


def is_about(record: Exit, member: Member) -> bool:
    """False where the member is younger than the process of the record: its number was given out again."""
    if member.stat is None:
        return True
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - member.stat.start * _TICK_S
    return age_s >= record.age_s - 0.1


def row_of(record: Exit, *, start: int | None = None, meter: bool = False) -> dict[str, Any]:
    """The row of a process that ended."""
    row: dict[str, Any] = {
        "pid": record.pid,
        "start": start,
        "ppid": record.ppid,
        "name": record.name,
        "uid": record.uid,
        "cpu_s": record.cpu_s,
        "exit": True,
        "gone": True,
    }
    if meter:
        row["meter"] = True
    return row


def completed(unseen: Mapping[int, list[Exit]], parents: Mapping[int, Member]) -> list[Exit]:
    """Records of processes that were never read, with what they used after their record was written.

    The kernel adds all that a child used to its parent once it was waited for. What that is more than the records say
    was used by those that ended, in their last tick; it is shared among them, none getting more than a tick, or more
    than it lived.
    """
    done: list[Exit] = []
    for pid, records in unseen.items():
        parent = parents.get(pid)
        if parent is None or parent.stat is None:
            done += records
            continue
        parent.known_s += sum(record.cpu_s for record in records)
        more_s = parent.stat.children_cpu_s - parent.base_s - parent.known_s
        room = [max(0.0, min(_TICK_S, record.age_s - record.cpu_s)) for record in records]
        share = min(1.0, more_s / sum(room)) if more_s > _ROUNDING_S and sum(room) > 0 else 0.0
        for record, free_s in zip(records, room, strict=True):
            done.append(record._replace(cpu_s=record.cpu_s + share * free_s))
        parent.known_s += share * sum(room)
    return done
