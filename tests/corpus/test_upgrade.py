"""An upgrade while things run: clients of this code with the recorder and agent of the base commit, and the reverse.

Either it works, with figures that hold the truth, or a message says what to do; never a traceback or a wrong figure.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from costs import only_in_ci

import everywatt

sys.path.insert(0, str(Path(__file__).parent))

from corpus import stage

REPO = Path(__file__).resolve().parents[2]
two_versions = only_in_ci("the base commit is checked out and run beside this one; CI has the whole history")
COMMIT = (REPO / "benchmarks" / "BASE").read_text(encoding="ascii").strip()
ENERGY = "everywatt_energy_joules_total"
WATTS = 160.0  # of the machine: 60 W of a package, 100 W of a card
MACHINE = {"packages": ["constant:60W"], "gpus": ["constant:100W"]}
PAIRS = [("present", "base"), ("base", "present")]

MEASURE = """
import json, time
import everywatt
with everywatt.measure("block", tags={"by": "measure"}) as block:
    time.sleep(1.5)
energy = block.energy
print(json.dumps({"low": energy.low, "high": energy.high, "duration_s": block.duration_s, "coverage": energy.coverage}))
"""


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each version is imported from."""
    known = subprocess.run(["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=REPO, capture_output=True)
    if known.returncode:
        pytest.skip(f"this clone has no commit {COMMIT}: fetch the whole history")
    folder = tmp_path_factory.mktemp("base")
    words = ["git", "archive", COMMIT, "src", "pyproject.toml"]
    with subprocess.Popen(words, cwd=REPO, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    install(folder)
    return {"base": folder / "src", "present": Path(everywatt.__file__).parents[1]}


def install(folder: Path) -> None:
    """Write what an installer writes beside the code, so that it does not find the entry points of this version."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = []
    for group, names in {"console_scripts": project["scripts"], **project.get("entry-points", {})}.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items()), ""]
    about = folder / "src" / f"everywatt-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: everywatt\nVersion: {project['version']}\n")
    (about / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def place(sim_machine, tmp_path) -> dict[str, str]:
    """The environment of a simulated machine; its recorder stays for a while."""
    return sim_machine(**MACHINE).environment() | {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "EVERYWATT_HOME": str(tmp_path / "runs"),
        "EVERYWATT_RECORDER_IDLE_S": "20",
        "PYTHONDONTWRITEBYTECODE": "",
    }


def call(source: Path, place: Mapping[str, str], *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command, or with `-c` a program, of one version."""
    start = [sys.executable, *(() if words[0] == "-c" else ("-m", "everywatt"))]
    env = {**place, "PYTHONPATH": str(source)}
    done = subprocess.run([*start, *map(str, words)], env=env, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
    return done


def holds(found: Mapping[str, float]) -> None:
    """The figure of a window of a machine with constant power holds the truth, and is of use."""
    assert found["low"] is not None, found
    truth = WATTS * found["duration_s"]
    assert found["low"] <= truth <= found["high"], found
    assert found["coverage"] > 0.9 and found["high"] - found["low"] < truth, found


def shown(source: Path, place: Mapping[str, str], run: str) -> dict[str, float]:
    """The figure of a run as one version reads it."""
    told = json.loads(call(source, place, "show", run, "--json").stdout)
    return {**{key: told["energy"][key] for key in ("low", "high", "coverage")}, "duration_s": told["duration_s"]}


def source_of(pid: int) -> str:
    """The command line of a process: the recorder's says which version it is."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


@two_versions
@pytest.mark.serial  # the base version's recorder loses readings on a busy machine, and cannot be changed any more
@pytest.mark.parametrize(("client", "recorder"), PAIRS)
def test_a_client_with_the_recorder_of_another_version(sources, place, client, recorder):
    call(sources[recorder], place, "run", "--quiet", "--", "true")  # leaves its recorder behind
    done = call(sources[client], place, "run", "--json", "--", "sleep", "1.5")
    told = json.loads(done.stdout)
    holds({**told["energy"], "duration_s": told["duration_s"]})
    (meter,) = told["quality"]["meter"]
    if str(sources[recorder]) not in source_of(meter["pid"]):  # not compatible: it has to have one of its own
        assert str(sources[client]) in source_of(meter["pid"])
    block = json.loads(call(sources[client], place, "-c", MEASURE).stdout)
    if client == "present":
        holds(block)
    else:  # that version's interval of a block does not allow for a program that waits for a CPU: 330 J for 258
        assert (block["low"] + block["high"]) / 2 == pytest.approx(WATTS * block["duration_s"], rel=0.5), block
    try:
        for run in ("last", told["name"]):
            figures = [shown(sources[version], place, run) for version in ("base", "present")]
            for found in figures:
                holds(found)
            assert figures[0] == pytest.approx(figures[1], rel=1e-3)
        assert call(sources[recorder], place, "validate", told["name"]).returncode == 0
    finally:
        with suppress(ProcessLookupError):  # a recorder without work ends by itself
            os.kill(meter["pid"], signal.SIGTERM)


# Agents.


class Agent:
    """`everywatt agent` of one version, while it runs."""

    def __init__(self, source: Path, place: Mapping[str, str], state: Path) -> None:
        self.log = state.with_name(f"{state.name}-{time.monotonic_ns()}.log")
        words = ["agent", "--listen", "127.0.0.1:0", "--state", str(state), "--period", "0.2s", "--rotate", "1h"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "everywatt", *words], env={**place, "PYTHONPATH": str(source)}, stderr=log
            )

    def series(self, count: int, seconds: float = 60.0) -> dict[str, float]:
        """Energy counters by their labels, once there are so many of them."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            found = counters(self._scrape())
            if len(found) >= count:
                return found
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    @property
    def url(self) -> str:
        """Where its metrics are; empty while it does not say."""
        found = (line.split()[-1] for line in self.log.read_text().split("\n") if line.endswith("/metrics"))
        return next(found, "").removesuffix("/metrics")

    def _scrape(self) -> str:
        if not self.url:
            return ""
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
                return answer.read().decode()
        except OSError:
            return ""


@contextmanager
def agent(source: Path, place: Mapping[str, str], state: Path) -> Iterator[Agent]:
    one = Agent(source, place, state)
    try:
        yield one
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(30) == 0, one.log.read_text()
        assert "Traceback" not in one.log.read_text()
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(60)


def counters(text: str) -> dict[str, float]:
    """The energy counters of a scrape."""
    lines = [line.split() for line in text.split("\n") if line.startswith(f"{ENERGY}{{")]
    return {words[0]: float(words[1]) for words in lines}


@two_versions
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_an_agent_takes_over_from_another_version(sources, place, tmp_path, first, second):
    pytest.importorskip("uvicorn")
    state = tmp_path / "agent"
    with agent(sources[first], place, state) as one:
        one.series(3)
        time.sleep(1.5)  # for a monitor to have some readings to show
        seen = json.loads(call(sources[second], place, "monitor", one.url, "--once", "--json").stdout)
        assert {device["name"] for device in seen["devices"]} >= {"cpu.0", "gpu.0"}
        before = one.series(3)
    with agent(sources[second], place, state) as two:
        after = two.series(3)
        time.sleep(1.0)  # for the counters to rise
        later = two.series(3)
    for name, joules in before.items():
        assert joules <= after[name] <= later[name], name
    tapes = sorted((state / "tape").glob("*.tape"))
    assert len(tapes) >= 2
    for version in ("base", "present"):
        call(sources[version], place, "validate", *tapes)


@pytest.mark.parametrize("name", ["agent", "agent-killed"])
def test_an_agent_takes_over_what_was_frozen(sources, sim_machine, tmp_path, name):
    """Counters go on from what the state and the tape of the base commit's agent say, also where it was killed."""
    pytest.importorskip("uvicorn")
    stage(tmp_path, [name, f"{name}-metrics.txt"])
    told = counters((tmp_path / f"{name}-metrics.txt").read_text())
    lab = sim_machine(packages=["constant:60W"], gpus=["square:100W,300W,2s"], sensor=["package.dram=0.2"])
    with agent(sources["present"], lab.environment() | {"HOME": str(tmp_path)}, tmp_path / name) as one:
        found = one.series(len(told))
    assert found.keys() == told.keys()
    for series, joules in told.items():
        # A kill loses what was not yet flushed: two seconds of at most 300 W.
        assert joules - (600.0 if name == "agent-killed" else 1e-6) <= found[series], series
        assert found[series] > 0.5 * joules
    assert not list((tmp_path / name).glob("*.odd*"))
    shutil.rmtree(tmp_path / name)
