"""The journal keeps what was written, whatever happens to the last line."""

import errno
import os

import pytest

from everywatt.batch.items import Item
from everywatt.batch.journal import (
    DONE,
    FAILED,
    INTERRUPTED,
    JOURNAL,
    PENDING,
    RUNNING,
    Attempt,
    Device,
    Journal,
    read_journal,
)
from everywatt.batch.session import what_is_left
from everywatt.core.errors import RunNotFound, UsageError

ITEMS = [Item(i, name, name, {"input": name}) for i, name in enumerate("abcd")]


def write(folder):
    journal = Journal(folder)
    journal.batch(["x", "{input}"], ITEMS, [Device("gpu.0", uuid="u")])
    for item, status, final in ((ITEMS[0], DONE, True), (ITEMS[1], FAILED, True), (ITEMS[2], FAILED, False)):
        journal.start(item, Attempt(1, "gpu.0", 0, "s"))
        journal.end(item, 1, status, {"exit_code": 0 if status == DONE else 1}, final=final)
    journal.start(ITEMS[3], Attempt(1, "gpu.0", 0, "s"))
    return journal


def states(folder):
    return {key: state.status for key, state in read_journal(folder).states.items()}


def test_states_follow_from_the_lines(tmp_path):
    assert write(tmp_path).close() == ""
    assert states(tmp_path) == {"a": DONE, "b": FAILED, "c": PENDING, "d": RUNNING}
    work = what_is_left(ITEMS, read_journal(tmp_path))
    assert [item.id for item in work.todo] == ["b", "c", "d"]
    assert [state.item.id for state in work.cut_off] == ["d"]
    assert work.new == ()


def test_every_cut_leaves_a_journal_that_is_read_and_goes_on(tmp_path):
    write(tmp_path).close()
    whole = (tmp_path / JOURNAL).read_bytes()
    done_at = whole.index(b'"status": "done"') + len(b'"status": "done"')
    for cut in range(0, len(whole), 7):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / JOURNAL).write_bytes(whole[:cut])
        found = states(folder)
        if cut > whole.index(b"\n", done_at):
            assert found["a"] == DONE
        journal = Journal(folder)
        journal.batch(["x"], [item for item in ITEMS if item.id not in found], [])
        journal.start(ITEMS[0], Attempt(2, "gpu.0", 0, "s2"))
        journal.end(ITEMS[0], 2, INTERRUPTED, {}, final=False)
        journal.close()
        assert states(folder)["a"] == INTERRUPTED


def test_a_full_disk_stops_nobody(tmp_path):
    """/dev/full takes nothing; what waits is told at the end."""
    (tmp_path / JOURNAL).symlink_to("/dev/full")
    said = write(tmp_path).close()
    assert "No space left" in said and "run some items again" in said


def test_one_batch_at_a_time(tmp_path):
    journal = write(tmp_path)
    with pytest.raises(UsageError, match="another everywatt batch"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_a_run_without_a_journal_is_no_batch(tmp_path):
    with pytest.raises(RunNotFound, match="not a batch"):
        read_journal(tmp_path)


def test_a_changed_row_or_file_runs_again(tmp_path):
    file = tmp_path / "in.wav"
    file.write_bytes(b"one")
    item = Item(0, "a", str(file), {"input": str(file)})
    journal = Journal(tmp_path)
    journal.batch(["x"], [item], [])
    journal.start(item, Attempt(1, "cpu", 0))
    from everywatt.batch.worker import describe_file

    journal.end(item, 1, DONE, {"exit_code": 0, "file": describe_file(str(file))}, final=True)
    journal.close()
    history = read_journal(tmp_path)
    assert what_is_left([item], history).todo == ()
    file.write_bytes(b"one")  # touched, with the same content
    assert what_is_left([item], history).todo == ()
    file.write_bytes(b"two")
    work = what_is_left([item], history)
    assert work.todo == (item,) and "content" in work.notes[0]
    changed = Item(0, "a", str(file), {"input": str(file), "rate": "2"})
    assert what_is_left([changed], history).new == (changed,)


def test_a_damaged_line_is_left_out_and_told(tmp_path):
    (tmp_path / JOURNAL).write_text('{"kind": "item", "id": "a"}\n{"kind": "collected", "part": "1"}\n')
    history = read_journal(tmp_path)
    assert (history.states, history.collected) == ({}, {"1"})
    assert history.trouble == ["line 1 of the journal is damaged and was skipped: KeyError('index')"]


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_any_single_call_may_fail_or_write_half(tmp_path, monkeypatch, name):
    """Nothing is lost that a later line can bring along; what is lost is said when the journal is closed."""
    real = {one: getattr(os, one) for one in ("write", "fsync")}
    for nth in range(1, 30):
        for half in (False, True):
            folder = tmp_path / f"{nth}{half}"
            folder.mkdir()
            left = [nth]

            def fail(fd, *data, left=left, half=half):
                left[0] -= 1
                if half and data and left[0] == 1:
                    return real[name](fd, data[0][: len(data[0]) // 2])  # and the next call fails
                if left[0] == 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real[name](fd, *data)

            monkeypatch.setattr(os, name, fail)
            why = write(folder).close()
            monkeypatch.undo()
            found = read_journal(folder)
            whole = {key: state.status for key, state in found.states.items()}
            assert why or whole == {"a": DONE, "b": FAILED, "c": PENDING, "d": RUNNING}
            if left[0] > 0:
                return  # it has no more calls than that


def test_names_of_files_that_are_no_text_come_back_as_they_were(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    item = Item(0, name, name, {"input": name})
    journal = Journal(tmp_path)
    journal.batch(["x", name], [item], [])
    journal.start(item, Attempt(1, "gpu.0", 0, "s"))
    journal.end(item, 1, DONE, {"exit_code": 0}, final=True)
    assert journal.close() == ""
    found = read_journal(tmp_path)
    assert found.command == ["x", name] and found.states[name].item == item and found.states[name].status == DONE


def test_a_line_whose_devices_are_none_is_damaged(tmp_path):
    write(tmp_path).close()
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('{"kind": "batch", "command": ["x"], "devices": ["gpu.0"]}\n')
    history = read_journal(tmp_path)
    assert [one.name for one in history.devices] == ["gpu.0"]
    assert any("damaged" in line for line in history.trouble)
