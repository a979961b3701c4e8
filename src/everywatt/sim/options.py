"""What can be said of simulated devices, and the `key=value,…` texts that say it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from everywatt.core.errors import UsageError
from everywatt.core.units import parse_bytes, parse_duration_s, parse_energy_j, parse_power_w

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from everywatt.sim.curves import Curve

EXACT_NAME = "everywatt Simulated Exact GPU"
PLAIN_NAME = "everywatt Simulated GPU"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a card: `sm` and `bandwidth` are shares of the card, `instance` the number of a MIG instance."""

    pid: int
    memory_bytes: int = 512 * 2**20
    sm: float = 0.0
    bandwidth: float = 0.0
    graphics: bool = False
    instance: int = -1
    check: bool = False


@dataclass(frozen=True, slots=True)
class Gpu:
    """A simulated card and the sensor in front of it.

    A power reading is the mean over `window_s` before the last publication, times `gain`, plus `offset_w`.
    `nvmlDeviceGetPowerUsage` averages over `average_s` (the same window where that is None). The counter publishes
    every `counter_period_s` (the same period where that is None) and is cut to `quantum_j`. A window shorter than the
    period is a sensor that looks only part of the time. `module_w` puts the GPU on a module that draws so much beside
    it (a superchip), `memory_share` is what its memory draws of the GPU's power, and with `counter_module` the counter
    is the module's, as on GH200. `exact` None means: exact unless a gain or offset is given.
    """

    curve: Curve
    name: str | None = None
    exact: bool | None = None
    period_s: float = 0.1
    phase_s: float | None = None
    window_s: float | None = None
    average_s: float | None = None
    jitter_s: float = 0.0
    drop: float = 0.0
    counter_period_s: float | None = None
    counter_phase_s: float | None = None
    gain: float = 1.0
    offset_w: float = 0.0
    quantum_j: float = 0.001
    power_quantum_w: float = 0.001
    start_j: float = 120_000.0
    power_limit_w: float | None = None
    power_limit_min_w: float | None = None
    power_limit_max_w: float | None = None
    denied: bool = False
    utilisation: float | None = None
    memory_bytes: int = 16 * 2**30
    clock_mhz: int = 1410
    memory_clock_mhz: int = 1215
    capability: str = "8.0"
    module_w: float | None = None
    memory_share: float | None = None
    counter_module: bool = False
    call_cost_s: float = 0.0
    process_cost_s: float = 0.0
    lost_at_s: float = 0.0
    back_at_s: float = 0.0
    fail_call: int = 0
    fail_after: int = 0
    fail_code: int = 999
    failing: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    samples: int = 120
    gpm: bool = False
    mig: tuple[str, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    seed: int = 0

    @property
    def title(self) -> str:
        """The card's name. The two default names say whether gain and offset are exact."""
        if self.name is not None:
            return self.name
        exact = self.exact if self.exact is not None else (self.gain, self.offset_w) == (1.0, 0.0)
        return EXACT_NAME if exact else PLAIN_NAME

    @property
    def limit_w(self) -> float:
        """The power limit at the start."""
        return self.power_limit_w or max(300.0, math.ceil(self.curve.high_w))


@dataclass(frozen=True, slots=True)
class Package:
    """A simulated processor package with its RAPL counters.

    `core`, `uncore` and `dram` are powers as a share of the package's (None: no such counter); dram is beside the
    package, core and uncore are inside. `fault` from `fault_at_s` on is one of unreadable, garbage, negative, empty,
    vanish. `reset_at_s` restarts the counters at 0.
    """

    curve: Curve
    period_s: float = 0.001
    phase_s: float = 0.0
    quantum_j: float = 2.0**-14
    wrap_j: float = 262_143.328850
    start_j: float = 1_000.0
    reset_at_s: float = 0.0
    fault: str = "none"
    fault_at_s: float = 0.0
    range_unreadable: bool = False
    tdp_w: float | None = None
    dies: int = 1
    core: float | None = 0.7
    uncore: float | None = None
    dram: float | None = None
    mmio: bool = False


FAULTS = ("none", "unreadable", "garbage", "negative", "empty", "vanish")


def parse_size(text: str) -> int:
    """Whole bytes in `40GiB`, `80GB`; a bare number is bytes."""
    return int(parse_bytes(text))


def _flag(text: str) -> bool:
    if text not in ("0", "1", "yes", "no", "true", "false"):
        raise UsageError(f"'{text}' is neither yes nor no.", cure="1 or 0")
    return text in ("1", "yes", "true")


def _share(text: str) -> float:
    share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= share <= 1:
        raise UsageError(f"'{text}' is not a share between 0 and 1.", cure="0.4 or 40%")
    return share


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split("+")))


def _fault(text: str) -> str:
    if text not in FAULTS:
        raise UsageError(f"'{text}' is not a fault.", cure=", ".join(FAULTS))
    return text


