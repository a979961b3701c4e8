"""Sensors of real cards from logs (JimZeyuYang/GPU_Power_Benchmark, MIT), and simulated ones, polled live."""

import gzip
import json
import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
from virtual_time import VirtualTime
from virtual_world import VirtualWorld

from everywatt.core.errors import UsageError
from everywatt.core.machine import Machine
from everywatt.doctor.characterise import characterise_live, characterise_log
from everywatt.doctor.gpu_load import toggled

DATA = Path(__file__).parents[1] / "energy" / "data"


def by_sensor(found):
    return {entry.sensor: entry for entry in found}


@pytest.mark.parametrize(("card", "period_s"), [("A100", 0.1), ("V100", 0.02)])
def test_the_period_of_a_real_card(card, period_s) -> None:
    (entry,) = characterise_log(DATA / "update_period" / f"{card}_nvidia_smi.csv.gz", column="power.draw")
    assert entry.period_s == pytest.approx(period_s, rel=0.02)
    assert entry.window_s is None and entry.observed is None
    assert any("no load marks" in note for note in entry.notes)


def test_the_a100_looks_a_quarter_of_the_time() -> None:
    folder = DATA / "A100_square"
    (entry,) = characterise_log(folder / "nvidia_smi.csv.gz", folder / "load_marks.csv", "power.draw")
    assert entry.period_s == pytest.approx(0.1, rel=0.02)
    assert entry.window_low_s <= 0.025 <= entry.window_high_s and 0.02 <= entry.window_s <= 0.03
    assert entry.observed == pytest.approx(0.25, abs=0.05)


def test_the_3090_averages_a_second_and_its_instant_reading_a_period() -> None:
    folder = DATA / "RTX3090_square"
    found = by_sensor(characterise_log(folder / "nvidia_smi.csv.gz", folder / "load_marks.csv"))
    assert found["power.draw"].window_s == pytest.approx(1.0, abs=0.15)
    assert found["power.draw.instant"].window_s == pytest.approx(0.1, abs=0.01)
    assert all(entry.period_s == pytest.approx(0.1, rel=0.01) for entry in found.values())


def test_cards_of_one_log_are_told_apart(tmp_path) -> None:
    lines = ["timestamp, index, power.draw [W]"]
    for tick in range(800):
        stamp = f"2023/07/30 17:28:{tick // 100:02d}.{tick % 100:02d}0"
        # Card 0 publishes every 100 ms, card 1 every 50 ms.
        lines += [f"{stamp}, 0, {100 + tick // 10 % 7}.00 W", f"{stamp}, 1, {200 + tick // 5 % 9}.00 W"]
    log = tmp_path / "log.csv.gz"
    log.write_bytes(gzip.compress("\n".join(lines).encode()))
    found = by_sensor(characterise_log(log))
    assert found["gpu 0 power.draw"].period_s == pytest.approx(0.1, rel=0.01)
    assert found["gpu 1 power.draw"].period_s == pytest.approx(0.05, rel=0.01)
    assert found["gpu 1 power.draw"].quantum == 1.0


@pytest.mark.parametrize(
    ("log", "marks", "column", "says"),
    [
        (None, None, None, "cannot be read"),
        ("", None, None, "contains no nvidia-smi rows"),
        ("timestamp, power.draw [W]\n2023/07/30 17:28:02.5, 70 W\n", None, "power.draw.instant", "no column"),
        ("timestamp, utilization.gpu [%]\n2023/07/30 17:28:02.5, 7 %\n", None, None, "no power.draw column"),
        ("timestamp, power.draw [W]\n2023/07/30 17:28:02.5, 70 W\n", "unix_s\n", None, "no load marks"),
        ("timestamp, power.draw [W]\n2023/07/30 17:28:02.5, 70 W\n", "unix_s\n5\n6\n", None, "every time zone"),
    ],
)
def test_what_cannot_be_characterised(tmp_path, log, marks, column, says) -> None:
    source, marked = tmp_path / "log.csv", tmp_path / "marks.csv"
    if log is not None:
        source.write_text(log)
    if marks is not None:
        marked.write_text(marks)
    with pytest.raises(UsageError, match=says):
        characterise_log(source, marked if marks is not None else None, column)


def test_a_log_cut_off_in_the_middle_is_refused(tmp_path) -> None:
    whole = (DATA / "update_period" / "V100_nvidia_smi.csv.gz").read_bytes()
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="cannot be read"):
        characterise_log(cut)


