"""A job of a scheduler, as those who tell jobs and those who ask for them know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a scheduler. `id` is its owner's label; the rest is in `everywatt_job_info`, "" where unknown."""

    id: str
    user: str = ""
    account: str = ""
    partition: str = ""


def user_name(uid: object) -> str:
    """The name of a user's number, else the number; "" where there is none."""
    import pwd

    if not isinstance(uid, int):
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
