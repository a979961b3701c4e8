"""A benchmark of a model in virtual time, on a machine of 50 W: order, times, joules, and what goes wrong."""

import asyncio
from dataclasses import replace

import pytest
from virtual_loop import VirtualLoop
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.bench.llm.loads import Level, parse_rate, repeated
from everywatt.bench.llm.plan import LlmPlan
from everywatt.bench.llm.records import OK, Answer, Item
from everywatt.bench.llm.result import evaluate
from everywatt.bench.llm.rows import LlmResult
from everywatt.bench.llm.running import LOST, PROBE_WAITS_S, Bench
from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, UsageError

FIRST_S, PIECE_S, PIECES = 0.2, 0.05, 6


@pytest.fixture
def world(tmp_path):
    with VirtualWorld(tmp_path, cpu="constant:50W") as made:
        yield made


class Model:
    """Answers in a known time. `wrong` is raised by the query of that number; after `answers` its server is gone."""

    where = "here"

    def __init__(self, world, wrong=None, answers=None):
        self._world, self._wrong, self._left = world, wrong or {}, answers
        self.asked = self.probes = 0
        self.where = "here" if answers is None else "server"

    async def health(self):
        self.probes += 1
        if self._left == 0:
            raise MeasurementRefused("No server answers at http://127.0.0.1:1: connection refused.")
        return []

    async def ask(self, ask):
        self.asked += 1
        sent_ns = self._world.now_ns
        if (error := self._wrong.get(self.asked)) is not None:
            raise error
        if self._left == 0:
            return Answer("failed", error="connection refused", sent_ns=sent_ns, ended_ns=sent_ns + 1)
        if self._left is not None:
            self._left -= 1
        await asyncio.sleep(FIRST_S)
        pieces = [self._world.now_ns]
        for _ in range(PIECES - 1):
            await asyncio.sleep(PIECE_S)
            pieces.append(self._world.now_ns)
        return Answer(
            OK, "x", began_ns=sent_ns, sent_ns=sent_ns, ended_ns=pieces[-1], piece_ns=tuple(pieces), input_tokens=5,
            output_tokens=PIECES,
        )  # fmt: skip

    async def close(self): ...


def benched(world, client, levels, queries=8, idle_s=2.0, warmup=0):
    meter = Meter("llm", sensors=["virtual"], period="20ms")
    items = [Item(f"i{n}", "x") for n in range(queries)]
    plan = LlmPlan(loads=tuple(levels), boundary="machine")
    asked = {"warmup": warmup, "idle_s": idle_s, "clock": world.time}
    bench = Bench(client, items, plan, meter, **asked, loop=lambda: VirtualLoop(world.time))
    return bench.run(), plan


def test_each_load_has_its_time_its_joules_and_its_turn(world):
    levels = repeated((Level(1), Level(4)), 2)
    outcome, about = benched(world, Model(world), levels)
    assert outcome.ended == "done"
    loads = [span for span in outcome.run.spans if span.name == "load"]
    order = [span.attributes["level"] for span in sorted(loads, key=lambda span: span.start_ns)]
    assert order == [f"concurrency {n}, repeat {r}" for n, r in ((1, 1), (4, 1), (4, 2), (1, 2))], "ABBA"
    whole_s = FIRST_S + (PIECES - 1) * PIECE_S
    for one in evaluate(outcome.run, outcome.records, about):
        rounds = 8 if "concurrency 1" in one.level else 2
        assert one.bill.gross.joules == pytest.approx(50 * rounds * whole_s, rel=1e-2)
        assert one.figures["energy_per_output_token"].value == pytest.approx(one.bill.gross.joules / 48)
        assert one.latency["ttft_s"]["p50"] == pytest.approx(FIRST_S, abs=1e-4)


def test_a_rate_is_kept_whatever_the_model_does(world):
    outcome, _ = benched(world, Model(world), (parse_rate("constant:10"),))
    sent_s = [record.answer.sent_ns / NS for record in outcome.records]
    first_s = min(sent_s)
    assert sorted(at_s - first_s for at_s in sent_s) == pytest.approx([n / 10 for n in range(8)], abs=1e-4)


def test_a_client_that_raises_costs_one_query(world):
    outcome, _ = benched(world, Model(world, wrong={3: KeyError("choices")}), (Level(1),))
    failed = [record.answer for record in outcome.records if not record.ok]
    assert [(one.status, one.error) for one in failed] == [("failed", "the client failed: KeyError: 'choices'")]
    assert len(outcome.records) == 8


def test_a_mistake_of_the_user_ends_the_run(world):
    with pytest.raises(UsageError):
        benched(world, Model(world, wrong={1: UsageError("no")}), (Level(1),))


@pytest.mark.parametrize("width", [1, 4])
def test_a_dead_server_ends_the_run_instead_of_failing_every_item(world, width):
    client = Model(world, answers=5)
    outcome, _ = benched(world, client, (Level(width),), queries=200)
    assert outcome.ended == LOST and "No server answers" in outcome.notes[-1]
    assert client.asked <= 5 + width and client.probes >= 1 + len(PROBE_WAITS_S)
    assert len(outcome.records) == client.asked, "what failed is on record"


def test_notes_of_the_run_and_of_its_only_load_are_both_in_the_json(world):
    outcome, about = benched(world, Model(world, wrong={1: KeyError("choices")}), (Level(1),), warmup=1)
    (found,) = evaluate(outcome.run, outcome.records, replace(about, warnings=("of the load",)))
    data = LlmResult("run", about, (found,), notes=outcome.notes).to_dict()
    assert "of the load" in data["notes"] and "warm-up 1 got no answer" in data["notes"][0]


class Counting(Model):
    """Its server counts, as vLLM does, that requests waited for half of the time before their first token."""

    async def phase_counters(self):
        return {"queue": (self.asked * FIRST_S / 2, self.asked), "prefill": (self.asked * FIRST_S / 2, self.asked)}


def test_queue_and_prefill_are_what_the_server_counted(world):
    outcome, about = benched(world, Counting(world), (Level(1),))
    (one,) = evaluate(outcome.run, outcome.records, about)
    assert one.figures["server_queue_time"].value == pytest.approx(FIRST_S / 2)
    assert one.figures["server_prefill_time"].value == pytest.approx(FIRST_S / 2)
    # On a machine of constant power the energy of each phase is its time.
    joules = [one.figures[f"{name}_energy"].value for name in ("queue", "prefill", "decode")]
    assert joules == pytest.approx([8 * 50 * s for s in (FIRST_S / 2, FIRST_S / 2, (PIECES - 1) * PIECE_S)], rel=0.02)
