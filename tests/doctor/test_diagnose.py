"""doctor's checks from trees: what is there, what is not, what is forbidden, and nothing is ever changed."""

import hashlib
import json
import os
import stat
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from everywatt.cli.doctor import outlook
from everywatt.doctor import diagnose as module
from everywatt.doctor.diagnose import Verdict, diagnose
from everywatt.doctor.permissions import GROUP, TMPFILES_PATH, UDEV_PATH, by_hand, counters, fix
from everywatt.sensors.base import Report, State
from everywatt.sensors.cpu.rapl import group_rule
from everywatt.sensors.surroundings import look

NOBODY = 65534


def checks(machine, synchronised=True):
    found = diagnose(machine, clock_synchronised=lambda: synchronised)
    return {check.name: check for check in found.checks}, found


def picture(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Every file with its mode, owner, time of change and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        state = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(state.st_mode) else ""
        found[str(path)] = (state.st_mode, state.st_uid, state.st_mtime_ns, content)
    return found


@pytest.fixture
def place(tree):
    """A bare-metal tree with no GPU: neither the real driver nor a real nvidia-smi is looked at."""
    tree.cpuinfo("GenuineIntel", 6, 85)
    tree.machine = replace(tree.machine, environ={"PATH": "", "EVERYWATT_PLUGINS": "nvml=no_such_module:Nvml"})
    return tree


def test_a_machine_with_rapl(place) -> None:
    place.zone("intel-rapl:0", "package-0", watts=50)
    place.zone("intel-rapl:0:0", "dram", watts=5)
    found, diagnosis = checks(place.machine)
    assert found["machine"].verdict is Verdict.PASS
    cpu = found["CPU energy (RAPL)"]
    assert cpu.verdict is Verdict.PASS and "cpu.0.package.energy" in cpu.seen
    assert found["energy domains"].verdict is Verdict.PASS
    assert diagnosis.domains == ("cpu.0: package", "dram.0: dram")


def test_what_is_inside_another_says_so(place) -> None:
    place.zone("intel-rapl:0", "package-0", watts=50)
    place.zone("intel-rapl:0:0", "core", watts=30)
    place.zone("intel-rapl:1", "package-1", watts=40)
    place.zone("intel-rapl:2", "psys", watts=120)
    found, diagnosis = checks(place.machine)
    assert set(diagnosis.domains) == {
        "cpu.0: package", "cpu.0: core (inside cpu.0)", "cpu.1: package", "psys: node (a total of its own)",
    }  # fmt: skip
    assert "cpu.0: core (inside cpu.0)" in found["energy domains"].seen


def test_what_is_inside_a_module_of_another_name_is_not_listed_as_added(place) -> None:
    for number, label, watts in ((0, "Module Power Socket 0", 240), (1, "Grace Power Socket 0", 100)):
        folder = f"sys/class/hwmon/hwmon{number}"
        place.write(f"{folder}/name", "power_meter")
        place.write(f"{folder}/device/power1_oem_info", label)
        place.write(f"{folder}/device/power1_average", watts * 1_000_000)
    found, diagnosis = checks(place.machine)
    assert diagnosis.domains == ("module.0: module", "cpu.0: package (inside module.0)")
    assert outlook(diagnosis)[0] == "You will get: module.0 integrated from power."
    assert found["hwmon"].seen == "2 channels, module.0.power = 240.0 W"


def test_no_rapl(place) -> None:
    found, diagnosis = checks(place.machine)
    cpu = found["CPU energy (RAPL)"]
    assert (
        cpu.verdict is Verdict.WARN
        and "no powercap directory" in cpu.seen
        and cpu.cure == "sudo modprobe intel_rapl_msr"
    )
    gets = found["energy domains"]
    assert diagnosis.domains in ((), ("host: node (modelled)",))
    assert gets.verdict is (Verdict.WARN if diagnosis.domains else Verdict.FAIL)


def test_every_sensor_appears_with_its_reason(place) -> None:
    place.zone("intel-rapl:0", "package-0", watts=50)
    _, diagnosis = checks(place.machine)
    reports = {report.sensor: report for report in diagnosis.reports}
    assert {"rapl", "perf", "hwmon", "nvml", "nvidia-smi", "use", "modelled", "replay"} <= set(reports)
    assert reports["rapl"].samples["cpu.0.package.energy"] > 0
    assert all(report.usable or report.why for report in reports.values())


def as_nobody(act) -> dict:
    """Run `act` as a user for whom permissions bind, and give its JSON."""
    if os.geteuid() != 0:
        return act()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(write)
    data = b"".join(iter(lambda: os.read(read, 65536), b""))
    os.close(read)
    os.waitpid(child, 0)
    return json.loads(data)


@pytest.fixture
def open_place(place):
    """The same kind of tree, in a folder that any user may look into."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = type(place)(Path(folder))
        made.cpuinfo("GenuineIntel", 6, 85)
        made.machine = replace(made.machine, environ=place.machine.environ)
        yield made


def test_rapl_for_root_only(open_place) -> None:
    place = open_place
    energy = place.zone("intel-rapl:0", "package-0", watts=50)
    energy.chmod(0o400 if os.geteuid() == 0 else 0)
    # The counter must stand still while permissions bind: the child may not write it either.
    place.clock.live.clear()
    diagnose(place.machine)  # so that everything is imported before the change of user

    def look_at_it():
        found, diagnosis = checks(place.machine)
        cpu = found["CPU energy (RAPL)"]
        return {"verdict": cpu.verdict, "seen": cpu.seen, "cure": cpu.cure, "failed": diagnosis.failed}

    seen = as_nobody(look_at_it)
    assert seen["verdict"] == "fail" and seen["failed"] is True
    assert "readable by root only" in seen["seen"] and "everywatt doctor --fix" in seen["cure"]


def test_a_guest_without_counters_is_a_warning(place) -> None:
    place.cpuinfo("GenuineIntel", 6, 85, flags="fpu hypervisor")
    found, _ = checks(place.machine)
    assert found["virtual machine"].verdict is Verdict.WARN and "hypervisor flag" in found["virtual machine"].seen
    assert found["CPU energy (RAPL)"].verdict is Verdict.WARN and "machine" not in found


def test_a_guest_whose_counters_stand_still_cannot_be_mended(place) -> None:
    place.cpuinfo("GenuineIntel", 6, 85, flags="fpu hypervisor")
    place.zone("intel-rapl:0", "package-0", watts=0, start_uj=0)
    found, _ = checks(place.machine)
    cpu = found["CPU energy (RAPL)"]
    assert cpu.verdict is Verdict.WARN and "none of them counts" in cpu.seen


def test_a_container(place) -> None:
    place.write("proc/1/cgroup", "0::/kubepods/burstable/pod1")
    found, _ = checks(place.machine)
    assert found["container"].verdict is Verdict.WARN and "--gpus all" in found["container"].cure
    place.zone("intel-rapl:0", "package-0", watts=50)
    found, _ = checks(place.machine)
    assert found["container"].verdict is Verdict.PASS and found["container"].cure == ""


@pytest.mark.parametrize("sign", ["dockerenv", "containerenv", "environ", "kubernetes"])
def test_signs_of_a_container(place, sign) -> None:
    machine = place.machine
    if sign == "dockerenv":
        place.write(".dockerenv", "")
    elif sign == "containerenv":
        place.write("run/.containerenv", "")
    else:
        name = "container" if sign == "environ" else "KUBERNETES_SERVICE_HOST"
        machine = replace(machine, environ={name: "lxc"})
    expected = {"dockerenv": "docker", "containerenv": "podman", "environ": "lxc", "kubernetes": "kubernetes"}
    assert look(machine).container == expected[sign]


def jetson(place, rails: bool) -> None:
    place.write("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd42\n")
    (place.root / "proc/device-tree").mkdir()
    (place.root / "proc/device-tree/model").write_bytes(b"NVIDIA Jetson Orin Nano Developer Kit\0")
    (place.root / "proc/device-tree/compatible").write_bytes(b"nvidia,p3768-0000\0nvidia,tegra234\0")
    if rails:
        place.write("sys/class/hwmon/hwmon1/name", "ina3221")
        place.write("sys/class/hwmon/hwmon1/power1_input", 4_800_000)
        place.write("sys/class/hwmon/hwmon1/power1_label", "VDD_IN")


@pytest.mark.parametrize("rails", [True, False])
def test_a_jetson_is_measured_by_its_rails_and_not_by_nvml(place, monkeypatch, rails) -> None:
    jetson(place, rails)
    refused = Report("nvml", State.UNUSABLE, "NVML starts, but no GPU reports energy or power: Not Supported.")
    real = module.choose

    def choose(targets, request):
        choice = real(targets, request)
        return replace(choice, reports=tuple(refused if r.sensor == "nvml" else r for r in choice.reports))

    monkeypatch.setattr(module, "choose", choose)
    found, diagnosis = checks(place.machine)
    assert "NVIDIA (NVML)" not in found, "that NVML refuses is how a Jetson is, not a fault of this one"
    assert "Orin Nano" in found["Jetson"].seen
    assert found["Jetson"].verdict is (Verdict.PASS if rails else Verdict.WARN)
    if rails:
        assert found["energy domains"].verdict is Verdict.PASS and not diagnosis.failed


def test_a_card_without_a_driver_fails(place) -> None:
    place.machine = replace(place.machine, environ={"PATH": "", "EVERYWATT_PLUGINS": ""})
    place.zone("intel-rapl:0", "package-0", watts=50)
    place.write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de")
    place.write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200")
    assert look(place.machine).nvidia_card == "PCI 0000:01:00.0"
    found, diagnosis = checks(place.machine)
    if found["NVIDIA (NVML)"].verdict is Verdict.PASS:
        pytest.skip("this machine has a real NVIDIA driver")
    assert found["NVIDIA (NVML)"].verdict is Verdict.FAIL and diagnosis.failed and found["NVIDIA (NVML)"].cure


def test_a_network_card_of_nvidia_is_no_gpu(place) -> None:
    place.write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de")
    place.write("sys/bus/pci/devices/0000:01:00.0/class", "0x020000")
    assert look(place.machine).nvidia_card is None


@pytest.mark.parametrize(("state", "verdict"), [(True, "pass"), (False, "warn"), (None, "warn")])
def test_a_clock_that_is_not_known_to_be_right_is_never_a_pass(place, state, verdict) -> None:
    found, _ = checks(place.machine, state)
    assert found["clock"].verdict == verdict


def test_what_gpus_do_not_say_is_a_warning() -> None:
    report = Report("nvml", State.USABLE, samples={"gpu.0.power": 70.0})
    found = {check.name: check.verdict for check in (module._tenants(None), *module._throttling(report))}
    assert found == {"other GPU users": Verdict.WARN, "GPU throttling": Verdict.WARN}
    hot = replace(report, samples={"gpu.0.throttle": float(0x40 + 1), "gpu.1.throttle": 4.0})
    (throttling,) = module._throttling(hot)
    assert throttling.verdict is Verdict.WARN and throttling.seen == "gpu.0: thermal throttling (hardware)"


def test_a_plug_in_that_raises_is_a_warning_and_the_others_go_on(place) -> None:
    place.zone("intel-rapl:0", "package-0", watts=50)
    broken = "nvml=no_such_module:Nvml,mine=everywatt.core.units:parse_duration_s"
    place.machine = replace(place.machine, environ={"PATH": "", "EVERYWATT_PLUGINS": broken})
    found, _ = checks(place.machine)
    assert found["mine"].verdict is Verdict.WARN and found["CPU energy (RAPL)"].verdict is Verdict.PASS


def test_looking_changes_nothing(place) -> None:
    place.zone("intel-rapl:0", "package-0", watts=50)
    place.clock.live.clear()
    jetson(place, True)
    before = picture(place.root)
    diagnose(place.machine)
    assert picture(place.root) == before


class Root:
    """Stands in for the commands that only root may run: modes are really changed, groups and users are not."""

    def __init__(self, refuse: str = "") -> None:
        self.calls: list[list[str]] = []
        self.refuse = refuse

    def __call__(self, words) -> None:
        self.calls.append(list(words))
        if words[0] == self.refuse:
            raise subprocess.CalledProcessError(9, words, stderr=f"{words[0]}: not today")
        if words[0] == "chmod":
            for name in words[2:]:
                Path(name).chmod(int(words[1], 8))


def test_the_fix_is_for_one_group_and_says_what_it_did(place, tmp_path) -> None:
    energy = place.zone("intel-rapl:0", "package-0", watts=50)
    energy.chmod(0o400)
    etc, root = tmp_path / "etc", Root()
    done = fix(place.machine, etc, user="ada", call=root)
    assert all(step.done for step in done)
    rule = (etc / UDEV_PATH).read_text()
    assert group_rule(GROUP) in rule and "0440" in rule
    assert f"0440 root {GROUP}" in (etc / TMPFILES_PATH).read_text()
    assert stat.S_IMODE(energy.stat().st_mode) == 0o440, "the group may read it, and nobody else"
    assert ["chgrp", GROUP, str(energy)] in root.calls and ["usermod", "-aG", GROUP, "ada"] in root.calls
    assert any(str(etc / UDEV_PATH) in step.what for step in done)


def test_the_fix_twice_is_harmless(place, tmp_path) -> None:
    place.zone("intel-rapl:0", "package-0", watts=50)
    etc = tmp_path / "etc"
    fix(place.machine, etc, call=Root())
    before = picture(etc)
    again = fix(place.machine, etc, call=Root())
    assert all(step.done for step in again) and picture(etc) == before
    assert sum("up to date" in step.what for step in again) == 2


def test_a_step_that_fails_is_said_and_the_others_are_done(place, tmp_path) -> None:
    place.zone("intel-rapl:0", "package-0", watts=50)
    done = fix(place.machine, tmp_path / "etc", call=Root(refuse="groupadd"))
    failed = [step for step in done if not step.done]
    assert len(failed) == 1 and failed[0].problem == "groupadd: not today"


def test_the_commands_for_a_user_who_is_not_root() -> None:
    lines = by_hand("ada")
    assert "doctor --fix" in lines[0] and all(line.startswith(("sudo", "or", "printf")) for line in lines)
    assert not any("0444" in line or "a+r" in line or "o+r" in line for line in lines)


def test_without_counters_there_is_nothing_to_open(place) -> None:
    assert counters(place.machine) == []
