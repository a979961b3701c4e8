"""A Jetson of files whose joules are known: INA3221 by hwmon or iio, and a `tegrastats` that prints the same board.

    with Board(folder, {"VDD_IN": "square:4W,12W,3s", "VDD_SOC": "constant:2W"}) as board:
        subprocess.run([..., "everywatt", "run", ...], env=board.environment())
        board.energy_j("VDD_IN", start_ns, end_ns)

The chips publish the mean of each period at its end, as the real ones do. `python -m everywatt.sim.jetson BOARD.json
[--interval MS]` is the board's `tegrastats`; a fault `silent:SECONDS` has it hang, `end:SECONDS` has it end after that.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from everywatt.core.clocks import NS, Clock, SystemClock, Task
from everywatt.sim.curves import Curve, parse_curve

PERIOD_S = 0.43
MILLIVOLTS = 5000
DITHER_W = 0.005
_LAYOUTS = ("hwmon", "iio", "tegrastats")
_SCRIPT = """#!/bin/sh
PYTHONPATH="{source}" exec "{python}" -m everywatt.sim.jetson "{facts}" "$@"
"""


# What the kernel shows of the board's state: a GPU at 5 % (per mille) and 115 MHz, a memory controller at 1600 MHz that
# is 2 % busy, one temperature and a sensor that is off.
_STATE = {
    "class/devfreq/17000000.gpu/cur_freq": "114750000",
    "class/devfreq/17000000.gpu/device/load": "50",
    "kernel/debug/bpmp/debug/clk/emc/rate": "1600000000",
    "kernel/actmon_avg_activity/mc_all": "3200000",
    "class/thermal/thermal_zone0/type": "cpu-thermal",
    "class/thermal/thermal_zone0/temp": "45500",
    "class/thermal/thermal_zone1/type": "cv0-thermal",
    "class/thermal/thermal_zone1/temp": "-256000",
}


class Board:
    """A running board. `layout` is what shows its power: `hwmon`, `iio`, or nothing but `tegrastats`.

    `fault` is one of tegrastats: `silent:SECONDS` or `end:SECONDS` after its start. With `dither_w` 0 a constant load
    gives the very same number again and again, so that no publication can be seen.
    """

    def __init__(
        self,
        folder: Path,
        rails: Mapping[str, str],
        *,
        layout: str = "hwmon",
        period_s: float = PERIOD_S,
        fault: str = "",
        dither_w: float = DITHER_W,
        clock: Clock | None = None,
    ) -> None:
        if layout not in _LAYOUTS:
            raise ValueError(f"layout is one of {', '.join(_LAYOUTS)}")
        self.folder = folder
        self.layout = layout
        self.period_s = period_s
        self.fault = fault
        self._dither_w = dither_w
        self._clock: Clock = clock or SystemClock()
        self.t0_ns = self._clock.monotonic_ns()
        self._curves: dict[str, Curve] = {label: parse_curve(text) for label, text in rails.items()}
        self._odd = 1
        self._amps: list[tuple[Curve, int]] = []
        self._ended = self._clock.event()
        self._publishing: Task | None = None

    def __enter__(self) -> Board:
        self._write()
        self._publish(0.0)
        self._publishing = self._clock.spawn(self._go, "everywatt-jetson")
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        if self._publishing is not None:
            self._publishing.join()
        for _, handle in self._amps:
            os.close(handle)
        self._amps = []

    def energy_j(self, label: str, start_ns: int, end_ns: int) -> float:
        """The exact joules of a rail between two instants of the monotonic clock."""
        return self._curves[label].energy_j((start_ns - self.t0_ns) / NS, (end_ns - self.t0_ns) / NS)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        env = dict(os.environ if base is None else base)
        return env | {
            "EVERYWATT_SYS": str(self.folder / "sys"),
            "EVERYWATT_RUNTIME_DIR": str(self.folder / "run"),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{env.get('PATH', '')}",
        }

    def _write(self) -> None:
        (self.folder / "sys").mkdir(parents=True)
        programs = self.folder / "bin"
        programs.mkdir()
        facts = self.folder / "board.json"
        texts = {label: curve.text for label, curve in self._curves.items()}
        board = {"t0_ns": self.t0_ns, "period_s": self.period_s, "fault": self.fault, "rails": texts}
        facts.write_text(json.dumps(board))
        if self.layout == "tegrastats":
            source = Path(__file__).resolve().parents[2]
            script = programs / "tegrastats"
            script.write_text(_SCRIPT.format(source=source, python=sys.executable, facts=facts))
            script.chmod(0o755)
            return
        for name, text in _STATE.items():
            path = self.folder / "sys" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        for number, (label, curve) in enumerate(self._curves.items()):
            chip, index = divmod(number, 3)
            path = self._rail(chip, index, label)
            self._amps.append((curve, os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)))

    def _rail(self, chip: int, index: int, label: str) -> Path:
        """Write a rail's fixed files; gives the one with its current."""
        if self.layout == "iio":
            folder = self.folder / "sys/bus/i2c/drivers/ina3221x" / f"7-{40 + chip:04d}" / f"iio:device{chip}"
            names = (f"rail_name_{index}", f"in_voltage{index}_input", f"in_current{index}_input")
        else:
            folder = self.folder / "sys/bus/i2c/drivers/ina3221" / f"1-{40 + chip:04d}" / f"hwmon/hwmon{chip}"
            names = (f"in{index + 1}_label", f"in{index + 1}_input", f"curr{index + 1}_input")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text("ina3221\n")
        if self.layout == "hwmon":
            (folder / "update_interval").write_text(f"{round(self.period_s * 1000)}\n")
        (folder / names[0]).write_text(f"{label}\n")
        (folder / names[1]).write_text(f"{MILLIVOLTS}\n")
        return folder / names[2]

    def _go(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            wait_s = (self.t0_ns + number * self.period_s * NS - self._clock.monotonic_ns()) / NS
            if wait_s > 0 and self._ended.wait(wait_s):
                return
            self._publish(number * self.period_s)

    def _publish(self, end_s: float) -> None:
        # A real chip's last digit is never still: a publication is seen by its change.
        self._odd = -self._odd
        for curve, handle in self._amps:
            watts = mean_w(curve, end_s, self.period_s) + self._odd * self._dither_w
            # In place and always as long: a reader never sees a half-written file.
            os.pwrite(handle, f"{round(watts / MILLIVOLTS * 1e6):>9d}\n".encode(), 0)


def mean_w(curve: Curve, end_s: float, period_s: float) -> float:
    """The mean power of the period that ends at `end_s`; the power at the start before there is one."""
    start_s = max(end_s - period_s, 0.0)
    return curve.energy_j(start_s, end_s) / (end_s - start_s) if end_s > start_s else curve.power_w(0.0)


def line(curves: dict[str, Curve], now_s: float, period_s: float, sums: dict[str, tuple[int, int]]) -> str:
    """One line as JetPack 6 prints it, with the last published means and the mean of all lines, kept in `sums`."""
    end_s = now_s - now_s % period_s
    rails = []
    for label, curve in curves.items():
        milliwatts = round(1000 * mean_w(curve, end_s, period_s))
        total, count = sums.get(label, (0, 0))
        sums[label] = total + milliwatts, count + 1
        rails.append(f"{label} {milliwatts}mW/{(total + milliwatts) // (count + 1)}mW")
    stamp = time.strftime("%m-%d-%Y %H:%M:%S")
    return (
        f"{stamp} RAM 3168/6851MB (lfb 2x4MB) SWAP 0/3426MB (cached 0MB) CPU [23%@1397,off] EMC_FREQ 2%@1600 "
        f"GR3D_FREQ 5%@[114] cpu@45.5C tj@46C {' '.join(rails)}"
    )


def main(words: list[str]) -> int:
    """Print lines until the reader is gone."""
    facts = json.loads(Path(words[0]).read_text(encoding="utf-8"))
    interval_s = int(words[words.index("--interval") + 1]) / 1000 if "--interval" in words else 1.0
    curves = {label: parse_curve(text) for label, text in facts["rails"].items()}
    what, _, after = str(facts.get("fault", "")).partition(":")
    start_s = time.monotonic()
    sums: dict[str, tuple[int, int]] = {}
    while True:
        if what and time.monotonic() - start_s > float(after):
            if what == "end":
                return 1
            time.sleep(3600)
        now_s = (time.monotonic_ns() - facts["t0_ns"]) / NS
        try:
            print(line(curves, now_s, facts["period_s"], sums), flush=True)
        except BrokenPipeError:
            return 0
        time.sleep(interval_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
