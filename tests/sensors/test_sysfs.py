"""Number files that are snapped at a wake-up and made sense of later."""

from pathlib import Path

import pytest

from everywatt.core.channels import Channel, GroupInfo, Kind
from everywatt.core.clocks import FakeClock
from everywatt.core.errors import SensorError
from everywatt.sensors.sysfs import FileGroup, NumberFile


@pytest.fixture
def group(tmp_path: Path):
    channels = tuple(Channel(f"cpu.0.{name}", "J", Kind.COUNTER, "cpu.0") for name in ("a", "b"))
    for name in ("a", "b"):
        (tmp_path / name).write_text("1000\n")
    files = [NumberFile(tmp_path / name, most=5000.0) for name in ("a", "b")]
    made = FileGroup(GroupInfo("g", "x", "cpu.0", channels), files, FakeClock(now_ns=10_000), age_s=1e-6)
    yield made
    made.close()


def test_what_is_snapped_becomes_the_row_that_a_read_gives(group, tmp_path: Path) -> None:
    assert group.read_raw() is None  # nothing is open before the first read
    read = group.read()
    (tmp_path / "a").write_text("2000\n")
    snapped = group.read_raw()
    (tmp_path / "a").write_text("3000\n")
    rows = group.to_rows([(9_000, 9_500, snapped), (10_000, 10_000, group.read_raw())])
    assert [row.values for row in rows] == [(2000.0, 1000.0), (3000.0, 1000.0)]
    assert (rows[0].early_ns, rows[0].late_ns, rows[0].read_ns) == (8_000, 9_500, 9_500)
    assert rows[1] == read[0]._replace(values=(3000.0, 1000.0))


def test_a_file_that_was_replaced_wants_a_careful_read(group, tmp_path: Path) -> None:
    group.read()
    (tmp_path / "b").unlink()
    (tmp_path / "b").write_text("4000\n")
    assert group.read_raw() is None
    assert group.read()[0].values == (1000.0, 4000.0)
    assert group.read_raw() is not None


def test_garbage_is_found_when_it_is_made_sense_of(group, tmp_path: Path) -> None:
    group.read()
    (tmp_path / "a").write_text("9999\n")
    (row,) = group.to_rows([(1, 2, group.read_raw())])
    assert row.values[0] != row.values[0]
    assert row.values[1] == 1000.0
    (tmp_path / "b").write_text("-7\n")
    with pytest.raises(SensorError, match="outside its range"):
        group.to_rows([(1, 2, group.read_raw())])
