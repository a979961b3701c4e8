"""A fitted model as a sensor: `modelled` watts from what the machine does, wherever the model's columns can be read.

    [sensor.model]
    file = "laptop.json"

It reads the channels that the model needs from the sensors that give them (`use` first), turns counters into rates and
evaluates the model in plain Python. Beside the watts, `model.low` and `model.high` are the interval, `model.outside` is
1 where an input is outside of what was learnt, and `model.farthest` is the number of the one that is farthest outside,
among the group's `names` (0: none). While a real sensor of the model's own target can be read, `model.ratio` is
measured over modelled watts and `model.drift` is 1 where the model no longer fits (`Drift`); `everywatt model install
--against RUN` then adapts it to that recording.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import Cadence, Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row, fresh
from everywatt.core.clocks import NS
from everywatt.core.errors import SensorError, UsageError
from everywatt.core.stats import TO_95, wilson
from everywatt.models.features import History
from everywatt.models.form import Model, along
from everywatt.models.modelfile import load_model
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.jetson import jetson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everywatt.sensors.base import Group

NAME = "model"
BOARD = "jetson"  # the device of a board's rails
SOURCES = ("use", "nvml", "jetson", "tegrastats", "hwmon")
WITNESSES = ("rapl", "nvml", "jetson", "tegrastats", "hwmon")
DOMAINS = (Domain.PACKAGE, Domain.DRAM, Domain.GPU, Domain.SOC, Domain.WALL, Domain.UNCORE, Domain.CORE)


class ModelPower:
    """The group `model.power`: each row is the mean power from the read before to this one."""

    def __init__(self, model: Model, groups: Sequence[Group], clock: Any, witness: Group | None = None) -> None:
        self.info = info_of(model)
        self._model = model
        self._groups = tuple(groups)
        self._clock = clock
        self._history = History(model.form.features, model.period_s)
        self._before: dict[str, tuple[int, float]] = {}
        self._last: dict[str, float] = {}
        self._witness = witness
        self._truth = of_target(model) if witness is not None else ()
        self.drift = Drift(model.widths.level)

    def read(self) -> Sequence[Row]:
        """One row; none until every column has a value (a counter has one from its second read on)."""
        for group in self._groups:
            for row in group.read()[-1:]:
                self._take(group, row)
        read_ns = self._clock.monotonic_ns()
        if any(name not in self._last for name in self._model.needs):
            return ()
        found = self._model.predict(self._history.row(read_ns / NS, self._last), self._history.still)
        if not math.isfinite(found.watts):
            raise SensorError("The model predicts no number for the present state of the machine.")
        truth_w = self._measured()
        if truth_w is not None:
            self.drift.add(truth_w, found.watts, found.low, found.high)
        drifted = math.nan if truth_w is None else float(self.drift.alarm)
        outside = 1.0 if found.outside else 0.0
        farthest = 1.0 + self.info.names.index(found.outside[0]) if found.outside else 0.0
        ratio = math.nan if truth_w is None else self.drift.ratio
        return (fresh(read_ns, (found.watts, found.low, found.high, outside, ratio, drifted, farthest)),)

    def _measured(self) -> float | None:
        """Watts of the real sensor since the last read; None without one. One that fails is not asked again."""
        if self._witness is None:
            return None
        for name in self._truth:
            self._last.pop(name, None)
        try:
            for row in self._witness.read()[-1:]:
                self._take(self._witness, row, self._truth)
        except SensorError:
            self._witness.close()
            self._witness = None
            return None
        found = [self._last[name] for name in self._truth if name in self._last]
        return found[0] if found else None

    def _take(self, group: Group, row: Row, wanted: Sequence[str] = ()) -> None:
        for channel, raw in zip(group.info.channels, row.values, strict=True):
            if channel.name not in (wanted or self._model.needs) or raw != raw:
                continue
            value = raw * channel.scale
            if channel.kind is Kind.GAUGE:
                self._last[channel.name] = value
                continue
            before = self._before.get(channel.name)
            self._before[channel.name] = (row.read_ns, value)
            if before is not None and row.read_ns > before[0] and value >= before[1]:
                self._last[channel.name] = (value - before[1]) / ((row.read_ns - before[0]) / NS)

    def close(self) -> None:
        for group in self._groups:
            group.close()
        if self._witness is not None:
            self._witness.close()


def info_of(model: Model) -> GroupInfo:
    """The group's channels: watts, their interval, and what is known of the model's fit."""
    watts = channel_of(model)
    units = {"low": "W", "high": "W", "outside": "", "ratio": "", "drift": "", "farthest": ""}
    beside = [
        Channel(f"{NAME}.{word}", unit, Kind.GAUGE, watts.device, pedigree=Pedigree.MODELLED)
        for word, unit in units.items()
    ]
    names = tuple(dict.fromkeys([*(feature.name for feature in model.form.features), *model.widths.stuck]))
    return GroupInfo(
        f"{NAME}.power", NAME, watts.device, (watts, *beside), Cadence.SLOW, label=_label(model), names=names
    )


def of_target(model: Model) -> tuple[str, ...]:
    """Channels that measure what the model estimates."""
    if model.target == f"{BOARD}.power":  # of a store, which does not know the name of the board's input
        return tuple(f"{BOARD}.{rail}.power" for rail in jetson.TOTALS)
    return (f"{model.target.removesuffix('.power')}.energy", model.target)


def _label(model: Model) -> str:
    error = model.about.get("load_out_error_pct")
    grade = f", error {error:.3g} % on held-out loads" if isinstance(error, int | float) else ""
    return f"modelled from utilisation ({model.target}{f' of {model.host}' if model.host else ''}{grade})"


class ModelSensor:
    """The sensor `model`; used where its settings name a file."""

    name = NAME
    after: Sequence[str] = ()

    def __init__(self, request: Request) -> None:
        self._request = request
        self._file = str(request.options.get(NAME, {}).get("file", ""))

    def probe(self) -> Report:
        """Usable where the file is a model and every column that it needs was really read here."""
        try:
            model = self._model()
            groups = self._sources(model)
        except (UsageError, SensorError) as error:
            return Report(self.name, State.UNUSABLE, why=error.message, cure=error.cure, power=False)
        for group in groups:
            group.close()
        watts = model.about.get("watts", {})
        low, middle, high = (watts.get(key) for key in ("low", "median", "high"))
        has_range = isinstance(low, int | float) and isinstance(high, int | float)
        why = f"{_label(model)}; trained between {low:.3g} and {high:.3g} W" if has_range else _label(model)
        name = channel_of(model).name
        sample = {name: float(middle) if isinstance(middle, int | float) else None}
        trained = {name: (float(low), float(high))} if has_range else {}
        return Report(self.name, State.USABLE, why=why, samples=sample, intervals=trained)

    def groups(self) -> Sequence[Group]:
        """The one group, `model.power`."""
        model = self._model()
        return (ModelPower(model, self._sources(model), self._request.machine.clock, self._witness(model)),)

    def _witness(self, model: Model) -> Group | None:
        """A group of a real sensor that measures the model's target here; None without one."""
        # Asking a card may take a second and more, in which the recorder says nothing.
        names = [name for name in WITNESSES if name != "nvml" or model.target.startswith("gpu.")]
        found = _groups_with(of_target(model), names, self._request, only_first=True)
        return found[0] if found else None

    def _model(self) -> Model:
        if not self._file:
            raise UsageError("[sensor.model] names no file.", cure="everywatt model install MODEL")
        model = load_model(self._file)
        if model.form.kind == "plugin":
            raise UsageError(
                "A model from a plug-in cannot be a sensor: the recorder does not load plug-ins for models."
            )
        return model

    def _sources(self, model: Model) -> list[Group]:
        """Groups that give every column of the model."""
        # What a model needs is read for it, whether or not it is recorded as well.
        request = replace(self._request, options={**self._request.options, "use": {"features": True}})
        found = _groups_with(model.needs, SOURCES, request)
        lacking = set(model.needs) - {channel.name for group in found for channel in group.info.channels}
        if lacking:
            for group in found:
                group.close()
            raise UsageError(
                f"The model needs {', '.join(sorted(lacking))}, which no sensor on this machine delivers.",
                cure="use a model fitted on a run of everywatt: everywatt model collect",
            )
        return found


