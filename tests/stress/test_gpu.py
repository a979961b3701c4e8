"""GPU load: matrix products on what is there (PoCL here), a simulated card's declared use, or a clear sentence."""

import importlib.util
import json
import subprocess
import sys
from itertools import groupby
from types import SimpleNamespace

import pytest
from loads import needed

from everywatt.core.errors import UsageError
from everywatt.sim.machine import SimMachine
from everywatt.stress import Load, parse_shape, play, shaped
from everywatt.stress.gpu import find_engine


def gpu(text, time_s, devices=(0,)):
    return shaped(Load(gpu_devices=devices), {"": parse_shape(text)}, time_s=time_s)


@pytest.fixture
def opencl(monkeypatch):
    needed(importlib.util.find_spec("pyopencl"), "PyOpenCL is not installed (pip install 'everywatt[opencl]')")
    monkeypatch.delenv("EVERYWATT_SIM", raising=False)
    try:
        find_engine(0)
    except UsageError as error:
        needed(False, str(error))


def test_products_on_an_opencl_device(opencl):
    about = []
    low, high = play(gpu("steps:20,60", 2.0), on_start=about.extend)
    assert len(about) == 1 and about[0].startswith(("OpenCL on ", "torch with CUDA"))
    for result in (low, high):
        # PoCL's device is the CPU: where others have it, a burst of 2 ms may take a hundred.
        assert 0 < result.reached["gpu_percent"] <= 105
        short = result.asked["gpu_percent"] - result.reached["gpu_percent"] > 3
        assert short == bool(result.notes), "what the device did not give is told"
    assert low.reached["gpu_operations"] > 0


def test_a_device_that_is_not_there_is_told(opencl):
    with pytest.raises(UsageError, match="GPU 99 cannot be loaded here") as caught:
        play(gpu("50", 1.0, (99,)))
    assert "everywatt[opencl]" in caught.value.cure


class Drivers:
    """In place of PyOpenCL, because the processor cannot be chosen: drivers that are older than it compile nothing."""

    Error = RuntimeError
    device_type = SimpleNamespace(GPU=4)

    def __init__(self, *able):
        self._devices = [SimpleNamespace(name=f"cpu by driver {n}", type=2, able=one) for n, one in enumerate(able)]

    def get_platforms(self):
        return [SimpleNamespace(get_devices=lambda one=one: [one]) for one in self._devices]

    def Context(self, devices):
        return devices

    def Program(self, devices, source):
        def build():
            if not all(one.able for one in devices):
                raise self.Error("clBuildProgram failed\n\nerror: unknown target CPU 'generic'\n(options: -I cl)")

        return SimpleNamespace(build=build)


def test_a_driver_older_than_the_processor_is_passed_over(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", Drivers(False, True))
    assert find_engine(0) == ("opencl", "OpenCL on cpu by driver 1")


def test_drivers_that_compile_nothing_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", Drivers(False))
    with pytest.raises(UsageError, match=r"cpu by driver 0 .*unknown target CPU 'generic'"):
        find_engine(0)


def test_a_simulated_card_draws_what_its_declared_use_asks_for(tmp_path):
    """A card of 50 W idle and 250 W at full use: 25 % is 100 W, 75 % is 200 W."""
    words = ["stress", "--gpu", "0", "--shape", "steps:25,75", "--time", "4", "--json", "--quiet"]
    with SimMachine.of(gpus=["load:50W,250W"]).start() as lab:
        environ = lab.environment() | {"EVERYWATT_HOME": str(tmp_path), "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "everywatt", *words], env=environ, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        steps = json.loads(done.stdout)["steps"]
        events = lab.events("gpu.0")
    levels = [next(group) for _, group in groupby(events, key=lambda event: event.raw_w)]
    assert [event.raw_w for event in levels] == [50.0, 100.0, 50.0, 200.0, 50.0]
    # On a busy machine the worker declares its use late or for longer: what it says it reached is what was drawn.
    for step, begin, end in ((steps[0], *levels[1:3]), (steps[1], *levels[3:])):
        active_j = end.joules - begin.joules - 50 * (end.t_s - begin.t_s)
        assert active_j > 0
        assert step["reached"]["gpu_percent"] / 100 * step["duration_s"] == pytest.approx(active_j / 200, abs=0.25)
