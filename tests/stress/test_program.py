"""A load program is a value: its steps are checked when they are made, and its times do not drift."""

import pytest

from everywatt.core.errors import UsageError
from everywatt.stress import Cpu, Gpu, Program, Step


def test_what_is_asked_has_the_names_of_what_is_reached():
    step = Step(2.0, Cpu(2, 50.0, "vector"), 2**20, 1e6, 2e6, Gpu(30.0))
    assert step.asked == {
        "cpu_percent": 50.0,
        "cpu_cores": 2,
        "cpu_kind": "vector",
        "memory_bytes": 2**20,
        "disk_bytes_per_s": 1e6,
        "network_bytes_per_s": 2e6,
        "gpu_percent": 30.0,
    }
    assert Step(1.0).asked == {}, "what is not asked is absent, not zero"


def test_times_of_many_steps_do_not_drift():
    program = Program(tuple(Step(0.1) for _ in range(1000)))
    assert program.duration_s == 100.0
    assert program.starts_s[700] == 70.0
    assert program.edges_ns[-1] == 100 * 10**9 and len(program.edges_ns) == 1001


def test_programs_are_added():
    first, second = Program((Step(1.0),), "a"), Program((Step(2.0), Step(3.0)), "b")
    assert [step.duration_s for step in (first + second).steps] == [1.0, 2.0, 3.0]
    assert (first + second).name == "a"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Step(0.001), "outside 20 ms"),
        (lambda: Step(float("nan")), "outside 20 ms"),
        (lambda: Step(8 * 86400.0), "7 days"),
        (lambda: Step(1.0, memory_bytes=-1), "bytes of memory"),
        (lambda: Step(1.0, disk_bytes_per_s=float("inf")), "to disk"),
        (lambda: Cpu(0, 50.0), "valid number of cores"),
        (lambda: Cpu(2, 101.0), "101 % of a core"),
        (lambda: Cpu(2, 50.0, "quantum"), "no kind of work 'quantum'"),
        (lambda: Gpu(-1.0), "-1 % of a GPU"),
        (lambda: Gpu(50.0, (0, 0)), "not a list of GPUs"),
        (lambda: Program(()), "at least one step"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(UsageError, match=says):
        make()
