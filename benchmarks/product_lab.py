"""Tapes with a known truth, and the questions a user asks of them.

Simulated loads have a closed form. A simulated sensor publishes what it would of such a load, and its publications are
written to a tape as the recorder or an importer writes them; real recordings go through `everywatt import`. Figures are
then asked of the product: `Run.energy`, a span's energy, the ledger by span, items of a batch, queries, jobs.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from unittest import mock

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run, load
from everywatt.batch.items import Item
from everywatt.batch.journal import DONE, Attempt, Device, Journal, read_journal
from everywatt.batch.measuring import figures
from everywatt.bench.llm.energy import bill
from everywatt.bench.llm.records import OK, Answer, Record
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS, Anchor
from everywatt.core.energy import Energy
from everywatt.core.spans import Span
from everywatt.models.applying import apply
from everywatt.models.fitting import fit
from everywatt.models.sensor import info_of
from everywatt.models.table import Table
from everywatt.sensors.nvidia import gpu_known
from everywatt.tape.importing import Recording, import_files, write_tape

Array = npt.NDArray[np.float64]

ORIGIN_NS = 100 * NS
UTC_NS = 1_700_000_000 * NS
SECONDS = 60.0
IDLE_S = ((0.0, 4.0), (28.0, 31.0))  # stretches in which every load rests: at the start and in the middle
BRACKET_S = 0.001  # a recorder knows the time of a publication to about this
DRIVER_WINDOW_S = 0.2  # over which a driver averages utilisation
DRIVER_READ_S = 0.16
RECORDED_CARDS = {"A100": "NVIDIA A100-PCIE-40GB", "RTX3090": "NVIDIA GeForce RTX 3090"}
ROOT = "root"
MODELLED = "cpu.0.package.power"
LOG_ZONE_H = 1  # the logs' clocks were UTC+1


@dataclass(frozen=True)
class Load:
    """Power over time in straight pieces, and when a driver calls the device busy."""

    t_s: Array
    watts: Array
    busy: Array | None = None  # 0 or 1 for each piece; None: busy wherever power is above the lowest

    def energy(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Array:
        """Joules between two times."""
        return self._integral(self.watts, b) - self._integral(self.watts, a)

    def busy_s(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Array:
        """Seconds of them that were busy."""
        flags = self.watts > self.watts.min() + 1e-9 if self.busy is None else self.busy
        return self._integral(flags.astype(np.float64), b) - self._integral(flags.astype(np.float64), a)

    def times(self, share: float) -> Load:
        """The same load of a smaller or larger board."""
        return replace(self, watts=self.watts * share)

    def _integral(self, values: Array, at: npt.ArrayLike) -> Array:
        knots = np.append(self.t_s, SECONDS + 60.0)
        total = np.concatenate(([0.0], np.cumsum(values * np.diff(knots))))
        return np.asarray(np.interp(at, knots, total))


def pieces(flips: Array, low: float, high: float, always_busy: bool = False) -> Load:
    """Alternating levels from the first flip on, `low` before it and in the idle stretches."""
    flips = flips[(flips > IDLE_S[0][1]) & (flips < SECONDS + 3)]
    t = np.concatenate(([-5.0], flips))
    watts = np.where(np.arange(len(t)) % 2 == 0, low, high).astype(np.float64)
    active = np.ones(len(t))
    active[0] = 0.0
    rest = IDLE_S[1]
    before, after = np.searchsorted(t, rest)
    resume = watts[after - 1]
    t = np.concatenate((t[:before], rest, t[after:]))
    watts = np.concatenate((watts[:before], [low, resume], watts[after:]))
    active = np.concatenate((active[:before], [0.0, 1.0], active[after:]))
    return Load(t, watts, active if always_busy else None)


def pulses(on_s: float, period_s: float, low: float, high: float, always_busy: bool = False) -> Callable[..., Load]:
    """`on_s` at the upper level every period, from a random phase."""

    def make(rng: np.random.Generator) -> Load:
        starts = rng.uniform(0, period_s) + np.arange(3.0, SECONDS + 3, period_s)
        return pieces(np.stack((starts, starts + on_s), axis=1).ravel(), low, high, always_busy)

    return make


def telegraph(dwell_s: float) -> Callable[..., Load]:
    """On and off for random times."""
    return lambda rng: pieces(3.0 + np.cumsum(rng.exponential(dwell_s, int(1.3 * SECONDS / dwell_s))), 90.0, 330.0)


def spikes(rng: np.random.Generator) -> Load:
    """Idle, with 15 ms of work now and then."""
    starts = 3.0 + np.cumsum(rng.uniform(0.2, 0.9, 120))
    return pieces(np.stack((starts, starts + 0.015), axis=1).ravel(), 60.0, 300.0)


def sawtooth(rng: np.random.Generator) -> Load:
    """Ramps of 1.1 s in steps of 10 ms."""
    t = np.arange(-5.0, SECONDS + 3, 0.01)
    watts = 90.0 + 240.0 * ((t + rng.uniform(0, 1.1)) % 1.1) / 1.1
    rest = (t < IDLE_S[0][1]) | ((t >= IDLE_S[1][0]) & (t < IDLE_S[1][1]))
    return Load(t, np.where(rest, 90.0, watts), (~rest).astype(np.float64))


def steady(rng: np.random.Generator) -> Load:
    return pieces(np.array([4.5]), 80.0, 300.0)


def idle(rng: np.random.Generator) -> Load:
    return Load(np.array([-5.0]), np.array([60.0]), np.array([0.0]))


LOADS: dict[str, Callable[..., Load]] = {
    "steady": steady,
    "idle": idle,
    "square 0.7 s": pulses(0.35, 0.7, 90.0, 330.0),
    "bursts 7 of 33 ms": pulses(0.007, 0.033, 100.0, 350.0),
    "telegraph 60 ms": telegraph(0.06),
    "telegraph 400 ms": telegraph(0.4),
    "on/off 100 ms": pulses(0.05, 0.1, 90.0, 330.0),
    "on/off 50 ms": pulses(0.025, 0.05, 90.0, 330.0),
    "rare spikes": spikes,
    "decode pulses": pulses(0.02, 0.047, 150.0, 340.0, always_busy=True),
    "sawtooth": sawtooth,
}


@dataclass(frozen=True)
class Sensor:
    """What a simulated sensor publishes, and what is known of it.

    window_s     what a gauge averages before its publication; a counter ignores it
    known        the averaging window stands in the channel's facts
    utilisation  the driver reports it
    seen_s       what the sensor behind a counter sees of each period; None: all of it
    drift        the clock of the sensor is this share fast
    noise_w      sd of the noise of a gauge's reading
    stall_s      it stops publishing from the 20th second on for this long; polls then repeat the last value
    wrap_j       a counter starts again here; gap_s: the recorder was stopped for this long at the 40th second
    """

    counter: bool = False
    period_s: float = 0.1
    window_s: float = 0.1
    known: bool = True
    utilisation: bool = True
    seen_s: float | None = None
    jitter_s: float = 0.0
    drift: float = 0.0
    quantum: float = 0.001
    noise_w: float = 0.0
    stall_s: float = 0.0
    wrap_j: float | None = None
    gap_s: float = 0.0
    max_w: float | None = 500.0
    gain: float = 1.0
    offset_w: float = 0.0
    gain_pct: float | None = 0.0
    offset_within_w: float | None = 0.0
    model: str | None = None
    facts: Facts | None = None  # what is known of a card by its name; instead of `known` and the tolerances above
    bracket_s: float = BRACKET_S  # to which the recorder knows the time of a publication


SENSORS: dict[str, Sensor] = {
    "counter 100 ms": Sensor(counter=True),
    "counter 20 ms": Sensor(counter=True, period_s=0.02),
    "gauge 100 of 100 ms": Sensor(),
    "gauge 25 of 100 ms": Sensor(window_s=0.025),
    "gauge 1 s every 100 ms": Sensor(window_s=1.0),
    "gauge 25 of 100 ms, window unknown": Sensor(window_s=0.025, known=False),
    "gauge 100 of 100 ms, window unknown": Sensor(known=False),
}


# What is known of real cards (`gpu_known`): a name that the product knows, driver, reading, and the range of what such
# cards really average of each period (or, of a counter, what the sensor behind it sees).
Cards = tuple[tuple[str, str, gpu_known.Reading, tuple[float, float]], ...]
KNOWN_CARDS: Cards = (
    ("NVIDIA A100-PCIE-40GB", "525.60", "draw", (0.018, 0.025)),
    ("NVIDIA H100 PCIe", "535.54", "instant", (0.022, 0.025)),
    ("NVIDIA GeForce RTX 3090", "535.54", "instant", (0.1, 0.1)),
    ("NVIDIA GeForce RTX 3090", "535.54", "draw", (1.0, 1.05)),
    ("NVIDIA RTX A5000", "535.54", "instant", (0.08, 0.08)),
    ("Quadro RTX 8000", "525.60", "draw", (0.02, 0.02)),
    ("Tesla V100-SXM2-16GB", "525.60", "draw", (0.01, 0.01)),
    ("NVIDIA GeForce GTX 1080 Ti", "525.60", "draw", (0.01, 0.01)),
    ("Tesla M40", "525.60", "draw", (0.014, 0.014)),
    ("NVIDIA GeForce RTX 4090", "535.54", "counter", (0.1, 0.1)),
    ("NVIDIA GeForce RTX 3090", "535.54", "counter", (0.1, 0.1)),
)
UNKNOWN_CARDS: Cards = (
    ("NVIDIA Z900", "600.10", "draw", (0.025, 0.1)),
    ("NVIDIA Z900", "600.10", "draw", (1.0, 1.0)),
)
PART_TIME_COUNTERS: Cards = (
    ("NVIDIA A100-PCIE-40GB", "525.60", "counter", (0.018, 0.025)),
    ("NVIDIA H100 PCIe", "535.54", "counter", (0.022, 0.025)),
)


def drawn_card(rng: np.random.Generator, cards: Cards = KNOWN_CARDS, number: int | None = None) -> Sensor:
    """A card as real ones are: its window and period of one of these, limit, gain and offset near a measured card's.

    The measured cards take turns by `number`: at random, a few dozen cards hold some of them twice as often as others.
    Gain and offset stay on a board of the limit on which they were measured, so that nothing is assumed of how they
    depend on it. What the product knows of a card is what it knows of the name, without the measured cards of the model
    that gain and offset are of.
    """
    name, driver, reading, windows = cards[rng.integers(len(cards))]
    drawn = int(rng.integers(len(gpu_known.CARDS)))
    real = gpu_known.CARDS[drawn if number is None else number % len(gpu_known.CARDS)]
    facts = gpu_known.facts_for(name, driver, real.limit_w, reading, leave_out=(real.model,))
    period_s = facts.period_s or float(rng.choice([0.02, 0.05, 0.1]))
    window_s = float(rng.uniform(*windows))
    return Sensor(
        counter=reading == "counter",
        period_s=period_s,
        window_s=window_s,
        seen_s=window_s if reading == "counter" and window_s < period_s else None,
        gain=1 + (real.gradient_pct + rng.normal(0, 0.5)) / 100,
        offset_w=real.offset_w + real.limit_w * rng.normal(0, 0.003),
        max_w=real.limit_w,
        facts=facts,
    )


@dataclass(frozen=True)
class Case:
    """A load, or what happens to a sensor: `make` gives the loads of all cards, `changes` are of the sensor."""

    make: Callable[[np.random.Generator, Sensor], Sequence[Load]]
    changes: Callable[[Sensor], dict[str, object]] = lambda sensor: {}
    in_phase: bool = False


def _one(name: str) -> Callable[[np.random.Generator, Sensor], Sequence[Load]]:
    return lambda rng, sensor: [LOADS[name](rng)]


def _locked(periods: float) -> Callable[[np.random.Generator, Sensor], Sequence[Load]]:
    def make(rng: np.random.Generator, sensor: Sensor) -> Sequence[Load]:
        return [pulses(sensor.period_s * periods / 2, sensor.period_s * periods, 90.0, 330.0)(rng)]

    return make


def _antiphase(rng: np.random.Generator, sensor: Sensor) -> Sequence[Load]:
    one = pulses(0.35, 0.7, 90.0, 330.0)(rng)
    return [one, replace(one, watts=420.0 - one.watts, busy=(one.watts < 200.0).astype(np.float64))]


def _lock_step(rng: np.random.Generator, sensor: Sensor) -> Sequence[Load]:
    return [pulses(0.05, 0.13, 90.0, 330.0)(rng)] * 8


CASES: dict[str, Case] = {
    **{name: Case(_one(name)) for name in LOADS if not name.startswith("on/off")},
    "on/off at the period": Case(_locked(1.0)),
    "on/off at half the period": Case(_locked(0.5)),
    "antiphase": Case(_antiphase),
    "lock-step of 8": Case(_lock_step, in_phase=True),
    "drift 0.2 %": Case(_one("telegraph 400 ms"), lambda sensor: {"drift": 0.002}),
    "drift 3 %": Case(_one("telegraph 400 ms"), lambda sensor: {"drift": 0.03}),
    "jitter": Case(_one("square 0.7 s"), lambda sensor: {"jitter_s": 0.2 * sensor.period_s}),
    "stall of 2 s": Case(_one("telegraph 400 ms"), lambda sensor: {"stall_s": 2.0, "noise_w": 0.5, "quantum": 0.01}),
    "quantum of 1 J": Case(_one("square 0.7 s"), lambda sensor: {"quantum": 1.0}),
    "wrap in a gap of 3 s": Case(
        _one("telegraph 400 ms"), lambda sensor: {"gap_s": 3.0, "wrap_j": 1500.0 if sensor.counter else None}
    ),
}


def recorded_case(
    case: str, sensor: Sensor, out: Path, rng: np.random.Generator, spans: Sequence[tuple[float, float]] = ()
) -> Recorded:
    """One case recorded by a card, and by others of its kind where it needs several."""
    about = CASES[case]
    loads = [load.times((sensor.max_w or 350.0) / 350.0) for load in about.make(rng, sensor)]
    sensors = [replace(sensor, **about.changes(sensor))]  # type: ignore[arg-type]
    for _ in loads[1:]:
        other = drawn_card(rng)
        sensors.append(replace(sensors[0], gain=other.gain, offset_w=other.offset_w))
    return record(loads, sensors, out, rng, spans=spans, in_phase=about.in_phase, root=True)


@dataclass(frozen=True)
class Recorded:
    """A run and the truth of each of its devices; times in seconds after the run's start."""

    run: Run
    truth: Callable[[Array, Array], Array]
    span_s: tuple[float, float]


