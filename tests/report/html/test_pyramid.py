import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import unpacked

from everywatt.report.html.pyramid import TICK_BYTES, Series, buckets, packed_bytes, share_out, shrink, surprise

VALUES = st.lists(st.one_of(st.just(float("nan")), st.integers(0, 1000).map(float)), min_size=2, max_size=300)


def series(values, period_us=1000, **more):
    return Series(np.arange(1, len(values) + 1) * period_us, np.array(values, dtype=float), **more)


@settings(deadline=None)
@given(VALUES, st.integers(1, 40))
def test_extremes_survive(values, per):
    values = np.array(values)
    found = buckets(series(values), per)
    assert found.last.tolist() == [*(found.first[1:] - 1), len(values) - 1]
    for place, (first, last) in enumerate(zip(found.first, found.last, strict=True)):
        inside = values[first : last + 1]
        assert 0 < len(inside) <= per
        known = inside[np.isfinite(inside)]
        assert found.low[place] == pytest.approx(known.min() if len(known) else np.nan, nan_ok=True)
        assert found.high[place] == pytest.approx(known.max() if len(known) else np.nan, nan_ok=True)
    assert found.end_us[-1] == len(values) * 1000


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=200), st.integers(1, 30))
def test_means_add_up_to_the_whole(values, per):
    level = buckets(series(values), per)
    length = np.diff(level.end_us, prepend=0)
    assert (level.mean * length).sum() == pytest.approx(sum(values) * 1000, rel=1e-12, abs=1e-9)


def test_a_mean_is_weighted_with_time():
    uneven = Series(np.array([1000, 2000, 6000]), np.array([10.0, 10.0, 100.0]))
    assert buckets(uneven, 3).mean[0] == pytest.approx((10 + 10 + 4 * 100) / 6)


def test_a_long_hole_is_a_bucket_of_its_own():
    t_us = np.array([1000, 2000, 3000, 4000, 904_000, 905_000, 906_000, 907_000])
    level = buckets(Series(t_us, np.array([1.0, 1.0, np.nan, 3.0, np.nan, 5.0, 5.0, 5.0])), 4)
    assert level.first.tolist() == [0, 4, 5] and level.end_us.tolist() == [4000, 904_000, 907_000]
    assert level.mean == pytest.approx([5 / 3, np.nan, 5.0], nan_ok=True), "a short one is only left out"


def test_what_stands_out_is_found_among_noise():
    random = np.random.default_rng(3)
    values = random.uniform(100, 300, 200_000)
    values[123_456] = 1000.0
    score = surprise(buckets(series(values), 500))
    assert np.isinf(score[123_456 // 500]), "the highest always is"
    values[123_456], values[50_000:] = 200.0, values[50_000:] + 500.0
    score = surprise(buckets(series(values), 500))
    rest = score[np.isfinite(score)]
    assert score[100] == pytest.approx(500.0, rel=0.1) and rest.max() == score[100], "a step stands out where it is"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 199_999), st.integers(0, 10**6))
def test_one_spike_in_noise_is_exact_wherever_it_is(place, seed):
    values = np.random.default_rng(seed).integers(100_000, 300_000, 200_000) * 0.001
    values[place] = 1000.0
    whole = series(values)
    data = shrink(whole, 30_000.0)
    assert not data["exact"] and packed_bytes(data["data"]) < 40_000
    found = unpacked(data["data"])
    assert np.searchsorted(found["t"], whole.t_us[place]) in found["parts"]
    at = int(np.flatnonzero(found["pt"] == whole.t_us[place])[0])
    assert found["pv"][at] == pytest.approx(1000.0, rel=1e-7)
    around = slice(max(at - 5, 0), at + 6)
    ticks = np.searchsorted(whole.t_us, found["pt"][around])
    assert found["pv"][around] == pytest.approx(values[ticks], rel=1e-7), "what is beside it is exact too"
    assert found["high"].max() == pytest.approx(1000.0)


def test_what_fits_is_kept_whole():
    values = np.random.default_rng(1).integers(0, 4000, 5000) * 0.1
    data = shrink(series(values), 40_000.0)
    assert data["exact"] and data["n"] == 5000
    assert unpacked(data["data"])["v"] == pytest.approx(values, rel=1e-7)


def test_raw_keeps_every_tick_whatever_it_takes():
    values = np.random.default_rng(1).uniform(0, 4000, 50_000)
    data = shrink(series(values), None)
    assert data["exact"]
    assert unpacked(data["data"])["v"] == pytest.approx(values, rel=1e-7)


def test_bytes_are_shared_so_that_small_series_are_whole():
    shares = share_out([10, 1_000_000, 1_000_000], 100_000)
    assert shares[0] == 10 * 2 * TICK_BYTES + 200
    assert shares[1] == shares[2] == pytest.approx((100_000 - shares[0]) / 2)
