"""A simulated machine: what it has, the folder that makes programs see it, and the exact joules of its devices.

machine = SimMachine.of(gpus=["square:100W,300W,1.3s"], packages=["constant:60W"], sensor=["period=20ms"])
with machine.start() as lab:
    a = time.monotonic_ns()
    subprocess.run(["nvidia-smi", "-L"], env=lab.environment())
    print(lab.truth("gpu.0", a, time.monotonic_ns()))
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import struct
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.device import Device
from everywatt.core.errors import UsageError
from everywatt.sim import powercap
from everywatt.sim.build import NVML, PRELOAD, libraries
from everywatt.sim.curves import Curve, Load, Sine, Table, parse_curve
from everywatt.sim.loads import Follower, write_loads
from everywatt.sim.options import GPU_FIELDS, Gpu, Package, parse_settings
from everywatt.sim.processes import ProcessTable
from everywatt.sim.truth import Event, EventLog, Terms, Truth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIELDS = {"energy": "83", "power_average": "185", "power": "186"}
_PIECE = struct.Struct("<ddddd")
_CALL = struct.Struct("<56sQ")
_CALL_SLOTS = 160
_OWN_LINES = ("mig", "processes", "capability")  # options of a card that are not one line each


def gpus_of(document: Mapping[str, Any]) -> list[Gpu]:
    """NVML's cards, in the order of their numbers."""
    found: list[Gpu] = []
    for device in _devices(document, "gpu", "nvml"):
        own = (group for group in _groups(document) if group.get("device") == device)
        group = next(group for group in own if any(channel.get("domain") for channel in group["channels"]))
        names = {channel["name"] for channel in group["channels"]}
        power, counter = _measured(document, f"{device}.power"), _measured(document, f"{device}.energy")
        watts = power.get("mean_w") or counter.get("mean_w") or 100.0
        module = next((c["device"] for c in group["channels"] if c.get("domain") == "module"), None)
        of_module = 0.0
        if module is not None:
            counter = counter or _measured(document, f"{module}.energy")
            of_module = _measured(document, f"{module}.power").get("mean_w") or counter.get("mean_w") or watts
        absent = [number for what, number in _FIELDS.items() if f"{device}.{what}" not in names]
        counts_module = f"{module}.energy" in names
        absent = [number for number in absent if number != "83" or not counts_module]
        calls = ["nvmlDeviceGetTotalEnergyConsumption"] if "83" in absent else []
        period_s = power.get("period_s") or 0.1
        memory_w = _measured(document, f"{device}.memory.power").get("mean_w")
        found.append(
            Gpu(
                parse_curve(f"constant:{watts:.6g}W"),
                name=group.get("label") or None,
                period_s=period_s,
                window_s=power.get("window_s"),
                jitter_s=min(power.get("jitter_s") or 0.0, period_s / 2),
                counter_period_s=counter.get("period_s"),
                quantum_j=counter.get("quantum") or 0.001,
                power_quantum_w=power.get("quantum") or 0.001,
                module_w=max(of_module - watts, 0.0) if module is not None else None,
                memory_share=None if memory_w is None else min(memory_w / watts, 1.0),
                counter_module=counts_module,
                unsupported=(*(f"field:{number}" for number in absent), *calls),
                seed=len(found),
            )
        )
    return found


def packages_of(document: Mapping[str, Any]) -> list[Package]:
    """Packages with RAPL counters, with the parts that were counted."""
    found = []
    for device in _devices(document, "cpu", "rapl", "perf"):
        counter = _measured(document, f"{device}.package.energy")
        watts = counter.get("mean_w") or 50.0
        shares = {
            part: (_measured(document, f"{device}.{part}.energy").get("mean_w") or 0.0) / watts
            for part in ("core", "uncore", "dram")
            if any(c["name"] == f"{device}.{part}.energy" for group in _groups(document) for c in group["channels"])
        }
        found.append(
            Package(
                parse_curve(f"constant:{watts:.6g}W"),
                period_s=counter.get("period_s") or 0.001,
                core=shares.get("core"),
                uncore=shares.get("uncore"),
                dram=shares.get("dram"),
            )
        )
    return found