def record(
    made: Load | Sequence[Load],
    sensor: Sensor | Sequence[Sensor],
    out: Path,
    rng: np.random.Generator,
    *,
    seconds: float = SECONDS,
    spans: Sequence[tuple[float, float]] = (),
    in_phase: bool = False,
    root: bool = False,
) -> Recorded:
    """A tape of one card for each load. Cards publish at phases of their own unless `in_phase`.

    `root` puts a span around all others, as a run that everywatt records has it.
    """
    loads = [made] if isinstance(made, Load) else list(made)
    sensors = [sensor] * len(loads) if isinstance(sensor, Sensor) else list(sensor)
    phase = rng.uniform(0, sensors[0].period_s)
    recordings = []
    for number, (one, its) in enumerate(zip(loads, sensors, strict=True)):
        own = phase if in_phase else rng.uniform(0, its.period_s)
        recordings += _card(f"gpu.{number}", one, its, own, seconds, rng)
    last_ns = ORIGIN_NS + round(seconds * NS)
    anchors = [Anchor(at, UTC_NS + at, at, 0) for at in (ORIGIN_NS, last_ns)]
    opened = [
        Span(f"s{number}", f"step {number}", _ns(a), _ns(b), ROOT if root else None)
        for number, (a, b) in enumerate(spans)
    ]
    if root:
        opened.insert(0, Span(ROOT, "run", ORIGIN_NS, last_ns, None, {"role": "run"}))
    write_tape(out, recordings, meta={"host": {"name": "box"}}, anchors=anchors, spans=opened)
    run = load(out)
    begin_s = (run.tapes[0].extent_ns()[0] - ORIGIN_NS) / NS

    def truth(a: Array, b: Array) -> Array:
        return np.asarray(sum(one.energy(a + begin_s, b + begin_s) for one in loads))

    return Recorded(run, truth, (1.0 - begin_s, seconds - 1.0 - begin_s))


