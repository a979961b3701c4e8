"""What is not whole, and that nothing is touched."""

from datetime import date
from pathlib import Path

import known_site

from everywatt.slurm.schema import NodeHour
from everywatt.slurm.site.checks import flaws, is_store
from everywatt.slurm.site.store import FOREVER_S, Store


def found(store: Store) -> list[tuple[str, str, str]]:
    return [(flaw.kind, flaw.job, flaw.node) for flaw in flaws(store, 0.0, FOREVER_S)]


def test_every_kind_of_flaw(tmp_path: Path) -> None:
    store = known_site.make(tmp_path)
    store.append_hours([NodeHour(int(known_site.T0), "n3", "cpu.0", "package", "rapl", 10, 5, 3, 1, 1.0)], "n3")
    (tmp_path / "jobs" / "date=2026-11-15" / "n9.1.parquet").write_bytes(b"PAR1 torn")
    before = sorted(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert found(store) == [
        ("unreadable", "", ""),
        ("refused", "5", "n1"),
        ("no-end", "6", "n1"),
        ("coverage", "6", "n1"),
        ("missing-nodes", "6", ""),
        ("does-not-add-up", "", "n3"),
    ]
    assert sorted(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) == before
    problems = {flaw.kind: flaw.problem for flaw in flaws(store, 0.0, FOREVER_S)}
    assert problems["refused"] == "too short"
    assert problems["no-end"] == "the node went away"
    assert problems["missing-nodes"] == "1 of 2 nodes have no record; there is n1"


def test_a_broken_file_stops_nobody(tmp_path: Path) -> None:
    store = known_site.make(tmp_path)
    count = len(store.jobs(0, 2e9))
    bad = tmp_path / "jobs" / "date=2026-11-15" / "n9.1.parquet"
    bad.write_bytes(b"")
    again = Store(tmp_path)
    assert len(again.jobs(0, 2e9)) == count
    assert again.leave_out == {bad}
    assert Store(tmp_path).compact(date(2026, 11, 15)) == count
    assert bad.exists()


def test_whole_stores_have_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([known_site.jobs()[0]], "n1")
    assert found(store) == []
    assert is_store(tmp_path) and not is_store(tmp_path / "jobs")
