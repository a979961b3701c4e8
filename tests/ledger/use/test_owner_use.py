"""Use by owner, from tables as they are read."""

import random
from types import SimpleNamespace

import pytest

from everywatt.core.clocks import NS
from everywatt.fleet.use import CpuBook, GpuBook
from everywatt.ledger.counters import UNATTRIBUTED, OwnerKey
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


@pytest.mark.parametrize("seed", range(200))
def test_old_and_new_agree_on_who_used_the_cpus(seed):
    """But for exit records: the old way counted them for their user, and again for the cgroup."""
    old, new, exits = CpuBook(tree), OwnerUse(tree, 1.0, 0, cpus=10), False
    chance = random.Random(-seed)
    for second, rows, groups, host_s, _ in tables(seed):
        old.feed_processes(second * NS, rows)
        new.feed(second * NS, rows)
        exits = rows[0]["exits"] if second == 10 else exits
        for book in (old, new):
            if not exits:
                book.feed_cgroups(groups)
            book.feed_host(host_s)
        if chance.random() < 0.7:
            found = [{o: s for o, s in uses.items() if s > 1e-9} for uses in (new.take().uses, old.take())]
            assert found[0] == pytest.approx(found[1], abs=1e-9), second
        old.count_memory()
        new.count_memory()
        assert new.memory == old.memory
        if second % 5 == 0:
            new.tidy()


@pytest.mark.parametrize("seed", range(50))
def test_old_and_new_agree_on_who_used_the_cards(seed):
    chance = random.Random(seed)
    old, new = GpuBook(), GpuOwnerUse()

    def user(pid):
        return OwnerKey("user", str(pid))

    there = set()
    for second in range(1, 30):
        rows = []
        for gpu in range(2):
            for pid in range(4):
                if (gpu, pid) in there and chance.random() < 0.1:
                    there.discard((gpu, pid))
                    rows.append({"gpu": gpu, "pid": pid, "sm": chance.randint(0, 90), "gone": True})
                elif chance.random() < 0.3:
                    there.add((gpu, pid))
                    rows.append({"gpu": gpu, "pid": pid, "sm": chance.randint(0, 90)})
        old.feed(second * NS, rows)
        new.feed(second * NS, rows)
        if chance.random() < 0.7:
            for gpu in range(2):
                for before, now in zip(old.take(gpu, user), new.take(gpu).by_owner(user), strict=True):
                    assert now == pytest.approx(before)
    assert new.method == old.method
