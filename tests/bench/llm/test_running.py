"""Asking: what a client of somebody else does wrong is one query's, and what the user did wrong is told."""

import asyncio
from types import SimpleNamespace

import pytest

from everywatt.bench.llm.loads import Level
from everywatt.bench.llm.running import Bench, Plan, ServerLost
from everywatt.bench.llm.values import OK, Answer, Ask, Item
from everywatt.core.errors import MeasurementRefused, UsageError


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


class Gone:
    """A client whose server dies after some answers: connections are refused, and so is every probe."""

    where = "server"

    def __init__(self, answers):
        self.left, self.asked, self.probes = answers, 0, 0

    async def ask(self, ask):
        self.asked += 1
        if self.left:
            self.left -= 1
            return Answer(OK, "x", sent_ns=1, ended_ns=2, piece_ns=(1, 2))
        return Answer("failed", error="connection refused", sent_ns=1, ended_ns=2)

    async def health(self):
        self.probes += 1
        if not self.left:
            raise MeasurementRefused("No server answers at http://127.0.0.1:1: connection refused.")
        return []


class Spans:
    """A recording that only counts."""

    def span_open(self, name, **more):
        return name

    def span_close(self, uid, **more):
        pass

    def mark(self):
        return None


@pytest.mark.parametrize("width", [1, 4])
def test_a_dead_server_ends_the_run_instead_of_failing_every_item(width):
    client, kept = Gone(5), []
    bench = Bench(client, [Item(f"i{n}", "x") for n in range(200)], Plan(), None, {}, probe_waits_s=(0.0, 0.0))
    journal = SimpleNamespace(add=kept.append)
    with pytest.raises(ServerLost, match="No server answers"):
        asyncio.run(bench._level(Spans(), journal, Level(width), bench._items))
    assert client.asked <= 5 + width and client.probes >= 2
    assert len(kept) == client.asked, "what failed is on record"
