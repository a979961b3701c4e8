"""The formulas exist twice, in C for the libraries and in Python for the truth. Here the two meet."""

import ctypes
import random

import pytest

from everywatt.sim.build import SOURCES, compile_library, compiler

CURVES = [
    "constant:100W",
    "square:100W,300W,1.3s,0.3",
    "ramp:100W,300W,10s",
    "step:100W,300W,2s,4s",
    "sine:200W,80W,0.9s",
    "telegraph:80W,320W,0.2s,7",
    "load:40W,240W",
]
SOURCE = """
#define _GNU_SOURCE
#include "truth.h"
static int ignore(const char *k, const char *v) { (void)k; (void)v; return 0; }
__attribute__((visibility("default"))) int begin(void) { return sim_load(ignore); }
__attribute__((visibility("default"))) double joules(int i, double t) { return sim_joules(&sim_devices[i], t); }
__attribute__((visibility("default"))) double watts(int i, double t) { return sim_watts(&sim_devices[i], t); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    (folder / "truth.h").write_text((SOURCES / "truth.h").read_text())
    (folder / "probe.c").write_text(SOURCE)
    compile_library(folder / "probe.c", folder / "probe.so", compiler())
    found = ctypes.CDLL(str(folder / "probe.so"))
    for name in ("joules", "watts"):
        getattr(found, name).restype = ctypes.c_double
        getattr(found, name).argtypes = [ctypes.c_int, ctypes.c_double]
    return found


def test_c_and_python_agree_through_limits_and_loads(library, sim_machine, monkeypatch):
    lab = sim_machine(gpus=CURVES, sensor=["power_limit=400W"])
    lab.settle()
    for index in range(len(CURVES)):
        log = lab.logs[f"gpu.{index}"]
        log.append(3.0, limit_w=150.0, raw_w=200.0)
        log.append(5.5, limit_w=240.0, raw_w=120.0)
        log.append(9.0, limit_w=400.0)
    monkeypatch.setenv("EVERYWATT_SIM", str(lab.folder))
    assert library.begin() == 0
    chance = random.Random(1)
    for index, text in enumerate(CURVES):
        for t in [chance.uniform(-0.5, 30) for _ in range(300)] + [0.0, 3.0, 5.5, 9.0]:
            expected = lab.logs[f"gpu.{index}"].joules(t)
            assert library.joules(index, t) == pytest.approx(expected, abs=1e-6), (text, t)


def test_the_limit_bends_the_truth_only_while_it_stands(sim_machine):
    lab = sim_machine(gpus=["constant:250W"])
    lab.logs["gpu.0"].append(2.0, limit_w=100.0)
    lab.logs["gpu.0"].append(5.0, limit_w=300.0)
    at = [lab.t0_ns + round(s * 1e9) for s in (0.0, 2.0, 5.0, 6.0)]
    assert lab.truth("gpu.0", at[0], at[3]) == pytest.approx(500 + 300 + 250)
    assert lab.truth("gpu.0", at[1], at[2]) == pytest.approx(300)
