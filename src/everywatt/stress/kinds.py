"""Kinds of CPU work. Each is a loop in native code that a worker repeats, with what one round of it comes to.

Watts differ between them at equal utilisation: `integer` multiplies long numbers in registers, `float` is scalar
floating point, `vector` is a matrix product that fills the vector units from the nearest cache, `memory` streams
through more than the caches hold, `branchy` sorts random numbers, so that half of its branches are predicted wrongly.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
STREAM_BYTES = (64 * MIB, 256 * MIB)
"""Smallest and largest share of one of the two halves of a stream."""
_STREAM_ROUND = MIB // 2
_MATRIX = 48
_NUMBERS = 2048
_SORTED = 1024
_MODULUS = 2**255 - 19
ROUND_NS = 200_000
"""Approximate time that a worker works between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of work, ready to be done.

    work        does one round
    operations  what a round comes to: multiplications of long numbers, additions, products, elements sorted, bytes
    bytes       bytes of a round that come from and go to main memory
    rounds      rounds between two looks at the clock
    """

    work: Callable[[], object]
    operations: int
    bytes: int = 0
    rounds: int = 1


def prepare(name: str, clock: Callable[[], int] = time.process_time_ns) -> Kind:
    """The work of this kind, with as many rounds at a time as take about 0.2 ms here."""
    kind = _MAKERS[name]()
    kind.work()
    rounds = 1
    while True:
        start = clock()
        for _ in range(rounds):
            kind.work()
        took = clock() - start
        if took >= ROUND_NS / 4:
            return Kind(kind.work, kind.operations, kind.bytes, max(1, round(rounds * ROUND_NS / took)))
        rounds *= 2


def stream_bytes(sys: Path = Path("/sys")) -> int:
    """Bytes from which, and to which, memory-bound work copies: each half as large as the last cache."""
    sizes = [0]
    for file in (sys / "devices" / "system" / "cpu" / "cpu0" / "cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(int(file.read_text().strip().removesuffix("K")) * 1024)
    whole = -(-max(sizes) // _STREAM_ROUND) * _STREAM_ROUND
    return min(max(whole, STREAM_BYTES[0]), STREAM_BYTES[1])


def _integer() -> Kind:
    # 3 ** (2 ** 64) modulo a prime of 255 bits: 64 squarings of long numbers.
    return Kind(lambda: pow(3, 2**64, _MODULUS), 64)


def _float() -> Kind:
    chance = random.Random(1)
    here, there = ([chance.random() for _ in range(_NUMBERS)] for _ in range(2))
    return Kind(lambda: math.dist(here, there), 2 * _NUMBERS)


def _vector() -> Kind:
    import numpy

    left, right = (numpy.random.default_rng(seed).random((_MATRIX, _MATRIX)) for seed in (1, 2))
    out = numpy.empty_like(left)
    return Kind(lambda: numpy.matmul(left, right, out=out), 2 * _MATRIX**3)


def _memory() -> Kind:
    import numpy

    source, target = (numpy.full(stream_bytes() // 8, value, dtype=numpy.float64) for value in (1.0, 2.0))
    length = _STREAM_ROUND // 8
    place = 0

    def stream() -> None:
        nonlocal place
        numpy.copyto(target[place : place + length], source[place : place + length])
        place = (place + length) % len(source)

    return Kind(stream, 2 * _STREAM_ROUND, 2 * _STREAM_ROUND)


def _branchy() -> Kind:
    chance = random.Random(2)
    numbers = [chance.random() for _ in range(_SORTED)]
    return Kind(lambda: sorted(numbers), _SORTED)


_MAKERS: dict[str, Callable[[], Kind]] = {
    "integer": _integer,
    "float": _float,
    "vector": _vector,
    "memory": _memory,
    "branchy": _branchy,
}
