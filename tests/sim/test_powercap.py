"""The powercap tree: read as programs read it, against its closed form."""

import subprocess

import pytest

CLASS = "sys/class/powercap"
READ = """
import json, os, time
p = {path!r}
fd = os.open(p, os.O_RDONLY)
rows = []
for _ in range(40):
    for how in range(3):
        a = time.monotonic_ns()
        if how == 0: text = os.pread(fd, 64, 0).decode()
        elif how == 1: text = open(p).read()
        else:
            os.lseek(fd, 0, 0); text = os.read(fd, 64).decode()
        rows.append((a, time.monotonic_ns(), int(text)))
    time.sleep(0.002)
print(json.dumps(rows))
"""


def microjoules(lab, device, ns, start_j, wrap_j, *, quantum_j=2.0**-14):
    """The counter at the last whole millisecond of the machine's time."""
    t_ns = lab.t0_ns + (ns - lab.t0_ns) // 10**6 * 10**6
    joules = start_j + lab.truth(device, lab.t0_ns, t_ns)
    return joules // quantum_j * quantum_j % wrap_j * 1e6


@pytest.mark.parametrize("fixed", [True, False])
def test_every_way_of_reading_gives_the_counter_of_that_moment(sim_machine, inside, fixed):
    lab = sim_machine(packages=["square:20W,90W,0.05s"])
    path = f"/{CLASS}/intel-rapl:0/energy_uj" if fixed else f"{lab.folder}/{CLASS}/intel-rapl:0/energy_uj"
    rows = inside(lab, READ.format(path=path))
    for a, b, reading in rows:
        low, high = (microjoules(lab, "cpu.0", ns, 1000.0, 262143.328850) for ns in (a, b))
        assert low - 62 <= reading <= high + 62
    assert rows[-1][2] - rows[0][2] > 1e6 * 0.05 * 20


def test_programs_that_use_streams_see_it_too(sim_machine):
    lab = sim_machine(packages=["constant:50W"])
    texts = [
        subprocess.run(
            ["cat", f"/{CLASS}/intel-rapl:0/energy_uj"], env=lab.environment(), capture_output=True, text=True
        )
        for _ in range(2)
    ]
    first, second = (int(text.stdout) for text in texts)
    assert 1_000_000_000 <= first < second < 1_000_000_000 + 50 * 60 * 10**6


def test_copying_inside_the_kernel_does_not_take_the_plain_file(sim_machine, tmp_path):
    lab = sim_machine(packages=["constant:50W"], sensor=["package.start=0J"])
    source = f"/{CLASS}/intel-rapl:0/energy_uj"
    with (tmp_path / "out").open("w") as out:
        subprocess.run(["cat", source], env=lab.environment(), stdout=out, check=True)
    assert int((tmp_path / "out").read_text()) > 0


def test_a_stream_in_c_holds_the_counter_of_its_opening(sim_machine, inside):
    lab = sim_machine(packages=["constant:50W"])
    code = """
import ctypes, json, time
c = ctypes.CDLL(None)
c.fopen.restype = ctypes.c_void_p
def read():
    f = c.fopen(b"/sys/class/powercap/intel-rapl:0/energy_uj", b"r")
    text = ctypes.create_string_buffer(64)
    c.fgets(text, 64, ctypes.c_void_p(f)); c.fclose(ctypes.c_void_p(f))
    return int(text.value)
t, a = time.monotonic(), read(); time.sleep(0.1)
print(json.dumps([read() - a, time.monotonic() - t]))
"""
    grown, seconds = inside(lab, code)
    assert 50e6 * 0.098 <= grown <= 50e6 * (seconds + 0.002)


def test_the_tree_is_laid_out_as_the_kernel_does(sim_machine):
    sensor = "package.dram=0.2,package.uncore=0.1,package.mmio=1,package.1.dies=2,package.tdp=120W,psys=40W"
    lab = sim_machine(packages=["constant:100W", "constant:60W"], sensor=[sensor])
    root = lab.folder / CLASS
    names = {entry.name: (entry / "name").read_text().strip() for entry in root.iterdir() if ":" in entry.name}
    assert names == {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "uncore",
        "intel-rapl:0:2": "dram",
        "intel-rapl:1": "package-1-die-0",
        "intel-rapl:1:0": "core",
        "intel-rapl:1:1": "uncore",
        "intel-rapl:1:2": "dram",
        "intel-rapl:2": "package-1-die-1",
        "intel-rapl:2:0": "core",
        "intel-rapl:2:1": "uncore",
        "intel-rapl:2:2": "dram",
        "intel-rapl:3": "psys",
        "intel-rapl-mmio:0": "package-0",
        "intel-rapl-mmio:1": "package-1-die-0",
        "intel-rapl-mmio:2": "package-1-die-1",
    }
    assert (root / "intel-rapl:0" / "constraint_0_max_power_uw").read_text() == "120000000\n"
    assert (root / "intel-rapl:0" / "max_energy_range_uj").read_text() == "262143328850\n"
    assert (root / "intel-rapl:0" / "energy_uj").read_text() == "1000000000\n"
    second = lab.t0_ns + 10**9
    joules = {name: lab.truth(name, lab.t0_ns, second) for name in ("cpu.0", "cpu.0.core", "dram.0", "cpu.1", "psys")}
    expected = {"cpu.0": 100, "cpu.0.core": 70, "dram.0": 20, "cpu.1": 60, "psys": 1.2 * 160 + 40}
    assert joules == pytest.approx(expected)


