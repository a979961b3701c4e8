"""Asking: what a client of somebody else does wrong is one query's, and what the user did wrong is told."""

import asyncio
from types import SimpleNamespace

import pytest

from everywatt.bench.llm.running import Bench
from everywatt.bench.llm.values import Ask
from everywatt.core.errors import UsageError


def asked(error):
    async def ask(_):
        raise error

    bench = SimpleNamespace(_client=SimpleNamespace(ask=ask))
    return asyncio.run(Bench._ask(bench, Ask("x")))


def test_a_client_that_raises_costs_one_query():
    answer = asked(KeyError("choices"))
    assert (answer.status, answer.error) == ("failed", "the client failed: KeyError: 'choices'")
    assert 0 < answer.began_ns <= answer.ended_ns


def test_a_mistake_of_the_user_ends_the_run():
    with pytest.raises(UsageError):
        asked(UsageError("no"))