def _groups(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [group for group in document.get("groups", []) if isinstance(group, dict)]


def _devices(document: Mapping[str, Any], kind: str, *sensors: str) -> list[str]:
    """Numbered devices of a kind that carry energy in groups of these sensors."""
    names = {
        channel["device"]
        for group in _groups(document)
        if group.get("sensor") in sensors
        for channel in group["channels"]
        if channel.get("domain")
    }
    found = [Device.parse(str(name)) for name in names]
    return [str(device) for device in sorted(found) if device.kind == kind and device.index is not None]


def _measured(document: Mapping[str, Any], channel: str) -> dict[str, Any]:
    found = document.get("measured", {}).get(channel)
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class SimMachine:
    """What a simulated machine has. `psys_w` adds a platform counter: all packages and drams, and this much besides.

    `smi` are faults of its nvidia-smi: `na`, `not-supported`, `hang`, `buffered`, `no-handle`, `exit`.
    """

    gpus: Sequence[Gpu] = ()
    packages: Sequence[Package] = ()
    psys_w: float | None = None
    driver: str = "580.65.06"
    smi: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        *,
        gpus: Sequence[str | Curve] = (),
        packages: Sequence[str | Curve] = (),
        replicate: int | None = None,
        sensor: Sequence[str] = (),
    ) -> SimMachine:
        """A machine from texts, as the command line gives them. `replicate` repeats the cards up to that number."""
        settings = parse_settings(sensor)
        curves = [parse_curve(item) if isinstance(item, str) else item for item in gpus]
        if replicate is not None:
            if replicate < 1:
                raise UsageError(f"{replicate} is not a valid number of cards.", cure="--gpus 2")
            curves = curves or [parse_curve("constant:100W")]
            curves = [curves[i % len(curves)] for i in range(max(replicate, len(curves)))]
        boxes = [parse_curve(item) if isinstance(item, str) else item for item in packages]
        for kind, number in settings.said:
            if number is not None and not 0 <= number < len(curves if kind == "gpu" else boxes):
                raise UsageError(f"A sensor option names a {kind} that the machine does not have.")
        return cls(
            gpus=tuple(settings.gpu_at(i, curve) for i, curve in enumerate(curves)),
            packages=tuple(Package(curve, **settings.of("package", i)) for i, curve in enumerate(boxes)),
            **settings.of("machine"),
        )

    @classmethod
    def like(cls, document: Mapping[str, Any]) -> SimMachine:
        """A machine with the sensors that a file of `everywatt doctor --share` describes, at their powers then."""
        try:
            found = cls(gpus=gpus_of(document), packages=packages_of(document))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UsageError(f"This does not look like a file of everywatt doctor --share: {error!r}.") from None
        if not found.gpus and not found.packages:
            raise UsageError("Only NVIDIA cards and RAPL packages can be simulated, and the file describes neither.")
        return found

    def start(self, folder: Path | None = None) -> Lab:
        """Make the machine's folder and start its clock; a temporary folder where none is given."""
        return Lab(self, folder)

    def curves(self) -> dict[str, Curve]:
        """The devices that have a curve of their own."""
        found = {f"gpu.{i}": gpu.curve for i, gpu in enumerate(self.gpus)}
        return found | {f"cpu.{i}": package.curve for i, package in enumerate(self.packages)}

    def zones(self) -> list[powercap.Zone]:
        return powercap.zones(self.packages, self.psys_w)


