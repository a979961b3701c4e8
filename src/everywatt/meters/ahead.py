"""Work done ahead of who needs it, in order: text is parsed by threads while rows before it are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

THREADS: Final = 1
In = TypeVar("In")
Out = TypeVar("Out")


def ahead(jobs: Iterable[In], work: Callable[[In], Out], threads: int = THREADS) -> Iterator[Out]:
    """`work` of every job, in the order of the jobs, at most `threads` of them before they are asked for.

    The first is done here: what has one piece only starts no thread. An error of `work` comes when it is its turn, one
    of `jobs` at once.
    """
    waiting: deque[Future[Out]] = deque()
    rest = iter(jobs)
    for first in rest:
        yield work(first)
        break
    with ThreadPoolExecutor(threads, thread_name_prefix="everywatt-ahead") as pool:
        try:
            for job in rest:
                waiting.append(pool.submit(work, job))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
        except GeneratorExit:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        while waiting:
            yield waiting.popleft().result()
