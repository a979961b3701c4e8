"""Places: who a process belongs to."""

import pytest

from everywatt.core.errors import UsageError
from everywatt.fleet import jobs
from everywatt.fleet.jobs import Places
from everywatt.ledger.counters import OwnerKey
from everywatt.ledger.use.facts import ProcessFacts

ID = "ab" * 32


def process(**more) -> ProcessFacts:
    return ProcessFacts(7, 1, "python", 1, **more)


def test_job_before_container_before_user():
    places = Places(jobs.make(["cgroup"]))
    job = process(cgroup="/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", uid=0)
    assert places.owner(job) == OwnerKey("job", "123")
    assert places.jobs["123"] == jobs.Job("123", user="root")
    docker = process(cgroup=f"/system.slice/docker-{ID}.scope", uid=0)
    assert places.owner(docker) == OwnerKey("container", ID[:12])
    places.names = {f"/system.slice/docker-{ID}.scope": {"name": "web"}}
    places.feed_cgroups([{"cgroup": f"/system.slice/docker-{ID}.scope", "name": {"name": "web"}}])
    assert places.owner(docker) == OwnerKey("container", "web")
    assert places.owner(process(cgroup="/system.slice/nginx.service")) == OwnerKey("container", "nginx.service")
    assert places.owner(process(cgroup="/", uid=0)) == OwnerKey("user", "root")
    assert places.owner(process(cgroup="/", uid=54321)) == OwnerKey("user", "54321")


def test_by_program_where_it_is_asked_for():
    places = Places([], by_program=True)
    assert places.owner(process(cgroup="/", uid=0)) == OwnerKey("process", "python")


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
        assert places.owner(process(cgroup="/j", uid=5)) == OwnerKey("job", "9")
    assert known.asked == 1
    known.user, known.changed = "ada", True
    places.refresh(0)
    places.owner(process(cgroup="/j", uid=5))
    assert places.jobs["9"].user == "ada"


@pytest.mark.parametrize("name", ["nobody", "no.such.module:Class", "everywatt.fleet.jobs:Nothing"])
def test_a_provider_that_is_none_is_refused(name):
    with pytest.raises(UsageError):
        jobs.make([name])
