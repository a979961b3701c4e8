"""A fitted model as a sensor: what it reads, what it says, and when it says that it cannot."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from fake_clock import FakeClock
from waiting import until

from everywatt.api.run import load
from everywatt.core.channels import Channel, Domain, GroupInfo, Kind, Pedigree, fresh
from everywatt.core.clocks import SystemClock
from everywatt.core.config import resolve
from everywatt.core.machine import Machine
from everywatt.core.stats import TO_95
from everywatt.models.features import History
from everywatt.models.fitting import fit
from everywatt.models.modelfile import dumps, load_model
from everywatt.models.reading import run_table
from everywatt.models.sensor import Drift, ModelPower, ModelSensor, channel_of
from everywatt.models.table import Table
from everywatt.sensors import procfs, registry
from everywatt.sensors.base import Request, State
from everywatt.sim.jetson import Board


@pytest.fixture(scope="module")
def model():
    """Ten watts, and five for each busy CPU; learnt up to 64 CPUs."""
    random = np.random.default_rng(2)
    cpu = np.repeat(64 * random.random(40), 10)
    watts = (10 + 5 * cpu) * (1 + 0.02 * random.standard_normal(400))
    table = Table(np.arange(400.0), {"cpu.0.package.power": watts, "host.cpu_time": cpu}, host="server")
    return fit(table, "cpu.0.package.power", only=("linear",)).model


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "m.json"
    path.write_text(dumps(model))
    return path


def request(path, machine=None):
    return Request(machine or Machine.here(), options={"model": {"file": str(path)}})


def stat(busy_s):
    ticks = round(busy_s * procfs.TICKS_PER_S)
    return f"cpu  {ticks} 0 0 100000 0 0 0 0 0 0\n"


@pytest.mark.parametrize(("used", "outside"), [(30.0, 0.0), (6.5, 0.0), (0.0, 1.0), (130.0, 1.0)])
def test_watts_are_those_of_the_use_between_two_reads(file, model, tmp_path, used, outside):
    """So many CPUs busy for two seconds, by a /proc of the test's own: 10 W and 5 W for each."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "stat").write_text(stat(1000))
    clock = FakeClock(now_ns=7_000_000_000)
    sensor = ModelSensor(request(file, Machine(sys=tmp_path, proc=proc, environ={}, clock=clock)))
    report = sensor.probe()
    assert report.state is State.USABLE, report.why
    assert "of server" in report.why
    (group,) = sensor.groups()
    assert group.read() == (), "a counter has no rate at its first read"
    (proc / "stat").write_text(stat(1000 + 2 * used))
    clock.advance(2.0)
    (row,) = group.read()
    group.close()
    watts, low, high, flagged, *_ = row.values
    assert row.read_ns == 9_000_000_000
    # Beyond the training range (3.5 to 62 CPUs) the line goes on, saturates within four more ranges and is bounded.
    assert watts == pytest.approx(10 + 5 * used if used < 64 else 624, rel=0.02)
    assert low < watts < high and flagged == outside
    inside = model.predict(History(model.form.features, 1.0).row(0.0, {"host.cpu_time": 30.0}))
    assert outside == 0.0 or high / low > 1.03 * inside.high / inside.low


@pytest.mark.parametrize(("used", "rate", "farthest"), [(30, 500, None), (130, 700, "use.b"), (30, 3000, "use.a")])
def test_the_column_that_is_farthest_outside_is_recorded(used, rate, farthest, tmp_path):
    """Learnt up to 64 and 1000; 130 is one range beyond the first, 3000 two beyond the second."""
    random = np.random.default_rng(4)
    columns = {"use.a": np.repeat(1000 * random.random(40), 10), "use.b": np.repeat(64 * random.random(40), 10)}
    table = Table(np.arange(400.0), {**columns, "node.power": 50 + columns["use.a"] / 20 + columns["use.b"]})
    fitted = fit(table, "node.power", only=("linear",)).model
    channels = tuple(Channel(name, "", Kind.GAUGE, "host") for name in columns)
    clock = FakeClock(now_ns=7_000_000_000)

    class Use:
        info = GroupInfo("use.host", "use", "host", channels)

        def read(self):
            return (fresh(clock.monotonic_ns(), (float(rate), float(used))),)

    group = ModelPower(fitted, [Use()], clock)
    (row,) = group.read()
    said = dict(zip([channel.name for channel in group.info.channels], row.values, strict=True))
    place = int(said["model.farthest"])
    assert (group.info.names[place - 1] if place else None) == farthest
    assert said["model.outside"] == float(farthest is not None)


