"""The list: what it says of each run, and that it reads each only once."""

import os
import time

import pytest
from sites import EVIL_RUN, HOST, FakeSource, small_run, tree, write_home
from starlette.testclient import TestClient
from tapes import at, counter_group, rows, write_tape

from everywatt.api.run import load
from everywatt.core.clocks import Anchor
from everywatt.core.errors import RunNotFound
from everywatt.net.guard import Access
from everywatt.report.web import runs
from everywatt.report.web.app import Site
from everywatt.report.web.runs import RunIndex, open_run, read_row, signature
from everywatt.tape.writer import TapeWriter


@pytest.fixture
def home(tmp_path):
    return write_home(tmp_path / "home")


def test_rows_say_what_the_run_was(home):
    rows, pending = RunIndex(home).rows()
    found = {row["key"]: row for row in rows}
    assert pending == 0 and len(rows) == 6
    row = found["20261115-000001-job"]
    assert row["name"] == "20261115-000001-job"
    assert row["joules"] == pytest.approx(82.0) and row["low"] < 82.0 < row["high"]
    assert row["duration_s"] == pytest.approx(2.0) and row["duration"] == "2.00 s"
    assert (row["scope"], row["pedigree"]) == ("cpu", "counter")
    assert row["tags"] == {"project": "beta", "size": "large"}
    assert row["command"] == "python job1.py" and row["host"] == "box"
    assert row["started"] == "2023-11-14T23:13:20+00:00"
    assert row["spark"] == pytest.approx([41.0] * 40, abs=0.01)
    assert row["live"] is False and row["sealed"] is True
    assert found["whole.tape"]["name"] == "whole" and max(found["whole.tape"]["spark"]) == pytest.approx(290.0)
    assert found[f"{EVIL_RUN}.tape"]["joules"] == pytest.approx(1700.0)
    assert "is not a tape" in found["broken.tape"]["trouble"] and found["broken.tape"]["live"] is False


def test_the_newest_is_first(home):
    keys = [row["key"] for row in RunIndex(home).rows()[0] if row["key"].endswith("-job")]
    assert keys == ["20261115-000002-job", "20261115-000001-job", "20261115-000000-job"]


def test_each_is_read_once_until_it_changes(home, monkeypatch):
    read = []
    monkeypatch.setattr(runs, "read_row", lambda path: read.append(path.name) or read_row(path))
    monkeypatch.setattr(runs, "LOOK_AGAIN_S", 0.0)
    index = RunIndex(home)
    index.rows()
    assert len(read) == 6
    index.rows()
    assert len(read) == 6
    os.utime(home / "whole.tape", (1, 1))
    index.rows()
    assert read[6:] == ["whole.tape"]
    (home / "broken.tape").unlink()
    small_run(home / "20261116-000000-new", 9)
    found, _ = index.rows()
    assert read[7:] == ["20261116-000000-new"]
    assert {row["key"] for row in found} >= {"20261116-000000-new"} and "broken.tape" not in {
        row["key"] for row in found
    }


def test_when_the_time_is_up_the_rest_is_pending(home):
    index = RunIndex(home)
    rows, pending = index.rows(0.0)
    assert pending == 5 and sum(row.get("pending", False) for row in rows) == 5
    assert all(row["key"] for row in rows)
    for left in (4, 3, 2, 1, 0):
        rows, pending = index.rows(0.0)
        assert pending == left
    assert not any(row.get("pending") for row in rows)


def test_a_run_is_found_by_its_key_alone(home):
    index = RunIndex(home)
    assert index.path_of("whole.tape") == home / "whole.tape"
    for name in ("whole", "../home/whole.tape", str(home / "whole.tape"), "", ".", "last", "whole.tape\0"):
        with pytest.raises(RunNotFound):
            index.path_of(name)


def test_a_folder_that_is_not_there_is_empty(tmp_path):
    assert RunIndex(tmp_path / "nowhere").rows() == ([], 0)


def test_what_a_killed_recorder_left_is_read_and_not_sealed(tmp_path):
    folder = tmp_path / "left"
    folder.mkdir()
    ticks = rows(lambda t: 40.0 * t, 0.0, 5.0, 0.1)
    tape = write_tape(folder / "box-0001.tape", [(counter_group(quantum=6e-5), 0.1, ticks)], seal=False)
    long_ago = time.time() - 3600
    for file in folder.iterdir():
        os.utime(file, (long_ago, long_ago))
    before = tree(tmp_path)
    (row,), _ = RunIndex(tmp_path).rows()
    assert row["joules"] == pytest.approx(200.0) and row["sealed"] is False and row["live"] is False
    assert not open_run(folder).tapes[0].sealed
    after = tree(tmp_path)
    assert after[f"left/{tape.name}"] == before[f"left/{tape.name}"]
    assert {name: file for name, file in after.items() if name in before and not name.endswith(("-shm", "left"))} == {
        name: file for name, file in before.items() if not name.endswith(("-shm", "left"))
    }


