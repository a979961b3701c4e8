"""Use by owner, from tables as they are read."""

import json
import random
from types import SimpleNamespace

import pytest

from everywatt.core.clocks import NS
from everywatt.ledger.counters import METER, OTHER, UNATTRIBUTED, OwnerKey
from everywatt.ledger.use.owner_use import GpuOwnerUse, OwnerUse

SECONDS = 25


def tree(process):
    """Each tree of processes is a container, and has a user of its own."""
    return OwnerKey("container", process.cgroup or f"/c/{process.uid}")


def tables(seed):
    """Frames of the three tables second by second: trees whose parents stay and whose children come and go."""
    chance = random.Random(seed)
    exits, numbers = chance.random() < 0.5, iter(range(100, 10_000))
    host_s, groups, true_s = 500.0, {}, {}
    trees = []
    for number in range(chance.randint(1, 4)):
        facts = {"uid": 1000 + number, "user": f"u{number}", "cgroup": f"/c/{1000 + number}"}
        parent = {"pid": next(numbers), "start": 10 * number, "ppid": 1, "name": "sh", "cpu_s": 3.0}
        trees.append((parent | {"children_cpu_s": 1.0} | facts, [], facts))
        groups[facts["cgroup"]] = 10.0
    for second in range(10, 10 + SECONDS):
        rows = [{"pid": 0, "start": 0, "everything": True, "exits": exits}] if second == 10 else []
        for parent, children, facts in trees:
            used_s = chance.choice([0.0, round(chance.uniform(0.01, 0.9), 2)])
            parent["cpu_s"] += used_s
            if children and chance.random() < 0.4:
                child = children.pop(chance.randrange(len(children)))
                last_s = chance.choice([0.0, 0.25])
                used_s += last_s
                parent["children_cpu_s"] += child["cpu_s"] + last_s
                end = {"pid": child["pid"], "start": child["start"], "gone": True}
                if exits:
                    end |= {"exit": True, "ppid": parent["pid"], "name": "cc", "cpu_s": child["cpu_s"] + last_s}
                rows.append(end)
            for child in children:
                more_s = round(chance.uniform(0.0, 0.5), 2)
                child["cpu_s"] += more_s
                used_s += more_s
                rows.append(dict(child))
            if second > 10 and chance.random() < 0.5:  # one that is read once at least
                child = {"pid": next(numbers), "start": 100 * second - 50, "ppid": parent["pid"], "name": "cc"}
                children.append(child | {"cpu_s": 0.2, "rss_bytes": 4096 * chance.randint(1, 9)} | facts)
                used_s += 0.2
                rows.append(dict(children[-1]))
            if second > 10 and chance.random() < 0.3:  # one that came and went
                parent["children_cpu_s"] += 0.3
                used_s += 0.3
                if exits:
                    rows.append({"pid": next(numbers), "start": 100 * second - 40, "ppid": parent["pid"], "cpu_s": 0.3,
                                 "name": "ld", "uid": facts["uid"], "exit": True, "gone": True})  # fmt: skip
            rows.append(dict(parent))
            hidden_s = chance.choice([0.0, 0.0, 0.1])  # what only the cgroup knows of
            groups[facts["cgroup"]] += used_s + hidden_s
            host_s += used_s + hidden_s
            true_s[tree(SimpleNamespace(**facts))] = used_s + hidden_s
        true_s[UNATTRIBUTED] = chance.choice([0.0, 0.0, 0.4])
        host_s += true_s[UNATTRIBUTED]
        cgroups = [{"cgroup": name, "cpu_s": cpu_s} for name, cpu_s in groups.items()]
        yield second, rows, cgroups, host_s, dict(true_s)


@pytest.mark.parametrize("seed", range(100))
def test_owners_are_charged_what_they_used(seed):
    use, true_s, found_s = OwnerUse(tree, 1.0, 0), {}, {}
    for second, rows, groups, host_s, used_s in tables(seed):
        use.feed(second * NS, rows)
        use.feed_cgroups(groups)
        use.feed_host(host_s)
        if second == 10:
            use.take()
            continue
        for into, amounts in ((true_s, used_s), (found_s, use.take().uses)):
            for owner, amount in amounts.items():
                into[owner] = into.get(owner, 0.0) + amount
        if second % 5 == 0:
            use.tidy()
    assert found_s == pytest.approx({owner: amount for owner, amount in true_s.items() if amount}, abs=1e-9)


