"""How long things take to start: `everywatt run`, `from everywatt import measure`, beside Python, a shell, CodeCarbon.

`everywatt run` is timed around `date +%s%N`, which prints when it was started: the delay of the command is the time
from the call to there, what `run` adds is all the time that `date` alone does not take. With a cold recorder the
recorder process is started by the call; a warm one was started by a call that is not timed, just before. All subjects
take turns, so that other load on the machine hits all of them. CPU time is the caller's, user and system, without the
recorder process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import OUT, bench_python, environment, say, verdict
from everywatt.sim.machine import SimMachine

DRIVES_COMMANDS = True  # see _against.py
ROUNDS = 15
DATE = ["date", "+%s%N"]
BARE, SHELL, ALONE, IMPORT = "python -c pass", "sh -c true", "date", "from everywatt import measure"
# What the installed script does, so that any source can be named by PYTHONPATH.
EVERYWATT = [sys.executable, "-c", "import sys; from everywatt.cli.main import main; sys.exit(main())"]
COMMAND_MS, ADDED_MS, IMPORT_MS = 150.0, 300.0, 80.0  # the goals, on an idle machine with a warm recorder
MACHINES = ("bare VM", "one simulated card")


@dataclass
class Subject:
    """A command with what was measured of it, in ms: until it returned, until `date` started, CPU time."""

    words: Sequence[str]
    env: Mapping[str, str]
    recorder: str = ""  # "cold": each call finds none, "warm": each call finds one
    walls: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    def measure(self, keep: bool, folder: str) -> None:
        """Run it once, and keep what it took."""
        if self.recorder == "warm":
            self._call(False, folder)
        self._call(keep, folder)

    def _call(self, keep: bool, folder: str) -> None:
        env = dict(self.env)
        if self.recorder == "cold":
            env |= {
                "EVERYWATT_RUNTIME_DIR": tempfile.mkdtemp(prefix="rt", dir=folder),
                "EVERYWATT_RECORDER_IDLE_S": "0.1",
            }
        began, utc_ns = time.perf_counter(), time.time_ns()
        child = subprocess.Popen(
            list(self.words), env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert child.stdout is not None
        said = child.stdout.read()
        child.stdout.close()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{' '.join(self.words)} ended with {child.returncode}")
        if keep:
            self.walls.append(wall * 1e3)
            self.cpus.append((usage.ru_utime + usage.ru_stime) * 1e3)
            if said.strip().isdigit():
                self.delays.append((int(said) - utc_ns) / 1e6)


def subjects(stack: ExitStack, folder: str) -> dict[str, Subject]:
    """Everything that is started, by its name in the tables."""
    base = {key: value for key, value in os.environ.items() if not key.startswith("EVERYWATT_")}
    here = environment(base) | {
        "EVERYWATT_HOME": str(Path(folder, "runs")),
        "EVERYWATT_RUNTIME_DIR": tempfile.mkdtemp(prefix="rt", dir=folder),
    }
    lab = stack.enter_context(SimMachine.of(gpus=["constant:100W"]).start())
    card = environment(lab.environment()) | {"EVERYWATT_HOME": str(Path(folder, "runs"))}
    found = {
        BARE: Subject([sys.executable, "-c", "pass"], here),
        SHELL: Subject(["sh", "-c", "true"], here),
        ALONE: Subject(DATE, here),
        IMPORT: Subject([sys.executable, "-c", IMPORT], here),
        "everywatt --help": Subject([*EVERYWATT, "--help"], here),
    }
    run = [*EVERYWATT, "run", "--quiet", "--", *DATE]
    for machine, env in zip(MACHINES, (here, card), strict=True):
        for recorder in ("cold", "warm"):
            found[f"everywatt run, {machine}, {recorder} recorder"] = Subject(run, env, recorder)
    peers = bench_python()
    if peers is None:
        say("BENCH_PYTHON is not set: CodeCarbon is left out.")
    elif not (cli := Path(peers).with_name("codecarbon")).exists():
        say(f"There is no {cli}: CodeCarbon is left out.")
    else:
        others = environment(base, ours=False)
        found["codecarbon --help"] = Subject([str(cli), "--help"], others)
        found["codecarbon detect"] = Subject([str(cli), "detect"], others)
    return found


def main(quick: bool = False) -> None:
    """Both tables."""
    rounds = 1 if quick else ROUNDS
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="everywatt-start-", ignore_cleanup_errors=True))
        found = subjects(stack, folder)
        for number in range(int(quick), rounds + 1):  # the first one fills the caches; in short there is no such
            for name, subject in list(found.items()):
                try:
                    subject.measure(number > 0, folder)
                except (OSError, RuntimeError) as error:
                    say(f"{name} is left out: {error}")
                    del found[name]
        time.sleep(0.2)  # the last cold recorder leaves before its folder goes
    show(found, rounds)


def show(found: Mapping[str, Subject], rounds: int) -> None:
    """What each start takes, then what `everywatt run` adds to a command and how late that begins."""
    median = {name: statistics.median(subject.walls) for name, subject in found.items()}
    rows = [
        [name, f"{median[name]:.1f}", f"{min(one.walls):.1f}", f"{min(one.cpus):.1f}",
         f"{median[name] / median[BARE]:.2f}", f"{median[name] / median[SHELL]:.2f}"]
        for name, one in found.items()
    ]  # fmt: skip
    OUT.table(
        ["start", "ms", "least ms", "least CPU ms", "× bare Python", "× a shell"],
        rows, right=(1, 2, 3, 4, 5), title=f"From call to return, median of {rounds}",
    )  # fmt: skip
    OUT.text()
    figures = [(IMPORT, "from call to return", found[IMPORT].walls, IMPORT_MS)]
    for name, one in found.items():
        if one.delays and name != ALONE:
            warm = one.recorder == "warm"
            added = [wall - median[ALONE] for wall in one.walls]
            figures.append((name, "the command starts after", one.delays, COMMAND_MS if warm else 0.0))
            figures.append((name, "added in all", added, ADDED_MS if warm else 0.0))
    OUT.table(
        ["figure", "ms", "least ms", "goal", ""],
        [
            [f"{name}: {what}", f"{statistics.median(values):.1f}", f"{min(values):.1f}",
             f"≤ {most:.0f} ms" if most else "", verdict(min(values), most) if most else ""]
            for name, what, values, most in figures
        ],
        right=(1, 2), title=f"What starting adds, median of {rounds}; goals are for an idle machine (the least)",
    )  # fmt: skip
