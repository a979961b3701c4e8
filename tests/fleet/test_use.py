"""CPU time by owner, from tables as the recorder gives them."""

import pytest

from everywatt.core.clocks import NS
from everywatt.fleet.use import CpuBook, GpuBook
from everywatt.ledger.counters import METER, OTHER, UNATTRIBUTED, OwnerKey


def book() -> CpuBook:
    return CpuBook(lambda process: OwnerKey("user", process.user or (process.cgroup or "?")))


def row(pid, cpu_s, **more):
    return {"pid": pid, "start": more.pop("start", 1), "ppid": 1, "name": "p", "cpu_s": cpu_s, "user": "ada", **more}


def test_only_what_was_used_since_counts():
    one = book()
    one.feed_processes(1, [row(10, 100.0), row(11, 5.0, user="bob", rss_bytes=4096)])
    assert one.take() == {}
    one.feed_processes(2, [row(10, 100.5), row(12, 0.25, user="bob")])
    assert one.take() == {OwnerKey("user", "ada"): pytest.approx(0.5), OwnerKey("user", "bob"): pytest.approx(0.25)}
    one.count_memory()
    assert one.memory[OwnerKey("user", "bob")] == 4096


def test_a_package_gets_what_ran_on_its_cpus():
    one = book()
    one.packages = [0, 0, 1, 1, 1, 1]
    one.feed_processes(1, [row(10, 0.0), row(11, 0.0, user="bob"), row(12, 0.0, user="eve")])
    one.feed_processes(
        2,
        [
            row(10, 0.6, cpu=1, threads=1),
            row(11, 0.8, user="bob", cpu=4, threads=1),
            row(12, 3.0, user="eve", cpu=4, threads=8),
        ],
    )
    ada, bob, eve = (OwnerKey("user", name) for name in ("ada", "bob", "eve"))
    assert one.take() == pytest.approx({ada: 0.6, bob: 0.8, eve: 3.0})
    assert one.on(0) == pytest.approx({ada: 0.6, bob: 0.0, eve: 1.0})
    assert one.on(1) == pytest.approx({ada: 0.0, bob: 0.8, eve: 2.0})
    assert one.on(7) is None


def test_a_number_that_is_used_again_is_another_process():
    one = book()
    one.feed_processes(1, [row(10, 100.0)])
    one.feed_processes(2, [row(10, 0.5, start=2)])
    assert one.take() == {OwnerKey("user", "ada"): pytest.approx(0.5)}


def test_a_process_that_goes_leaves_what_it_used():
    one = book()
    one.feed_processes(1, [row(10, 1.0)])
    one.feed_processes(2, [row(10, 1.5), {"pid": 10, "start": 1, "gone": True}])
    assert one.take() == {OwnerKey("user", "ada"): pytest.approx(0.5)}
    assert one.processes == {}


def test_children_that_came_and_went_count_for_their_parent():
    one = book()
    one.feed_processes(1, [row(10, 1.0, children_cpu_s=0.0), row(20, 2.0, ppid=10)])
    one.feed_processes(2, [row(10, 1.0, children_cpu_s=2.75), {"pid": 20, "start": 1, "gone": True}])
    # 2.75 s of children: 2 s of them were known of process 20 before, 0.75 s are new.
    assert one.take() == {OwnerKey("user", "ada"): pytest.approx(0.75)}


def test_with_exit_records_children_are_not_counted_twice():
    one = book()
    one.feed_processes(1, [{"pid": 0, "start": 0, "everything": True, "exits": True}, row(10, 1.0, children_cpu_s=0.0)])
    ended = {"pid": 30, "start": None, "ppid": 10, "name": "cc", "uid": 0, "cpu_s": 0.7, "exit": True, "gone": True}
    one.feed_processes(2, [row(10, 1.0, children_cpu_s=0.7), {**ended, "user": "ada"}])
    assert one.take() == {OwnerKey("user", "ada"): pytest.approx(0.7)}