def _card(
    device: str, one: Load, sensor: Sensor, phase: float, seconds: float, rng: np.random.Generator
) -> list[Recording]:
    at = phase + np.arange(0.0, seconds, sensor.period_s * (1 - sensor.drift))
    at = at + rng.uniform(0, sensor.jitter_s, len(at)) if sensor.jitter_s else at
    if sensor.stall_s:
        stalled = (at > 20.0) & (at < 20.0 + sensor.stall_s)
        # A stalled driver goes on answering with its last value, and nothing says that it is old.
        source = np.where(stalled, at[~stalled & (at <= 20.0)][-1], at)
    else:
        source = at
    if sensor.counter:
        counted = one.energy(-4.0, source)
        if sensor.seen_s is not None:
            counted = np.cumsum(one.energy(source - sensor.seen_s, source) / sensor.seen_s * np.diff(source, prepend=0))
        joules = sensor.gain * counted + sensor.offset_w * (source + 4.0)
        values = np.floor(joules / sensor.quantum) * sensor.quantum
        if sensor.wrap_j is not None:
            values = values % sensor.wrap_j
    else:
        watts = one.energy(source - sensor.window_s, source) / sensor.window_s
        if sensor.noise_w:
            noise = rng.normal(0, sensor.noise_w, len(at))
            watts = watts + noise[np.searchsorted(at, source)]
        values = np.round((sensor.gain * watts + sensor.offset_w) / sensor.quantum) * sensor.quantum
    lost = (at > 40.0) & (at < 40.0 + sensor.gap_s)
    early = at - rng.uniform(0, sensor.bracket_s, len(at))
    rows = [
        Row(_ns(a + sensor.bracket_s), _ns(a), _ns(a + sensor.bracket_s), (float(v),))
        for a, v in zip(early[~lost], values[~lost], strict=True)
    ]
    facts = Facts(
        period_s=sensor.period_s if sensor.known else None,
        window_s=sensor.window_s if sensor.known and not sensor.counter else None,
        quantum=sensor.quantum,
        wrap=sensor.wrap_j,
        max_w=sensor.max_w,
        gain_pct=sensor.gain_pct,
        offset_w=sensor.offset_within_w,
        cards=sensor.model,
    )
    if sensor.facts is not None:
        facts = replace(sensor.facts, quantum=sensor.quantum, wrap=sensor.wrap_j)
    name, unit, kind = ("energy", "J", Kind.COUNTER) if sensor.counter else ("power", "W", Kind.GAUGE)
    pedigree = Pedigree.COUNTER if sensor.counter else Pedigree.INTEGRATED
    channel = Channel(f"{device}.{name}", unit, kind, device, Domain.GPU, pedigree=pedigree, facts=facts)
    info = GroupInfo(device, "nvml", device, (channel,), tracked=True, label="simulated")
    found = [Recording(info, rows, sensor.period_s)]
    if sensor.utilisation:
        found.append(_utilisation(device, one, seconds, rng))
    return found