ONE = "import json; print(json.dumps(int(open('/sys/class/powercap/intel-rapl:{zone}/energy_uj').read())))"


def test_parts_and_dies_share_the_package(sim_machine, inside):
    lab = sim_machine(packages=["constant:100W"], sensor=["package.dies=2,package.dram=0.2,package.start=0J"])
    code = """
import json
r = lambda z: int(open(f"/sys/class/powercap/intel-rapl:{z}/energy_uj").read())
print(json.dumps([r("0"), r("1"), r("0:0"), r("1:1"), r("0")]))
"""
    first, second, core, dram, last = inside(lab, code)
    slack = 100_000  # two milliseconds of a die: the counters go on between the reads, in whole milliseconds
    for reading, share in ((second, 1.0), (core, 0.7), (dram, 0.2)):
        assert share * first - slack <= reading <= share * last + slack, share


def test_it_wraps_at_its_range(sim_machine, inside):
    lab = sim_machine(packages=["constant:1kW"], sensor=["package.wrap=300J,package.start=299.99J"])
    assert inside(lab, ONE.format(zone="0")) < 299_990_000
    assert (lab.folder / CLASS / "intel-rapl:0/max_energy_range_uj").read_text() == "300000000\n"


def test_it_restarts_at_zero(sim_machine, inside):
    lab = sim_machine(packages=["constant:10W"], sensor=["package.start=5000J,package.reset_at=1ms"])
    assert inside(lab, ONE.format(zone="0")) < 600_000_000


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("unreadable", "PermissionError"),
        ("vanish", "FileNotFoundError"),
        ("garbage", "not a number\n"),
        ("negative", "-5\n"),
        ("empty", ""),
    ],
)
def test_faults(sim_machine, inside, fault, expected):
    code = """
import json
try: print(json.dumps(open("/sys/class/powercap/intel-rapl:0/energy_uj").read()))
except OSError as e: print(json.dumps(type(e).__name__))
"""
    assert inside(sim_machine(packages=["constant:10W"], sensor=[f"package.fault={fault}"]), code) == expected
    later = sim_machine(packages=["constant:10W"], sensor=[f"package.fault={fault},package.fault_at=1h"])
    assert int(inside(later, code)) > 1_000_000_000


def test_an_open_file_notices_that_its_device_has_gone(sim_machine, inside):
    lab = sim_machine(packages=["constant:10W"], sensor=["package.fault=vanish,package.fault_at=1.5s"])
    code = """
import json, os, time
fd = os.open("/sys/class/powercap/intel-rapl:0/energy_uj", os.O_RDONLY)
first = int(os.pread(fd, 64, 0))
end = time.monotonic() + 3
while time.monotonic() < end:
    try: os.pread(fd, 64, 0)
    except OSError as e: print(json.dumps([first > 0, e.errno])); break
    time.sleep(0.02)
"""
    assert inside(lab, code) == [True, 19]


def test_real_counters_are_hidden_from_a_machine_without_packages(sim_machine, inside):
    lab = sim_machine(gpus=["constant:10W"])
    assert inside(lab, "import json, os; print(json.dumps(os.listdir('/sys/class/powercap')))") == []


def test_other_files_and_descriptors_are_left_alone(sim_machine, inside, tmp_path):
    lab = sim_machine(packages=["constant:10W"])
    (tmp_path / "energy_uj").write_text("mine")
    code = f"""
import json, os
fd = os.open("/sys/class/powercap/intel-rapl:0/energy_uj", os.O_RDONLY)
os.closerange(fd, fd + 1)
r, w = os.pipe()
os.write(w, b"pipe")
print(json.dumps([r == fd, os.read(r, 10).decode(), open({str(tmp_path / "energy_uj")!r}).read()]))
"""
    assert inside(lab, code) == [True, "pipe", "mine"]