def test_a_tape_that_is_being_written_is_live(tmp_path):
    folder = tmp_path / "now"
    folder.mkdir()
    writer = TapeWriter(folder / "box-0001.tape", {"host": {"name": "box"}, "period_s": 0.1})
    writer.anchor(Anchor(at(0), 1_700_000_000 * 10**9, at(0), 0))
    group = writer.add_group(counter_group(quantum=6e-5), 0.1)
    writer.append(group, rows(lambda t: 40.0 * t, 0.0, 5.0, 0.1))
    writer.flush()
    (row,), _ = RunIndex(tmp_path).rows()
    assert row["live"] is True and row["joules"] == pytest.approx(200.0)
    assert len(signature(folder)) == 2, "the tape and its log"
    writer.seal()
    (row,), _ = RunIndex(tmp_path).rows()
    assert row["live"] is False and row["sealed"] is True


def test_long_words_are_cut(tmp_path):
    folder = small_run(tmp_path / "run", 0, project="x" * 1000)
    row = read_row(folder)
    assert len(row["tags"]["project"]) == runs.MOST_TEXT and row["tags"]["project"].endswith("…")


def test_names_that_are_no_text_are_shown_and_found(home):
    odd = home / os.fsdecode(b"caf\xe9.tape")
    (home / "whole.tape").rename(odd)
    web = TestClient(Site(RunIndex(home), Access(frozenset({HOST}), 8765), FakeSource).app(), base_url=f"http://{HOST}")
    keys = [run["key"] for run in web.get("/api/runs").json()["runs"]]
    assert "caf\ufffd.tape" in keys
    assert web.get("/api/report", params={"run": "caf\ufffd.tape"}).json()["runs"][0]["energy"][
        "joules"
    ] == pytest.approx(1700.0)
    assert web.get("/run/caf\ufffd.tape").status_code == 200


def test_the_list_and_reports_are_sent_again_only_when_they_change(home):
    web = TestClient(Site(RunIndex(home), Access(frozenset({HOST}), 8765), FakeSource).app(), base_url=f"http://{HOST}")
    while web.get("/api/runs").json()["pending"]:
        pass
    for path in ("/api/runs", "/api/report?run=whole.tape", "/static/page.js"):
        first = web.get(path)
        assert web.get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
        assert first.status_code == 200 and first.content


def test_a_window_has_its_figure_with_an_interval(home):
    web = TestClient(Site(RunIndex(home), Access(frozenset({HOST}), 8765), FakeSource).app(), base_url=f"http://{HOST}")
    found = web.get("/api/window?run=20261115-000001-job&a=0.5&b=1.5").json()
    assert found["kind"] == "window" and found["energy"]["joules"] == pytest.approx(41.0, rel=0.01)
    assert found["energy"]["low"] < 41.0 < found["energy"]["high"] and "J" in found["energy"]["shown"]
    for asked, status in (("run=nothing&a=0&b=1", 404), ("run=x&a=1&b=1", 400), ("run=x&a=0&b=nan", 400), ("", 400)):
        assert web.get(f"/api/window?{asked}").status_code == status


def test_an_address_that_is_not_there_is_a_page_with_a_way_back(home):
    web = TestClient(Site(RunIndex(home), Access(frozenset({HOST}), 8765), FakeSource).app(), base_url=f"http://{HOST}")
    for path in ("/nothing", "/run/nothing"):
        answer = web.get(path)
        assert answer.status_code == 404 and answer.headers["content-type"].startswith("text/html")
        assert "start.js" in answer.text and "nothing" not in answer.text
    assert web.get("/api/nothing").headers["content-type"].startswith("text/plain")


def test_a_run_has_the_energy_that_load_gives_it(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, meta, watts in (("box-0001", {}, 40.0), ("box-0002", {"replaces": "box-0001.tape"}, 10.0)):
        writer = TapeWriter(folder / f"{name}.tape", {"host": {"name": "box"}, "period_s": 0.1, **meta})
        writer.anchor(Anchor(at(0), 1_700_000_000 * 10**9, at(0), 0))
        group = writer.add_group(counter_group(), 0.1)
        writer.append(group, rows(lambda t, watts=watts: watts * t, 0, 3, 0.1))
        writer.flush()
        writer.seal()
    run = open_run(folder)
    assert run.energy().joules == load(folder).energy().joules == pytest.approx(30.0)
    assert [tape.path.name for tape in run.tapes] == ["box-0002.tape"]
