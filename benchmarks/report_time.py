"""What a report costs: time to write it, its size, and the time until a browser shows it, from 10⁴ to 10⁷ ticks.

Two kinds of tape: the machine of `windows` (8 GPUs, 2 packages, the host: 40 channels, ten rows a second), and one card
whose power is published every millisecond. Opening is from the browser's start of loading to the last chart drawn, in
headless Chromium; it is left out where Chromium or Playwright is missing.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from benchmarks._tapes import build, machine, one_gauge
from benchmarks.common import OUT, environment, say, verdict

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
CHANNELS = sum(len(group.info.channels) for group in machine())


@contextmanager
def browser():
    """A function that gives the seconds until a file is shown, or None where there is no browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if sync_playwright is None or not CHROMIUM.exists():
        say("Chromium or Playwright is missing: opening is left out.")
        yield None
        return
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})

        def opened(path: Path) -> float:
            page.goto("about:blank")
            began = time.perf_counter()
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready=true]", state="attached")
            return time.perf_counter() - began

        yield opened
        chromium.close()


def write(tape: Path, target: Path) -> float:
    """Wall seconds of the whole command, Python's start included."""
    command = [sys.executable, "-m", "everywatt", "report", str(tape), "-o", str(target)]
    began = time.perf_counter()
    subprocess.run(command, env=environment(), capture_output=True, check=True)
    return time.perf_counter() - began


def main(quick: bool = False) -> None:
    """The table."""
    sizes = [10_000] if quick else [10_000, 100_000, 1_000_000, 10_000_000]
    repeats = 1 if quick else 3
    rows = []
    with tempfile.TemporaryDirectory(prefix="everywatt-bench-") as name, browser() as opened:
        for size in sizes:
            for kind in ("40 channels", "one channel"):
                tape, target = Path(name) / "run.tape", Path(name) / "run.html"
                if kind == "40 channels":
                    ticks = build(tape, size // CHANNELS)
                else:
                    ticks = build(tape, size, groups=one_gauge(), period_ns=1_000_000)
                wall = statistics.median(write(tape, target) for _ in range(repeats))
                bytes_ = target.stat().st_size
                shown = None if opened is None else statistics.median(opened(target) for _ in range(repeats))
                rows.append(
                    [
                        f"{ticks:,} ticks, {kind}",
                        f"{wall:.2f} s",
                        verdict(wall, 3.0),
                        f"{bytes_ / 1e3:.0f} KB",
                        verdict(bytes_, 1e6),
                        "-" if shown is None else f"{shown:.2f} s",
                        "" if shown is None else verdict(shown, 2.0),
                    ]
                )
                tape.unlink()
    heads = ["report of", "written in", "≤ 3 s", "size", "≤ 1 MB", "shown in", "≤ 2 s"]
    OUT.table(heads, rows, right=(1, 3, 5), title="The HTML report")