def by_user():
    return OwnerUse(lambda process: OwnerKey("user", process.user or (process.cgroup or "?")), 1.0, 0)


def row(pid, cpu_s, **more):
    return {
        "pid": pid,
        "start": more.pop("start", -1000),
        "ppid": 1,
        "name": "p",
        "cpu_s": cpu_s,
        "user": "ada",
        **more,
    }


def test_only_what_was_used_since_counts():
    one = by_user()
    one.feed(1 * NS, [row(10, 100.0), row(11, 5.0, user="bob", rss_bytes=4096)])
    assert one.take().uses == {}
    one.feed(2 * NS, [row(10, 100.5), row(12, 0.25, user="bob", start=150)])
    assert one.take().uses == {
        OwnerKey("user", "ada"): pytest.approx(0.5),
        OwnerKey("user", "bob"): pytest.approx(0.25),
    }
    one.count_memory()
    assert one.memory[OwnerKey("user", "bob")] == 4096


def test_a_package_gets_what_ran_on_its_cpus():
    one = by_user()
    one.packages = [0, 0, 1, 1, 1, 1]
    one.feed(1 * NS, [row(10, 0.0), row(11, 0.0, user="bob"), row(12, 0.0, user="eve")])
    one.feed(
        2 * NS,
        [
            row(10, 0.6, cpu=1, threads=1),
            row(11, 0.8, user="bob", cpu=4, threads=1),
            row(12, 3.0, user="eve", cpu=4, threads=8),
        ],
    )
    ada, bob, eve = (OwnerKey("user", name) for name in ("ada", "bob", "eve"))
    use = one.take()
    assert use.uses == pytest.approx({ada: 0.6, bob: 0.8, eve: 3.0})
    assert use.on(0) == pytest.approx({ada: 0.6, bob: 0.0, eve: 1.0})
    assert use.on(1) == pytest.approx({ada: 0.0, bob: 0.8, eve: 2.0})


def test_a_number_that_is_used_again_is_another_process():
    one = by_user()
    one.feed(1 * NS, [row(10, 100.0)])
    one.feed(2 * NS, [row(10, 0.5, start=150)])
    assert one.take().uses == {OwnerKey("user", "ada"): pytest.approx(0.5)}


def test_a_process_that_goes_leaves_what_it_used():
    one = by_user()
    one.feed(1 * NS, [row(10, 1.0)])
    one.feed(2 * NS, [row(10, 1.5), {"pid": 10, "start": 1, "gone": True}])
    assert one.take().uses == {OwnerKey("user", "ada"): pytest.approx(0.5)}
    assert one.alive == {}


def test_children_that_came_and_went_count_for_their_parent():
    one = by_user()
    one.feed(1 * NS, [row(10, 1.0, children_cpu_s=0.0), row(20, 2.0, ppid=10)])
    one.feed(2 * NS, [row(10, 1.0, children_cpu_s=2.75), {"pid": 20, "start": 1, "gone": True}])
    # 2.75 s of children: 2 s of them were known of process 20 before, 0.75 s are new.
    assert one.take().uses == {OwnerKey("user", "ada"): pytest.approx(0.75)}


def test_with_exit_records_children_are_not_counted_twice():
    one = by_user()
    one.feed(1 * NS, [{"pid": 0, "start": 0, "everything": True, "exits": True}, row(10, 1.0, children_cpu_s=0.0)])
    ended = {"pid": 30, "start": None, "ppid": 10, "name": "cc", "uid": 0, "cpu_s": 0.7, "exit": True, "gone": True}
    one.feed(2 * NS, [row(10, 1.0, children_cpu_s=0.7), {**ended, "user": "ada"}])
    assert one.take().uses == {OwnerKey("user", "ada"): pytest.approx(0.7)}


def test_groups_show_processes_that_were_never_seen():
    one = OwnerUse(lambda process: OwnerKey("container", process.cgroup or "?"), 1.0, 0)
    one.feed(1 * NS, [row(10, 1.0, cgroup="/c/a")])
    one.feed_cgroups([{"cgroup": "/c/a", "cpu_s": 1.0}, {"cgroup": "/c", "cpu_s": 1.0}])
    one.feed(2 * NS, [row(10, 1.25)])
    one.feed_cgroups([{"cgroup": "/c/a", "cpu_s": 2.0}, {"cgroup": "/c", "cpu_s": 2.0}])
    assert one.take().uses == {OwnerKey("container", "/c/a"): pytest.approx(1.0)}


