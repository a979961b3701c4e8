from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

# Modules and seven thousand tests stay until the end: to look for garbage among them takes a third of the collection.
gc.disable()

# How long an example takes to be made says more about the other workers than about the test.
hypothesis.settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("shared machine")

# Started in the background, a shell has SIGINT ignored, and so would every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads of a matrix library wait for each other by spinning: beside other workers, twenty times the CPU time.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Tests with a home of their own would each compile the simulated libraries, and the kernels for OpenCL, anew.
os.environ.setdefault("XDG_CACHE_HOME", str(Path("~/.cache").expanduser()))


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """A working folder, home, runtime folder and run store of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("EVERYWATT_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.delenv("EVERYWATT_HOME", raising=False)
    return tmp_path


@pytest.fixture
def loaded_by_collecting(request):
    return request.config.stash[LOADED]


@pytest.fixture(scope="session")
def boxes():
    """Made-up recordings of a wattmeter box."""
    import boxes as made_up

    return made_up


@pytest.fixture(autouse=True)
def patient(request, monkeypatch):
    """A real recorder may start slowly beside other tests: those in a lab wait half a minute for it, not 2 s."""
    if "lab" in request.fixturenames:
        from everywatt.recorder.channel import Patience

        monkeypatch.setattr(
            Patience, "deadline_ns", lambda self, most_s=0.0: self.clock.monotonic_ns() + 30_000_000_000
        )


@pytest.fixture(autouse=True)
def few_descriptors():
    """Sockets in cycles stay open until Python looks for garbage, which is seldom once large libraries are loaded; a
    worker had 1,386 open, and select() ends at 1024."""
    yield
    if len(os.listdir("/proc/self/fd")) > 256:
        gc.collect()


LARGE = ("torch", "scipy.stats", "sklearn", "transformers", "altair", "pandas", "polars", "duckdb")
LOADED = pytest.StashKey[list[str]]()


def pytest_collection_finish(session):
    """Which large libraries the collection loaded: every worker collects every test."""
    gc.freeze()
    gc.enable()
    session.config.stash[LOADED] = [name for name in LARGE if name in sys.modules]


def pytest_collection_modifyitems(items):
    """The longest first, where several workers share the tests."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        from scheduling import place

        items.sort(key=lambda item: place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from scheduling import LongestFirst

    return LongestFirst(config, log)