class Lab:
    """A machine that runs: `environment()` is what programs inside it need, `truth()` the exact joules."""

    def __init__(self, machine: SimMachine, folder: Path | None = None) -> None:
        self.machine = machine
        self._temporary = folder is None
        self._processes: list[dict[str, object]] = []
        self._follower: Follower | None = None
        self.logs: dict[str, EventLog] = {}
        self.libraries = libraries()
        self.folder = Path(tempfile.mkdtemp(prefix="everywatt-sim-")) if folder is None else folder.resolve()
        self.t0_ns = time.monotonic_ns()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write()
            if any(isinstance(curve, Load) for curve in machine.curves().values()):
                self._follower = Follower(self.folder, os.getpid())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the machine; its folder is removed if it was a temporary one."""
        self.settle()
        for log in self.logs.values():
            log.close()
        self.logs = {}
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        env = dict(os.environ if base is None else base)

        def first(name: str, value: Path) -> str:
            return os.pathsep.join(filter(None, (str(value), env.get(name, ""))))

        return env | {
            "EVERYWATT_SIM": str(self.folder),
            "EVERYWATT_SYS": str(self.folder / "sys"),
            **({} if self._follower is None else {"EVERYWATT_BELOW": f"{os.getpid()},{self._follower.pid}"}),
            "EVERYWATT_RUNTIME_DIR": str(self.folder / "run"),
            "LD_LIBRARY_PATH": first("LD_LIBRARY_PATH", self.folder / "lib"),
            "LD_PRELOAD": first("LD_PRELOAD", self.libraries / PRELOAD),
            "PATH": first("PATH", self.folder / "bin"),
        }

    def settle(self) -> list[dict[str, object]]:
        """Stop following loads. Gives the processes that were seen with their CPU seconds and active joules."""
        if self._follower is not None:
            self._processes = self._follower.stop()
            self._follower = None
        return self._processes

    def adopt(self, pid: int) -> None:
        """Let the rows of the cards' process lists that were declared with pid 0 stand for this process."""
        for index in range(len(self.machine.gpus)):
            table = ProcessTable(self.folder / f"processes-gpu.{index}")
            table.adopt(pid)
            table.close()

    def seconds(self, monotonic_ns: int) -> float:
        return (monotonic_ns - self.t0_ns) / 1e9

    def truth(self, device: str, a_ns: int, b_ns: int) -> float:
        """The exact joules of a device between two CLOCK_MONOTONIC instants in nanoseconds."""
        curves, terms = self.machine.curves(), {device: self.terms(device)}
        return Truth(self.t0_ns, a_ns, b_ns, 0, curves, self.logs, terms).joules(device, a_ns, b_ns)

    def devices(self) -> list[str]:
        """The names that `truth` knows."""
        derived = [zone.truth for zone in self.machine.zones() if zone.truth]
        return list(dict.fromkeys([*self.logs, *derived, *self._modules()]))

    def _modules(self) -> dict[str, Terms]:
        """Superchips: a GPU and what its module draws beside it."""
        gpus = enumerate(self.machine.gpus)
        return {f"module.{i}": ({f"gpu.{i}": 1.0}, gpu.module_w) for i, gpu in gpus if gpu.module_w is not None}

    def terms(self, device: str) -> Terms:
        """A device as a sum of curves times factors, plus a constant in watts."""
        if device in self.logs:
            return {device: 1.0}, 0.0
        if device in self._modules():
            return self._modules()[device]
        for zone in self.machine.zones():
            if zone.truth == device:
                return zone.terms, zone.constant_w
        raise UsageError(f"The machine has no device '{device}'.", cure=", ".join(self.devices()))

    def events(self, device: str) -> list[Event]:
        """What happened to a device: its limits and its load."""
        return list(self.logs[device])

    def calls(self) -> dict[str, int]:
        """How often each NVML function was called, by all processes together."""
        raw = (self.folder / "nvml-calls").read_bytes()
        return {name.rstrip(b"\0").decode(): count for name, count in _CALL.iter_unpack(raw) if name[0]}

    def _write(self) -> None:
        for name in ("lib", "bin"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "run").mkdir(mode=0o700, exist_ok=True)
        (self.folder / "lib" / NVML).symlink_to(self.libraries / NVML)
        zones = self.machine.zones()
        powercap.write_tree(self.folder, zones)
        for index, gpu in enumerate(self.machine.gpus):
            if gpu.module_w is not None:
                place = self.folder / "sys" / "bus" / "pci" / "devices" / f"0000:{index + 1:02x}:00.0"
                place.mkdir(parents=True)
                (place / "numa_node").write_text(f"{index}\n")
        (self.folder / "sys" / "fs").symlink_to("/sys/fs")  # control groups are real: so are the processes in them
        (self.folder / "nvml-calls").write_bytes(bytes(_CALL.size * _CALL_SLOTS))
        lines = [f"t0_ns {self.t0_ns}", f"driver {self.machine.driver}"]
        limits = {f"gpu.{i}": gpu.limit_w for i, gpu in enumerate(self.machine.gpus)}
        for name, curve in self.machine.curves().items():
            self.logs[name] = EventLog.create(self.folder / f"events-{name}", curve, limits.get(name, 1e9))
            lines.append(_device_line(self.folder, name, curve))
        for index, gpu in enumerate(self.machine.gpus):
            ProcessTable.create(self.folder / f"processes-gpu.{index}", gpu.processes)
            lines += [f"gpu gpu.{index}", *_gpu_lines(index, gpu)]
        lines += [zone.line() for zone in zones]
        (self.folder / "machine.txt").write_text("\n".join(lines) + "\n")
        write_loads(self.folder, self.machine.curves(), self.t0_ns)
        (self.folder / "smi-faults").write_text("\n".join(self.machine.smi))
        _write_smi(self.folder / "bin" / "nvidia-smi")


