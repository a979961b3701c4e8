from pathlib import Path

import pytest

from everywatt.core.machine import Machine
from everywatt.sensors.cpu.modelled import generation_of, identify
from everywatt.sensors.procfs import parse_cpuinfo

XEON = """processor\t: {n}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R)  Platinum 8280 CPU @ 2.70GHz
stepping\t: 7
physical id\t: {socket}
siblings\t: 4
core id\t\t: {core}
cpu cores\t: 2
flags\t\t: fpu vme {flags}

"""
PI = """processor\t: 0
BogoMIPS\t: 108.00
CPU implementer\t: 0x41
CPU part\t: 0xd08

processor\t: 1
CPU implementer\t: 0x41
CPU part\t: 0xd08

Hardware\t: BCM2835
Model\t\t: Raspberry Pi 4 Model B Rev 1.4
"""


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def machine(root: Path, files: dict[str, str], environ: dict[str, str] | None = None) -> Machine:
    put(root, {"proc/meminfo": "MemTotal: 1048576 kB\n", **files})
    return Machine(sys=root / "sys", proc=root / "proc", environ=environ or {})


def server(flags: str = "") -> str:
    """Two sockets of two cores with two threads each."""
    return "".join(XEON.format(n=n, socket=n // 4, core=n % 2, flags=flags) for n in range(8))


def test_a_two_socket_server(tmp_path):
    zone = "sys/class/powercap/intel-rapl:0"
    files = {
        "proc/cpuinfo": server(),
        "sys/class/dmi/id/chassis_type": "23\n",
        f"{zone}/name": "package-0\n",
        f"{zone}/constraint_0_name": "long_term\n",
        f"{zone}/constraint_0_max_power_uw": "205000000\n",
    }
    facts = identify(machine(tmp_path, files))
    assert (facts.threads, facts.cores, facts.sockets, facts.memory_bytes) == (8, 4, 2, 2**30)
    assert (facts.cpu, facts.generation, facts.amd) == (
        "Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz",
        "cascadelake",
        False,
    )
    assert (facts.tdp_w, facts.guest, facts.kind, facts.container) == (205.0, None, "server", None)


@pytest.mark.parametrize(
    "files",
    [
        {"proc/cpuinfo": server("hypervisor")},
        {"proc/cpuinfo": server(), "sys/class/dmi/id/sys_vendor": "QEMU\n"},
        {"proc/cpuinfo": server(), "sys/class/dmi/id/product_name": "VMware Virtual Platform\n"},
        {"proc/cpuinfo": server(), "sys/hypervisor/type": "xen\n"},
        {"proc/cpuinfo": XEON.format(n=0, socket=0, core=0, flags="")},  # one CPU of a socket with four: lxcfs
    ],
)
def test_guests_are_recognised(tmp_path, files):
    assert identify(machine(tmp_path, files)).guest is not None


def test_a_rented_whole_machine_is_no_guest(tmp_path):
    files = {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "m5.metal\n"}
    assert identify(machine(tmp_path, {"proc/cpuinfo": server(), **files})).guest is None


def test_the_first_xen_domain_is_the_host(tmp_path):
    files = {"proc/cpuinfo": server(), "sys/hypervisor/type": "xen\n", "proc/xen/capabilities": "control_d\n"}
    assert identify(machine(tmp_path, files)).guest is None


def test_an_arm_board_has_no_model_name(tmp_path):
    files = {"proc/cpuinfo": PI, "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0"}
    facts = identify(machine(tmp_path, files))
    assert (facts.cpu, facts.kind, facts.generation) == ("Raspberry Pi 4 Model B Rev 1.4", "board", None)
    assert (facts.threads, facts.cores, facts.sockets, facts.tdp_w) == (2, 2, 1, None)
    (tmp_path / "proc/cpuinfo").write_text(PI.split("Hardware")[0])
    assert identify(machine(tmp_path, {})).cpu == "ARM CPU 0x41/0xd08"


def test_laptop_and_desktop(tmp_path):
    core = server().replace("Xeon(R)", "Core(TM)")
    assert identify(machine(tmp_path, {"proc/cpuinfo": core})).kind == "unknown"
    assert identify(machine(tmp_path, {"sys/class/dmi/id/chassis_type": "3\n"})).kind == "desktop"
    assert identify(machine(tmp_path, {"sys/class/power_supply/BAT0/type": "Battery\n"})).kind == "laptop"


def test_containers(tmp_path):
    files = {"proc/cpuinfo": server(), "proc/1/cgroup": "0::/system.slice/docker-abc.scope\n"}
    assert identify(machine(tmp_path, files)).container == "docker"
    assert identify(machine(tmp_path, {}, {"container": "podman"})).container == "podman"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "stepping", "generation"),
    [
        ("GenuineIntel", 6, 85, 4, "skylake"),
        ("GenuineIntel", 6, 85, 11, "cooperlake"),
        ("GenuineIntel", 6, 106, 6, "icelake"),
        ("GenuineIntel", 6, 143, 8, "sapphirerapids"),  # later than the table
        ("AuthenticAMD", 23, 49, 0, "epyc-gen2"),
        ("AuthenticAMD", 25, 1, 1, "epyc-gen3"),
        ("AuthenticAMD", 25, 17, 1, "epyc-gen4"),  # Genoa
        ("AuthenticAMD", 25, 160, 2, "epyc-gen4"),  # Bergamo
        ("AuthenticAMD", 26, 2, 1, "epyc-gen5"),  # Turin
        ("AuthenticAMD", 25, 144, 0, "epyc-gen4"),  # MI300A
        ("AuthenticAMD", 26, 80, 0, "epyc-gen6"),
        ("AuthenticAMD", 26, 160, 0, "epyc-gen6"),
        ("GenuineIntel", 19, 1, 1, "diamondrapids"),
        ("GenuineIntel", 6, 221, 0, "clearwaterforest"),
    ],
)
def test_generations(vendor, family, model, stepping, generation):
    cpu = {"vendor_id": vendor, "cpu family": str(family), "model": str(model), "stepping": str(stepping)}
    assert generation_of(cpu) == generation


def test_garbage_names_no_cpu(tmp_path):
    assert parse_cpuinfo("") == [] and parse_cpuinfo("nonsense\n: :\n") == []
    with pytest.raises(ValueError, match="names no CPU"):
        identify(machine(tmp_path, {"proc/cpuinfo": "nonsense"}))
