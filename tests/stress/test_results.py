"""What workers report becomes what was reached, with the reason where it is less."""

from types import SimpleNamespace

import pytest

from everywatt.stress.crew import Plan, Worker
from everywatt.stress.pacing import StepReport
from everywatt.stress.program import Cpu, Gpu, Step
from everywatt.stress.results import StepResult, weighed


def worker(role, **report):
    reports = {0: StepReport(**{"cpu_s": 0.0, **report})}
    return Worker(Plan(role, [(0, 2_000_000_000, 1.0, "")]), SimpleNamespace(), reports)


def cpu(cpu_s, waited_s=0.0):
    return worker("cpu", cpu_s=cpu_s, waited_s=waited_s, operations=10, bytes=5, instructions=None)


def test_cpu_time_of_all_workers_over_wall_time():
    reached, notes = weighed(Step(2.0, Cpu(2, 50.0)), 0, [cpu(0.9), cpu(1.1)], 2.0)
    assert reached == {"cpu_s": 2.0, "cpu_percent": 50.0, "operations": 20, "bytes": 10, "waited_s": 0.0}
    assert notes == ()


def test_a_busy_machine_is_named():
    reached, notes = weighed(Step(2.0, Cpu(2, 100.0)), 0, [cpu(1.6, 0.3), cpu(1.68, 0.3)], 2.0)
    assert reached["cpu_percent"] == pytest.approx(82.0)
    assert notes == ("reached 82 of 100: the machine was busy: workers waited 0.60 s for a core",)


def test_a_hypervisor_that_ran_others_is_named():
    reached, notes = weighed(Step(2.0, Cpu(1, 100.0)), 0, [cpu(1.2, 0.1)], 2.0, stolen_s=0.7)
    assert reached["stolen_s"] == 0.7
    told = "workers waited 0.10 s for a core; the hypervisor took 0.70 s"
    assert notes == (f"reached 60 of 100: the machine was busy: {told}",)


@pytest.mark.parametrize("waited_s", [0.0, 0.3], ids=["it waited for nothing", "it waited for less than it lacks"])
def test_time_that_is_missing_without_waiting_is_not_blamed_on_others(waited_s):
    _, notes = weighed(Step(2.0, Cpu(1, 100.0)), 0, [cpu(1.0, waited_s)], 2.0, stolen_s=0.0)
    assert notes == (
        f"reached 50 of 100: 1.00 s of CPU time are missing and workers waited {waited_s:.2f} s for a core: "
        "limited by a cgroup quota, or by the duty cycle",
    )


def test_too_much_is_told_too():
    _, notes = weighed(Step(2.0, Cpu(1, 50.0)), 0, [cpu(1.2, 0.4)], 2.0)
    assert notes == ("reached 60 of 50: the duty cycle was off by 10 points",)
    _, notes = weighed(Step(0.05, Cpu(1, 50.0)), 0, [cpu(0.029)], 0.05)
    assert notes == (), "a few ms are how a worker reports"


@pytest.mark.parametrize(
    ("asked", "reached", "waited_s", "stolen_s", "off", "withheld"),
    [
        (50, 51.5, 0.0, 0.0, 1.5, 0.0),
        (50, 48.0, 3.9, 0.0, 2.0, 97.5),
        (50, 30.0, 0.9, 0.0, None, 22.5),
        (50, 30.0, 0.2, 0.6, None, 20.0),
        (50, 30.0, 0.2, 0.0, 20.0, 5.0),
        (50, 70.0, 3.0, 0.0, 20.0, 75.0),
    ],
)
def test_a_duty_cycle_that_is_off_is_told_from_a_machine_that_gave_no_cpu(
    asked, reached, waited_s, stolen_s, off, withheld
):
    told = {"cpu_percent": reached, "waited_s": waited_s, "stolen_s": stolen_s}
    result = StepResult(0, Step(2.0, Cpu(2, asked)), 0, 2_000_000_000, told)
    assert result.off_points() == off
    assert result.cpu_withheld_points == pytest.approx(withheld)
    assert StepResult(0, Step(2.0), 0, 2_000_000_000, {}).off_points() is None


def test_amounts_and_gpus():
    step = Step(2.0, None, 1000, 100.0, 200.0, Gpu(50.0, (0, 1)))
    workers = [
        worker("ram", memory_bytes=1000),
        worker("disk", done=100),
        worker("network", done=400),
        worker("gpu", done=1.0, operations=7),
        worker("gpu", done=0.8, operations=6),
    ]
    reached, notes = weighed(step, 0, workers, 2.0)
    assert reached == {
        "cpu_s": 0.0,
        "memory_bytes": 1000,
        "disk_bytes_per_s": 50.0,
        "network_bytes_per_s": 200.0,
        "gpu_percent": 45.0,
        "gpu_operations": 13,
    }
    assert notes == ("disk: reached 50 B/s of 100 B/s", "gpu: reached 45 of 50")


def test_a_silent_worker_is_told_and_counts_as_unknown():
    silent = Worker(Plan("cpu", [(0, 2_000_000_000, 1.0, "")]), SimpleNamespace())
    reached, notes = weighed(Step(2.0, Cpu(1, 50.0)), 0, [silent], 2.0)
    assert "cpu_percent" not in reached
    assert notes == ("1 of 1 workers did not report in time",)
