"""The short form of `make bench NAME=honesty`: every path by which a user gets a figure, with its bar."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from benchmark_labs import honesty, product  # noqa: F401 - fixtures
from costs import IN_CI

SPAN_PATHS = ("span", "ledger by span", "batch item", "LLM query")
KINDS = ("", ", card unknown", ", counter of a part-time sensor")
ALONE = ("agent's series, read back", "Slurm job", "modelled")


ROUNDS = 2 if IN_CI else 1


@pytest.fixture(scope="module")
def parts(honesty):  # noqa: F811
    """Coverage by path, over a card of every load (in CI over two): each part is computed when its first path asks."""
    cases = len(honesty.lab.CASES)
    return {
        "": lambda: honesty.over_devices(ROUNDS * cases, windows=2),
        ", card unknown": lambda: honesty.over_devices(cases, windows=2, kind=honesty.UNKNOWN),
        ", counter of a part-time sensor": lambda: honesty.over_devices(cases // 2, windows=2, kind=honesty.PART_TIME),
        "agent's series, read back": lambda: {
            "agent's series, read back": honesty.series_read_back(
                15.0, curves=("square:90W,330W,0.7s", "sine:210W,120W,11s")
            )
        },
        "Slurm job": lambda: {"Slurm job": honesty.slurm_jobs(8)},
        "modelled": lambda: {"modelled": honesty.modelled(3 if IN_CI else 1)},
        "import": lambda: honesty.imports(honesty.DATA, 60, only="square"),
    }


@pytest.fixture(scope="module")
def found(parts):
    """All paths of the part of this name."""
    return cache(lambda part: parts[part]())


def part_of(path: str) -> str:
    kind = path.removeprefix(path.partition(",")[0])
    return "import" if path.startswith("import") else kind if kind in KINDS and path not in ALONE else path


PATHS = [
    *(f"{path}{kind}" for kind in KINDS for path in ("Run.energy", *SPAN_PATHS)),
    *ALONE,
    *(f"import, {way}: {card}_square {length} s" for card in ("A100", "RTX3090") for length in ("0.25", "1", "3")
      for way in ("named", "not named", "unknown card", "calibrated on step")),
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_path_holds_the_truth(found, path):
    row = found(part_of(path))[path]
    assert row.verdict == "", row.cells(path)


def test_no_path_is_left_out(found, parts):
    assert {path for part in parts for path in found(part)} == set(PATHS)


def test_a_ledger_by_span_of_a_run_without_a_root_span(product, tmp_path):  # noqa: F811
    rng = np.random.default_rng(1)
    sensor, spans = product.SENSORS["gauge 100 of 100 ms"], product.spans_of(0.5, 0.73)
    recorded = product.record(product.LOADS["square 0.7 s"](rng), sensor, tmp_path / "a.tape", rng, spans=spans)
    entries = {entry.owner.id: entry.energy for entry in recorded.run.ledger(by="span").entries}
    for span in recorded.run.spans:
        assert entries[span.id].high - entries[span.id].low > 0.9 * 2 * recorded.run.energy(span).half_width


def test_the_interval_score_punishes_width_and_misses(product):  # noqa: F811
    def score(low, high):
        return product.Answers(*(np.array([one]) for one in (100.0, (low + high) / 2, low, high))).score_pct

    assert score(98.0, 103.0) == pytest.approx(5.0)
    assert score(101.0, 103.0) == pytest.approx(2.0 + 40.0)
    assert score(90.0, 99.0) == pytest.approx(9.0 + 40.0)


def test_too_wide_is_a_failure_where_the_width_matters(honesty, product):  # noqa: F811
    truth = np.full(400, 100.0)
    wide = honesty.Row(product.Answers(truth, truth, truth - 5, truth + 5), 400)
    narrow = honesty.Row(product.Answers(truth, truth, truth - 0.5, truth + 0.5), 400)
    low = honesty.Row(product.Answers(truth, truth, truth - 5, np.where(np.arange(400) % 10, truth + 5, 99.0)), 400)
    assert (wide.verdict, narrow.verdict, low.verdict) == ("too wide", "", "below 93 %")
