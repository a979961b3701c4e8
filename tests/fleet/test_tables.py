"""Series joined by time."""

import math
from array import array

import numpy as np
import pytest

from everywatt.core.errors import UsageError
from everywatt.fleet.query import Series
from everywatt.fleet.tables import frame, join, newest, rate, write

NAN = math.nan


def series(name, samples, **labels):
    return Series(name, labels, array("q", [at for at, _ in samples]), array("d", [value for _, value in samples]))


def test_series_are_joined_by_time_and_not_by_place():
    a = series("a", [(1000, 1.0), (2000, 2.0), (3000, 3.0), (4000, 4.0)])
    b = series("b", [(2100, 20.0), (4100, 40.0)])
    table = join([a, b], step_s=1.0)
    assert table.columns == ("a", "b") and list(table.at_ms) == [1000, 2000, 3000, 4000, 5000]
    np.testing.assert_array_equal(table.values[:, 0], [1, 2, 3, 4, 4])
    np.testing.assert_array_equal(table.values[:, 1], [NAN, NAN, 20, 20, 40])


def test_what_is_too_old_is_not_there():
    gone = series("a", [(1000, 1.0), (2000, 2.0), (3000, 3.0), (9000, 9.0)])
    table = join([gone, series("b", [(at, 0.0) for at in range(1000, 10_000, 1000)])])
    np.testing.assert_array_equal(table.values[:, 0], [1, 2, 3, 3, NAN, NAN, NAN, NAN, 9])
    found = newest(np.array([500, 2000, 3500, 3501]), np.array([2000]), np.array([2.0]), 1500.0)
    np.testing.assert_array_equal(found, [NAN, 2, 2, NAN])


def test_counters_become_rates_and_a_step_back_is_not_known():
    at, watts = rate(np.array([0, 1000, 3000, 4000]), np.array([0.0, 60.0, 260.0, 5.0]))
    assert list(at) == [1000, 3000, 4000]
    np.testing.assert_array_equal(watts, [60, 100, NAN])
    counted = series("x_joules_total", [(0, 0.0), (1000, 60.0), (2000, 160.0)])
    assert join([counted]).columns == ("rate(x_joules_total)",)
    np.testing.assert_array_equal(join([counted]).values[:, 0], [NAN, 60, 100])
    np.testing.assert_array_equal(join([counted], rates=False).values[:, 0], [0, 60, 160])


def test_what_an_agent_did_not_send_again_had_not_changed():
    """Idle from 3 to 17 s; nothing is sent from 20 to 30 s."""
    watts = series("everywatt_power_watts", [(1000 * at, 10.0 + at) for at in range(41) if not 20 < at < 30])
    used = [(at, min(at, 3) + max(at - 17, 0)) for at in (0, 1, 2, 3, 18, 19, 20, *range(30, 41))]
    busy = series("everywatt_host_cpu_seconds_total", [(1000 * at + 1, float(seconds)) for at, seconds in used])
    rates = join([watts, busy]).values[:, 1]
    np.testing.assert_allclose(rates[2:5], 1, atol=0.01)
    np.testing.assert_array_equal(rates[5:18], 0)
    np.testing.assert_allclose(rates[19:22], 1, atol=0.01)
    assert np.isnan(rates[22:30]).all() and np.isfinite(rates[31:]).all()


def test_columns_have_the_labels_in_which_series_differ():
    one = series("a", [(0, 1.0)], job="j", cpu="1")
    two = series("a", [(0, 2.0)], job="j", cpu='"\n')
    assert join([one, two]).columns == ('a{cpu="1"}', 'a{cpu="\\"\\n"}')


def test_files(tmp_path):
    table = join(
        [series("a", [(1_700_000_000_000, 1.5), (1_700_000_001_000, 2.0)]), series("b", [(1_700_000_001_000, 7.0)])]
    )
    text = write(table, tmp_path / "x" / "t.csv").read_text()
    assert text == "time,a,b\n2023-11-14T22:13:20.000Z,1.5,\n2023-11-14T22:13:21.000Z,2.0,7.0\n"
    pq = pytest.importorskip("pyarrow.parquet")
    assert pq.read_table(write(table, tmp_path / "t.parquet")).column("a").to_pylist() == [1.5, 2.0]
    pytest.importorskip("pandas")
    assert frame(table)["a"].tolist() == [1.5, 2.0]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_nothing_and_too_much():
    assert join([]).values.shape == (0, 0)
    with pytest.raises(UsageError, match="too many"):
        join([series("a", [(0, 1.0), (1, 1.0), (2, 1.0), (10**12, 1.0)])])
