"""CPU seconds from rows of the process table."""

import pytest

from everywatt.core.clocks import NS
from everywatt.ledger.use.facts import members
from everywatt.ledger.use.usage import ProcessUse


def row(pid, cpu_s, children_s=0.0, *, start=0, ppid=1, **more):
    return {
        "pid": pid,
        "start": start,
        "ppid": ppid,
        "name": f"p{pid}",
        "cpu_s": cpu_s,
        "children_cpu_s": children_s,
        "rss_bytes": 100,
        "threads": 1,
        **more,
    }


def gone(pid, start=0):
    return {"pid": pid, "start": start, "gone": True}


def ticks(second):
    """A start `second` seconds after boot, in ticks."""
    return round(second * 100)


def fed(*frames):
    use = ProcessUse(1.0, 0)
    for second, rows in frames:
        use.feed(round(second * NS), rows)
    return use


def by_id(use):
    """CPU seconds of each process."""
    sums = {}
    for number, cpu_s in zip(use.records.number, use.records.cpu_s, strict=True):
        name = use.processes[number].id
        sums[name] = sums.get(name, 0.0) + cpu_s
    return {name: pytest.approx(cpu_s) for name, cpu_s in sums.items()}


def test_use_is_the_difference_of_rows_and_an_old_process_starts_from_what_it_had():
    use = fed((10, [row(5, 100.0)]), (11, [row(5, 100.4)]), (12, [row(5, 100.9)]))
    assert by_id(use) == {"5:0": 0.9}
    assert use.edges == [9 * NS, 10 * NS, 11 * NS, 12 * NS]
    assert use.records.place.tolist() == [1, 2]


def test_a_process_that_started_on_the_tape_owes_all_it_used_since():
    use = fed((10, [row(1, 0.0)]), (11, [row(7, 0.6, start=ticks(10.25))]))
    assert by_id(use) == {f"7:{ticks(10.25)}": 0.6}
    assert use.records.from_ns.tolist() == [round(10.25 * NS)]
    assert use.records.young.tolist() == [True]


def test_one_that_is_seen_late_used_it_since_its_start_and_not_all_at_once():
    use = fed((10, [row(1, 0.0)]), (11, [row(1, 0.1)]), (12, [row(1, 0.2), row(7, 1.5, start=ticks(10.5))]))
    mine = use.records.number == use.processes.index(next(p for p in use.processes if p.pid == 7))
    assert use.records.cpu_s[mine] == pytest.approx([0.5, 1.0])
    assert use.records.place[mine].tolist() == [1, 2]


def test_where_nothing_was_told_for_long_the_use_is_of_the_last_period():
    use = fed((10, [row(5, 1.0)]), (60, [row(5, 1.5)]))
    assert use.edges[-3:] == [10 * NS, 59 * NS, 60 * NS]
    assert use.records.from_ns.tolist() == [59 * NS]


def test_a_counter_that_goes_backwards_counts_for_nothing_and_goes_on_from_there():
    use = fed((10, [row(5, 3.0)]), (11, [row(5, 1.0)]), (12, [row(5, 1.5)]))
    assert by_id(use) == {"5:0": 0.5}


def test_the_same_pid_of_another_process_is_another_owner():
    second = row(5, 0.2, start=ticks(11.5))
    use = fed((10, [row(5, 3.0)]), (11, [row(5, 3.5)]), (12, [gone(5), second]), (13, [{**second, "cpu_s": 0.9}]))
    assert by_id(use) == {"5:0": 0.5, f"5:{ticks(11.5)}": 0.9}
    use = fed((10, [row(5, 3.0)]), (11, [row(5, 3.5)]), (12, [second]), (13, [{**second, "cpu_s": 0.9}]))
    assert by_id(use) == {"5:0": 0.5, f"5:{ticks(11.5)}": 0.9}


def test_children_that_came_and_went_are_charged_to_a_stand_in_of_their_parent():
    use = fed((10, [row(5, 0.0)]), (11, [row(5, 0.1, 1.0)]), (12, [row(5, 0.1, 3.0)]))
    assert by_id(use) == {"5:0": 0.1, "5:0:exited": 3.0}
    stand_in = next(process for process in use.processes if process.exited)
    assert stand_in.label == "short-lived children of p5"


