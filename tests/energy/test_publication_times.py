"""Publication times found with hindsight, against a publisher whose every instant is known."""

from __future__ import annotations

import numpy as np
import pytest

from everywatt.energy.building import repeated
from everywatt.energy.publication_times import retime

MS = 1_000_000
START = 7_000_000 * MS


def brackets(true: np.ndarray, width_ms: float, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads shortly after each publication, and brackets of up to `width_ms` that hold it somewhere."""
    chance = np.random.default_rng(seed)
    width = chance.uniform(0.3, 1.0, len(true)) * width_ms * MS
    early = true - chance.random(len(true)) * width
    late = early + width
    return (late + 2 * MS).astype(np.int64), early.astype(np.int64), late.astype(np.int64)


def publications(period_ms: float, count: int, jitter_ms: float = 0.0, seed: int = 3) -> np.ndarray:
    chance = np.random.default_rng(seed)
    return START + (np.arange(count) * period_ms + chance.uniform(-1, 1, count) * jitter_ms) * MS


@pytest.mark.parametrize("period_ms", [100.0, 98.73, 20.0, 20.003])
@pytest.mark.parametrize("count", [40, 600])
def test_all_brackets_speak_for_every_publication(period_ms: float, count: int) -> None:
    true = publications(period_ms, count)
    at, half = retime(*brackets(true, 2.0))
    assert np.percentile(np.abs(at - true), 95) < 0.15 * MS  # the brackets alone: 0.8 ms
    assert np.all(np.abs(at - true) <= half)


def test_publications_that_are_not_read_do_not_matter() -> None:
    true = publications(20.0, 900)[np.sort(np.random.default_rng(5).choice(900, 180, replace=False))]
    at, half = retime(*brackets(true, 2.0))
    assert np.percentile(np.abs(at - true), 95) < 0.15 * MS
    assert np.mean(np.abs(at - true) <= half) > 0.99


def test_jitter_of_the_publisher_stays_in_the_width() -> None:
    true = publications(100.0, 400, jitter_ms=1.0)
    at, half = retime(*brackets(true, 1.0))
    assert np.mean(np.abs(at - true) <= half) > 0.97
    assert np.median(half) < 0.6 * MS


def test_a_clock_that_was_set_anew_is_two_clocks() -> None:
    true = publications(100.0, 400)
    true[200:] += 37 * MS
    at, _ = retime(*brackets(true, 2.0))
    far = np.abs(np.arange(400) - 200) > 15
    assert np.percentile(np.abs(at - true)[far], 95) < 0.4 * MS


def test_a_row_that_was_read_blindly_shows_the_last_publication_before() -> None:
    true = publications(100.0, 100)
    read, early, late = brackets(true, 1.0)
    read[0] = late[0] = int(true[0]) + 71 * MS
    early[0] = late[0] - 100 * MS
    at, half = retime(read, early, late)
    assert abs(at[0] - true[0]) < 0.3 * MS
    assert half[0] < 1 * MS


def test_polls_without_a_phase_stay_as_they_are() -> None:
    read = START + np.arange(50, dtype=np.int64) * 100 * MS
    at, half = retime(read, read - 100 * MS, read)
    assert np.array_equal(at, read - 50 * MS)
    assert np.all(half == 50 * MS)


def test_a_counter_that_stands_still_for_a_moment_has_lost_publications() -> None:
    values = np.array([0.0, 10, 20, 20, 40, 50, 50, 50, 80, *[90.0] * 9, 100, 100])
    assert np.flatnonzero(repeated(values)).tolist() == [3, 6, 7]
