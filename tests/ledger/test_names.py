import os
from dataclasses import dataclass

import pytest

from everywatt.core.errors import UsageError
from everywatt.ledger.groups import NO_CONTAINER, NO_JOB, Names, details_of, owner_of
from everywatt.ledger.owners import OwnerKind
from everywatt.ledger.use.processes import CgroupTable

ID = "4f1c0de5" * 8
DOCKER = f"/system.slice/docker-{ID}.scope"
POD = f"/kubepods/burstable/pod2d4b7e6a-1f0c-4b7e-9c55-0123456789ab/{ID}"
SLUID = "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_batch/user/task_0"


@dataclass(frozen=True)
class Process:
    cgroup: str | None = None
    uid: int | None = None
    user: str | None = None


def told(rows):
    table = CgroupTable()
    for _ in table.feed(rows):
        pass
    return Names(table.names)


def test_containers_by_name_and_by_id():
    names = told([{"cgroup": DOCKER, "name": {"name": "web", "image": "nginx:1.27"}}])
    named = owner_of(Process(DOCKER), "container", names)
    assert (named.kind, named.id, named.label) == (OwnerKind.CONTAINER, f"container:{ID}", "web")
    assert owner_of(Process(DOCKER), "container", Names()).label == ID[:12]
    assert details_of(Process(DOCKER), "container", names)["image"] == "nginx:1.27"


def test_a_pod_is_told_with_its_namespace():
    rows = [
        {"cgroup": POD, "cpu_s": 1.0},
        {"cgroup": POD, "name": {"pod": "cart", "namespace": "shop"}},
        {"cgroup": POD, "name": {"container": "web"}},
    ]
    names = told(rows)
    assert owner_of(Process(POD), "container", names).label == "shop/cart/web"
    details = details_of(Process(POD), "container", names)
    assert (details["qos"], details["pod"], details["runtime"]) == ("burstable", "cart", "kubernetes")


def test_what_is_in_no_container_goes_by_job_and_unit_and_then_by_host():
    names = Names()
    unit = owner_of(Process("/system.slice/nginx.service"), "container", names)
    assert (unit.kind, unit.id, unit.label) == (OwnerKind.CONTAINER, "unit:nginx.service", "nginx.service")
    assert details_of(Process("/system.slice/nginx.service"), "container", names) == {"unit": "nginx.service"}
    job = owner_of(Process("/slurm/uid_0/job_5/step_0"), "container", names)
    assert (job.kind, job.id) == (OwnerKind.CONTAINER, "slurm:5")
    for path in ("/", None, "/somewhere"):
        assert owner_of(Process(path), "container", names) == NO_CONTAINER
        assert details_of(Process(path), "container", names) == {}


def test_jobs():
    assert owner_of(Process(DOCKER), "job", Names()) == NO_JOB
    assert owner_of(Process(SLUID), "job", Names()).id == "slurm:s5K1KKYAYG5D00"
    names = told([{"cgroup": SLUID, "name": {"job_id": 4711}}])
    owner = owner_of(Process(SLUID), "job", names)
    assert (owner.kind, owner.id, owner.label) == (OwnerKind.JOB, "slurm:4711", "job 4711")
    assert details_of(Process(SLUID), "job", names) == {
        "scheduler": "slurm",
        "sluid": "s5K1KKYAYG5D00",
        "submitted": "2026-03-17T16:44:29.741+00:00",
        "job_id": 4711,
    }


def test_users():
    here = Names(here=True)
    ada = owner_of(Process(uid=1234567, user="ada"), "user", here)
    assert (ada.kind, ada.id, ada.label) == (OwnerKind.USER, "1234567", "ada")
    import pwd

    assert owner_of(Process(uid=os.getuid()), "user", here).label == pwd.getpwuid(os.getuid()).pw_name
    assert here.user(2**31 - 7) == str(2**31 - 7), "nobody has that number"
    elsewhere = Names()
    assert elsewhere.user(0) == "0", "the users of this host are not those of another"
    assert owner_of(Process(), "user", here).label == "(user unknown)"


def test_a_users_unit_is_told_with_the_user():
    path = "/user.slice/user-1000.slice/user@1000.service/app.slice/firefox.service"
    assert owner_of(Process(path), "container", Names()).label == "firefox.service of 1000"


def test_other_groupings_are_a_mistake():
    with pytest.raises(UsageError, match="container, job, step, user"):
        owner_of(Process(), "colour", Names())
