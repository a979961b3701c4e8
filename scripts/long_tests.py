"""Run the long tests in parts that can be interrupted: what has passed at this commit is not run again.

    python scripts/long_tests.py [WORD…]       # the parts whose names contain one of these words; all, without

Each result goes into docs/long-tests.json as soon as it is known, with the commit and the date at which it was
obtained. At the end the table of all parts is printed and written to docs/figures.json, and from there to the pages.
A part whose newest result is of an older commit stands there with that commit.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import fill_figures  # noqa: E402 - beside this script

RESULTS = ROOT / "docs" / "long-tests.json"
FIGURES = ROOT / "docs" / "figures.json"
FLEET_SCALE = "benchmarks/fleet_scale"
# What a row of the table is, and the tests behind it, by the beginning of their names.
ROWS = (
    ("1,000 kills of the recorder", "tests/recorder/test_process.py::test_a_thousand_kills"),
    ("10,000 plans of faults (20 tests of 500)", "tests/recorder/test_fault_plans.py::test_thousands_of_plans"),
    ("failing system calls, recorder and program", "tests/recorder/test_io_sweep.py::"),
    ("failing system calls, agent", "tests/fleet/test_failing_calls.py::"),
    ("failing system calls, Slurm node", "tests/slurm/node/test_recorder.py::"),
    ("100 kills of the agent", "tests/fleet/test_agent_process.py::"),
    ("1,500 hostile connections of 15 kinds", "tests/fleet/test_strangers.py::"),
    ("two hours of agent and recorder, real time", "tests/fleet/test_soak.py::"),
    ("half a day of the agent, virtual time", "tests/fleet/test_time.py::"),
    ("1,000 agents for ten minutes, remote write", FLEET_SCALE),
    ("a million inputs for each of 30 parsers", "tests/test_fuzz.py::test_a_million_inputs"),
    ("100,000 inputs led by coverage, 30 parsers", "tests/test_fuzz.py::test_inputs_that_are_led_by_coverage"),
    ("every damaged byte and prefix of a tape, kills", "tests/tape/"),
    ("1,000 batch items through kills, three seeds", "tests/batch/test_kills.py::"),
    ("1,000 short Slurm tasks; a minute of mixed load", "tests/real/test_slurm"),
    ("a report of 10 million ticks in a browser", "tests/real/test_report_browser.py::"),
    ("models learnt on a live machine", "tests/models/"),
    ("meters: a minute of frames; a calibration", "tests/meters/"),
    ("others", "tests/"),
)


class Result(TypedDict):
    """How a part ended, when, and on which commit; `+` behind it: with changes in src that are not committed."""

    outcome: str
    seconds: float
    commit: str
    date: str


class Recorder:
    """A pytest plug-in that leaves out what has passed at this commit, and writes down each result as it comes."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.commit = _git("rev-parse", "--short=7", "HEAD") + ("+" if _git("status", "--porcelain", "src") else "")

    def wanted(self, part: str) -> bool:
        """Whether a part is asked for and has not passed yet."""
        before = read().get(part)
        passed = before is not None and (before["outcome"], before["commit"]) == ("passed", self.commit)
        return not passed and (not self.words or any(word in part for word in self.words))

    def keep(self, part: str, outcome: str, seconds: float) -> None:
        """Write down how a part ended."""
        date = time.strftime("%Y-%m-%d", time.gmtime())
        result = Result(outcome=outcome, seconds=round(seconds, 1), commit=self.commit, date=date)
        _write(RESULTS, dict(sorted({**read(), part: result}.items())))

    @pytest.hookimpl(trylast=True)  # when tests that are not long have been left out
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what is wanted."""
        items[:] = [item for item in items if self.wanted(item.nodeid)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that was not run because something is missing here has no result."""
        if report.outcome == "failed" or (report.when == "call" and report.outcome == "passed"):
            self.keep(report.nodeid, report.outcome, report.duration)


def read() -> dict[str, Result]:
    """The newest result of each part, by its name."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def table(results: dict[str, Result]) -> str:
    """Results added up by row and commit, so that none is taken for that of another commit."""
    left = dict(results)
    lines = [f"{'':<50}{'passed':>7}{'failed':>8}{'time':>11}  commit    date"]
    for name, beginning in ROWS:
        found = [left.pop(part) for part in list(left) if part.startswith(beginning)]
        if not found:
            lines.append(f"{name:<50}{'no result':>15}")
        for commit in sorted({one["commit"] for one in found}, key=lambda c: _newest(found, c), reverse=True):
            mine = [one for one in found if one["commit"] == commit]
            passed = sum(one["outcome"] == "passed" for one in mine)
            seconds = sum(one["seconds"] for one in mine)
            counts = f"{passed:>7}{len(mine) - passed:>8}{seconds:>9.0f} s"
            lines.append(f"{name:<50}{counts}  {commit:<8}  {_newest(found, commit)}")
    return "\n".join(lines)


def _newest(found: list[Result], commit: str) -> str:
    return max(one["date"] for one in found if one["commit"] == commit)


def write_figures(results: dict[str, Result]) -> None:
    """Put the table into docs/figures.json, dated by its newest result, and fill the pages that show it."""
    newest = max(results.values(), key=lambda one: one["date"])
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    figures["long-tests"] = {
        "value": f"\n```text\n{table(results)}\n```\n",
        "what": "The long tests, each with the commit at which it was run",
        "command": "python scripts/long_tests.py",
        "commit": newest["commit"].rstrip("+"),
        "date": newest["date"],
        "kind": "this software",
    }
    _write(FIGURES, figures)
    fill_figures.main([])


def _write(path: Path, data: object) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)  # so that an interruption leaves the old file or the new one


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(words: list[str]) -> int:
    """The command line."""
    recorder = Recorder(words)
    options = ["-q", "--timeout", "0", "-m", "long", "--rootdir", str(ROOT), str(ROOT / "tests")]
    code = int(pytest.main(options, plugins=[recorder]))
    # Without its engine the benchmark measures nothing and succeeds.
    there = shutil.which("victoria-metrics") is not None and code != pytest.ExitCode.INTERRUPTED
    if there and recorder.wanted(FLEET_SCALE):
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "benchmarks", "fleet_scale"], cwd=ROOT, check=False)
        recorder.keep(FLEET_SCALE, "failed" if done.returncode else "passed", time.monotonic() - began)
        code = code or done.returncode
    results = read()
    if results:
        write_figures(results)
        print(table(results))
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
