"""Jetson boards by the tegrastats command, where the kernel's own files are missing: one long-lived child."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence

from everywatt.core.channels import NAN, Channel, Facts, GroupInfo, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import SensorError
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.child import Child
from everywatt.sensors.jetson.board_state import gauge
from everywatt.sensors.jetson.jetson_rails import (
    GAIN_PCT,
    OFFSET_V,
    PERIOD_S,
    SHUNT_OHM,
    connected,
    first_the_total,
    rail_channel,
    total_note,
    word,
)
from everywatt.sensors.jetson.tegra_line import Engine, TegraLine, parse_line

INTERVAL_MS = 430
PROBE_S = 4.0
SILENCE_S = 5.0
BACKOFF_S = 1.0
# tegrastats does not print a rail's voltage: 5 V and 20 V occur, and the offset is that of the larger.
_FACTS = Facts(
    period_s=PERIOD_S, window_s=PERIOD_S, quantum=0.001, gain_pct=GAIN_PCT, offset_w=20.0 * OFFSET_V / SHUNT_OHM
)
Start = Callable[[Sequence[str], Mapping[str, str], int], Child]
Take = Callable[[TegraLine], float | None]
Pick = Callable[[TegraLine], Engine | None]


def line_channels(line: TegraLine) -> list[tuple[Channel, Take]]:
    """The channels of a line, the input first, each with the function that takes its value from later lines."""
    taken: set[str] = set()
    labels = list(dict.fromkeys(rail.label for rail in line.rails if connected(rail.label)))
    rails = [(rail_channel("jetson", label, _FACTS, taken), _rail(label)) for label in first_the_total(labels)]
    cores = [
        (gauge(f"cpu{number}.{what}", unit), take(_core(number)))
        for number in range(len(line.cores))
        for what, unit, take in (("utilisation", "%", _percent), ("clock", "MHz", _clock))
    ]
    states = [
        *((gauge(f"{word(label)}.average_power", "W"), _average(label)) for label in labels),
        (gauge("gpu.utilisation", "%"), _percent(lambda later: later.gpu)),
        (gauge("gpu.clock", "MHz"), _clock(lambda later: later.gpu)),
        (gauge("memory_utilisation", "%"), _percent(lambda later: later.emc)),
        (gauge("emc.clock", "MHz"), _clock(lambda later: later.emc)),
        (gauge("memory", "B"), lambda later: later.ram and later.ram.used_bytes),
        (gauge("memory_total", "B"), lambda later: later.ram and later.ram.total_bytes),
        (gauge("free_block", "B"), lambda later: later.ram and later.ram.block_bytes),
        (gauge("free_blocks", ""), lambda later: later.ram and later.ram.blocks),
        (gauge("swap", "B"), lambda later: later.swap and later.swap.used_bytes),
        (gauge("swap_total", "B"), lambda later: later.swap and later.swap.total_bytes),
        (gauge("swap_cached", "B"), lambda later: later.swap and later.swap.cached_bytes),
        (gauge("mts_foreground", "%"), lambda later: later.mts_percent and later.mts_percent[0]),
        (gauge("mts_background", "%"), lambda later: later.mts_percent and later.mts_percent[1]),
        *((gauge(f"{sensor}.temperature", "°C"), _temperature(sensor)) for sensor in line.temperatures_c),
    ]
    # A core that is off now may be switched on; anything else that the first line lacks, later ones lack too.
    return [*rails, *cores, *((channel, take) for channel, take in states if take(line) is not None)]


def _core(number: int) -> Pick:
    return lambda line: line.cores[number] if number < len(line.cores) else None


def _percent(pick: Pick) -> Take:
    return lambda line: engine.percent if (engine := pick(line)) is not None else None


def _clock(pick: Pick) -> Take:
    return lambda line: engine.clocks_mhz[0] if (engine := pick(line)) is not None and engine.clocks_mhz else None


def _rail(label: str) -> Take:
    return lambda line: next((rail.current_mw * 1e-3 for rail in line.rails if rail.label == label), None)


def _average(label: str) -> Take:
    """Tegrastats' own mean since it was started."""

    def take(line: TegraLine) -> float | None:
        means = [rail.average_mw for rail in line.rails if rail.label == label and rail.average_mw is not None]
        return means[0] * 1e-3 if means else None

    return take


def _temperature(sensor: str) -> Take:
    return lambda line: line.temperatures_c.get(sensor)


def values_of(line: TegraLine, takes: Sequence[Take]) -> tuple[float, ...]:
    """A line as values, NaN where it lacks one."""
    found = (take(line) for take in takes)
    return tuple(NAN if value is None else float(value) for value in found)


