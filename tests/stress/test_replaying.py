"""A run's utilisation as a shape: the CPUs' from two counters, the GPUs' from their gauge."""

import pytest
from tapes import at, write_tape

from everywatt.core.channels import Channel, GroupInfo, Kind, Row
from everywatt.core.errors import UsageError
from everywatt.stress import parse_shape
from everywatt.stress.files import Part, resolved

HOST = GroupInfo(
    "use.host",
    "use",
    "host",
    (
        Channel("host.cpu_time", "s", Kind.COUNTER, "host"),
        Channel("host.idle_time", "s", Kind.COUNTER, "host"),
    ),
)
CARD = GroupInfo("nvml.gpu.0", "nvml", "gpu.0", (Channel("gpu.0.utilisation", "%", Kind.GAUGE, "gpu.0"),))
CORES = 4


def row(second, *values):
    return Row(at(second), at(second), at(second), values)


@pytest.fixture
def run(tmp_path):
    """Four seconds on four cores: 25 %, 100 %, 0 %, 50 % busy; the card 80 % for two seconds, then 10 %."""
    busy = [0.0, 1.0, 5.0, 5.0, 7.0]
    host = [row(t, used, t * CORES - used) for t, used in enumerate(busy)]
    card = [row(t, value) for t, value in enumerate([80.0, 80.0, 80.0, 10.0, 10.0])]
    return str(write_tape(tmp_path / "old.tape", [(HOST, 1.0, host), (CARD, 1.0, card)]))


def test_the_cpus_levels_are_what_was_recorded(run):
    shape = resolved({"": parse_shape(f"replay:{run}")}, ("cpu",))["cpu"]
    assert shape.sampled(60.0) == pytest.approx([25.0, 100.0, 0.0, 50.0])


def test_fewer_steps_are_means(run):
    shape = resolved({"": parse_shape(f"replay:{run}")}, ("cpu",), steps=2)["cpu"]
    assert shape.sampled(60.0) == pytest.approx([62.5, 25.0])


def test_each_resource_gets_its_own(run):
    program = Part(time=8.0, cpu=2, gpu="0", shape=f"replay:{run}").program()
    assert [step.cpu.percent for step in program.steps] == pytest.approx([25.0, 100.0, 0.0, 50.0])
    assert [step.gpu.percent for step in program.steps] == pytest.approx([80.0, 80.0, 10.0, 10.0])
    assert [step.duration_s for step in program.steps] == [2.0] * 4


def test_a_run_without_utilisation_says_so(tmp_path):
    path = write_tape(tmp_path / "x.tape", [(CARD, 1.0, [row(0, 1.0), row(1, 1.0)])])
    with pytest.raises(UsageError, match="no utilisation of the cpu"):
        resolved({"": parse_shape(f"replay:{path}")}, ("cpu",))
