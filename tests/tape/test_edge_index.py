"""Inline reads by time: never fewer than the table holds, and no more than needed."""

from __future__ import annotations

import random

from everywatt.tape.checking import EdgeIndex


def test_every_read_of_a_time_is_between_the_numbers():
    random_ = random.Random(3)
    # Threads read at nearly the same time: numbers follow the order in which reads came, times only nearly.
    rows = [(random_.randrange(1, 4), number, 100 * number + random_.randrange(-450, 450)) for number in range(1, 400)]
    index = EdgeIndex(rows)
    for _ in range(500):
        group, start = random_.randrange(1, 5), random_.randrange(-1000, 42_000)
        end = start + random_.randrange(0, 3000)
        wanted = [number for own, number, read in rows if own == group and start <= read <= end]
        found = index.between(group, start, end)
        if wanted:
            assert found is not None and found[0] <= wanted[0] and wanted[-1] <= found[1]
            assert found[1] - found[0] <= wanted[-1] - wanted[0] + 80
        elif found is not None:
            assert found[1] - found[0] < 80


def test_no_reads():
    assert EdgeIndex([]).between(1, 0, 10) is None
    assert EdgeIndex([(1, 1, 5)]).between(1, 6, 10) is None
    assert EdgeIndex([(1, 1, 5)]).between(1, 0, 10) == (1, 1)