def test_only_what_can_measure_its_target_is_asked_beside_it(file, monkeypatch):
    """To ask a card takes a second and more, in which the recorder would show no sign of life."""
    asked, probe = [], registry.probe
    monkeypatch.setattr(registry, "probe", lambda name, *more: asked.append(name) or probe(name, *more))
    for group in ModelSensor(request(file)).groups():
        group.close()
    assert "rapl" in asked and "nvml" not in asked


def test_a_recording_with_a_model_has_its_columns(file):
    """So that the model can be adapted to it, or fitted again."""
    targets = {"use": registry.known()["use"]}
    choice = registry.choose(targets, request(file))
    for group in choice.groups:
        group.close()
    assert "use.activity" in {group.info.name for group in choice.groups}


def test_it_reads_the_use_of_this_machine(file, model):
    """Whatever this machine does: the watts are those of the CPU time that the kernel told between the reads."""
    (group,) = ModelSensor(request(file)).groups()
    (host,) = group._groups
    told = []
    read = host.read
    host.read = lambda: told.append(read()[-1]) or (told[-1],)
    assert group.read() == ()
    SystemClock().sleep_until(time.monotonic_ns() + 250_000_000)
    (row,) = group.read()
    group.close()
    place = [channel.name for channel in host.info.channels].index("host.cpu_time")
    first, second = told
    used = (second.values[place] - first.values[place]) / ((second.read_ns - first.read_ns) / 1e9)
    truth = model.predict([used])
    assert row.values[:4] == (truth.watts, truth.low, truth.high, 1.0 if truth.outside else 0.0)


def test_its_channel_is_modelled_and_belongs_to_what_was_learnt(model):
    channel = channel_of(model)
    assert (channel.name, channel.device, channel.domain) == ("cpu.0.package.power", "cpu.0", Domain.PACKAGE)
    assert channel.pedigree is Pedigree.MODELLED and 1 < channel.facts.gain_pct < 20
    assert channel_of(replace(model, target="package_power")).name == "host.power"


@pytest.mark.parametrize(
    ("target", "device", "domain"),
    [
        ("jetson.VDD_IN.power", "jetson", Domain.SOC),
        ("jetson.power", "jetson", Domain.SOC),  # as stores call the board's input, of which they do not know the rail
        ("jetson.VDD_SOC.power", "jetson", Domain.RAIL),
        ("jetson.VDD_CPU_GPU_CV.power", "jetson", Domain.RAIL),
        ("cpu.1.core.power", "cpu.1", Domain.CORE),
        ("cpu.1.uncore.power", "cpu.1", Domain.UNCORE),
    ],
)
def test_its_channel_covers_what_the_measured_one_does(model, target, device, domain):
    channel = channel_of(replace(model, target=target))
    assert (channel.name, channel.device, channel.domain) == (target, device, domain)


@pytest.mark.parametrize(
    ("layout", "target"),
    [("tegrastats", "jetson.VDD_IN.power"), ("tegrastats", "jetson.power"), ("hwmon", "jetson.power")],
)
def test_a_model_of_a_board_is_compared_with_its_input_rail(model, tmp_path, monkeypatch, layout, target):
    path = tmp_path / "m.json"
    path.write_text(dumps(replace(model, target=target)))
    with Board(tmp_path / "board", {"VDD_SOC": "constant:1W", "VDD_IN": "constant:8W"}, layout=layout) as board:
        for name, value in board.environment().items():
            monkeypatch.setenv(name, value)
        (group,) = ModelSensor(request(path)).groups()

        def compared():
            return next((row.values for row in group.read() if math.isfinite(row.values[4])), None)

        watts, _, _, _, ratio, *_ = until(compared, "watts of the board beside the model's", 30)
        group.close()
    assert ratio * watts == pytest.approx(8, rel=0.1)


def test_a_model_that_needs_what_is_not_here_says_so(model, tmp_path):
    path = tmp_path / "m.json"
    path.write_text(dumps(model).replace("host.cpu_time", "cpu_cycles"))
    report = ModelSensor(request(path)).probe()
    assert report.state is State.UNUSABLE and "cpu_cycles" in report.why
    assert ModelSensor(Request()).probe().state is State.UNUSABLE


