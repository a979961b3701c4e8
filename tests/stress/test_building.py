"""From a load and shapes to steps: total time as asked, resources together or one by one, a real Latin hypercube."""

import pytest

from everywatt.core.errors import UsageError
from everywatt.stress import Load, latin_hypercube, parse_shape, shaped


def test_the_whole_takes_as_long_as_asked():
    """The old program took a second more for every step: 130 s for 120."""
    for steps in (3, 10, 117):
        program = shaped(Load(cpu_cores=2), {"": parse_shape("ramp:0..50")}, time_s=120.0, steps=steps)
        assert program.duration_s == pytest.approx(120.0, abs=1e-9)
        assert len(program.steps) == steps
        assert program.steps[-1].cpu.percent == 50.0


def test_shapes_of_different_length_are_cut_where_either_changes():
    program = shaped(
        Load(cpu_cores=1, ram_bytes=1000),
        {"cpu": parse_shape("steps:0,50,100"), "ram": parse_shape("steps:10,20")},
        time_s=6.0,
    )
    found = [(step.duration_s, step.cpu.percent, step.memory_bytes) for step in program.steps]
    assert found == [(2.0, 0.0, 100), (1.0, 50.0, 100), (1.0, 50.0, 200), (2.0, 100.0, 200)]


def test_a_resource_without_a_shape_follows_the_common_one_or_is_full():
    load = Load(cpu_cores=1, disk_bytes_per_s=100.0)
    (step,) = shaped(load, {"": parse_shape("40")}, time_s=1.0).steps
    assert (step.cpu.percent, step.disk_bytes_per_s) == (40.0, 40.0)
    (step,) = shaped(load, {"cpu": parse_shape("40")}, time_s=1.0).steps
    assert (step.cpu.percent, step.disk_bytes_per_s) == (40.0, 100.0)


def test_one_by_one_leaves_the_others_alone():
    load = Load(cpu_cores=1, network_bytes_per_s=50.0, gpu_devices=(0, 1))
    program = shaped(load, {"": parse_shape("100")}, time_s=9.0, one_by_one=True)
    assert [sorted(step.asked) for step in program.steps] == [
        ["cpu_cores", "cpu_kind", "cpu_percent"],
        ["network_bytes_per_s"],
        ["gpu_percent"],
    ]
    assert [step.duration_s for step in program.steps] == [3.0, 3.0, 3.0]


def test_kinds_come_one_after_another():
    load = Load(cpu_cores=1, cpu_kinds=("integer", "vector"))
    program = shaped(load, {"": parse_shape("steps:20,80")}, time_s=4.0)
    found = [(step.cpu.kind, step.cpu.percent) for step in program.steps]
    assert found == [("integer", 20), ("integer", 80), ("vector", 20), ("vector", 80)]


def test_a_latin_hypercube_covers_every_axis_and_mixes_kinds():
    load = Load(cpu_cores=2, cpu_kinds=("integer", "memory"), ram_bytes=10**9, network_bytes_per_s=1e8)
    program = latin_hypercube(load, time_s=60.0, steps=20, seed=5)
    assert len(program.steps) == 20 and program.duration_s == pytest.approx(60.0)
    axes = [
        [step.cpu.percent / 100 for step in program.steps],
        [step.memory_bytes / 1e9 for step in program.steps],
        [step.network_bytes_per_s / 1e8 for step in program.steps],
    ]
    for axis in axes:
        assert sorted(int(share * 20) for share in axis) == list(range(20))
    assert axes[0] != axes[1] != axes[2], "the axes are shuffled each by itself"
    assert sorted(step.cpu.kind for step in program.steps) == ["integer"] * 10 + ["memory"] * 10
    assert program == latin_hypercube(load, time_s=60.0, steps=20, seed=5)
    assert program != latin_hypercube(load, time_s=60.0, steps=20, seed=6)


@pytest.mark.parametrize(
    ("load", "shapes", "more", "says"),
    [
        (Load(), {}, {}, "No resource"),
        (Load(cpu_cores=1), {}, {"time_s": 0.0}, "0 s is not valid"),
        (Load(cpu_cores=1), {"gpu": parse_shape("50")}, {}, "shape for gpu"),
        (Load(cpu_cores=1), {}, {"steps": 0}, "valid number of steps"),
        (Load(cpu_cores=1), {"": parse_shape("ramp:0..100")}, {"time_s": 0.1}, "outside 20 ms"),
    ],
)
def test_what_cannot_be_played_is_refused(load, shapes, more, says):
    with pytest.raises(UsageError, match=says):
        shaped(load, shapes, **{"time_s": 10.0, **more})