def test_a_group_that_is_new_owes_nothing_for_what_its_processes_used_before():
    one = OwnerUse(lambda process: OwnerKey("container", process.cgroup or "?"), 1.0, 0)
    one.feed(1 * NS, [row(10, 1.0, cgroup="/c/a")])
    one.feed_cgroups([{"cgroup": "/c/a", "cpu_s": 1.0}])
    one.take()
    one.feed(2 * NS, [row(20, 0.8, start=150, cgroup="/c/b")])
    one.feed_cgroups([{"cgroup": "/c/b", "cpu_s": 0.8}])
    assert one.take().uses == {OwnerKey("container", "/c/b"): pytest.approx(0.8)}
    one.feed(3 * NS, [row(20, 0.9, start=150)])
    one.feed_cgroups([{"cgroup": "/c/b", "cpu_s": 1.5}])
    assert one.take().uses == {OwnerKey("container", "/c/b"): pytest.approx(0.7)}


def test_the_host_beyond_all_is_nobodys_and_the_clock_may_be_behind():
    one = by_user()
    one.feed(1 * NS, [row(10, 1.0)])
    one.feed_host(100.0)
    one.take()
    one.feed(2 * NS, [row(10, 2.0)])
    one.feed_host(100.99)
    assert UNATTRIBUTED not in one.take().uses
    one.feed(3 * NS, [row(10, 2.5)])
    one.feed_host(101.79)
    assert one.take().uses[UNATTRIBUTED] == pytest.approx(0.29)


def test_the_meter_and_the_hidden_are_told_apart():
    one = by_user()
    one.feed(1 * NS, [row(10, 1.0, meter=True), {"pid": 11, "start": None, "hidden": True, "cpu_s": 1.0}])
    one.feed(2 * NS, [row(10, 1.5, meter=True), {"pid": 11, "start": None, "hidden": True, "cpu_s": 1.25}])
    assert one.take().uses == {METER: pytest.approx(0.5), OTHER: pytest.approx(0.25)}


def user(pid):
    return OwnerKey("user", str(pid))


def test_cards_are_shared_by_sm_time_and_held_by_all():
    gpus = GpuOwnerUse()
    gpus.feed(NS, [{"gpu": 0, "pid": 1, "sm": 60}, {"gpu": 0, "pid": 2, "sm": 20}, {"gpu": 1, "pid": 3, "sm": 0}])
    assert gpus.take(0).by_owner(user) == ({user(1): 60, user(2): 20}, {user(1): 1.0, user(2): 1.0})
    assert gpus.take(1).by_owner(user) == ({}, {user(3): 1.0})
    gpus.feed(2 * NS, [])
    assert gpus.take(1).by_owner(user) == ({}, {user(3): 1.0}), "nothing changed"
    gpus.feed(3 * NS, [{"gpu": 1, "pid": 3, "sm": 0, "gone": True}])
    gpus.feed(4 * NS, [])
    gpus.feed(5 * NS, [])
    assert gpus.take(1).by_owner(user) == ({}, {user(3): pytest.approx(1 / 3)}), (
        "it left within the first of three seconds"
    )
    gpus.feed(6 * NS, [])
    assert gpus.take(1).by_owner(user) == ({}, {})


def test_what_was_used_of_a_card_between_two_questions_is_a_mean_over_time():
    gpus = GpuOwnerUse()
    gpus.feed(NS, [{"gpu": 0, "pid": 1, "sm": 90}])
    gpus.feed(2 * NS, [{"gpu": 0, "pid": 1, "sm": 0}, {"gpu": 0, "pid": 2, "sm": 30}])
    gpus.feed(4 * NS, [])
    assert gpus.take(0).by_owner(user) == ({user(1): 22.5, user(2): 22.5}, {user(1): 1.0, user(2): 0.75})


def test_a_process_that_ended_with_its_card_keeps_its_last_interval():
    gpus, use = GpuOwnerUse(), by_user()
    use.feed(NS, [row(7, 1.0)])
    gpus.feed(NS, [{"gpu": 0, "pid": 7, "sm": 50}])
    use.feed(2 * NS, [{"pid": 7, "start": -1000, "gone": True}])
    use.tidy(gpus.pids())
    gpus.feed(2 * NS, [{"gpu": 0, "pid": 7, "sm": 50, "gone": True}])
    assert use.facts_of(7).user == "ada"
    use.tidy(gpus.pids())
    assert use.facts_of(7) is None