def _groups_with(
    wanted: Sequence[str], names: Sequence[str], request: Request, *, only_first: bool = False
) -> list[Group]:
    """Groups of these sensors, the first first, that give channels which none before gives; the others are closed."""
    from everywatt.core.plugins import SENSORS, registered
    from everywatt.sensors.registry import probe

    found: list[Group] = []
    left, targets = set(wanted), registered(SENSORS)
    for name in names:
        if not left or name not in targets:
            continue
        sensor, report = probe(name, targets[name], request)
        for group in sensor.groups() if sensor is not None and report.usable else ():
            given = set() if group.info.table else {channel.name for channel in group.info.channels} & left
            if given:
                found.append(group)  # type: ignore[arg-type]
                left = set() if only_first else left - given
            else:
                group.close()
    return found


def channel_of(model: Model) -> Channel:
    """The channel of the watts: the target's own name where it is one, else `host.power`."""
    target = model.target
    domain = next((domain for domain in DOMAINS if domain.value in target.lower()), Domain.NODE)
    parts = target.split(".")
    device = "host"
    if len(parts) >= 2 and target.endswith(".power"):
        device = f"dram.{parts[1]}" if domain is Domain.DRAM and parts[0] == "cpu" else ".".join(parts[:2])
        if parts[0] in ("host", "psys", "soc", "wall", BOARD):
            device = parts[0]
        if device == BOARD:
            domain = jetson.domain_of(parts[1]) if len(parts) > 2 else Domain.SOC
    name = target if target.endswith(".power") and "." in target else "host.power"
    watts = model.about.get("watts", {})
    high = watts.get("high")
    # `model.outside` detects rows that are more novel than the usual ones.
    steps = model.widths.novelty
    usual = steps[len(steps) // 2 if len(steps) > 2 else 0]  # of two, the second is of rows that are far out
    below, above = (TO_95 * along(steps, side, usual) for side in (model.widths.below, model.widths.above))
    facts = Facts(
        gain_pct=100 * max(-math.expm1(-below), math.expm1(min(above, 2.0))),
        max_w=3 * float(high) if isinstance(high, int | float) and high > 0 else None,
    )
    return Channel(name, "W", Kind.GAUGE, device, domain, pedigree=Pedigree.MODELLED, facts=facts)


ROWS = 300  # the newest that count
LEAST_ROWS = 30


class Drift:
    """Whether a model still fits its machine: its rows beside those of a real sensor, while there is one.

    A machine changes (a kernel, a fan, a card), and a model does not notice. An interval of 90 % that holds clearly
    fewer rows than that has drifted.
    """

    def __init__(self, level: float) -> None:
        self._level = level
        self._rows: deque[tuple[float, bool]] = deque(maxlen=ROWS)

    def add(self, truth_w: float, watts: float, low: float, high: float) -> None:
        """One row of both; rows without power on either side say nothing."""
        if truth_w > 0 and watts > 0 and math.isfinite(truth_w):
            self._rows.append((truth_w / watts, low <= truth_w <= high))

    @property
    def ratio(self) -> float:
        """The median of measured over modelled watts; NaN without rows."""
        if not self._rows:
            return math.nan
        ordered = sorted(ratio for ratio, _ in self._rows)
        return ordered[len(ordered) // 2]

    @property
    def alarm(self) -> bool:
        """Whether fewer rows than the level are inside, beyond what chance explains (Wilson, 99 %)."""
        if len(self._rows) < LEAST_ROWS:
            return False
        return wilson(sum(inside for _, inside in self._rows), len(self._rows), 0.99)[1] < self._level
