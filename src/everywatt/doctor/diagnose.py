"""Ordered checks of the sensors: pass, warn or fail, with the exact cure. Unknown is never a pass. Read-only."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from everywatt.core.channels import Domain, Pedigree
from everywatt.core.files import can_make, existing
from everywatt.core.format import format_bytes
from everywatt.core.machine import Machine, runtime_dir, state_folder
from everywatt.doctor.coverage import Coverage, Part, coverage, every_report, example
from everywatt.doctor.preflight import slowed_by, who_is_there
from everywatt.recorder.wire import SOCKET, address_in
from everywatt.sensors.base import Group, Report, Request, State, TableGroup, TableRow
from everywatt.sensors.registry import choose, known
from everywatt.sensors.surroundings import Surroundings, look
from everywatt.tape.places import filesystem, is_network
from everywatt.tape.run_store import FOLDER


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
    """All checks in order, what every sensor said, and which devices and domains a run would cover."""

    checks: tuple[Check, ...]
    reports: tuple[Report, ...]
    covered: Coverage

    @property
    def domains(self) -> tuple[str, ...]:
        """`cpu.0: package`, `cpu.0: core (inside cpu.0)`, `host: node (modelled)`."""
        return tuple(map(domain_text, self.covered.parts))

    @property
    def failed(self) -> bool:
        return any(check.verdict is Verdict.FAIL for check in self.checks)


def diagnose(
    machine: Machine,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    clock_synchronised: Callable[[], bool | None] | None = None,
) -> Diagnosis:
    """Check the machine: surroundings, CPU, GPUs, other sensors, what a run would get, the clock. Changes nothing."""
    around = look(machine)
    targets = known(machine.environ)
    request = Request(machine=machine, devices=machine.environ.get("CUDA_VISIBLE_DEVICES"), options=options or {})
    with closing(choose(targets, request)) as choice:
        covered = coverage(group.info for group in choice.groups)
        tenants = _gpu_processes(choice.groups)
    reports = every_report(choice, targets, request)
    nvml = reports.get("nvml")
    checks = [
        *_surroundings(around, reports),
        *_cpu(reports, around),
        *_nvidia(reports, around),
        *([_tenants(tenants), *_throttling(nvml)] if nvml is not None and nvml.usable else []),
        *_others(reports),
        _coverage(covered),
        _clock(clock_synchronised or kernel_clock_synchronised),
    ]
    asleep = [
        Report(name, State.ABSENT, "replays a tape; used only on request", power=False)
        for name in targets
        if name not in reports
    ]
    return Diagnosis(tuple(checks), (*reports.values(), *asleep), covered)


def _gpu_processes(groups: Iterable[Group | TableGroup]) -> Sequence[TableRow] | None:
    """Rows of the table of GPU processes; None where there is no such table or it cannot be read."""
    for group in groups:
        if group.info.lists_gpu_processes:
            try:
                return group.read_table()[1]  # type: ignore[union-attr]
            except Exception:  # noqa: BLE001 - a driver's border; the check says that they cannot be listed
                return None
    return None


def _surroundings(around: Surroundings, reports: Mapping[str, Report]) -> list[Check]:
    checks = []
    if around.guest:
        seen = (
            f"this is a virtual machine ({around.guest}): CPU counters of the host are hidden, or cover the whole host"
        )
        cure = "measure on the host, or use the modelled estimate with its wide interval"
        checks.append(Check("virtual machine", Verdict.WARN, seen, cure))
    if around.container:
        measured = any(report.usable and report.power for name, report in reports.items() if name != "modelled")
        verdict, rest = (
            (Verdict.PASS, "sensors are passed in") if measured else (Verdict.WARN, "no sensor is passed in")
        )
        cure = (
            "" if measured else "start it with -v /sys/class/powercap:/sys/class/powercap:ro, and --gpus all for NVIDIA"
        )
        checks.append(Check("container", verdict, f"this is a container ({around.container}); {rest}", cure))
    if around.jetson:
        rails = [reports[name] for name in ("jetson", "tegrastats") if name in reports]
        checks.append(_jetson(around.jetson, rails))
    return checks or [Check("machine", Verdict.PASS, "no virtual machine or container detected")]


def _jetson(model: str, rails: Sequence[Report]) -> Check:
    seen = f"{model}: power comes from the board's INA rails"
    works = next((report for report in rails if report.usable), None)
    if works is not None:
        return Check("Jetson", Verdict.PASS, f"{seen} ({_example(works)})")
    why = rails[0].why if rails else "the jetson sensor is not installed"
    return Check("Jetson", Verdict.WARN, f"{seen}, but no sensor is found: {why}", "sudo modprobe ina3221")


def _cpu(reports: Mapping[str, Report], around: Surroundings) -> list[Check]:
    rapl, perf = reports.get("rapl"), reports.get("perf")
    if rapl is not None and rapl.usable:
        return [Check("CPU energy (RAPL)", Verdict.PASS, _example(rapl))]
    why = rapl.why if rapl is not None else "the rapl sensor is not installed"
    if perf is not None and perf.usable:
        return [Check("CPU energy (perf)", Verdict.PASS, f"{_example(perf)}; powercap: {why}")]
    if perf is not None and perf.state is State.UNUSABLE:
        why = f"{why} Perf: {perf.why}"
    cures = [report.cure for report in (rapl, perf) if report is not None and report.cure]
    broken = any(report is not None and report.state is State.UNUSABLE for report in (rapl, perf))
    # Counters of a guest that stand still, and a Jetson without any, are normal there and cannot be fixed.
    verdict = Verdict.FAIL if broken and cures else Verdict.WARN
    if around.jetson and not broken:
        return []
    return [Check("CPU energy (RAPL)", verdict, why, "; or ".join(dict.fromkeys(cures)))]


def _nvidia(reports: Mapping[str, Report], around: Surroundings) -> list[Check]:
    nvml, smi = reports.get("nvml"), reports.get("nvidia-smi")
    lost = [device for device in (nvml.devices if nvml is not None else ()) if device.get("error")]
    checks = []
    if nvml is not None and nvml.usable:
        checks.append(Check("NVIDIA (NVML)", Verdict.PASS, f"{nvml.why} ({_example(nvml)})"))
    elif around.jetson:
        pass  # said by the check of the board
    elif nvml is not None and nvml.state is State.UNUSABLE:
        checks.append(_broken_nvml(nvml, smi, around))
    elif around.nvidia_driver or around.nvidia_card:
        sign = around.nvidia_card or f"driver {around.nvidia_driver}"
        seen = f"an NVIDIA GPU is present ({sign}), but: {nvml.why if nvml is not None else 'the sensor is missing'}"
        checks.append(Check("NVIDIA (NVML)", Verdict.FAIL, seen, "install the NVIDIA driver with its libnvidia-ml"))
    for device in lost:
        seen = f"GPU {device.get('index', '?')}: {device['error']}; it is not measured"
        checks.append(Check("NVIDIA GPU", Verdict.FAIL, seen, "nvidia-smi --gpu-reset, or restart the machine"))
    return checks


def _broken_nvml(nvml: Report, smi: Report | None, around: Surroundings) -> Check:
    name = "NVIDIA (NVML)"
    if smi is not None and smi.usable:
        return Check(name, Verdict.WARN, f"{nvml.why} nvidia-smi works and is used instead.", nvml.cure or "")
    if not (around.nvidia_card or around.nvidia_driver or nvml.devices):
        # Images often bring the library to machines without a GPU.
        return Check(name, Verdict.WARN, f"{nvml.why} No GPU is visible either.", nvml.cure or "")
    return Check(name, Verdict.FAIL, nvml.why, nvml.cure or "")


def _tenants(tenants: Sequence[TableRow] | None) -> Check:
    name = "other GPU users"
    if tenants is None:
        return Check(name, Verdict.WARN, "processes on the GPUs cannot be listed; there may be other users")
    if not tenants:
        return Check(name, Verdict.PASS, "no processes on the GPUs")
    seen = f"{who_is_there(tenants)}: their energy is in every GPU figure"
    return Check(name, Verdict.WARN, seen, "measure when they have ended")


def _throttling(nvml: Report) -> list[Check]:
    masks = {name.removesuffix(".throttle"): v for name, v in nvml.samples.items() if name.endswith(".throttle")}
    known_masks = {device: value for device, value in masks.items() if value is not None}
    slowed = [f"{device}: {words}" for device, mask in known_masks.items() if (words := slowed_by(mask))]
    if slowed:
        return [Check("GPU throttling", Verdict.WARN, "; ".join(slowed), "nvidia-smi -q -d PERFORMANCE,TEMPERATURE")]
    if known_masks:
        return [Check("GPU throttling", Verdict.PASS, "no GPU is throttled")]
    return [Check("GPU throttling", Verdict.WARN, "the GPUs do not report throttling")]


def _others(reports: Mapping[str, Report]) -> list[Check]:
    """hwmon and plug-ins, where they exist."""
    seen = ("rapl", "perf", "nvml", "nvidia-smi", "use", "modelled")
    checks = []
    for name, report in reports.items():
        if name in seen or report.state is State.ABSENT:
            continue
        if report.usable:
            checks.append(Check(name, Verdict.PASS, _example(report)))
        else:
            checks.append(Check(name, Verdict.WARN, report.why or "no reason given", report.cure or ""))
    return checks


def _example(report: Report) -> str:
    """`3 channels, cpu.0.package.energy = 1234 J`."""
    count = f"{len(report.samples)} channel{'s' if len(report.samples) != 1 else ''}"
    value = example(report)
    return count if value is None else f"{count}, {value}"


def domain_text(part: Part) -> str:
    """`cpu.0: core (inside cpu.0)`."""
    modelled = " (modelled)" if part.pedigree == Pedigree.MODELLED else ""
    note = f" ({part.note.removeprefix(f'{part.domain}: ')})" if part.note else ""
    name = part.label if part.domain == Domain.RAIL else part.device  # a board has several rails
    return f"{name}: {part.domain}{modelled}{note}"


def _coverage(covered: Coverage) -> Check:
    if not covered.parts:
        return Check("energy domains", Verdict.FAIL, "none", "see the checks above")
    text = ", ".join(map(domain_text, covered.parts))
    if all(part.pedigree == Pedigree.MODELLED for part in covered.parts):
        return Check("energy domains", Verdict.WARN, f"{text}: an estimate with a wide interval, labelled modelled")
    return Check("energy domains", Verdict.PASS, text)


def _clock(synchronised: Callable[[], bool | None]) -> Check:
    state = synchronised()
    if state:
        return Check("clock", Verdict.PASS, "synchronised")
    seen = "not synchronised" if state is False else "possibly not synchronised"
    cure = "timedatectl set-ntp true, or start chronyd"
    return Check("clock", Verdict.WARN, f"{seen}: recordings of several hosts will not line up", cure)


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


LITTLE_SPACE_BYTES = 100 << 20
_TRY_RUNTIME = "set EVERYWATT_RUNTIME_DIR to a folder that you own"


def check_up(
    machine: Machine,
    home: Path | None = None,
    *,
    cwd: Path | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    clock_synchronised: Callable[[], bool | None] | None = None,
) -> Diagnosis:
    """Check everything that a run needs. `home` is the configured folder of runs, None for ./everywatt-runs."""
    found = diagnose(machine, options=options, clock_synchronised=clock_synchronised)
    more = (check_recorder(machine.environ), *check_home(home or (cwd or Path.cwd()) / FOLDER, machine.environ))
    return replace(found, checks=(*found.checks, *more))


def check_recorder(environ: Mapping[str, str]) -> Check:
    """Whether the recorder's folder is the user's own, and who answers on its socket. Nothing is started or made."""
    name, folder = "recorder", runtime_dir(environ)
    lacking = "; without the recorder, gauges such as GPU power are refused"
    try:
        state = os.lstat(folder)
    except FileNotFoundError:
        if can_make(folder):
            return Check(name, Verdict.PASS, f"not running; {folder} can be created on demand")
        closed = f"{existing(folder)} is not writable for you"
        return Check(name, Verdict.FAIL, f"{folder} cannot be created, because {closed}{lacking}", _TRY_RUNTIME)
    except OSError as error:
        return Check(name, Verdict.FAIL, f"{folder}: {error.strerror}{lacking}", _TRY_RUNTIME)
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        return Check(name, Verdict.FAIL, f"{folder} belongs to another user{lacking}", _TRY_RUNTIME)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(name, Verdict.FAIL, f"{folder} is not writable{lacking}", _TRY_RUNTIME)
    return _socket(folder)


def _socket(folder: Path) -> Check:
    place = folder / SOCKET
    if not os.path.lexists(place):
        return Check("recorder", Verdict.PASS, f"not running; it is started in {folder} on demand")
    if not stat.S_ISSOCK(place.lstat().st_mode):
        return Check(
            "recorder", Verdict.FAIL, f"{place} is not a socket, so no recorder can listen there", f"rm -r {place}"
        )
    with socket.socket(socket.AF_UNIX) as sock, address_in(folder) as address:
        sock.settimeout(1.0)
        try:
            sock.connect(address)
        except ConnectionRefusedError:
            return Check("recorder", Verdict.PASS, f"stale socket of a dead recorder in {folder}; it will be replaced")
        except OSError as error:
            return Check(
                "recorder", Verdict.FAIL, f"{folder / SOCKET} does not respond: {error}", f"rm {folder / SOCKET}"
            )
    return Check("recorder", Verdict.PASS, f"running, in {folder}")


def check_home(home: Path, environ: Mapping[str, str]) -> list[Check]:
    """Whether runs can be kept, and whether there is room for them."""
    name = "run directory"
    if can_make(home):
        return [Check(name, Verdict.PASS, f"{home} is writable{_spooled(home)}"), *_space(home)]
    state = state_folder(environ)
    if can_make(state):
        seen = f"{home} is not writable; runs are kept in {state}"
        return [Check(name, Verdict.WARN, seen, "set EVERYWATT_HOME"), *_space(state)]
    return [Check(name, Verdict.FAIL, f"neither {home} nor {state} is writable", "set EVERYWATT_HOME")]


def _spooled(home: Path) -> str:
    kind = filesystem(home)
    return f" ({kind}: tapes are written locally and moved there)" if is_network(kind) else ""


def _space(folder: Path) -> list[Check]:
    try:
        free = shutil.disk_usage(existing(folder)).free
    except OSError as error:
        return [Check("disk space", Verdict.WARN, f"unknown: {error.strerror}")]
    if free >= LITTLE_SPACE_BYTES:
        return [Check("disk space", Verdict.PASS, f"{format_bytes(free)} free")]
    seen = f"{format_bytes(free)} free; an hour of recording takes up to 60 MB"
    return [Check("disk space", Verdict.WARN, seen, "free some, or set EVERYWATT_HOME to another disk")]
