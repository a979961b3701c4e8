"""Slurm's ways of writing: nodes (`n[1-3,08]`), numbers (`0,2-3`), CPUs by node (`4,2(x3)`), times, sizes.

Their text may be a user's, so sizes are checked before anything is expanded.
"""

from __future__ import annotations

import re
from typing import Final

MOST: Final = 65_536  # Slurm's own limit of nodes (MAX_SLURM_NODES)
_DIGITS: Final = 9


def expand(names: str) -> list[str]:
    """The nodes of a Slurm list; [] where there would be more than Slurm can have, or a bracket is not closed.

    >>> expand("n[1-2,07-08],login")
    ['n1', 'n2', 'n07', 'n08', 'login']
    """
    if names.rfind("[") > names.rfind("]"):
        return []  # each open bracket would be looked for its end, to the end of the text
    found: list[str] = []
    for part in filter(None, re.findall(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*", names)):
        pieces = [""]
        for text, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            options = [text] if text else _range(ranges)
            if not options or len(found) + len(pieces) * len(options) > MOST:
                return []
            pieces = [piece + one for piece in pieces for one in options]
        found += pieces
    return found


def _range(text: str) -> list[str]:
    """The numbers between two brackets, as they are written; [] if there are too many or one is not a number."""
    found: list[str] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if not (_is_number(low) and _is_number(high or low)) or len(found) + int(high or low) - int(low) >= MOST:
            return []
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high or low) + 1)]
    return found


def indices(text: str) -> list[int]:
    """The numbers of `0,2-3`, as SLURM_JOB_GPUS writes them; anything else is left out.

    >>> indices("0,2-3")
    [0, 2, 3]
    """
    found: list[int] = []
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if _is_number(low) and _is_number(high or low) and int(high or low) - int(low) < 1024:
            found += range(int(low), int(high or low) + 1)
        if len(found) > MOST:
            return []
    return found


def cpus_of(text: str, names: str, node: str) -> float | None:
    """The CPUs of a node by SLURM_JOB_CPUS_PER_NODE and the job's list of nodes; None where they do not say.

    >>> cpus_of("4,2(x3)", "n[0-3]", "n2")
    2.0
    """
    if _is_number(text):
        return float(text)
    nodes = expand(names)
    place = nodes.index(node) if node in nodes else -1
    for part in text.split(",") if place >= 0 else ():
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part)
        if match is None:
            break
        place -= int(match[2] or 1)
        if place < 0:
            return float(match[1])
    return None


def number(text: str | None) -> int | None:
    """A whole number that fits into 64 bits; None where the text is not one."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None


def duration_s(text: str) -> float | None:
    """Seconds of `[DAYS-][HOURS:]MINUTES:SECONDS`; None where the text is not one.

    >>> duration_s("1-02:00:30.5")
    93630.5
    """
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if match is None:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4])


def size_bytes(text: str, plain: int = 1) -> int | None:
    """Bytes of `2048`, `1.5G`, …; a number alone counts as so many times `plain`. None if the text is not a size."""
    match = re.fullmatch(r"([\d.]{1,18})([KMGT]?)", text)
    try:
        return int(float(match[1]) * (1 << 10 * " KMGT".index(match[2]) if match[2] else plain)) if match else None
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS
