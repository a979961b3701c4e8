"""Which sensors there are, and which of them a run uses.

Sensors register by the entry point group `everywatt.sensors`, ours too, or, while they are being written, by
EVERYWATT_PLUGINS=name=module:Class,… in the environment. Names resolve to `module:Class` texts, so that the recorder
can import just what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from everywatt.core.errors import UsageError
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.plugins import SENSORS, load, registered
from everywatt.sensors.base import Group, Report, Request, Sensor, State, TableGroup

# Sensors in the order in which they are asked. A fallback comes later than what it replaces (its `after`); sensors of
# other packages follow ours. `modelled` is asked last, `replay` only by name.
ORDER = (
    *("rapl", "jetson", "tegrastats", "hwmon", "cray", "raspberry", "nvml", "amdsmi", "rocm-smi", "hl-smi", "ipmi"),
    *("redfish", "shelly", "tasmota", "snmp", "exec", "use", "drm", "model", "replay"),
)
LATE = ("perf", "nvidia-smi")
LAST = "modelled"
OURS = "everywatt."
# What has to be there before a sensor's module is worth loading: a program, a library, a folder of /sys, or settings.
# The recorder stays small by what it does not load, and nothing on a network is contacted unless configured.
NEEDS: dict[str, str] = {
    "nvidia-smi": "program nvidia-smi",
    "tegrastats": "program tegrastats",
    "rocm-smi": "program rocm-smi",
    "hl-smi": "program hl-smi",
    "raspberry": "program vcgencmd",
    "amdsmi": "library amdsmi",
    "cray": "sys cray/pm_counters",
    "drm": "sys class/drm",
    **dict.fromkeys(("ipmi", "redfish", "shelly", "tasmota", "snmp", "exec", "model"), "settings"),
}
ANY_POWER = "*power"
# The `after` of our own sensors, repeated here so that no module has to be loaded for it.
BEHIND: dict[str, tuple[str, ...]] = {
    "perf": ("rapl",),
    "tegrastats": ("jetson",),
    "nvidia-smi": ("nvml",),
    "rocm-smi": ("amdsmi",),
    "modelled": (ANY_POWER,),
}
# Ours with counters that a measured program may read itself. Where the recorder hangs, it may hang in any other one.
INLINE = ("rapl", "perf", "hwmon")
NOT_TRIED = "not tried"


def known(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every sensor by name, with the `module:Class` that makes it: built in, installed, or named in the environment."""
    found = registered(SENSORS)
    text = (os.environ if environ is None else environ).get("EVERYWATT_PLUGINS", "")
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, target = item.partition("=")
        if ":" not in target:
            raise UsageError(f"EVERYWATT_PLUGINS: '{item}' is not name=module:Class.")
        found[name] = target
    return found


def make(target: str, request: Request) -> Sensor:
    sensor: Sensor = load(target)(request)
    return sensor


@dataclass(frozen=True, slots=True)
class Choice:
    """The groups to read, and what every probed sensor said (also those that are not used)."""

    groups: tuple[Group | TableGroup, ...]
    reports: tuple[Report, ...]

    def close(self) -> None:
        for group in self.groups:
            group.close()


class Opens(Protocol):
    """What is left to do of a sensor that was probed."""

    def groups(self) -> Sequence[Group | TableGroup]: ...


def must_be_known(names: Sequence[str], targets: Mapping[str, str]) -> None:
    """UsageError for the first name that is no sensor, with the one that may have been meant."""
    for name in names:
        if name not in targets:
            from everywatt.core.config import nearest  # not for the recorder, which has no settings

            raise UsageError(
                f"There is no sensor '{name}'{nearest(name, list(targets)) or '.'}", cure="everywatt sensors"
            )


def odd_tables(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each table [sensor.NAME] of the settings that no sensor reads, with the name that may be meant."""
    from everywatt.core.config import nearest

    names = known(environ)
    odd = [name for name in options if name not in names]
    return [
        f"[sensor.{name}] in your settings: there is no such sensor{nearest(name, list(names)) or '.'}" for name in odd
    ]


def choose(
    targets: Mapping[str, str],
    request: Request,
    wanted: Sequence[str] | None = None,
    *,
    ask: Callable[[str, str, Request], tuple[Opens | None, Report]] | None = None,
) -> Choice:
    """Probe sensors and open those a run uses. `ask` stands in for `probe` where sensors are shared (the recorder).

    A sensor is opened unless one in its `after` is in use. `wanted` limits the sensors by name;
    naming one explicitly opens it in any case.
    """
    must_be_known(wanted or (), targets)
    request = replace(request, sensors=None if wanted is None else tuple(wanted))
    if request.options.get("model"):  # its columns are recorded too: it can then be adapted to the recording
        use = {"features": True, **request.options.get("use", {})}
        request = replace(request, options={**request.options, "use": use})
    groups: list[Group | TableGroup] = []
    reports: list[Report] = []
    used: set[str] = set()
    power = False
    for name in _ordered(targets, wanted):
        lacking = _lacking(name, targets[name], request)
        if lacking is not None:
            reports.append(lacking)
            continue
        after = () if wanted is not None else _after(name, targets[name])
        if better := _better(after, used, power):
            # Trying it costs time (a child process, or seconds where that hangs) that every run would pay.
            reports.append(Report(name, State.ABSENT, f"{NOT_TRIED}: {better}", power=False))
            continue
        sensor, report = (ask or probe)(name, targets[name], request)
        reports.append(report)
        if sensor is None or not report.usable:
            continue
        opened = _open(name, sensor, reports)
        if opened:
            groups += opened
            used.add(name)
            power = power or any(channel.carries_energy for group in opened for channel in group.info.channels)
    return Choice(tuple(groups), tuple(reports))


def _lacking(name: str, target: str, request: Request) -> Report | None:
    """The report of a sensor of ours that cannot be here, without loading it; None where it has to be asked."""
    if not target.startswith(OURS) or name not in NEEDS or (request.sensors is not None and name in request.sensors):
        return None
    kind, _, what = NEEDS[name].partition(" ")
    machine = request.machine
    if kind == "settings":
        there, why = bool(request.options.get(name)), f"not configured: [sensor.{name}] in your settings"
    elif kind == "program":
        folders = machine.environ.get("PATH", "").split(os.pathsep)
        there = any(os.access(os.path.join(folder, what), os.X_OK) for folder in folders if folder)  # noqa: PTH118
        why = f"{what} was not found on the PATH."
    elif kind == "library":
        from importlib.util import find_spec

        there, why = find_spec(what) is not None, f"The library {what} is not installed."
    else:
        there, why = (machine.sys / what).exists(), f"{machine.sys / what} does not exist."
    return None if there else Report(name, State.ABSENT, why, power=False)


def _after(name: str, target: str) -> Sequence[str]:
    """A sensor's `after`, as far as that is known before it is made."""
    if target.startswith(OURS):
        return BEHIND.get(name, ())
    try:
        after: Sequence[str] = load(target).after
    except Exception:  # noqa: BLE001 - a plug-in may do anything; probing it says what
        return ()
    return after


def _better(after: Sequence[str], used: set[str], power: bool) -> str | None:
    """Why a fallback sensor is not needed; None if it is needed."""
    better = next((other for other in after if other in used), None)
    return f"{better} is used" if better else "another sensor delivers power" if power and ANY_POWER in after else None


def _ordered(targets: Mapping[str, str], wanted: Sequence[str] | None) -> list[str]:
    """Preferred sensors first; the modelled one last; replay only when it is asked for."""
    names = [name for name in targets if name in wanted] if wanted else [n for n in targets if n != "replay"]
    places = {name: place for place, name in enumerate(ORDER)}
    return sorted(names, key=lambda name: (name == LAST, name in LATE, places.get(name, len(ORDER))))


def probe(name: str, target: str, request: Request) -> tuple[Sensor | None, Report]:
    """Make one sensor and ask it. Whatever a plug-in does wrong ends in the report."""
    lacking = _lacking(name, target, request)
    if lacking is not None:
        return None, lacking
    try:
        sensor = make(target, request)
        return sensor, sensor.probe()
    except Exception as error:  # noqa: BLE001 - a plug-in may do anything
        return None, Report(name, State.UNUSABLE, why=f"{type(error).__name__}: {error}", power=False)


def _open(name: str, sensor: Opens, reports: list[Report]) -> list[Group | TableGroup]:
    try:
        return list(sensor.groups())
    except Exception as error:  # noqa: BLE001 - a plug-in may do anything
        reports.append(Report(name, State.UNUSABLE, why=f"{type(error).__name__}: {error}"))
        return []