class TegraGroup:
    """The child's lines as rows. Silence, an end and lines without power are a SensorError, and a new child."""

    def __init__(self, info: GroupInfo, takes: Sequence[Take], start: Callable[[int], Child], clock: Clock) -> None:
        self.info = info
        self.rows_every_s = PERIOD_S
        self._takes = tuple(takes)
        self._start = start
        self._clock = clock
        self._child: Child | None = None
        self._line_ns = 0
        self._again_ns = 0
        self._failure: str | None = None

    def read(self) -> list[Row]:
        """The lines that have arrived since the last read."""
        now_ns = self._clock.monotonic_ns()
        if self._child is None and now_ns >= self._again_ns:
            self._launch(now_ns)
        rows = self._rows(now_ns) if self._child is not None else []
        if rows:
            self._failure = None
        elif self._child is not None:
            self._watch(now_ns)
        if self._failure is not None:
            raise SensorError(self._failure)
        return rows

    def _launch(self, now_ns: int) -> None:
        try:
            self._child = self._start(now_ns)
            self._line_ns = now_ns
        except OSError as error:
            self._lost(f"tegrastats cannot be run: {error.strerror}.", now_ns)

    def _rows(self, now_ns: int) -> list[Row]:
        assert self._child is not None
        lines = [line for line in map(parse_line, self._child.lines()) if line is not None]
        values = [values_of(line, self._takes) for line in lines]
        values = [found for found in values if found[0] == found[0]]  # without the first rail it is no reading
        step_ns = round(PERIOD_S * NS)
        # Lines that were kept back and come together are a period apart; none is older than the last one seen.
        times = [now_ns - step_ns * back for back in range(len(values) - 1, -1, -1)]
        rows = []
        for read_ns, found in zip(times, values, strict=True):
            if read_ns > self._line_ns:
                rows.append(Row(read_ns, max(read_ns - step_ns, self._line_ns), read_ns, found))
                self._line_ns = read_ns
        return rows

    def _watch(self, now_ns: int) -> None:
        assert self._child is not None
        silent_s = (now_ns - self._line_ns) / NS
        if self._child.finished:
            self._lost("tegrastats exited.", now_ns)
        elif silent_s > SILENCE_S:
            self._lost(f"tegrastats printed no line with power for {silent_s:.1f} s; restarting it.", now_ns)

    def _lost(self, why: str, now_ns: int) -> None:
        self.close()
        self._failure = why
        self._again_ns = now_ns + round(BACKOFF_S * NS)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            child, self._child = self._child, None
            child.end()


class Tegrastats:
    """The sensor."""

    name = "tegrastats"
    after: Sequence[str] = ("jetson",)

    def __init__(self, request: Request, *, start: Start = Child) -> None:
        self._machine = request.machine
        self._start = start
        self._command: list[str] = []
        self._channels: list[tuple[Channel, Take]] = []

    def probe(self) -> Report:
        """What the first line of a short run of it says."""
        self._channels = []
        binary = shutil.which("tegrastats", path=self._machine.environ.get("PATH", ""))
        if binary is None:
            return Report(self.name, State.ABSENT, "tegrastats was not found on the PATH.")
        self._command = [binary, "--interval", str(INTERVAL_MS)]
        line, said = self._first_line()
        if line is None:
            return Report(self.name, State.UNUSABLE, said)
        self._channels = line_channels(line)
        watts = [channel.name for channel, _ in self._channels if channel.unit == "W"]
        samples: dict[str, float | None] = {channel.name: take(line) for channel, take in self._channels}
        if not watts:
            why = "tegrastats runs, but its lines contain no power."
            return Report(self.name, State.UNUSABLE, why, "sudo everywatt doctor", samples, power=False)
        note = total_note([rail.label for rail in line.rails])
        device = {"device": "jetson", **({"note": note} if note else {})}
        return Report(self.name, State.USABLE, "one tegrastats, power integrated", None, samples, {}, [device])

    def _first_line(self) -> tuple[TegraLine | None, str]:
        clock = self._machine.clock
        start_ns = clock.monotonic_ns()
        try:
            child = self._start(self._command, self._machine.environ, start_ns)
        except OSError as error:
            return None, f"tegrastats cannot be run: {error.strerror}."
        said = ""
        try:
            while (now_ns := clock.monotonic_ns()) - start_ns < PROBE_S * NS:
                for text in child.lines():
                    line = parse_line(text)
                    if line is not None:
                        return line, ""
                    said = said or text.strip()
                if child.finished:
                    return None, f"tegrastats exited without printing a line{f': {said[:200]}' if said else '.'}"
                clock.sleep_until(now_ns + 20_000_000)
        finally:
            child.end()
        return None, f"tegrastats printed no line within {PROBE_S:g} s."

    def groups(self) -> list[TegraGroup]:
        """One group, fed by one child."""
        if not self._channels and not self.probe().usable:
            return []
        channels = tuple(channel for channel, _ in self._channels)
        takes = [take for _, take in self._channels]
        info = GroupInfo("tegrastats", self.name, "jetson", channels, label="tegrastats")
        command, environ = self._command, self._machine.environ
        return [TegraGroup(info, takes, lambda now: self._start(command, environ, now), self._machine.clock)]
