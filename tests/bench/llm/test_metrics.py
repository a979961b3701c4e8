"""Figures from a bill that is written down."""

import math
from dataclasses import replace

import pytest

from everywatt.bench.experiment import JsonLines
from everywatt.bench.llm.energy import Bill, QueryEnergy, refused
from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.metrics import metrics
from everywatt.bench.llm.plan import LlmPlan
from everywatt.bench.llm.records import (
    QUERIES,
    SCORES,
    Answer,
    Item,
    Record,
    Score,
    read_records,
    recorded_items,
    score_entry,
)
from everywatt.bench.llm.result import agreement, knee, repeats_data
from everywatt.bench.llm.rows import LlmResult, figure_rows, write_query_parquet
from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.energy import Energy

S = 1_000_000_000


def energy(joules, share=0.1):
    return Energy(joules, Budget((Term("gain", "g", joules * share),)), "cpu", "counter")


def record(n, verdict="right", tokens=10, status="ok"):
    times = tuple(n * S + k * S // 10 for k in range(1, 11))
    score = Score(verdict) if status == "ok" else None
    answer = Answer(status, "x", "", n * S, n * S, (n + 2) * S, times, times[0], 5, tokens, "usage")
    return Record(f"i{n}", "concurrency 1", f"s{n}", answer, score)


def bill(n, ticks=5, share=0.1):
    phases = {"queue": (0.0, 0), "prefill": (2.0, ticks), "decode": (8.0, ticks)}
    queries = {f"s{k}": QueryEnergy(energy(10.0), 6.0, phases) for k in range(n)}
    return Bill(energy(10.0 * n, share), energy(6.0 * n), energy(1.0), "server", "about", queries, 2.0 * n, 0.1)


def test_every_figure_by_its_formula():
    records = [record(n, "right" if n < 6 else "wrong" if n < 9 else "unparsed") for n in range(10)]
    found = metrics("concurrency 1", records, bill(10))
    value = {name: figure.value for name, figure in found.figures.items()}
    assert found.accuracy.value == 0.6 and found.verdicts == {"right": 6, "wrong": 3, "unparsed": 1}
    assert value["energy_per_request"] == 10.0
    assert value["energy_per_output_token"] == 1.0
    assert value["energy_net_per_output_token"] == pytest.approx(0.6)
    assert value["energy_per_total_token"] == pytest.approx(100 / 150)
    assert value["energy_per_correct_answer"] == pytest.approx(100 / 6)
    assert value["accuracy_per_joule_mean"] == pytest.approx(0.06)
    assert value["accuracy_per_joule_total"] == pytest.approx(0.006)
    assert value["accuracy_per_watt"] == pytest.approx(0.6 / 5)
    assert value["tokens_per_second_per_watt"] == pytest.approx(1.0)
    assert value["energy_delay_product"] == pytest.approx(10 * 2)
    assert value["output_tokens_per_second"] == pytest.approx(5)
    assert (value["prefill_energy"], value["decode_energy"]) == (20, 80)
    token = found.figures["energy_per_output_token"]
    assert (token.low, token.high) == pytest.approx((0.9, 1.1))
    joule = found.figures["accuracy_per_joule_mean"]
    assert joule.low < 0.06 * 0.7 and joule.high > 0.06 * 1.3


def test_a_phase_that_the_sensor_hardly_saw_is_refused():
    found = metrics("concurrency 1", [record(n) for n in range(4)], bill(4, ticks=2))
    assert found.figures["prefill_energy"].value is None
    why = found.figures["prefill_energy"].refused
    assert "4 of 4 prefills are covered by fewer than 3 readings" in why and "100 ms" in why


@pytest.mark.parametrize("verdict", ["right", "wrong"])
def test_always_the_same_verdict_is_not_certainty(verdict):
    found = metrics("concurrency 1", [record(n, verdict) for n in range(10)], bill(10))
    joule = found.figures["accuracy_per_joule_mean"]
    assert joule.high - joule.low > 0.02
    correct = found.figures["energy_per_correct_answer"]
    assert (correct.refused == "no answer is correct") == (verdict == "wrong")


@pytest.mark.parametrize("right", [1, 2, 19])
def test_a_figure_for_each_joule_is_never_surer_than_its_accuracy(right):
    found = metrics(
        "concurrency 1", [record(n, "right" if n < right else "wrong") for n in range(20)], bill(20, share=0.0)
    )
    joule, accuracy = found.figures["accuracy_per_joule_mean"], found.accuracy
    assert joule.low <= accuracy.low / 10 * 1.001 and joule.high >= accuracy.high / 10 * 0.999


def test_all_right_answers_cost_as_unequally_as_they_did():
    uneven = bill(20, share=0.0)
    queries = {f"s{n}": replace(uneven.queries[f"s{n}"], energy=energy(1.0 + 18.0 * (n % 2), 0.0)) for n in range(20)}
    found = metrics("concurrency 1", [record(n) for n in range(20)], replace(uneven, queries=queries))
    correct = found.figures["energy_per_correct_answer"]
    assert correct.low < 7.0 and correct.high > 13.0  # a mean of 20 that are 1 or 19 J: 10 ± 4


def test_queues_too_short_to_see_are_refused_beside_a_query_without_one():
    seen = bill(4)
    short = {"queue": (0.5, 1), "prefill": (2.0, 5), "decode": (7.5, 5)}
    queries = {name: one if name == "s0" else replace(one, phases=short) for name, one in seen.queries.items()}
    found = metrics("concurrency 1", [record(n) for n in range(4)], replace(seen, queries=queries))
    assert "3 of 4 queues are covered by fewer than 3 readings" in found.figures["queue_energy"].refused
    assert metrics("concurrency 1", [record(n) for n in range(4)], seen).figures["queue_energy"].value == 0


def test_an_interval_wider_than_the_figure_ends_at_nothing():
    found = metrics("concurrency 1", [record(n) for n in range(10)], bill(10, share=1.5))
    token = found.figures["energy_per_output_token"]
    assert (token.low, token.value) == (0.0, 1.0)
    assert found.figures["accuracy_per_watt"].high is None


def test_a_figure_for_each_joule_follows_an_energy_that_may_be_far_less_or_more():
    found = bill(32)
    skewed = Energy(320.0, Budget(bounds=(Bound("model", "m", 300.0, 560.0),)), "machine", "modelled")
    records = [record(n, "right" if n % 2 else "wrong") for n in range(32)]
    figures = metrics("concurrency 1", records, replace(found, gross=skewed)).figures
    for name in ("accuracy_per_joule_mean", "accuracy_per_watt", "tokens_per_second_per_watt"):
        assert figures[name].high > 0.95 * figures[name].value * 320 / 20
        assert figures[name].value * 320 / 880 / 2 < figures[name].low < 1.05 * figures[name].value * 320 / 880
    correct = figures["energy_per_correct_answer"]
    assert correct.low < 1.05 * correct.value * 20 / 320 and correct.high > 0.95 * correct.value * 880 / 320


def test_missing_tokens_refuse():
    found = metrics("concurrency 1", [record(0, tokens=None)], bill(1))
    assert found.figures["energy_per_output_token"].refused == "output tokens are unknown"
    assert any("token counts are unknown" in note for note in found.notes)


def test_a_query_that_failed_is_not_right_and_its_joules_are_charged():
    """Two servers that know half of the answers; one fails wherever it would be wrong."""
    honest = metrics("c", [record(n, "right" if n % 2 else "wrong") for n in range(20)], bill(20))
    failing = metrics("c", [record(n) if n % 2 else record(n, status="failed") for n in range(20)], bill(20))
    assert (failing.accuracy.value, failing.accuracy.n) == (0.5, 20)
    for name in ("accuracy_per_joule_mean", "accuracy_per_watt", "energy_per_correct_answer"):
        assert failing.figures[name].value == pytest.approx(honest.figures[name].value)
    # Every joule is paid for the ten answers that came.
    assert failing.figures["energy_per_request"].value == pytest.approx(20.0)
    assert (failing.answered, failing.queries) == (10, 20)
    assert failing.to_dict()["answered"] == 10


def test_failures_are_told_with_their_reasons():
    lost = [record(n, status="failed") for n in range(3)]
    lost = [replace(one, answer=replace(one.answer, error="HTTP 500: boom")) for one in lost]
    late = replace(record(3, status="timeout"), answer=replace(record(3).answer, status="timeout", error="too late"))
    found = metrics("c", [*lost, late, record(4)], bill(5))
    assert found.to_dict()["failures"] == [
        {"status": "failed", "reason": "HTTP 500: boom", "queries": 3},
        {"status": "timeout", "reason": "too late", "queries": 1},
    ]
    assert found.items[0]["error"] == "HTTP 500: boom" and found.items[4]["error"] is None
    assert "HTTP 500: boom" in LlmResult("run", {}, (found,)).to_csv()


def test_figures_over_the_covered_queries_say_how_many():
    mixed = bill(8)
    hardly = {**mixed.queries["s0"].phases, "prefill": (2.0, 1)}
    short = {f"s{n}": replace(mixed.queries[f"s{n}"], phases=hardly) for n in range(3)}
    found = metrics("c", [record(n) for n in range(8)], replace(mixed, queries={**mixed.queries, **short}))
    prefill = found.figures["prefill_energy"]
    assert prefill.value == pytest.approx(5 * 2.0) and "5 of 8 queries" in prefill.formula
    assert found.figures["prefill_energy_per_token"].value == pytest.approx(2.0 / 5)
    part = metrics("c", [record(n) for n in range(10)], bill(8))
    joule = part.figures["accuracy_per_joule_mean"]
    assert joule.value == pytest.approx(0.1) and "8 of 10 queries" in joule.formula


def test_without_energy_everything_says_why():
    found = metrics("concurrency 1", [record(0)], refused("the server is on another host"))
    for name in ("energy_per_output_token", "accuracy_per_joule_mean", "decode_energy", "energy_delay_product"):
        assert found.figures[name].refused == "the server is on another host"
    assert found.accuracy.value == 1.0


def test_what_nobody_judged_is_neither_right_nor_wrong():
    records = [record(n, "right" if n < 3 else "unevaluated") for n in range(8)]
    found = metrics("concurrency 1", records, bill(8))
    assert (found.accuracy.value, found.accuracy.n) == (1.0, 3)
    assert found.verdicts == {"right": 3, "unevaluated": 5}
    # Joules per right answer are those of the three that were judged.
    assert found.figures["energy_per_correct_answer"].value == pytest.approx(10.0)


def test_accuracy_without_a_verdict_names_only_the_failed():
    asked = replace(record(0, status="failed"), asked=Item("i0", "", None, "exact"))
    rows = figure_rows(metrics("concurrency 1", [asked], bill(1)))
    assert rows[0][-1] == "correct / scored queries (1 failed); Wilson"


def test_perplexity_is_of_the_tokens_that_have_a_probability():
    records = [record(n) for n in range(6)]
    assert "perplexity" not in metrics("concurrency 1", records, bill(6)).figures
    told = [
        replace(r, answer=replace(r.answer, logprob_sum=-5.0 - n % 2, logprob_tokens=10)) for n, r in enumerate(records)
    ]
    found = metrics("concurrency 1", told, bill(6)).figures["perplexity"]
    assert found.value == pytest.approx(math.exp(33 / 60))
    assert math.exp(0.5) <= found.low < found.value < found.high <= math.exp(0.6)


def test_a_query_without_energy_is_not_divided_by():
    found = metrics("concurrency 1", [record(n) for n in range(5)], bill(3))
    assert found.figures["energy_per_output_token"].value == pytest.approx(1.0)
    assert "2 of 5 answered queries have no energy" in found.notes


def swept(rates, costs):
    """Loads of given output tokens a second and joules a token."""
    made = metrics("concurrency 1", [record(0)], bill(1))
    found = []
    for n, (rate, cost) in enumerate(zip(rates, costs, strict=True)):
        figures = {
            **made.figures,
            "output_tokens_per_second": Figure(rate, None, None, "1/s", ""),
            "energy_per_output_token": Figure(cost, None, None, "J", ""),
        }
        found.append(replace(made, level=f"concurrency {2**n}", figures=figures))
    return found


def test_the_knee_is_where_more_load_stops_paying():
    assert knee(swept((10, 40, 50, 55), (10.0, 3.0, 2.8, 2.7))).level == "concurrency 2"
    # A hump above the line is no knee, and two points make no curve.
    assert knee(swept((10, 20, 30), (3.0, 3.5, 2.0))) is None
    assert knee(swept((10, 20), (3.0, 2.0))) is None


def test_a_knee_is_not_found_in_what_loads_differ_by_chance():
    """On two busy CPUs more load made fewer tokens, one of them by next to nothing below the line; and a tenth of a
    tenth below it is none."""
    assert knee(swept((37.17, 33.16, 32.03), (0.0349, 0.0386, 0.0396))) is None
    assert knee(swept((10, 20, 30), (3.0, 2.45, 2.0))) is None
    assert knee(swept((40, 10, 50, 55), (3.0, 10.0, 2.8, 2.7))) is None, "the slowest is not the first"
    assert knee(swept((10, 20, 30), (3.0, 2.2, 2.0))).level == "concurrency 2"


def test_repeats_of_one_load_are_one_point_of_the_curve():
    repeats = [
        replace(one, level=f"concurrency {load}, repeat {turn}")
        for turn, load, one in zip(
            (1, 1, 2, 2), (1, 4, 1, 4), swept((10, 40, 11, 39), (10.0, 3.0, 9.5, 2.0)), strict=True
        )
    ]
    assert knee(repeats) is None


def test_repeats_tell_how_much_a_figure_varies():
    found = [
        replace(one, level=f"concurrency 1, repeat {n}") for n, one in enumerate(swept((10, 12, 14), (1.0, 2.0, 3.0)))
    ]
    (figures,) = repeats_data(found).values()
    cost = figures["energy_per_output_token"]
    # Student: 4.303 × 1 / √3.
    assert (cost["mean"], cost["sd"], cost["n"]) == pytest.approx((2.0, 1.0, 3))
    assert (cost["low"], cost["high"]) == pytest.approx((2 - 2.4843, 2 + 2.4843), abs=1e-3)


def test_the_knee_and_repeats_have_units_and_the_digits_that_their_intervals_leave():
    found = swept((10, 40, 50, 55), (10.0, 3.0, 2.8, 2.7))
    cost = found[1].figures["energy_per_output_token"]
    wide = {**found[1].figures, "energy_per_output_token": replace(cost, low=0.0, high=9.1)}
    result = LlmResult("r", LlmPlan(), (found[0], replace(found[1], figures=wide), *found[2:]))
    assert "concurrency 2, at 40.00 output tokens/s and ≈ 3.0 J (0.0 … 9.1 J) per output token;" in result.knee_line
    turns = swept((10, 12, 14), (1.0, 2.0, 3.1))
    repeats = tuple(replace(one, level=f"concurrency 1, repeat {n}") for n, one in enumerate(turns))
    (table,) = LlmResult("r", LlmPlan(), repeats).repeat_tables()
    row = dict(zip(table.headers, table.cells()[1], strict=True))
    assert (row["MEAN"], row["SD"]) == ("≈ 2.0 J", "1.1 J") and row["95 % (STUDENT)"].endswith(" J")


def test_scores_that_come_later_are_read_with_their_records(tmp_path):
    journal = JsonLines(tmp_path / QUERIES)
    early = replace(record(1), score=None)
    journal.write(early.to_dict())
    journal.close()
    scores = JsonLines(tmp_path / SCORES)
    scores.write(score_entry(early, Score("unevaluated")))
    scores.write(score_entry(early, Score("right", how="judge wise")))
    scores.write(score_entry(replace(early, span="another"), Score("wrong")))
    scores.close()
    (found,) = read_records(tmp_path)
    assert found.right is True and found.score.how == "judge wise"


ASKED = Item("i", "2 + 2?", "4", "exact", rules={"n": 1}, meta={"topic": "sums", "k": 3})


def test_a_record_holds_what_was_asked(tmp_path):
    journal = JsonLines(tmp_path / QUERIES)
    journal.write(replace(record(0), asked=ASKED).to_dict())
    journal.write(replace(record(1), asked=ASKED).masked().to_dict())
    journal.close()
    assert (tmp_path / "queries.jsonl").stat().st_mode & 0o077 == 0, "others may not read what was asked and answered"
    whole, masked = read_records(tmp_path)
    assert (whole.asked.prompt, whole.asked.answer, whole.asked.scorer) == ("2 + 2?", "4", "exact")
    assert recorded_items([whole, masked]) == [whole.asked]
    assert masked.asked.scorer == "exact" and masked.asked.meta["k"] == 3
    text = (tmp_path / "queries.jsonl").read_text().splitlines()[1]
    assert "2 + 2" not in text and "sums" not in text and masked.answer.text.startswith("sha256:")
    found = metrics("c", [whole], bill(1))
    assert found.items[0]["prompt"] == "2 + 2?" and found.items[0]["columns"] == {"topic": "sums", "k": 3}
    header, line = LlmResult("run", {}, (found,)).to_csv().splitlines()
    assert "dataset.topic" in header and "sums" in line and "prefill_j" in header


def test_the_same_answer_agrees_with_one_that_was_scored_elsewhere():
    mine, theirs = (replace(record(0), score=Score("right", found)) for found in ("A", None))
    assert agreement([mine], [theirs]).value == agreement([theirs], [mine]).value == 1.0
    other = replace(theirs, answer=replace(theirs.answer, text="y"))
    assert agreement([mine], [other]).value == 0.0


def test_a_failed_query_without_a_scorer_is_not_wrong():
    free = [replace(record(n, status="failed"), asked=replace(ASKED, scorer=None)) for n in range(2)]
    found = metrics("c", [replace(record(2), asked=ASKED), *free], bill(3))
    assert (found.accuracy.value, found.accuracy.n) == (1.0, 1)


def test_the_rows_as_parquet(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    write_query_parquet([metrics("c", [replace(record(0), asked=ASKED), record(1)], bill(2))], tmp_path / "q.parquet")
    rows = pq.read_table(tmp_path / "q.parquet").to_pylist()
    assert [row["prompt"] for row in rows] == ["2 + 2?", None] and rows[0]["energy_j"] == 10.0


def test_seconds_are_printed_as_durations():
    shown = Figure.bare(0.003176, "s", "").printed()
    assert (shown.value, shown.unit) == ("3.18", "ms")
