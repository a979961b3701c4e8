"""Ordered checks of a machine: pass, warn or fail, each with the exact cure. Unknown is never a pass. Read-only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from everywatt.core.channels import Pedigree
from everywatt.core.machine import Machine, runtime_dir
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.registry import choose, known
from everywatt.sensors.surroundings import Surroundings, look


class Verdict(StrEnum):
    """How a check ended."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was looked at, how it ended, what was seen and what to do."""

    name: str
    verdict: Verdict
    seen: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks in order, what sensors said, and what a total would cover."""

    checks: tuple[Check, ...]
    reports: tuple[Report, ...]
    domains: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """True where anything failed."""
        return any(check.verdict is Verdict.FAIL for check in self.checks)


def diagnose(
    machine: Machine, *, clock_synchronised: Callable[[], bool | None] | None = None, home: Path | None = None
) -> Diagnosis:
    """Check the machine. Nothing is changed, no privileged command is run."""
    around = look(machine)
    choice = choose(known(machine.environ), Request(machine=machine))
    reports = {report.sensor: report for report in choice.reports}
    domains = _domains(choice.groups)
    for group in choice.groups:
        group.close()
    checks = [
        *_surroundings(around),
        *_cpu(reports, around),
        *_nvidia(reports, machine, around),
        *_others(reports),
        _coverage(domains),
        _clock(clock_synchronised or kernel_clock_synchronised),
        _folder("runtime folder", runtime_dir(machine.environ)),
        *([_folder("runs folder", home)] if home is not None else []),
    ]
    return Diagnosis(tuple(checks), choice.reports, domains)


def _domains(groups: Iterable[object]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for group in groups:
        for channel in group.info.channels:  # type: ignore[attr-defined]
            if channel.carries_energy and channel.mirror_of is None:
                modelled = " (modelled)" if channel.pedigree is Pedigree.MODELLED else ""
                found[f"{channel.device}: {channel.domain}{modelled}"] = None
    return tuple(found)


def _surroundings(around: Surroundings) -> list[Check]:
    checks = []
    if around.hypervisor:
        checks.append(
            Check(
                "virtual machine",
                Verdict.WARN,
                f"this is a guest ({around.hypervisor}): the host's CPU counters are usually hidden from it",
                "measure on the host, or use the modelled estimate and its wide interval",
            )
        )
    if around.container:
        checks.append(
            Check(
                "container",
                Verdict.WARN,
                f"this is a container ({around.container}): sensors of the host must be passed in",
                "docker run -v /sys/class/powercap:/sys/class/powercap:ro (root inside), and --gpus all for NVIDIA",
            )
        )
    if around.jetson:
        checks.append(Check("Jetson", Verdict.PASS, f"{around.jetson}: power comes from its INA rails, not from NVML"))
    if not checks:
        checks.append(Check("machine", Verdict.PASS, "bare metal, no container"))
    return checks


def _cpu(reports: dict[str, Report], around: Surroundings) -> list[Check]:
    rapl, perf = reports.get("rapl"), reports.get("perf")
    if rapl is not None and rapl.usable:
        return [Check("CPU energy (RAPL)", Verdict.PASS, rapl.why or f"{len(rapl.samples)} counters, all moving")]
    if perf is not None and perf.usable:
        why = f"powercap: {rapl.why}" if rapl is not None and rapl.why else "powercap is missing"
        return [Check("CPU energy (perf)", Verdict.PASS, f"by perf events ({why})")]
    if rapl is not None and rapl.state is State.UNUSABLE:
        return [Check("CPU energy (RAPL)", Verdict.FAIL, rapl.why, rapl.cure or "")]
    reason = "a guest sees none" if around.hypervisor else "no powercap tree and no power events"
    return [Check("CPU energy (RAPL)", Verdict.WARN, f"no CPU energy counter: {reason}", "modprobe intel_rapl_common")]


def _nvidia(reports: dict[str, Report], machine: Machine, around: Surroundings) -> list[Check]:
    nvml, smi = reports.get("nvml"), reports.get("nvidia-smi")
    lost = [d for r in (nvml, smi) if r is not None for d in r.devices if d.get("lost") or d.get("error")]
    checks = []
    if nvml is not None and nvml.usable:
        good = len(nvml.devices) - len([d for d in nvml.devices if d.get("lost") or d.get("error")])
        checks.append(Check("NVIDIA (NVML)", Verdict.PASS, f"{good} GPU(s) with power readings"))
    elif nvml is not None and nvml.state is State.UNUSABLE and not around.jetson:
        checks.append(Check("NVIDIA (NVML)", Verdict.FAIL, nvml.why, nvml.cure or ""))
    elif _has_nvidia(machine, around) and not around.jetson:
        seen = nvml.why if nvml is not None else "NVML was not tried"
        checks.append(
            Check(
                "NVIDIA (NVML)",
                Verdict.FAIL,
                f"a GPU is there and NVML is not: {seen}",
                "install the driver's libnvidia-ml",
            )
        )
    checks += [
        Check(
            "NVIDIA GPU",
            Verdict.FAIL,
            f"GPU {d.get('index', '?')}: {d.get('error') or 'lost'}",
            "nvidia-smi -r, or reboot",
        )
        for d in lost
    ]
    return checks


def _has_nvidia(machine: Machine, around: Surroundings) -> bool:
    if around.nvidia_driver or (machine.dev / "nvidia0").exists():
        return True
    for vendor in machine.sys.glob("bus/pci/devices/*/vendor"):
        kind = vendor.with_name("class")
        try:
            if vendor.read_text().strip() == "0x10de" and kind.read_text().startswith("0x03"):
                return True
        except OSError:
            continue
    return False


def _others(reports: dict[str, Report]) -> list[Check]:
    seen = ("rapl", "perf", "nvml", "nvidia-smi", "use", "modelled", "replay")
    checks = []
    for name, report in reports.items():
        if name in seen or report.state is State.ABSENT:
            continue
        verdict = Verdict.PASS if report.usable else Verdict.WARN
        checks.append(Check(name, verdict, report.why or f"{len(report.samples)} channels", report.cure or ""))
    return checks


def _coverage(domains: Sequence[str]) -> Check:
    if not domains:
        return Check("what you will get", Verdict.FAIL, "no energy at all", "see the checks above")
    text = ", ".join(domains)
    if all("(modelled)" in domain for domain in domains):
        return Check("what you will get", Verdict.WARN, f"{text}: an estimate with a wide interval, labelled modelled")
    return Check("what you will get", Verdict.PASS, text)


def _clock(synchronised: Callable[[], bool | None]) -> Check:
    state = synchronised()
    if state:
        return Check("clock", Verdict.PASS, "synchronised")
    seen = "not synchronised" if state is False else "not known to be synchronised"
    return Check(
        "clock",
        Verdict.WARN,
        f"{seen}: recordings of several hosts will not line up",
        "systemctl enable --now systemd-timesyncd",
    )


def kernel_clock_synchronised() -> bool | None:
    """What the kernel thinks of its clock (adjtimex); None where it cannot be asked."""
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # struct timex is 208 bytes on 64-bit Linux; modes = 0 only reads. TIME_ERROR (5) is "not synchronised".
        state = libc.adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != 5


def _folder(name: str, path: Path) -> Check:
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Check(name, Verdict.PASS, f"{path} can be written")
    return Check(name, Verdict.WARN, f"{path} cannot be written", "set EVERYWATT_HOME or EVERYWATT_RUNTIME_DIR")