def test_a_process_that_is_hidden_is_one_of_the_others_until_it_ends():
    use, hidden = by_user(), {"pid": 9, "start": None, "hidden": True, "why": "hidepid"}
    use.feed(NS, [row(7, 1.0), hidden])
    assert [use.owner_of_pid(pid) for pid in (7, 8, 9)] == [OwnerKey("user", "ada"), UNATTRIBUTED, OTHER]
    use.feed(2 * NS, [{"pid": 9, "start": None, "gone": True}])
    assert use.owner_of_pid(9) == UNATTRIBUTED


def test_a_new_agent_goes_on_from_what_processes_had_used():
    one = by_user()
    one.feed(NS, [row(10, 1.0), row(11, 4.0, user="bob"), row(12, 7.0, user="eve")])
    one.feed_host(100.0)
    two = by_user()
    two.go_on_from(json.loads(json.dumps(one.to_dict())))
    two.feed(9 * NS, [row(10, 3.0, children_cpu_s=9.0), row(11, 4.0, user="bob"), row(13, 0.5, user="bob", start=500)])
    two.feed_host(106.0)
    ada, bob = OwnerKey("user", "ada"), OwnerKey("user", "bob")
    assert two.unwatched() == pytest.approx({ada: 2.0, bob: 0.5, UNATTRIBUTED: 3.5})
    two.feed(10 * NS, [row(10, 3.25, children_cpu_s=9.0)])
    assert two.take().uses == pytest.approx({ada: 0.25})


def test_one_that_ends_before_a_new_agent_reads_it_is_named_by_its_exit_record():
    one = OwnerUse(lambda process: OwnerKey("user", str(process.uid)), 1.0, 0)
    one.feed(NS, [row(10, 1.0, uid=5)])
    two = OwnerUse(lambda process: OwnerKey("user", str(process.uid)), 1.0, 0)
    two.go_on_from(one.to_dict())
    ended = {"pid": 10, "start": None, "ppid": 1, "name": "cc", "uid": 5, "cpu_s": 1.5, "exit": True, "gone": True}
    two.feed(9 * NS, [{"pid": 0, "start": 0, "everything": True, "exits": True}, ended])
    assert two.unwatched() == pytest.approx({OwnerKey("user", "5"): 0.5})


def test_one_that_went_while_it_was_read_is_its_users_by_its_exit_record():
    one = OwnerUse(lambda process: OwnerKey("user", str(process.uid)), 1.0, 0)
    one.feed(NS, [{"pid": 0, "start": 0, "everything": True, "exits": True}])
    half_read = {"pid": 10, "start": 150, "ppid": 1, "name": "cc", "cpu_s": 0.25}
    ended = {"pid": 10, "start": 150, "ppid": 1, "name": "cc", "uid": 5, "cpu_s": 0.5, "exit": True, "gone": True}
    one.feed(2 * NS, [half_read, ended])
    assert one.take().uses == pytest.approx({OwnerKey("user", "5"): 0.5})


def test_what_ended_is_forgotten():
    one = by_user()
    for second in range(1, 200):
        start = 100 * second - 50
        ends = [{"pid": 100 + second - 1, "start": start - 100, "gone": True}] if second > 1 else []
        there = [row(10, 1.0 + second, children_cpu_s=2.0 * second), row(100 + second, 0.1, start=start)]
        one.feed(second * NS, [*there, *ends])
        one.take()
        if second % 10 == 0:
            one.tidy()
    held = [one.alive, one._known, one._exited, one._ended_lately, one._gone, one._used_now, one.hidden]
    assert all(len(part) <= 25 for part in held)


def test_a_new_agent_knows_what_is_one_program():
    one = by_user()
    rows = [row(10, 1.0, ppid=1), row(11, 4.0, ppid=10), row(12, 7.0, ppid=1)]
    one.feed(NS, rows)
    two = by_user()
    two.go_on_from(json.loads(json.dumps(one.to_dict())))
    two.feed(9 * NS, rows)
    for use in (one, two):
        first, child, other = (use.alive[pid].facts.workload for pid in (10, 11, 12))
        assert first == child != other
