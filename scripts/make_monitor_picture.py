"""Write docs/images/monitor.svg: the monitor on a simulated machine with four cards and three programs on them.

unshare --pid --fork --mount-proc python scripts/make_monitor_picture.py

In a PID namespace of its own (which needs root) the table of owners shows the picture's programs only. Needs the extra
`tui`. The picture has the system's own monospace font, and nothing in it is loaded from elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from make_picture import FONT, MADE_BY, ROOT

from everywatt.sim.machine import SimMachine

PICTURE = ROOT / "docs" / "images" / "monitor.svg"
SIZE = (120, 26)
WATCHED_S = 45.0
TRAIN = """
import sys, time
from everywatt.testing import use_gpu

with use_gpu(float(sys.argv[4]), memory_bytes=6 * 10**9, gpu=int(sys.argv[2])):
    while True:
        busy_until = time.perf_counter() + 0.04
        while time.perf_counter() < busy_until:
            pass
        time.sleep(0.06)
"""


async def watch() -> str:
    """The screen after a while, as SVG. Runs inside of the simulated machine."""
    from everywatt.report.live.app import MonitorApp
    from everywatt.report.live.local import LocalSource

    source = LocalSource(1.0, 1.0, by="process")
    try:
        app = MonitorApp(source, 1.0)
        async with app.run_test(size=SIZE):
            await asyncio.sleep(WATCHED_S)
            return app.export_screenshot(title="everywatt monitor")
    finally:
        source.close()


def main() -> None:
    """Start the machine, the programs and the view, and write the picture."""
    if "EVERYWATT_SIM" in os.environ:
        svg = MADE_BY.sub("", FONT.sub("", asyncio.run(watch())))
        PICTURE.write_text(svg.replace("Fira Code", "ui-monospace").replace("arial", "sans-serif"), encoding="utf-8")
        return
    made = SimMachine.of(gpus=["load:55W,290W"], replicate=4, packages=["load:12W,65W"], sensor=["power_limit=300W"])
    with tempfile.TemporaryDirectory() as folder, made.start() as lab:
        (Path(folder) / "train.py").write_text(TRAIN, encoding="utf-8")
        env = {**lab.environment(), "PYTHONPATH": str(ROOT / "src")}
        words = (("0", "0.95"), ("1", "0.6"), ("2", "0.3"))
        programs = [
            subprocess.Popen([sys.executable, "train.py", "--gpu", gpu, "--share", share], cwd=folder, env=env)
            for gpu, share in words
        ]
        try:
            here = Path(__file__).resolve()
            subprocess.run([sys.executable, here.name], cwd=here.parent, env=env, check=True)
        finally:
            for program in programs:
                program.kill()
                program.wait()


if __name__ == "__main__":
    main()
