"""`python _widths.py FOLDER COUNT`: median half-widths (percent) of windows of the recorded cards in FOLDER, as JSON.

It asks whatever everywatt PYTHONPATH finds, this tree's or an older one's, as a user does: import, then windows.
"""

from __future__ import annotations

import gzip
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from everywatt.api.run import load
from everywatt.tape.importing import import_files

CARDS = {"A100": "NVIDIA A100-PCIE-40GB", "RTX3090": "NVIDIA GeForce RTX 3090"}


def main(folder: str, count: str) -> int:
    """Print `{"A100_square 1 s": 14.9, …}`."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for meter in sorted(Path(folder).rglob("meter.csv.gz")):
            logs = sorted(meter.parent.glob("nvidia_smi.csv*"))
            if not logs:
                continue
            name = meter.parent.name
            out = Path(scratch) / f"{name}.tape"
            import_files("nvidia-smi", logs, out, {"zone_h": 1, "card": CARDS.get(name.split("_")[0], "")})
            run = load(out)
            origin_s = run.tapes[0].to_utc_ns(run.tapes[0].extent_ns()[0]) / 1e9
            with gzip.open(meter, "rt") as file:
                lines = file.read().split()
            first_s, last_s = (float(line.split(",")[0]) - origin_s for line in (lines[1], lines[-1]))
            for length_s in (0.25, 1.0, 3.0):
                chance = random.Random(1)
                widths = []
                for _ in range(int(count)):
                    start_s = chance.uniform(first_s + 0.01, last_s - 0.01 - length_s)
                    energy = run.energy(between=(start_s, start_s + length_s))
                    widths.append(100 * (energy.high - energy.low) / 2 / energy.joules)
                found[f"{name} {length_s:g} s"] = statistics.median(widths)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.path.pop(0)
    sys.exit(main(*sys.argv[1:]))