def _processes(text: str) -> tuple[GpuProcess, ...]:
    """`PID:MEMORY:SM[:INSTANCE]+…`; a pid of 0 stands for the command that runs in the machine."""
    found = []
    for item in _names(text):
        pid, *rest = item.split(":")
        memory = parse_size(rest[0]) if rest else 512 * 2**20
        sm = _share(rest[1]) if len(rest) > 1 else 0.0
        instance = int(rest[2]) if len(rest) > 2 else -1
        found.append(GpuProcess(int(pid), memory, sm, sm * 0.4, instance=instance))
    return tuple(found)


# How a text becomes a value: by the unit at the end of the field's name, which a key leaves out, else by the field's
# name or type.
Parse = Callable[[str], Any]
_UNITS: dict[str, Parse] = {
    "s": parse_duration_s,
    "w": parse_power_w,
    "j": parse_energy_j,
    "bytes": parse_size,
    "mhz": int,
}
_OF_NAME: dict[str, Parse] = {
    **dict.fromkeys(("drop", "utilisation", "memory_share", "core", "uncore", "dram"), _share),
    "fault": _fault,
    "processes": _processes,
}
_OF_TYPE: dict[str, Parse] = {"str": str, "bool": _flag, "float": float, "int": int, "tuple[str, ...]": _names}


def _keys(cls: type) -> dict[str, tuple[str, Parse]]:
    """The field and the parser behind each key that a dataclass can be described by: `period` is `period_s`."""
    found: dict[str, tuple[str, Parse]] = {}
    for each in fields(cls):
        stem, _, unit = each.name.rpartition("_")
        kind = str(each.type).removesuffix(" | None")
        if unit in _UNITS:
            found[stem] = each.name, _UNITS[unit]
        elif parse := _OF_NAME.get(each.name) or _OF_TYPE.get(kind):
            found[each.name] = each.name, parse
    return found


_GPU, _PACKAGE = _keys(Gpu), _keys(Package)
_MACHINE: dict[str, tuple[str, Parse]] = {
    "psys": ("psys_w", parse_power_w),
    "driver": ("driver", str),
    "smi": ("smi", _names),
}
GPU_KEYS, PACKAGE_KEYS, MACHINE_KEYS = tuple(_GPU), tuple(_PACKAGE), tuple(_MACHINE)
GPU_FIELDS = {key: name for key, (name, _) in _GPU.items()}


Where = tuple[str, int | None]  # "gpu", "package" or "machine", and a number, None for all


@dataclass(frozen=True, slots=True)
class Settings:
    """Parsed `--sensor` texts: what was said of the machine, of all cards or packages, and of single ones."""

    said: Mapping[Where, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, kind: str, index: int | None = None) -> dict[str, Any]:
        """What was said of all of a kind and of this one."""
        return {**self.said.get((kind, None), {}), **self.said.get((kind, index), {})}

    def gpu_at(self, index: int, curve: Curve) -> Gpu:
        gpu = Gpu(curve, **{"seed": index, **self.of("gpu", index)})
        if gpu.period_s < 0 or not 0 <= gpu.jitter_s <= gpu.period_s:
            raise UsageError("The jitter of a simulated card must be shorter than its period.")
        if gpu.drop >= 1:
            raise UsageError("drop=1 means a sensor that never publishes.", cure="a share below 1")
        return gpu


def parse_settings(texts: Iterable[str]) -> Settings:
    """`period=100ms,gpu.1.lost_at=5s,package.wrap=300J,…`: a plain key is about every card."""
    said: dict[Where, dict[str, Any]] = {}
    for item in (part for text in texts for part in _split(text)):
        key, equals, value = item.partition("=")
        *where, plain = key.strip().split(".")
        if not equals:
            raise UsageError(f"'{item}' is not of the form key=value.", cure=_known())
        kind = where[0] if where else "machine" if plain in _MACHINE else "gpu"
        table = {"gpu": _GPU, "package": _PACKAGE, "machine": {} if where else _MACHINE}.get(kind, {})
        if plain not in table or len(where) > 2:
            raise UsageError(f"'{key}' is not a property of a simulated device.", cure=_known())
        name, parse = table[plain]
        number = None if len(where) < 2 else int(where[1]) if where[1].isdecimal() else -1
        said.setdefault((kind, number), {})[name] = _value(item, parse, value)
    return Settings(said)


def _split(text: str) -> list[str]:
    """Items between commas; a part without `=` belongs to the item before (a name with a comma)."""
    items: list[str] = []
    for part in text.split(","):
        if "=" in part or not items:
            items.append(part.strip())
        else:
            items[-1] += "," + part
    return [item for item in items if item]


def _value(item: str, parse: Parse, value: str) -> Any:
    try:
        return parse(value.strip().strip("'\""))
    except (ValueError, IndexError):
        raise UsageError(f"The value of '{item}' cannot be read.") from None


def _known() -> str:
    packages = ", ".join(f"package.{key}" for key in PACKAGE_KEYS)
    return f"one of {', '.join(GPU_KEYS)}; {packages}; {', '.join(MACHINE_KEYS)}"
