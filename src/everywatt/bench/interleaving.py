"""In which order trials run: every candidate once in a block, and every other block backwards.

A machine that warms up or slows down during a comparison then favours none of them: over two blocks each candidate
has the same mean place (ABBA).
"""

from __future__ import annotations

from collections.abc import Iterator


def blocks(candidates: int) -> Iterator[tuple[int, ...]]:
    """Candidates by number, block after block, without end.

    >>> from itertools import islice
    >>> list(islice(blocks(2), 3))
    [(0, 1), (1, 0), (0, 1)]
    """
    forward = tuple(range(candidates))
    # Every pair of blocks starts one further on, so that with three or more none is always the first or the last.
    turn = 0
    while True:
        shifted = forward[turn % candidates :] + forward[: turn % candidates] if candidates > 2 else forward
        yield shifted
        yield tuple(reversed(shifted))
        turn += 1
