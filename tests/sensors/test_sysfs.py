"""Groups of number files."""

from pathlib import Path

import pytest
from fake_clock import FakeClock

from everywatt.core.channels import Channel, GroupInfo, Kind
from everywatt.core.errors import SensorError
from everywatt.sensors.sysfs import NumberFile, ValueGroup


@pytest.fixture
def group(tmp_path: Path):
    channels = tuple(Channel(f"cpu.0.{name}", "J", Kind.COUNTER, "cpu.0") for name in ("a", "b"))
    for name in ("a", "b"):
        (tmp_path / name).write_text("1000\n")
    files = [NumberFile(tmp_path / name, most=5000.0) for name in ("a", "b")]
    made = ValueGroup(GroupInfo("g", "x", "cpu.0", channels), files, FakeClock(now_ns=10_000), age_s=1e-6)
    yield made
    made.close()


def test_a_file_that_was_replaced_is_opened_again(group, tmp_path: Path) -> None:
    (row,) = group.read()
    assert (row.values, row.early_ns, row.late_ns) == ((1000.0, 1000.0), 9_000, 10_000)
    (tmp_path / "b").unlink()
    (tmp_path / "b").write_text("1000\n")
    group.read()
    (tmp_path / "b").write_text("4000\n")
    assert group.read()[0].values == (1000.0, 4000.0)


def test_garbage_is_missing_and_nothing_but_garbage_an_error(group, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("9999\n")
    (row,) = group.read()
    assert row.values[0] != row.values[0] and row.values[1] == 1000.0
    (tmp_path / "b").write_text("-7\n")
    with pytest.raises(SensorError, match="outside its range"):
        group.read()