def test_the_recorder_loads_no_numpy_for_it():
    code = (
        "import everywatt.models.sensor, sys; print(sorted({'numpy', 'sklearn', 'click', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def everywatt(*words):
    return subprocess.run([sys.executable, "-m", "everywatt", *words], capture_output=True, text=True, timeout=400)


def test_a_run_with_a_model_has_modelled_joules(file, own_home):
    done = everywatt("run", "--json", "--model", str(file), "--", sys.executable, "-c", "import time; time.sleep(3)")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["meta"]["model_file"] == str(file)
    if run["energy"]["pedigree"] == "modelled":  # on a machine with a sensor of its own, that one counts
        assert run["energy"]["parts"].keys() == {"cpu.0"}
        truth = run["devices"]["cpu.0"]["power"]["mean"] * run["duration_s"]
        assert run["energy"]["joules"] == pytest.approx(truth, rel=0.25)
        assert run["energy"]["joules"] > 9 * run["duration_s"]
        ledger = json.loads(everywatt("ledger", run["path"], "--by", "process", "--json").stdout)
        assert ledger["total"]["pedigree"] == "modelled"
        assert {owner["energy"]["pedigree"] for owner in ledger["owners"]} == {"modelled"}


def test_a_model_is_moved_here_by_a_recording(file, own_home, tmp_path):
    """Two minutes of a machine of 30 W, and 60 W more when all of its 8 CPUs are busy."""
    busy = np.repeat(np.random.default_rng(7).random(12), 10) * 8
    rows = [f"{second},{cpu},{30 + 60 * cpu / 8}" for second, cpu in enumerate(busy.tolist())]
    table = tmp_path / "here.csv"
    table.write_text("\n".join(["time,host.cpu_time,cpu.0.package.power", *rows]) + "\n")
    done = everywatt("model", "install", "--json", "--against", str(table), str(file))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    moved = load_model(own_home / "config" / "everywatt" / "models" / "m.json")
    assert (moved.gain, moved.offset_w) == (told["gain"], told["offset_w"])
    assert moved.about["transferred"]["rows"] == 120
    for cpu in (0.5, 4.0, 7.5):
        found = moved.predict([cpu])
        assert found.watts == pytest.approx(30 + 60 * cpu / 8, rel=0.02) and found.low < found.watts < found.high


def test_the_installed_model_is_adapted_where_none_is_named(file, own_home, tmp_path):
    """To a machine whose power is a tenth above what was learnt: 10 W and 5 W for each busy CPU."""
    busy = np.repeat(np.random.default_rng(7).random(12), 10) * 60
    rows = [f"{second},{cpu},{1.1 * (10 + 5 * cpu)}" for second, cpu in enumerate(busy.tolist())]
    table = tmp_path / "here.csv"
    table.write_text("\n".join(["time,host.cpu_time,cpu.0.package.power", *rows]) + "\n")
    none = everywatt("model", "install", "--against", str(table))
    assert none.returncode == 2 and "No model is named, and none is installed" in none.stderr
    assert everywatt("model", "install", str(file)).returncode == 0
    done = everywatt("model", "install", "--json", "--against", str(table))
    assert done.returncode == 0, done.stderr
    moved = load_model(resolve().options["model"]["file"])
    assert moved.predict([30.0]).watts == pytest.approx(1.1 * 160, rel=0.02)
    assert sorted(path.name for path in (own_home / "config" / "everywatt" / "models").iterdir()) == ["m.json"]
    again = everywatt("model", "install")
    assert again.returncode == 2 and "No model is named" in again.stderr


def test_a_model_of_a_boards_input_is_adapted_to_the_rail_that_measures_it(model, own_home, tmp_path):
    file, table = tmp_path / "m.json", tmp_path / "here.csv"
    file.write_text(dumps(replace(model, target="jetson.power")))
    busy = np.repeat(np.random.default_rng(7).random(12), 10) * 60
    rows = [f"{second},{cpu},{1.1 * (10 + 5 * cpu)},{1 + cpu}" for second, cpu in enumerate(busy.tolist())]
    head = "time,host.cpu_time,jetson.VDD_IN.power,jetson.VDD_SOC.power"
    table.write_text("\n".join([head, *rows]) + "\n")
    done = everywatt("model", "install", "--json", "--against", str(table), str(file))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gain"] == pytest.approx(1.1, rel=0.02)


@pytest.mark.long
def test_a_model_is_moved_here_beside_a_sensor(file, model, own_home):
    """On a machine of 30 W, and 60 W more when all of it is busy, told by RAPL.

    How busy it gets depends on what else runs here; that watts are 30 + 60 × busy share does not.
    """
    ours = (sys.executable, "-m", "everywatt")
    sim = ("sim", "--package", "load:30W,90W,1", "--", *ours)
    done = everywatt(*sim, "model", "install", "--json", "--against", "rapl", "--time", "24s", str(file))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    moved = load_model(own_home / "config" / "everywatt" / "models" / "m.json")
    assert (moved.gain, moved.offset_w) == (told["gain"], told["offset_w"])
    assert moved.about["transferred"]["rows"] >= 20
    (folder,) = (own_home / "everywatt-runs").glob("2*")
    used = run_table([load(folder)]).column("host.cpu_time")
    low, high = np.quantile(used[np.isfinite(used)], [0.1, 0.9])
    for busy in np.linspace(low, high, 5):
        truth = 30 + 60 * busy / os.cpu_count()
        assert moved.predict([busy]).watts == pytest.approx(truth, rel=0.04)
        assert moved.predict([busy]).low < 1.02 * truth and 0.98 * truth < moved.predict([busy]).high
    # Five watts for each CPU became 60 W for all of them, as far as that can be told from the range that was seen.
    steps = 60 / os.cpu_count() * (high - low)
    assert 5 * moved.gain * (high - low) == pytest.approx(steps, rel=0.1, abs=0.7)


def test_a_sensor_that_is_not_here_is_told_before_load_is_made(file, own_home):
    done = everywatt("model", "install", "--against", "cray", str(file))
    assert done.returncode == 2 and "cray delivers no power here" in done.stderr


def test_install_puts_it_into_the_settings_and_remove_takes_it_out(file, own_home):
    config = own_home / "config" / "everywatt" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('country = "FR"\n')
    assert everywatt("model", "install", str(file)).returncode == 0
    assert resolve().options["model"]["file"] == str(config.parent / "models" / "m.json")
    assert resolve().country == "FR"
    assert everywatt("model", "install", str(file)).returncode == 0
    assert config.read_text().count("[sensor.model]") == 1
    assert everywatt("model", "install", "--remove", str(file)).returncode == 0
    assert config.read_text().strip() == 'country = "FR"'


def test_a_model_that_no_longer_fits_says_so():
    drift = Drift(0.9)
    for _ in range(40):
        drift.add(102.0, 100.0, 90.0, 110.0)
    assert not drift.alarm and drift.ratio == pytest.approx(1.02)
    for _ in range(20):
        drift.add(130.0, 100.0, 90.0, 110.0)
    assert drift.alarm
    few = Drift(0.9)
    for _ in range(10):
        few.add(200.0, 100.0, 90.0, 110.0)
    assert not few.alarm, "ten rows are too few to tell"


def test_beside_a_real_sensor_the_model_is_compared(model, tmp_path):
    """RAPL of 10 W + 5 W for each busy CPU, then of twice that; the model was learnt of the first."""
    proc, zone = tmp_path / "proc", tmp_path / "class" / "powercap" / "intel-rapl:0"
    proc.mkdir()
    zone.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "999999999999999"), ("energy_uj", "5000000")):
        (zone / name).write_text(text + "\n")
    path = tmp_path / "m.json"
    path.write_text(dumps(model))

    class Counting(FakeClock):
        """A counter that is looked at must move while the probe waits."""

        def sleep_until(self, at_ns):
            super().sleep_until(at_ns)
            (zone / "energy_uj").write_text(f"{int((zone / 'energy_uj').read_text()) + 1}\n")

    clock = Counting(now_ns=7_000_000_000)
    machine = Machine(sys=tmp_path, proc=proc, environ={}, clock=clock)
    (proc / "stat").write_text(stat(1000))
    (group,) = ModelSensor(request(path, machine)).groups()
    assert [channel.name for channel in group.info.channels][4:6] == ["model.ratio", "model.drift"]
    busy_s, energy_uj, ratios, alarms = 1000.0, 5_000_000, [], []
    for second in range(160):
        rows = group.read()
        if rows:
            ratios.append(rows[0].values[4])
            alarms.append(rows[0].values[5])
        busy_s += 30
        energy_uj += (160 if second < 60 else 320) * 1_000_000
        (proc / "stat").write_text(stat(busy_s))
        (zone / "energy_uj").write_text(f"{energy_uj}\n")
        clock.advance(1.0)
    group.close()
    assert ratios[50] == pytest.approx(1.0, abs=0.05) and alarms[50] == 0.0
    assert alarms[-1] == 1.0


def test_the_interval_of_a_run_is_that_of_the_farther_side(model):
    """Watts that may be e^-0.6 of the prediction are 45 % lower, not 82 %; at 95 % instead of 90 % 51 %."""
    widths = replace(model.widths, novelty=(0.5,), below=(0.6,), above=(0.2,))
    gain_pct = channel_of(replace(model, widths=widths)).facts.gain_pct
    assert gain_pct == pytest.approx(100 * (1 - math.exp(-0.6 * TO_95))) and 50 < gain_pct < 52