def _device_line(folder: Path, name: str, curve: Curve) -> str:
    mean = amplitude = period = total = 0.0
    kind = "load"
    if isinstance(curve, Sine):
        kind, mean, amplitude, period = "sine", curve.mean_w, curve.amplitude_w, curve.period_s
    elif isinstance(curve, Table):
        kind, period, total = "table", curve.period_s, curve.total_j
        rows = (_PIECE.pack(p.t_s, p.length_s, p.from_w, p.to_w, p.before_j) for p in curve.pieces)
        (folder / f"curve-{name}").write_bytes(b"".join(rows))
    elif not isinstance(curve, Load):
        raise UsageError(f"'{curve.text}' is not supported by the simulated hardware.")
    numbers = (curve.low_w, curve.high_w, mean, amplitude, period, total)
    return f"device {name} {kind} " + " ".join(repr(float(n)) for n in numbers)


def _gpu_lines(index: int, gpu: Gpu) -> list[str]:
    """A card as the simulated NVML reads it: its options as they are, and what is not given in their stead.

    Publication phases that are not given are anywhere in the period, the same for the same seed.
    """
    chance = random.Random(gpu.seed + 1)
    phase, counter_phase = chance.random(), chance.random()
    counter_period = gpu.period_s if gpu.counter_period_s is None else gpu.counter_period_s
    window = gpu.period_s if gpu.window_s is None else gpu.window_s
    major, _, minor = gpu.capability.partition(".")
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"everywatt-sim-gpu-{index}")
    values: dict[str, Any] = {key: getattr(gpu, name) for key, name in GPU_FIELDS.items() if key not in _OWN_LINES} | {
        "name": gpu.title,
        "uuid": f"GPU-{identity}",
        "serial": f"{1_320_000_000_000 + index}",
        "bus": f"00000000:{index + 1:02X}:00.0",
        "phase": phase * gpu.period_s if gpu.phase_s is None else gpu.phase_s,
        "seed": 2 * gpu.seed + 1,
        "counter_period": counter_period,
        "counter_phase": counter_phase * counter_period if gpu.counter_phase_s is None else gpu.counter_phase_s,
        "counter_jitter": min(gpu.jitter_s, counter_period),
        "counter_drop": gpu.drop,
        "counter_seed": 2 * gpu.seed + 2,
        "window": window,
        "average": window if gpu.average_s is None else gpu.average_s,
        "limit": gpu.limit_w,
        "limit_min": gpu.power_limit_min_w or min(100.0, gpu.limit_w),
        "limit_max": gpu.power_limit_max_w or gpu.limit_w,
        "counter_module": gpu.counter_module and gpu.module_w is not None,
        "major": major,
        "minor": minor or "0",
    }
    lines = [f"gpu_{key} {_text(value)}" for key, value in values.items() if value not in ("", ())]
    return lines + [f"gpu_mig {_instance(identity, place, text)}" for place, text in enumerate(gpu.mig)]


def _text(value: Any) -> str:
    """A value as NVML reads it: names joined by +, a flag as 1 or 0, what is not given as -1."""
    if isinstance(value, tuple):
        return "+".join(value)
    return str(-1 if value is None else int(value) if isinstance(value, bool) else value)


def _instance(card: uuid.UUID, place: int, profile: str) -> str:
    """`1g.5gb` as a line: UUID, profile, slices, bytes."""
    slices, dot, size = profile.partition("g.")
    if not dot or not slices.isdecimal() or not size.endswith("gb") or not size[:-2].isdecimal():
        raise UsageError(f"'{profile}' is not a MIG profile.", cure="mig=1g.5gb+3g.20gb")
    return f"MIG-{uuid.uuid5(card, str(place))} {profile} {slices} {int(size[:-2]) * 2**30}"


def _write_smi(path: Path) -> None:
    """The fake nvidia-smi: run by this Python without site-packages and without everywatt, so that it starts fast."""
    import sys

    import pynvml

    folders = [str(Path(__file__).parent), str(Path(pynvml.__file__).parent)]
    code = f"import sys; sys.path += {folders!r}; import nvidia_smi; nvidia_smi.start()"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(code)} "$@"\n')
    path.chmod(0o755)