def characterised(world: VirtualWorld, time_s: float, load=None) -> dict:
    roots = [world.folder / name for name in ("sys", "proc", "dev")]
    machine = Machine(*roots, environ={**os.environ, "PATH": ""}, clock=world.time)
    return by_sensor(characterise_live(time_s, machine=machine, load=load))


def test_the_period_found_is_the_one_that_was_set(tmp_path) -> None:
    with VirtualWorld(tmp_path, cpu="constant:40W", gpu="sine:200W,100W,1.7s", board="sine:200W,100W,1.7s") as world:
        world.machine.card_ns, world.machine.board_ns = 20_000_000, 50_000_000
        found = characterised(world, 2.0)
    assert found["gpu.1.power"].period_s == pytest.approx(0.05, rel=0.03)
    assert found["gpu.0.energy"].period_s == pytest.approx(0.02, rel=0.03)
    assert found["cpu.0.package.energy"].period_s == pytest.approx(0.001, rel=0.05)
    assert found["gpu.1.power"].window_s is None
    assert all(entry.read_s == pytest.approx(20e-6, abs=2e-6) for entry in found.values())


class Lamp:
    """A card of 100 W that draws 300 W while it is lit: a load to switch, and a curve."""

    low_w, high_w, text = 100.0, 300.0, "lamp"

    def __init__(self, world: VirtualWorld) -> None:
        self.world, self.lit_s, self.switches = world, 0.0, []

    def _now_s(self) -> float:
        return (self.world.now_ns - self.world.machine.origin_ns) / 1e9

    def on(self) -> None:
        self.switches.append(self._now_s())

    off = on

    def close(self) -> None: ...

    def energy_j(self, a_s: float, b_s: float) -> float:
        lit = sum(
            max(0.0, min(b_s, off) - max(a_s, on))
            for on, off in zip_longest(self.switches[::2], self.switches[1::2], fillvalue=1e12)
        )
        return 100.0 * (b_s - a_s) + 200.0 * lit


@pytest.mark.parametrize("window_s", [0.025, 1.0])
def test_a_switched_load_shows_the_window(tmp_path, window_s: float) -> None:
    with VirtualWorld(tmp_path, board="constant:100W") as world:
        lamp = world.machine.curves["board"] = Lamp(world)
        world.machine.window_ns = round(window_s * 1e9)
        found = characterised(world, 5.0, load=lambda index: lamp)
    assert found["gpu.1.power"].window_s == pytest.approx(window_s, abs=0.008, rel=0.15 if window_s == 1.0 else None)


@pytest.mark.serial
@pytest.mark.realtime
def test_the_command_characterises_a_simulated_machine(sim_machine) -> None:
    lab = sim_machine(gpus=["sine:200W,100W,1.7s"], packages=["constant:40W"], sensor=["period=50ms"])
    command = [sys.executable, "-m", "everywatt", "doctor", "--characterise", "--json", "--time", "1s"]
    done = subprocess.run(command, env=lab.environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = {entry["sensor"]: entry for entry in json.loads(done.stdout)["sensors"]}
    # A machine that is held up sees some publications late.
    assert found["gpu.0.power"]["period_s"] == pytest.approx(0.05, rel=0.5)
    assert found["gpu.0.power"]["quantum"] == pytest.approx(0.001)
    assert {"gpu.0.energy", "cpu.0.package.energy"} <= set(found)


def test_a_machine_without_sensors_has_nothing_to_characterise(tmp_path) -> None:
    machine = Machine(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev", environ={"PATH": ""})
    assert characterise_live(0.5, machine=machine) == []
    with pytest.raises(UsageError, match="between"):
        characterise_live(0.0, machine=machine)


def test_a_load_is_off_in_the_end_and_every_switch_is_known() -> None:
    class Switch:
        lit, switches, closed = False, 0, False

        def on(self):
            self.lit, self.switches = True, self.switches + 1

        def off(self):
            self.lit, self.switches = False, self.switches + 1

        def close(self):
            self.closed = True

    lamp, clock = Switch(), VirtualTime()
    with clock.everywhere(), toggled(lamp, clock) as marks:
        clock.sleep(40)
    assert len(marks) > 20
    assert lamp.closed and not lamp.lit and lamp.switches == len(marks) and len(marks) % 2 == 0
    assert marks == sorted(marks)
