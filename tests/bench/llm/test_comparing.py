"""Runs of models beside each other: two profiles with known joules and verdicts, item by item."""

import csv
import io
import json
import shutil

import pytest

from everywatt.api.run import load
from everywatt.bench.llm.comparing import compare_llm, is_llm, side
from everywatt.bench.llm.leaderboard import check_board, leaderboard
from everywatt.bench.llm.result import evaluate_folder
from everywatt.cli.common.group import dispatch
from everywatt.core.errors import ScopeError, UsageError
from everywatt.report.html.llm import llm_view, models_view

pytest.importorskip("pyarrow")
from llm_runs import N
from llm_runs import llm_run as made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def small(folder):
    """Right at half of the items, 10 to 14 J each."""
    return made(folder, "small", lambda n: 10.0 + n % 5, lambda n: n % 2 == 0)


@pytest.fixture(scope="module")
def large(folder):
    """Right wherever the small one is and at half of the others; twice the energy."""
    return made(folder, "large", lambda n: 20.0 + 2 * (n % 5), lambda n: n % 4 != 1)


def test_accuracy_and_energy_of_the_same_items(small, large):
    found = compare_llm(side(small), side(large))
    assert (found.items, found.only_first, found.only_this) == (N, 0, N // 4)
    more = found.figures["accuracy_difference"]
    assert more.value == pytest.approx(0.25) and 0 < more.low < 0.25 < more.high
    # 15 of 15 items that differ are on one side: 2 / 2^15.
    assert found.p == pytest.approx(2 / 2**15)
    ratio = found.figures["energy_ratio"]
    assert ratio.value == pytest.approx(2.0, rel=1e-6)
    # Every item costs exactly twice as much, so which items are drawn changes nothing.
    assert ratio.low == pytest.approx(2.0, rel=0.01) and ratio.high == pytest.approx(2.0, rel=0.01)
    assert found.figures["energy_per_output_token_ratio"].value == pytest.approx(2.0, rel=1e-6)
    assert found.figures["accuracy_per_joule_ratio"].value == pytest.approx(0.75 / 0.5 / 2, rel=1e-6)
    assert found.figures["agreement"].value == pytest.approx(0.75)
    assert any("more often correct" in text for text in found.verdicts)
    assert any("energy: more" in text for text in found.verdicts)


def test_no_correct_answer_is_no_certain_ratio(folder):
    """1 of 12 against 0 of 12 shows no difference in accuracy, so none per joule."""
    few = made(folder, "one", lambda n: 10.0, lambda n: n == 0)
    none = made(folder, "none", lambda n: 10.0, lambda n: False)
    found = compare_llm(side(few), side(none))
    assert found.figures["accuracy_difference"].low < 0 < found.figures["accuracy_difference"].high
    ratio = found.figures["accuracy_per_joule_ratio"]
    assert (ratio.value, ratio.low, ratio.high) == (0.0, None, None) and "no answer is correct" in ratio.refused
    assert not any("correct per J: less" in text for text in found.verdicts)


def failing(folder, name, run):
    """The same run, in which every second item (those that it answers wrongly) got no answer."""
    made_over = folder / name
    shutil.copytree(run.path if run.path.is_dir() else run.path.parent, made_over)
    lines = [json.loads(line) for line in (made_over / "queries.jsonl").read_text().splitlines()]
    for line in lines:
        if line["score"]["verdict"] != "right":
            line["score"], line["answer"]["status"], line["answer"]["error"] = None, "failed", "HTTP 500"
    (made_over / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load(made_over)


def test_a_server_that_fails_where_it_would_be_wrong_wins_nothing(folder, small):
    half = failing(folder, "half", small)
    board = leaderboard([half, small])
    assert [place.accuracy.value for place in board.places] == [0.5, 0.5]
    assert {(place.run, place.metrics.answered, place.metrics.queries) for place in board.places} == {
        ("half", N // 2, N), ("small", N, N)
    }  # fmt: skip
    found = compare_llm(side(small), side(half))
    assert found.figures["accuracy_difference"].value == 0.0
    assert f"{N // 2} of {N} items" in found.figures["energy_ratio"].formula
    assert any(f"half answered {N // 2} of {N} items" in note for note in found.notes)


def test_runs_that_say_the_same_are_not_called_certainly_equal(small):
    found = compare_llm(side(small), side(small))
    more = found.figures["accuracy_difference"]
    assert more.value == 0.0 and more.low < -0.01 and more.high > 0.01
    assert found.p == 1.0
    assert all("no difference shown" in text for text in found.verdicts)


def test_other_items_and_another_scope_are_refused(folder, small):
    other = made(folder, "other", lambda n: 10.0, lambda n: True, problem="another ")
    with pytest.raises(ScopeError, match="used other items"):
        compare_llm(side(small), side(other))
    chip = made(folder, "chip", lambda n: 10.0, lambda n: True, part="soc_per_query_joules")
    with pytest.raises(ScopeError, match="do not cover the same scope"):
        compare_llm(side(small), side(chip))
    found = compare_llm(side(small), side(chip), force=True)
    assert "accuracy_difference" in found.figures
    assert found.figures["energy_ratio"].value is None
    with pytest.raises(ScopeError, match="used different items"):
        leaderboard([small, other])
    assert "different scopes" in models_view([small, chip])["refused"]


def test_different_scopes_are_ranked_in_tables_of_their_own(folder, small, large):
    soc = made(folder, "soc", lambda n: 1.0, lambda n: True, part="soc_per_query_joules")
    board = leaderboard([large, soc, small])
    assert [(place.model, place.rank) for place in board.groups["gpu", "machine"]] == [("small", 1), ("large", 1)]
    assert [(place.model, place.rank) for place in board.groups["soc", "machine"]] == [("soc", 1)]
    runs = {run.name: run for run in (small, large, soc)}
    assert check_board(json.loads(json.dumps(board.to_dict())), runs.__getitem__) == []


def test_the_table_of_many_runs(small, large):
    board = leaderboard([large, small])
    assert [place.model for place in board.places] == ["small", "large"]
    assert (list(board.groups), board.dataset) == ([("gpu", "machine")], "own")
    first = board.places[0]
    assert first.metrics.figures["accuracy_per_joule_mean"].value == pytest.approx(0.5 / 12)
    assert [p.model for p in leaderboard([small, large], "accuracy").places] == ["large", "small"]
    with pytest.raises(UsageError, match="cannot be sorted by"):
        leaderboard([small], "beauty")


def test_runs_whose_intervals_overlap_are_tied(folder, small, large):
    near = made(folder, "near", lambda n: 10.5 + n % 5, lambda n: n % 2 == 0)
    places = leaderboard([large, small, near], "joules-per-request").places
    assert [(place.model, place.rank, place.tied) for place in places] == [
        ("small", 1, False), ("near", 2, False), ("large", 3, False)
    ]  # fmt: skip
    # Accuracy per joule has the interval of the items too, in which the three are one.
    places = leaderboard([large, small, near]).places
    assert [(place.rank, place.tied) for place in places] == [(1, True)] * 3
    assert [place.model for place in places] == ["small", "near", "large"]
    board = leaderboard([small, large], "accuracy")
    line, *_ = csv.DictReader(io.StringIO(board.to_csv()))
    assert (line["model"], line["answered"], line["scope"]) == ("large", str(N), "gpu")
    assert float(line["accuracy_per_watt"]) == pytest.approx(0.75 / 20, rel=1e-3)


def test_a_published_table_is_checked_against_its_runs(small, large):
    runs = {run.name: run for run in (small, large)}
    told = json.loads(json.dumps(leaderboard([small, large]).to_dict()))
    assert check_board(told, runs.__getitem__) == []
    for place in told["places"]:
        del place["boundary"]
    assert check_board(told, runs.__getitem__) == [], "as written by an earlier version"
    told["places"][0]["energy_per_request"]["value"] *= 0.9
    told["places"][1]["answered"] = 61
    wrong = {(row, field) for row, field, _ in check_board(told, runs.__getitem__)}
    assert wrong == {("small, concurrency 1", "energy_per_request"), ("large, concurrency 1", "answered")}
    del told["places"][1]

    def gone(name):
        raise UsageError(f"There is no run {name}.")

    assert check_board(told, gone) == [("small", "run", "There is no run small.")]


@pytest.mark.parametrize("field", ["dataset", "scope", "boundary"])
def test_what_a_published_table_says_of_all_rows_is_checked(small, large, field):
    told = json.loads(json.dumps(leaderboard([small, large]).to_dict())) | {field: "another"}
    (wrong,) = check_board(told, {run.name: run for run in (small, large)}.__getitem__)
    assert wrong[1] == field


def test_regressions_find_what_a_token_costs(folder):
    rising = made(folder, "rising", lambda n: 5.0 + n, lambda n: True)
    _, (found,) = evaluate_folder(rising)
    assert found.regressions["mean_energy_j"] == pytest.approx(5 + 59 / 2)
    # 3 of 60 at either end are left out, and the line is symmetric.
    assert found.regressions["trimmed_mean_energy_j"] == pytest.approx(5 + 59 / 2)
    assert found.regressions["energy_j"] is None  # all have as many tokens: there is no slope to find


def test_the_report_has_a_section_for_it(small, large, tmp_path):
    view = llm_view(small)
    assert (view["model"], view["dataset"]) == ("small", "own")
    assert sum(view["per_token"]["counts"]) == view["per_token"]["n"] == N
    assert view["per_token"]["median"] == pytest.approx(1.2)
    assert [row[view["worst"]["heads"].index("Energy")] for row in view["worst"]["rows"]] == ["14.00 J"] * 10
    assert len(view["tokens"]) == N
    rows = {row[0]: row[1] for row in view["levels"][0]["rows"]}
    assert rows["accuracy"] == "50 %" and rows["energy per request"] == "12.00 J"
    assert view["answer"].startswith("The machine used 720")
    assert "for 60 queries, 60 of them answered, accuracy 50 %" in view["answer"] and "12.00 J" in view["answer"]
    (load,) = view["loads"]["rows"]
    assert load[:2] == ["concurrency 1", "60 of 60"] and len(load) == len(view["loads"]["heads"])
    assert view["failures"] == [] and [row[0] for row in view["subjects"]["rows"]] == [f"s{n}" for n in range(6)]
    assert view["energy"]["median"] == pytest.approx(12.0)
    models = models_view([small, large])
    assert [row["name"] for row in models["rows"]] == ["small, concurrency 1", "large, concurrency 1"]
    assert models_view([small]) is None


def test_any_other_run_has_none(tmp_path):
    assert not is_llm(type("R", (), {"path": tmp_path})())


def test_runs_of_one_data_set_at_two_places_are_ranked_together(folder):
    here, there = (made(folder, name, lambda n: 10.0 + n % 5, lambda n: n % 2 == 0) for name in ("here", "there"))
    for run, place in ((here, "/home/a/items.jsonl"), (there, "/scratch/items.jsonl")):
        plan = json.loads((run.path / "llm.json").read_text())
        plan["dataset"] |= {"name": place, "sha256": "ab" * 32}
        (run.path / "llm.json").write_text(json.dumps(plan))
    board = leaderboard([here, there])
    assert board.dataset == "items.jsonl"
    assert "/home" not in json.dumps(board.to_dict()) + board.to_csv()


def test_the_file_of_a_comparison_has_the_form_that_its_ending_names(small, large, tmp_path, capsys):
    runs = [str(run.path if run.path.is_dir() else run.path.parent) for run in (small, large)]
    for ending in ("md", "csv", "html", "json"):
        assert dispatch(["compare", *runs, "-o", str(tmp_path / f"two.{ending}")]) == 0
    capsys.readouterr()
    assert (tmp_path / "two.md").read_text().startswith("### large compared with small")
    rows = list(csv.DictReader((tmp_path / "two.csv").open(newline="")))
    energy = next(row for row in rows if row["figure"] == "energy_ratio")
    assert (energy["run"], float(energy["value"])) == ("large", pytest.approx(2.0, rel=1e-6))
    assert (tmp_path / "two.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "two.json").read_text())["kind"] == "llm-comparison"
    assert dispatch(["compare", *runs, "-o", str(tmp_path / "two.txt")]) == 2
