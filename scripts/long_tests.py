"""Run the long tests in parts that can be interrupted: what has passed at this commit is not run again.

    python scripts/long_tests.py [WORD…]       # the tests whose names contain one of these words; all, without
    python scripts/long_tests.py --table       # what has passed, as a table
    python scripts/long_tests.py --figures     # writes that table into docs/figures.json

Results are kept in build/long-tests.jsonl, a line for each test, with commit and date.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "long-tests.jsonl"
FIGURES = ROOT / "docs" / "figures.json"
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


class Results:
    """A pytest plug-in that leaves out what has passed at this commit, and writes down each result as it comes."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.commit = _git("rev-parse", "--short=7", "HEAD")
        self.passed = {row["test"] for row in read() if row["commit"] == self.commit and row["outcome"] == "passed"}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what is asked for and has not passed yet."""
        wanted = [item for item in items if not self.words or any(word in item.nodeid for word in self.words)]
        items[:] = [item for item in wanted if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down how a test ended."""
        if report.when != "call" and report.outcome == "passed":
            return
        row = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 1)}
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"commit": self.commit, "date": time.strftime("%Y-%m-%d")}) + "\n")


def read() -> list[dict[str, str | float]]:
    """All results so far, in the order in which they came."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").split("\n") if line]


def table(results: list[dict[str, str | float]]) -> str:
    """The newest result of each test, added up by row."""
    newest = {str(row["test"]): row for row in results}
    lines = [f"{'':<50}{'passed':>7}{'failed':>8}{'time':>11}  commit   date"]
    for name, beginning in ROWS:
        found = [newest.pop(test) for test in list(newest) if test.startswith(beginning)]
        if not found:
            continue
        passed = sum(row["outcome"] == "passed" for row in found)
        failed = sum(row["outcome"] == "failed" for row in found)
        last, seconds = found[-1], sum(float(row["seconds"]) for row in found)
        commits = {row["commit"] for row in found}
        commit = last["commit"] if len(commits) == 1 else "several"
        lines.append(f"{name:<50}{passed:>7}{failed:>8}{seconds:>9.0f} s  {commit:<7}  {last['date']}")
    return "\n".join(lines)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(words: list[str]) -> int:
    """The command line."""
    if words == ["--table"]:
        print(table(read()))
        return 0
    if words == ["--figures"]:
        figures = json.loads(FIGURES.read_text(encoding="utf-8"))
        figures["long-tests"] = {
            "value": f"\n```text\n{table(read())}\n```\n",
            "what": "The long tests",
            "command": "python scripts/long_tests.py",
            "commit": _git("rev-parse", "--short=7", "HEAD"),
            "date": time.strftime("%Y-%m-%d"),
            "kind": "this software",
        }
        FIGURES.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    options = ["-q", "--timeout", "0", "-m", "long and not ml", "--rootdir", str(ROOT), str(ROOT / "tests")]
    code = int(pytest.main(options, plugins=[Results(words)]))
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
