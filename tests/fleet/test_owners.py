"""Owners: who a process belongs to, and accounts that add up within bounds."""

import pytest

from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.fleet import jobs
from everywatt.fleet.owners import FORGET_NS, Accounts, Places
from everywatt.fleet.share import REST, Owner
from everywatt.fleet.use import Process

ID = "ab" * 32


def process(**more) -> Process:
    return Process(7, 1, 1, "python", **more)


def test_job_before_container_before_user():
    places = Places(jobs.make(["cgroup"]))
    job = process(cgroup="/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", uid=0)
    assert places.owner(job) == Owner("job", "123")
    assert places.jobs["123"] == jobs.Job("123", user="root")
    docker = process(cgroup=f"/system.slice/docker-{ID}.scope", uid=0)
    assert places.owner(docker) == Owner("container", ID[:12])
    places.feed_cgroups([{"cgroup": f"/system.slice/docker-{ID}.scope", "name": {"name": "web"}}])
    assert places.owner(docker) == Owner("container", "web")
    assert places.owner(process(cgroup="/system.slice/nginx.service")) == Owner("container", "nginx.service")
    assert places.owner(process(cgroup="/", uid=0)) == Owner("user", "root")
    assert places.owner(process(cgroup="/", uid=54321)) == Owner("user", "54321")


def test_by_program_where_it_is_asked_for():
    places = Places([], by_program=True)
    assert places.owner(process(cgroup="/", uid=0)) == Owner("process", "python")


class Known:
    """A provider that learns later who a job's user is."""

    user, asked, changed = "", 0, False

    def job_of(self, cgroup, pid, uid):
        self.asked += 1
        return jobs.Job("9", self.user, "physics", "gpu") if cgroup == "/j" else None

    def refresh(self, now_ns):
        changed, self.changed = self.changed, False
        return changed

    def close(self):
        pass


def test_a_provider_is_asked_once_and_again_when_it_says_so():
    known = Known()
    places = Places([known])
    for _ in range(3):
        assert places.owner(process(cgroup="/j", uid=5)) == Owner("job", "9")
    assert known.asked == 1
    known.user, known.changed = "ada", True
    places.refresh(0)
    places.owner(process(cgroup="/j", uid=5))
    assert places.jobs["9"].user == "ada"


@pytest.mark.parametrize("name", ["nobody", "no.such.module:Class", "everywatt.fleet.jobs:Nothing"])
def test_a_provider_that_is_none_is_refused(name):
    with pytest.raises(UsageError):
        jobs.make([name])


def test_beyond_the_cap_owners_are_the_rest_and_nothing_is_lost():
    accounts = Accounts(most=10)
    for number in range(50):
        accounts.charge("cpu.0", {Owner("container", f"c{number}"): 1000 + number}, now_ns=number)
        accounts.used({Owner("container", f"c{number}"): 1.0}, now_ns=number)
    before = accounts.device_uj("cpu.0")
    accounts.tidy([Owner("container", "c0")], now_ns=100)
    assert len([owner for owner in accounts.uj if owner != REST]) == 10
    assert Owner("container", "c0") in accounts.uj, "the living stay"
    assert Owner("container", "c49") in accounts.uj, "of the others those that owe most"
    assert accounts.device_uj("cpu.0") == before
    assert accounts.cpu_s[REST] == 40.0


def test_long_gone_owners_become_the_rest():
    accounts = Accounts()
    accounts.charge("cpu.0", {Owner("job", "1"): 5}, now_ns=0)
    assert accounts.tidy([], now_ns=FORGET_NS) == []
    assert accounts.tidy([], now_ns=FORGET_NS + NS) == [Owner("job", "1")]
    assert accounts.uj == {REST: {"cpu.0": 5}}


def test_accounts_come_back_and_a_gap_is_nobodys():
    accounts, again = Accounts(), Accounts()
    accounts.charge("cpu.0", {Owner("job", "1"): 5, Owner("user", "a"): 7}, now_ns=0)
    again.restore(accounts.to_list(), 0)
    again.restore([["job", "1", 0.0, {"cpu.0": 3}]], 0)
    assert again.uj == accounts.uj
    again.close_gap("cpu.0", 20)
    assert again.device_uj("cpu.0") == 20
    assert again.uj[Owner("unattributed", "unattributed")] == {"cpu.0": 8}
