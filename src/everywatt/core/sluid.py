"""SLUIDs: the job identifiers that Slurm 26.05 and later put into cgroup paths in place of job numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from everywatt.core.lazy_dataclass import dataclass

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: without I, L, O and U
_FORM = re.compile(f"s[0-9A-F][{_DIGITS}]{{12}}")  # 13 digits carry 65 bits, and a SLUID has 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Sluid:
    """What a SLUID says: the cluster's number, when it was given out (to the millisecond), a running number."""

    text: str
    cluster: int
    made: datetime
    sequence: int


def parse_sluid(text: str) -> Sluid | None:
    """The parts of `s` and 13 digits of base 32; None where the text is something else.

    >>> parse_sluid("s5K1KKYAYG5D00").made.isoformat(timespec="milliseconds")
    '2026-03-17T16:44:29.741+00:00'
    """
    if not _FORM.fullmatch(text):
        return None
    value = 0
    for digit in text[1:]:
        value = value << 5 | _DIGITS.index(digit)
    made = _EPOCH + timedelta(milliseconds=value >> 10 & (1 << 42) - 1)
    return Sluid(text, value >> 52, made, value & 0x3FF)
