"""`tegrastats` of a simulated board: `python -m everywatt.sim.tegrastats BOARD.json [--interval MS]`.

A board's fault `silent:SECONDS` has it hang after so long, `end:SECONDS` has it end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from everywatt.core.clocks import NS
from everywatt.sim.curves import Curve, parse_curve
from everywatt.sim.jetson import mean_w


def line(curves: dict[str, Curve], now_s: float, period_s: float) -> str:
    """One line as JetPack 6 prints it, with the last published means."""
    end_s = now_s - now_s % period_s
    rails = " ".join(f"{label} {round(1000 * mean_w(curve, end_s, period_s))}mW/0mW" for label, curve in curves.items())
    stamp = time.strftime("%m-%d-%Y %H:%M:%S")
    return f"{stamp} RAM 3168/6851MB (lfb 2x4MB) CPU [23%@1397,off] GR3D_FREQ 5%@[114] cpu@45.5C tj@46C {rails}"


def main(words: list[str]) -> int:
    """Print lines until the reader is gone."""
    facts = json.loads(Path(words[0]).read_text(encoding="utf-8"))
    interval_s = int(words[words.index("--interval") + 1]) / 1000 if "--interval" in words else 1.0
    curves = {label: parse_curve(text) for label, text in facts["rails"].items()}
    what, _, after = str(facts.get("fault", "")).partition(":")
    start_s = time.monotonic()
    while True:
        if what and time.monotonic() - start_s > float(after):
            if what == "end":
                return 1
            time.sleep(3600)
        now_s = (time.monotonic_ns() - facts["t0_ns"]) / NS
        try:
            print(line(curves, now_s, facts["period_s"]), flush=True)
        except BrokenPipeError:
            return 0
        time.sleep(interval_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