def test_groups_tell_of_processes_that_nobody_saw():
    one = CpuBook(lambda process: OwnerKey("container", process.cgroup or "?"))
    one.feed_processes(1, [row(10, 1.0, cgroup="/c/a")])
    one.feed_cgroups([{"cgroup": "/c/a", "cpu_s": 1.0}, {"cgroup": "/c", "cpu_s": 1.0}])
    one.feed_processes(2, [row(10, 1.25)])
    one.feed_cgroups([{"cgroup": "/c/a", "cpu_s": 2.0}, {"cgroup": "/c", "cpu_s": 2.0}])
    assert one.take() == {OwnerKey("container", "/c/a"): pytest.approx(1.0)}


def test_the_host_beyond_all_is_nobodys_and_the_clock_may_be_behind():
    one = book()
    one.feed_processes(1, [row(10, 1.0)])
    one.feed_host(100.0)
    one.take()
    one.feed_processes(2, [row(10, 2.0)])
    one.feed_host(100.99)
    assert UNATTRIBUTED not in one.take()
    one.feed_processes(3, [row(10, 2.5)])
    one.feed_host(101.79)
    assert one.take()[UNATTRIBUTED] == pytest.approx(0.29)


def test_the_meter_and_the_hidden_are_told_apart():
    one = book()
    one.feed_processes(1, [row(10, 1.0, meter=True), {"pid": 11, "start": None, "hidden": True, "cpu_s": 1.0}])
    one.feed_processes(2, [row(10, 1.5), {"pid": 11, "start": None, "hidden": True, "cpu_s": 1.25}])
    assert one.take() == {METER: pytest.approx(0.5), OTHER: pytest.approx(0.25)}


def user(pid):
    return OwnerKey("user", str(pid))


def test_cards_are_shared_by_sm_time_and_held_by_all():
    gpus = GpuBook()
    gpus.feed(NS, [{"gpu": 0, "pid": 1, "sm": 60}, {"gpu": 0, "pid": 2, "sm": 20}, {"gpu": 1, "pid": 3, "sm": 0}])
    assert gpus.take(0, user) == ({user(1): 60, user(2): 20}, {user(1): 1.0, user(2): 1.0})
    assert gpus.take(1, user) == ({}, {user(3): 1.0})
    gpus.feed(2 * NS, [])
    assert gpus.take(1, user) == ({}, {user(3): 1.0}), "nothing changed"
    gpus.feed(3 * NS, [{"gpu": 1, "pid": 3, "sm": 0, "gone": True}])
    gpus.feed(4 * NS, [])
    gpus.feed(5 * NS, [])
    assert gpus.take(1, user) == ({}, {user(3): pytest.approx(1 / 3)}), "it left within the first of three seconds"
    gpus.feed(6 * NS, [])
    assert gpus.take(1, user) == ({}, {})


def test_what_was_used_of_a_card_between_two_questions_is_a_mean_over_time():
    gpus = GpuBook()
    gpus.feed(NS, [{"gpu": 0, "pid": 1, "sm": 90}])
    gpus.feed(2 * NS, [{"gpu": 0, "pid": 1, "sm": 0}, {"gpu": 0, "pid": 2, "sm": 30}])
    gpus.feed(4 * NS, [])
    assert gpus.take(0, user) == ({user(1): 22.5, user(2): 22.5}, {user(1): 1.0, user(2): 0.75})


def test_a_process_that_ended_with_its_card_keeps_its_last_interval():
    gpus, known = GpuBook(), {7: user(7)}
    gpus.feed(NS, [{"gpu": 0, "pid": 7, "sm": 50}])
    gpus.take(0, lambda pid: known.get(pid, UNATTRIBUTED))
    known.clear()
    gpus.feed(2 * NS, [{"gpu": 0, "pid": 7, "sm": 50, "gone": True}])
    assert gpus.take(0, lambda pid: known.get(pid, UNATTRIBUTED))[0] == {user(7): 25.0}
    gpus.tidy()
    gpus.feed(3 * NS, [{"gpu": 0, "pid": 7, "sm": 50}])
    assert gpus.take(0, lambda pid: known.get(pid, UNATTRIBUTED))[0] == {UNATTRIBUTED: 50.0}