def modelled(out: Path, rng: np.random.Generator, rows: int = 240) -> Recorded:
    """A machine without a power sensor: a model learnt beside one, then recorded while other loads run.

    Watts are idle plus a bent law of CPU time plus what instructions cost. While it is recorded the same use costs a
    few percent more or less (another frequency, another fan), which no column says.
    """
    idle_w, most_w, bend = rng.uniform(10, 60), rng.uniform(60, 250), rng.uniform(0.6, 1.6)

    def table(shift: float, loads: int) -> Table:
        busy = np.repeat(rng.uniform(0, 1, loads), rows // loads) + rng.normal(0, 0.02, rows)
        busy = np.clip(busy, 0.001, 1.0)
        instructions = busy * np.repeat(rng.uniform(0.5, 2.0, loads), rows // loads)
        watts = idle_w + shift * most_w * (0.8 * busy**bend + 0.1 * instructions)
        columns = {"cpu_time": busy, "instructions": instructions, MODELLED: watts * rng.normal(1, 0.02, rows)}
        return Table(np.arange(1.0, rows + 1.0), columns)

    found = fit(table(1.0, 24), MODELLED)
    assert found.model is not None, found.why
    used = table(rng.normal(1.0, 0.03), 12)
    said = apply(found.model, used)
    info = info_of(found.model)
    farthest = [1 + info.names.index(names[0]) if names else 0 for names in said.outside]
    values = zip(said.watts, said.low, said.high, map(bool, farthest), farthest, strict=True)
    ticks = [
        Row(_ns(at), _ns(at), _ns(at), (*map(float, one[:4]), math.nan, math.nan, float(one[4])))
        for at, one in zip(used.times_s, values, strict=True)
    ]
    anchors = [Anchor(at, UTC_NS + at, at, 0) for at in (_ns(1.0), _ns(rows))]
    write_tape(out, [Recording(info, ticks, 1.0)], meta={"host": {"name": "box"}}, anchors=anchors)
    total = np.concatenate(([0.0], np.cumsum(used.column(MODELLED)[1:])))
    since_s = used.times_s - used.times_s[0]
    return Recorded(
        load(out), lambda a, b: np.interp(b, since_s, total) - np.interp(a, since_s, total), (0.0, rows - 1)
    )


def _utilisation(device: str, one: Load, seconds: float, rng: np.random.Generator) -> Recording:
    ends = rng.uniform(0, DRIVER_WINDOW_S) + np.arange(0.0, seconds + 0.2, DRIVER_WINDOW_S)
    percent = np.round(100 * one.busy_s(ends - DRIVER_WINDOW_S, ends) / DRIVER_WINDOW_S)
    reads = np.arange(ends[0] + 0.01, seconds, DRIVER_READ_S)
    seen = percent[np.searchsorted(ends, reads, side="right") - 1]
    rows = [Row(_ns(t), _ns(t), _ns(t), (float(u),)) for t, u in zip(reads, seen, strict=True)]
    channel = Channel(f"{device}.utilisation", "%", Kind.GAUGE, device)
    return Recording(GroupInfo(f"{device}.state", "nvml", device, (channel,)), rows, DRIVER_READ_S)


def _ns(at_s: float) -> int:
    return ORIGIN_NS + round(float(at_s) * NS)


def card_of(folder: Path) -> tuple[str, tuple[str, ...]]:
    """A recording's card by the name of its folder (MODEL_load), and the models of the table that it is one of."""
    short = folder.name.split("_")[0]
    number = re.sub(r"^(RTX|GTX)", "", short)
    mine = tuple({card.model for card in gpu_known.CARDS if number in card.model.replace(" ", "")})
    return RECORDED_CARDS.get(short, "NVIDIA " + re.sub(r"^(RTX|GTX)(?=\d)", r"\1 ", short)), mine


@contextmanager
def left_out(models: Sequence[str]) -> Iterator[None]:
    """The measured cards of these models say nothing of how far a card may be off: a model is not scored by itself."""
    spread = gpu_known.spread
    with mock.patch.object(gpu_known, "spread", lambda *words: spread(*words, *models)):
        yield


def imported(folder: Path, out: Path, **options: object) -> Recorded:
    """A recording of a real card beside a meter, through `everywatt import nvidia-smi`."""
    log = next(path for path in (folder / "nvidia_smi.csv", folder / "nvidia_smi.csv.gz") if path.exists())
    import_files("nvidia-smi", [log], out, {"zone_h": LOG_ZONE_H, **options})
    run = load(out)
    origin_s = run.tapes[0].to_utc_ns(run.tapes[0].extent_ns()[0]) / NS
    t_s, watts = metered(folder)
    return Recorded(run, *truth_of(t_s - origin_s, watts))


def metered(folder: Path) -> tuple[Array, Array]:
    """Unix times and watts of the meter beside a card."""
    with gzip.open(folder / "meter.csv.gz", "rt") as file:
        meter = np.loadtxt(file, delimiter=",", skiprows=1)
    return meter[:, 0], meter[:, 1]


def truth_of(t_s: Array, watts: Array) -> tuple[Callable[[Array, Array], Array], tuple[float, float]]:
    """What a meter says of windows, and from when to when it says something."""
    total = np.concatenate(([0.0], np.cumsum((watts[1:] + watts[:-1]) / 2 * np.diff(t_s))))
    return (
        lambda a, b: np.asarray(np.interp(b, t_s, total) - np.interp(a, t_s, total)),
        (t_s[0] + 0.01, t_s[-1] - 0.01),
    )


@dataclass(frozen=True)
class Answers:
    """Figures of windows, their 95 % intervals and the truth, in joules."""

    truth: Array
    joules: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, truth: npt.ArrayLike, figures: Sequence[Energy]) -> Answers:
        """Refused figures are left out."""
        kept = [k for k, figure in enumerate(figures) if figure.joules is not None]
        columns = ([getattr(figures[k], name) for k in kept] for name in ("joules", "low", "high"))
        return cls(
            np.asarray(truth, dtype=np.float64)[kept], *(np.array(column, dtype=np.float64) for column in columns)
        )

    def __add__(self, other: Answers) -> Answers:
        return Answers(
            *(np.concatenate((getattr(self, f), getattr(other, f))) for f in ("truth", "joules", "low", "high"))
        )

    def holds(self, level: float = 0.95) -> float:
        """Share of intervals that hold the truth; those of other levels have the shape of the one of 95 %."""
        share = _normal_quantile(level) / _normal_quantile(0.95)
        rounding = 1e-9 * np.abs(self.truth)
        low = self.joules - share * (self.joules - self.low) - rounding
        high = self.joules + share * (self.high - self.joules) + rounding
        return float(np.mean((low <= self.truth) & (self.truth <= high)))

    def within(self, share: float) -> float:
        """Share of figures that are no more than so far off: what a fixed percentage would hold."""
        return float(np.mean(np.abs(self.joules - self.truth) <= share * self.joules))

    @property
    def width_pct(self) -> float:
        """Median half-width in percent of the figure."""
        return 100 * float(np.median((self.high - self.low) / 2 / np.maximum(np.abs(self.joules), 1e-12)))

    @property
    def score_pct(self) -> float:
        """Mean interval score in percent of the truth: the width, and 40 times the distance of the truth outside."""
        outside = np.maximum(self.low - self.truth, 0) + np.maximum(self.truth - self.high, 0)
        return 100 * float(np.mean((self.high - self.low + 40 * outside) / self.truth))

    @property
    def p95_error_pct(self) -> float:
        return 100 * float(np.percentile(np.abs(self.joules / self.truth - 1), 95))

    def __len__(self) -> int:
        return len(self.truth)

    def __str__(self) -> str:
        held = " ".join(f"{100 * self.holds(level):5.1f}" for level in (0.5, 0.8, 0.95))
        return (
            f"n={len(self):5d} holds {held} %"
            f"  ± {self.width_pct:5.2f} %  score {self.score_pct:6.1f}  p95 {self.p95_error_pct:6.2f} %"
        )


def _normal_quantile(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)


def random_windows(recorded: Recorded, length_s: float, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Random windows of one length."""
    start = rng.uniform(recorded.span_s[0], recorded.span_s[1] - length_s, count)
    return start, start + length_s


def by_windows(recorded: Recorded, length_s: float, count: int, rng: np.random.Generator) -> Answers:
    """`Run.energy(between=…)`."""
    a, b = random_windows(recorded, length_s, count, rng)
    figures = [recorded.run.energy(between=(float(x), float(y))) for x, y in zip(a, b, strict=True)]
    return Answers.of(recorded.truth(a, b), figures)


def spans_of(
    length_s: float, every_s: float, seconds: float = SECONDS, first_s: float = 2.0
) -> list[tuple[float, float]]:
    """Spans one after another."""
    return [(float(a), float(a + length_s)) for a in np.arange(first_s, seconds - length_s - 1, every_s)]


def spans_in(run: Run) -> list[Span]:
    """The spans that are asked for."""
    return [span for span in run.spans if span.id != ROOT]


def by_spans(recorded: Recorded, length_s: float | None = None) -> Answers:
    """`Run.energy(span)` of every span, or of those of one length."""
    spans = [one for one in spans_in(recorded.run) if length_s in (None, round(one.duration_s or 0.0, 3))]
    return Answers.of(_span_truth(recorded, spans), [recorded.run.energy(span) for span in spans])


def by_ledger(recorded: Recorded) -> Answers:
    """`Run.ledger(by="span")`: the entry of every span."""
    low, high = recorded.run.tapes[0].extent_ns()
    entries = {e.owner.id: e.energy for e in recorded.run.ledger(by="span", between=(0.0, (high - low) / NS)).entries}
    spans = spans_in(recorded.run)
    return Answers.of(_span_truth(recorded, spans), [entries[span.id] for span in spans])


def _span_truth(recorded: Recorded, spans: Sequence[Span]) -> Array:
    origin = recorded.run.tapes[0].extent_ns()[0]
    starts = np.array([(span.start_ns - origin) / NS for span in spans])
    ends = np.array([((span.end_ns or 0) - origin) / NS for span in spans])
    return recorded.truth(starts, ends)


def by_items(recorded: Recorded) -> Answers:
    """Items of `everywatt batch`: one for each span."""
    spans = spans_in(recorded.run)
    items = [Item(number, span.id, span.name) for number, span in enumerate(spans)]
    folder = recorded.run.tapes[0].path.parent
    journal = Journal(folder)
    journal.batch(["work"], items, [Device("gpu.0", title="Card")])
    for item, span in zip(items, spans, strict=True):
        journal.start(item, Attempt(1, "gpu.0", 0, span.id, at="2026-01-01T00:00:00"))
        journal.end(item, 1, DONE, {"exit_code": 0, "runtime_s": 1.0}, final=True)
    journal.close()
    found = figures(recorded.run, read_journal(folder))
    return Answers.of(_span_truth(recorded, spans), [one.energy for one in found.items])


def by_queries(recorded: Recorded) -> Answers:
    """Queries of `bench llm`, one after another, of a server whose processes are not known."""
    spans = spans_in(recorded.run)
    asked = []
    for span in spans:
        pieces = tuple(int(at) for at in np.linspace(span.start_ns, span.end_ns or 0, 12)[1:])
        answer = Answer(
            OK,
            began_ns=span.start_ns,
            sent_ns=span.start_ns,
            ended_ns=span.end_ns or 0,
            piece_ns=pieces,
            output_tokens=11,
        )
        asked.append(Record(span.id, "1", span.id, answer))
    found = bill(recorded.run, asked).queries
    return Answers.of(_span_truth(recorded, spans), [found[span.id].energy for span in spans])
