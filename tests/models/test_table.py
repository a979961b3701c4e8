"""Tables by time: order, rates, joins, files."""

import gzip
import json

import numpy as np
import pytest

from everywatt.core.errors import UsageError
from everywatt.models.reading import is_counter, read_table, times_of
from everywatt.models.table import Table, concatenate, join, ordered, rates


def test_rows_are_sorted_and_an_instant_counts_once():
    made = ordered(Table(np.array([3.0, 1, 1, 2]), {"a": np.array([30.0, 10, 11, 20])}))
    assert made.times_s.tolist() == [1, 2, 3] and made.columns["a"].tolist() == [10, 20, 30]
    assert len(made.notes) == 2


def test_a_counter_becomes_a_rate_and_a_reset_has_none():
    made = rates(Table(np.array([0.0, 2, 4, 6]), {"j": np.array([10.0, 30, 5, 15])}, {"j": "J"}), ["j"])
    assert made.columns["j"].tolist() == pytest.approx([np.nan, 10, np.nan, 5], nan_ok=True)
    assert made.units["j"] == "W"


def test_a_join_is_by_time_never_by_position():
    power = Table(np.array([10.0, 20, 30, 40]), {"w": np.array([1.0, 2, 3, 4])})
    use = Table(np.array([20.4, 29.8, 51.0]), {"cpu": np.array([200.0, 300, 500])})
    made = join([power, use], tolerance_s=1.0)
    assert made.columns["cpu"].tolist() == pytest.approx([np.nan, 200, 300, np.nan], nan_ok=True)
    assert "2 of 4 rows have no partner within 1 s" in made.notes


def test_tables_one_after_another_keep_what_they_share():
    a = Table(np.array([0.0, 1]), {"x": np.array([1.0, 2]), "y": np.array([1.0, 2])})
    b = Table(np.array([5.0, 6]), {"x": np.array([3.0, 4])})
    made = concatenate([a, b])
    assert made.columns["x"].tolist() == [1, 2, 3, 4] and "so dropped: y" in made.notes[0]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
def test_the_size_of_a_time_says_its_unit(unit, factor):
    assert times_of([f"{1.7e9 * factor:.0f}"] * 2, "t")[0] == pytest.approx(1.7e9)


def test_iso_times_and_milliwatts(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time,tegra_wattage_current_milliwatts\n2026-01-01T00:00:00Z,5000\n2026-01-01T00:00:01Z,6000\n")
    table = read_table(path)
    assert np.diff(table.times_s).tolist() == [1.0]
    assert table.columns["tegra_wattage_current_milliwatts"].tolist() == [5.0, 6.0]


def test_counters_of_a_csv_become_rates_by_name_and_by_shape(tmp_path):
    path = tmp_path / "t.csv"
    rows = "\n".join(f"{t},{t * 3},{t * 2},{t % 4}" for t in range(40))
    path.write_text(f"time,container_cpu_usage_seconds_total,ticks,load\n{rows}\n")
    table = read_table(path)
    assert table.columns["container_cpu_usage_seconds_total"][1:].tolist() == [3.0] * 39
    assert table.columns["ticks"][1:].tolist() == [2.0] * 39
    assert table.columns["load"][1] == 1.0


def test_a_gauge_is_no_counter():
    assert not is_counter("temperature", np.tile([1.0, 2, 1, 2], 20))
    assert not is_counter("limit", np.full(80, 3.0))


def test_sage_records_join_by_time(tmp_path):
    path = tmp_path / "s.ndjson.gz"
    with gzip.open(path, "wt") as file:
        for second in range(30):
            for name, value in (("power", 5 + second % 3), ("cpu", second % 3)):
                at = f"2026-01-01T00:00:{second:02d}.{0 if name == 'power' else 2}00000000Z"
                meta = {"vsn": "W01"}
                file.write(json.dumps({"timestamp": at, "name": name, "value": value, "meta": meta}) + "\n")
    table = read_table(path)
    assert len(table) == 30
    assert (table.columns["power"] - table.columns["cpu"]).tolist() == [5.0] * 30


def test_parquet_is_the_same_table(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"timestamp": [1.0, 2.0], "w": [3.0, None]}), path)
    table = read_table(path)
    assert table.columns["w"].tolist() == pytest.approx([3.0, np.nan], nan_ok=True)


def test_a_table_beside(tmp_path):
    for name, column in (("a", "w"), ("b", "cpu")):
        (tmp_path / f"{name}.csv").write_text(f"time,{column}\n" + "".join(f"{t},{t % 7}\n" for t in range(30)))
    table = join([read_table(tmp_path / "a.csv"), read_table(tmp_path / "b.csv")])
    assert table.columns["w"].tolist() == table.columns["cpu"].tolist()


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "time,time\n1,2\n"])
def test_what_is_no_table_says_so(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_table(path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("text", ["time,watts\n", "time,watts\n\n"])
def test_a_table_without_rows_is_refused_in_one_sentence(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UsageError, match="no rows"):
        read_table(tmp_path / "t.csv")
