"""Simulated hardware for your own tests: a pytest plug-in that comes with everywatt.

    def test_my_reader(sim_machine):
        lab = sim_machine(gpus=["constant:100W"], sensor=["period=20ms"])
        done = subprocess.run(["nvidia-smi", "-L"], env=lab.environment(), capture_output=True)
        ...

    def test_in_this_process(simulated_gpu):
        import pynvml
        pynvml.nvmlInit()  # the simulated card, 100 W
        ...

    @pytest.mark.max_energy("5 J")
    def test_cheap(): ...

Programs inside a machine say with `use_gpu` and `gpu_work` what they do on a card; cards with a `load:` curve draw
power for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

import pytest

from everywatt.integrations.pytest_energy import (
    EnergyWarning,
    energy,
    pytest_addoption,
    pytest_configure,
    pytest_runtest_call,
    pytest_terminal_summary,
)

if TYPE_CHECKING:
    from everywatt.sim.machine import Lab

__all__ = [
    "EnergyWarning",
    "energy",
    "gpu_work",
    "pytest_addoption",
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_terminal_summary",
    "sim_machine",
    "simulated_gpu",
    "simulated_package",
    "use_gpu",
]

MakeMachine = Callable[..., "Lab"]


def use_gpu(
    share: float = 1.0, *, memory_bytes: int = 512 * 2**20, gpu: int | None = None
) -> AbstractContextManager[None]:
    """Be on a simulated card (the first visible one): this process uses that share of it until the block ends."""
    from everywatt.sim.loads import use_gpu as declare

    return declare(share, memory_bytes=memory_bytes, gpu=gpu)


def gpu_work(seconds: float, *, share: float = 1.0, gpu: int | None = None) -> float:
    """Do GPU work that takes `seconds` at full speed and longer under a power limit. Gives the real seconds."""
    from everywatt.sim.loads import gpu_work as work

    return work(seconds, share=share, gpu=gpu)


@pytest.fixture
def sim_machine() -> Iterator[MakeMachine]:
    """A function that starts simulated machines: `sim_machine(gpus=[…], packages=[…], replicate=…, sensor=[…])`.

    Texts are those of `everywatt sim`. It gives a `Lab`: `lab.environment()` for programs inside, and
    `lab.truth("gpu.0", a_ns, b_ns)` for the exact joules. Machines end with the test.
    """
    from everywatt.sim.machine import SimMachine

    with ExitStack() as stack:

        def make(
            *,
            gpus: Sequence[str] = (),
            packages: Sequence[str] = (),
            replicate: int | None = None,
            sensor: Sequence[str] = (),
        ) -> Lab:
            machine = SimMachine.of(gpus=gpus, packages=packages, replicate=replicate, sensor=sensor)
            return stack.enter_context(machine.start())

        yield make


@pytest.fixture
def simulated_gpu(sim_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """One exact 100 W card, seen by NVML in this very process. Gives the `Lab`.

    A process that has loaded a real libnvidia-ml already keeps it; then the test is skipped.
    """
    lab = sim_machine(gpus=["constant:100W"])
    yield from _in_process(lab, monkeypatch)


@pytest.fixture
def simulated_package(sim_machine: MakeMachine) -> Lab:
    """A machine with one 50 W processor package; run programs with `lab.environment()`. Gives the `Lab`."""
    return sim_machine(packages=["constant:50W"])


def _in_process(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    import ctypes

    from everywatt.sim.build import NVML

    for name, value in lab.environment().items():
        if name.startswith("EVERYWATT_"):
            monkeypatch.setenv(name, value)
    # By its full path first: the loader then finds the same library by its soname, as nvidia-ml-py asks for it.
    ctypes.CDLL(str(lab.libraries / NVML))
    library = ctypes.CDLL(NVML)
    if library.nvmlInit_v2() != 0:
        pytest.skip("another libnvidia-ml is loaded in this process")
    try:
        yield lab
    finally:
        library.nvmlShutdown()
