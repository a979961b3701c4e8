"""Jobs without cgroups: by the slurmstepd that a process descends from."""

from everywatt.ledger.groups import JobTree, Names, details_of, owner_of
from everywatt.ledger.use.facts import ProcessFacts

STEPD = "slurmstepd: [12.batch]"


def process(pid: int, parent: int | None = None, cmdline: str = "sh", uid: int = 1000, **more: object) -> ProcessFacts:
    return ProcessFacts(pid, pid, "sh", cmdline=cmdline, uid=uid, parent=parent, **more)  # type: ignore[arg-type]


def test_children_of_a_step_are_its_jobs() -> None:
    known = [process(1, uid=0), process(2, 0, STEPD, uid=0), process(3, 1), process(4, 2), process(5, 0)]
    tree = JobTree(known)
    assert [tree.step_of(one) for one in known] == [None, (12, "batch"), (12, "batch"), (12, "batch"), None]


def test_who_takes_the_name_of_another_job_is_not_believed() -> None:
    known = [process(2, None, STEPD, uid=0), process(3, 0, "slurmstepd: [99.batch]"), process(4, 1)]
    tree = JobTree(known)
    assert [tree.step_of(one) for one in known] == [(12, "batch")] * 3


def test_children_that_came_and_went_are_their_parents() -> None:
    known = [process(2, None, STEPD, uid=0), process(2, 0, exited=True)]
    assert JobTree(known).step_of(known[1]) == (12, "batch")


def test_parents_in_a_circle_end() -> None:
    known = [process(1, 1), process(2, 0)]
    assert JobTree(known).step_of(known[0]) is None


def test_steps_and_jobs_as_owners() -> None:
    plain, names = process(3, 0), Names()
    assert owner_of(plain, "job", names, (12, "batch")).id == "slurm:12"
    assert owner_of(plain, "step", names, (12, "batch")).id == "slurm:12.batch"
    assert owner_of(plain, "step", names).id == "host"
    assert details_of(plain, "step", names, (12, "0")) == {"scheduler": "slurm", "job_id": 12, "step": "0"}


def test_the_cgroup_has_the_first_word() -> None:
    inside = process(3, 0, cgroup="/system.slice/slurmstepd.scope/job_7/step_0/user/task_0")
    assert owner_of(inside, "step", Names(), (12, "batch")).id == "slurm:7.0"
    assert owner_of(inside, "job", Names(), (12, "batch")).id == "slurm:7"