def test_what_a_known_child_used_at_last_is_its_own():
    child = row(9, 0.4, start=ticks(10.5), ppid=5)
    use = fed((10, [row(5, 0.0)]), (11, [child]), (12, [row(5, 0.0, 1.1), gone(9, ticks(10.5))]))
    assert by_id(use) == {f"9:{ticks(10.5)}": 1.1}
    assert use.records.last.tolist() == [False, True]


def test_a_known_child_gets_no_more_than_it_can_have_used():
    child = row(9, 0.4, start=ticks(10.5), ppid=5)
    use = fed((10, [row(5, 0.0)]), (11, [child]), (12, [row(5, 0.0, 5.4), gone(9, ticks(10.5))]))
    assert by_id(use) == {f"9:{ticks(10.5)}": 1.4, "5:0:exited": 4.0}


def test_grandchildren_that_went_with_their_parent_are_not_counted_twice():
    child, grandchild = row(6, 0.2, start=ticks(10.1), ppid=5), row(7, 0.8, start=ticks(10.2), ppid=6)
    ends = [row(5, 0.0, 1.5), gone(6, ticks(10.1)), gone(7, ticks(10.2))]
    use = fed((10, [row(5, 0.0)]), (11, [child, grandchild]), (12, ends))
    assert use.records.cpu_s.sum() == pytest.approx(1.5)


def test_with_exit_records_children_times_are_not_used():
    flags = {"pid": 0, "start": 0, "name": "host", "everything": True, "exits": True}
    ends = [
        {"pid": 8, "start": ticks(10.2), "ppid": 5, "name": "cc", "uid": 0, "cpu_s": 0.3, "exit": True, "gone": True},
        {"pid": 9, "start": None, "ppid": 77, "name": "ld", "uid": 0, "cpu_s": 0.2, "exit": True, "gone": True},
        {"pid": 5, "start": 0, "ppid": 1, "name": "p5", "uid": 0, "cpu_s": 1.0, "exit": True, "gone": True},
    ]
    use = fed((10, [flags, row(5, 0.5)]), (11, [row(5, 0.7, 4.0), *ends]))
    assert by_id(use) == {"5:0": 0.5, "5:0:exited": 0.3, "0::exited": 0.2}
    assert use.everything[-1]


def test_a_reaper_is_the_meter_and_its_children_are_the_subject():
    reaper = row(4, 0.1, 0.0, meter=True, reaper=True)
    use = fed((10, [reaper]), (11, [{**reaper, "children_cpu_s": 2.0, "cpu_s": 0.2}]))
    exited = use.processes[-1]
    assert (exited.exited, exited.meter, exited.label) == (True, False, "short-lived children of the command")
    assert members(use.processes, []) == [False, True]


def test_descendants_of_a_root_belong_to_it_and_stay():
    child = row(6, 0.0, start=ticks(10.5), ppid=5)
    use = fed((10, [row(5, 0.0), row(3, 0.0)]), (11, [child]), (12, [{**child, "ppid": 1}]), (13, [gone(5)]))
    assert dict(zip([p.pid for p in use.processes], members(use.processes, [(5, None)]), strict=True)) == {
        5: True,
        3: False,
        6: True,
    }
    assert members(use.processes, [(5, 12345)]) == [False, False, False]


def test_hidden_processes_are_counted_and_change_nothing():
    use = fed((10, [row(5, 0.0)]), (11, [{"pid": 9, "start": None, "hidden": True, "why": "x"}, row(5, 0.5)]))
    assert use.hidden == {9}
    assert by_id(use) == {"5:0": 0.5}


def test_frames_may_come_later_and_records_follow():
    use = fed((10, [row(5, 0.0)]), (11, [row(5, 0.5)]))
    assert use.records.cpu_s.sum() == pytest.approx(0.5)
    use.feed(12 * NS, [row(5, 0.75)])
    use.feed(12 * NS, [row(5, 9.75)])  # not after the one before
    assert use.records.cpu_s.sum() == pytest.approx(0.75)


def test_a_hidden_process_whose_clock_can_be_read_is_an_owner():
    hidden = {"pid": 9, "start": None, "hidden": True, "why": "x"}
    use = fed((10, [{**hidden, "cpu_s": 1.0}]), (11, [{**hidden, "cpu_s": 1.5}]), (12, [{**hidden, "gone": True}]))
    assert by_id(use) == {"9:": 0.5}
    assert use.processes[0].label == "pid 9"
