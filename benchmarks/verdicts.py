"""How often a verdict is right: everywatt's sequential one beside what other tools conclude from the same trials.

Synthetic experiments with a known difference. "Naive" is mean ± standard deviation of ten trials each, different where
the ranges do not overlap. "hyperfine" is what that tool prints, ten trials each and a ratio with its propagated
deviation, different where the ratio ± one deviation excludes 1. "peeking" is a t test at 5 % that is looked at after
every pair of trials until it is significant, with as many trials as everywatt may take.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter

import numpy as np

from benchmarks.common import OUT, verdict
from everywatt.bench.verdict import Verdict, compare, critical_t

TARGET = 0.02
MOST = 600
TRIALS = 10


def everywatt_says(a: np.ndarray, b: np.ndarray, critical: list[float]) -> tuple[str, int]:
    """Look after every pair, from the third on. The fast test is the same rule; `compare` has the last word."""
    logs = np.log(b / a)
    sums, squares = np.cumsum(logs), np.cumsum(logs**2)
    edge = math.log1p(TARGET)
    for n in range(3, len(logs) + 1):
        mean = sums[n - 1] / n
        half = critical[n] * math.sqrt(max(squares[n - 1] - n * mean**2, 0.0) / (n - 1) / n)
        if abs(mean) > half or abs(mean) + half <= edge:
            found = compare(list(a[:n]), list(b[:n]), target=TARGET)
            if found.decided:
                return found.answer.value, n
    return Verdict.UNDECIDED.value, len(logs)


def naive_says(a: np.ndarray, b: np.ndarray) -> str:
    a, b = a[:TRIALS], b[:TRIALS]
    apart = abs(a.mean() - b.mean()) > a.std(ddof=1) + b.std(ddof=1)
    return ("more" if b.mean() > a.mean() else "less") if apart else "same"


def hyperfine_says(a: np.ndarray, b: np.ndarray) -> str:
    a, b = a[:TRIALS], b[:TRIALS]
    slow, fast = (b, a) if b.mean() > a.mean() else (a, b)
    ratio = slow.mean() / fast.mean()
    spread = ratio * math.hypot(slow.std(ddof=1) / slow.mean(), fast.std(ddof=1) / fast.mean())
    return ("more" if slow is b else "less") if ratio - spread > 1 else "same"


def peeking_says(a: np.ndarray, b: np.ndarray, critical: list[float]) -> tuple[str, int]:
    logs = np.log(b / a)
    sums, squares = np.cumsum(logs), np.cumsum(logs**2)
    for n in range(3, len(logs) + 1):
        mean = sums[n - 1] / n
        half = critical[n] * math.sqrt(max(squares[n - 1] - n * mean**2, 0.0) / (n - 1) / n)
        if abs(mean) > half:
            return ("more" if mean > 0 else "less"), n
    return "same", len(logs)


def student(most: int) -> list[float]:
    from scipy.stats import t

    return [math.inf, math.inf, math.inf, *(float(t.ppf(0.975, n - 1)) for n in range(3, most + 1))]


def experiments(difference: float, noise: float, number: int, most: int) -> dict[str, tuple[Counter[str], float]]:
    """For each tool how often it said what, and with how many trials of each candidate on average."""
    random = np.random.default_rng([round(difference * 1e4), round(noise * 1e4)])
    ours = [math.inf, math.inf, *(critical_t(n) for n in range(2, most + 1))]
    theirs = student(most)
    said: dict[str, list[tuple[str, int]]] = {"everywatt": [], "hyperfine": [], "naive mean ± sd": [], "peeking": []}
    for _ in range(number):
        a = np.exp(random.normal(0.0, noise, most))
        b = np.exp(random.normal(math.log1p(difference), noise, most))
        said["everywatt"].append(everywatt_says(a, b, ours))
        said["hyperfine"].append((hyperfine_says(a, b), TRIALS))
        said["naive mean ± sd"].append((naive_says(a, b), TRIALS))
        said["peeking"].append(peeking_says(a, b, theirs))
    return {
        tool: (Counter(answer for answer, _ in rows), statistics.fmean(count for _, count in rows))
        for tool, rows in said.items()
    }


def main(quick: bool) -> None:
    """Print the tables."""
    number = 200 if quick else 1000
    for difference, right, title in (
        (0.03, "more", "true difference 3 %, noise 5 % of each trial"),
        (0.0, "same", "A against A, noise 5 % of each trial"),
    ):
        rows = []
        for tool, (answers, trials) in experiments(difference, 0.05, number, MOST).items():
            different = answers["more"] + answers["less"]
            rows.append(
                [
                    tool,
                    f"{answers[right] / number:.1%}",
                    f"{different / number:.1%}",
                    f"{answers['undecided'] / number:.1%}",
                    f"{trials:.0f}",
                ]
            )
            if tool == "everywatt":
                wrong, most = (1 - answers[right] / number, 0.07) if difference else (different / number, 0.065)
        OUT.table(["tool", "right", "says different", "undecided", "trials each"], rows, title=title)
        aim = "right in at least 93 %" if difference else "false alarms in at most 6.5 %"
        OUT.text(f"{aim}: {verdict(wrong, most)}\n")
