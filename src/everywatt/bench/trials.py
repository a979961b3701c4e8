"""What is compared: commands, each perhaps at several values of a parameter.

And one trial: a command inside a span of a recording, with what it used and how it ended.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Protocol

import numpy as np

from everywatt.api.meter import Meter
from everywatt.api.power import PowerLine, power_line
from everywatt.api.run import Run
from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict, declared
from everywatt.core.platforms import own_peak_bytes
from everywatt.core.spans import Span
from everywatt.energy.sources import addable, sources
from everywatt.sensors.child import let_go


@dataclass(frozen=True, slots=True)
class Candidate:
    """One command. `words` is what is started, `text` what the user wrote, `label` what tables call it."""

    index: int
    label: str
    text: str
    words: tuple[str, ...]
    params: Mapping[str, str] = field(default_factory=dict)


def candidates(
    commands: Sequence[str],
    *,
    params: Mapping[str, Sequence[str]] | None = None,
    names: Sequence[str] = (),
    shell: bool = False,
) -> tuple[Candidate, ...]:
    """Every command at every combination of parameters; `{n}` in a command stands for the parameter n.

    >>> [c.label for c in candidates(["sleep {n}"], params={"n": ["1", "2"]})]
    ['A n=1', 'A n=2']
    """
    params = params or {}
    unused = [name for name in params if not any("{" + name + "}" in command for command in commands)]
    if unused and "=" in unused[0]:
        words = unused[0].replace("=", " ", 1)
        raise UsageError(
            f"'{unused[0]}' is not a parameter: its values are a word of their own.", cure=f"--param {words}"
        )
    if unused:
        raise UsageError(f"No command uses the parameter '{unused[0]}'.", cure=f"'… {{{unused[0]}}} …' in a command")
    if len(names) > len(commands):
        raise UsageError(f"{len(names)} names were given for {len(commands)} commands.")
    found: list[Candidate] = []
    for place, command in enumerate(commands):
        name = names[place] if place < len(names) else letter(place)
        used = [key for key in params if "{" + key + "}" in command]
        for values in itertools.product(*(params[key] for key in used)):
            chosen = dict(zip(used, values, strict=True))
            text = command
            for key, value in chosen.items():
                text = text.replace("{" + key + "}", value)
            label = " ".join([*([name] if name else []), *(f"{key}={value}" for key, value in chosen.items())])
            found.append(Candidate(len(found), label, text, words_of(text, shell=shell), chosen))
    return tuple(found)


def words_of(command: str, *, shell: bool = False) -> tuple[str, ...]:
    """The words of a command line; with `shell`, a shell that reads it."""
    if shell:
        return ("/bin/sh", "-c", command)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"The command {command!r} cannot be split into words: {error}.") from None
    if not words:
        raise UsageError("A command is empty.")
    return tuple(words)


def letter(place: int) -> str:
    """A, B, … Z, AA, AB, …"""
    name = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        name = chr(65 + rest) + name
    return name


def parse_params(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The values of each parameter in pairs of a name and `1,2,4` or `1..9:2`."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"The parameter '{twice}' is given twice.", cure=f"--param {twice} VALUE,VALUE")
    return {name: parse_values(text) for name, text in pairs}


def parse_values(text: str) -> list[str]:
    """`1,2,4` or a range `1..9:2`, as texts."""
    if ".." in text:
        first, _, rest = text.partition("..")
        last, _, step = rest.partition(":")
        try:
            low, high, stride = (float(first), float(last), float(step or 1))
        except ValueError:
            raise UsageError(f"'{text}' is not a range such as 1..9 or 1..9:2.") from None
        if stride <= 0 or high < low or (high - low) / stride > 10_000:
            raise UsageError(f"'{text}' is not a range that goes up in at most 10,000 steps.")
        count = int((high - low) / stride + 1e-9) + 1
        return [f"{low + stride * place:g}" for place in range(count)]
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise UsageError(f"'{text}' has an empty value.")
    return values


TRIAL = "trial"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
END_S = 2.5  # from asking a command to end until it is killed


@dataclass(frozen=True, slots=True)
class PowerSamples(ToDict):
    """What the sensors read during a trial, summed over the devices: watts, how many readings of the slowest sensor,
    and how many of them came in a second."""

    mean_w: float
    sd_w: float | None
    min_w: float
    median_w: float
    max_w: float
    samples: int
    rate_hz: float


@dataclass(frozen=True, slots=True)
class Trial(ToDict):
    """What is known of one trial. `energy`, `net` and `power` are None until the tape has all of it."""

    JSON = "candidate block place exit_code seconds cpu_s max_rss_bytes warmup energy energy_net=net power"

    candidate: int
    block: int
    place: int
    span: str | None
    exit_code: int
    seconds: float
    cpu_s: float
    max_rss_bytes: int | None
    warmup: bool = False
    energy: Energy | None = None
    net: Energy | None = None
    power: PowerSamples | None = None

    @property
    def failed(self) -> bool:
        """Whether the command ended with another code than 0."""
        return self.exit_code != 0

    @property
    def joules(self) -> float | None:
        """Its energy where there is a figure."""
        return None if self.energy is None else self.energy.joules

    def shared(self, count: int) -> Trial:
        """Energies and times of one of the `count` equal pieces of work that it did."""

        def each(energy: Energy | None) -> Energy | None:
            return energy if energy is None or energy.joules is None else energy / count

        seconds, cpu_s = self.seconds / count, self.cpu_s / count
        return replace(self, energy=each(self.energy), net=each(self.net), seconds=seconds, cpu_s=cpu_s)


class Execute(Protocol):
    """Runs a command: exit code, CPU seconds, peak bytes."""

    def __call__(self, words: Sequence[str], *, show_output: bool = False) -> tuple[int, float, int | None]: ...


def execute(words: Sequence[str], *, show_output: bool = False) -> tuple[int, float, int | None]:
    """Exit code (126, 127 and 128+n as a shell's), CPU seconds and peak bytes of a command and all it waited for.

    The kernel hands the peak of the process that starts a command down to it, so a smaller one cannot be known (None).
    """
    out = None if show_output else subprocess.DEVNULL
    own_peak = own_peak_bytes()
    try:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    except FileNotFoundError:
        return NOT_FOUND, 0.0, None
    except OSError:
        return NOT_EXECUTABLE, 0.0, None
    try:
        _, status, usage = os.wait4(child.pid, 0)
    except BaseException:
        child.terminate()  # it is in the way of our own end
        let_go(child, END_S)
        raise
    child.returncode = code = os.waitstatus_to_exitcode(status)
    code = 128 - code if code < 0 else code
    peak = usage.ru_maxrss * 1024
    return code, usage.ru_utime + usage.ru_stime, peak if peak > own_peak else None


def run_trial(
    meter: Meter,
    candidate: Candidate,
    *,
    block: int,
    place: int,
    warmup: bool = False,
    show_output: bool = False,
    clock: Clock | None = None,
    execute: Execute = execute,
) -> Trial:
    """Start the command, wait for it, and keep what it used. Its stdin is empty; its output is dropped unless shown."""
    attributes = {
        "role": TRIAL,
        **declared(candidate, "candidate=index label command=text params"),
        "block": block,
        "place": place,
        "warmup": warmup,
    }
    recording = meter.recording
    uid = recording.span_open(TRIAL, attributes=attributes) if recording is not None else None
    clock = clock or SystemClock()
    began_ns = clock.monotonic_ns()
    code, cpu_s, rss = execute(candidate.words, show_output=show_output)
    seconds = (clock.monotonic_ns() - began_ns) / NS
    if recording is not None and uid is not None:
        ended = {"exit_code": code, "cpu_s": cpu_s, "max_rss_bytes": rss, "seconds": seconds}
        recording.span_close(uid, attributes=ended)
    return Trial(candidate.index, block, place, uid, code, seconds, cpu_s, rss, warmup)


def last_line(file: IO[bytes], most_chars: int) -> str:
    """The last line in a file that another process writes to: of what a program printed, often why it ended."""
    end = os.fstat(file.fileno()).st_size
    text = os.pread(file.fileno(), 4096, max(0, end - 4096)).decode("utf-8", "replace")
    return text.strip().rpartition("\n")[2][:most_chars]


def from_span(span: Span) -> Trial | None:
    """The trial that a span of a tape describes; None for other spans and for one that was cut off."""
    known = span.attributes
    if known.get("role") != TRIAL or span.end_ns is None or "exit_code" not in known:
        return None
    return Trial(
        int(known["candidate"]),
        int(known["block"]),
        int(known["place"]),
        span.id,
        int(known["exit_code"]),
        float(known.get("seconds", span.duration_s or 0.0)),
        float(known.get("cpu_s", 0.0)),
        known.get("max_rss_bytes"),
        bool(known.get("warmup", False)),
    )


def with_energy(trials: Sequence[Trial], run: Run, *, live: bool = False) -> list[Trial]:
    """The trials with their energies, as far as the tape has them; a live one has not yet what comes after its end.

    Of a live run each is asked for once; what is learnt later, such as idle power, is in figures of the finished one.
    """
    spans = {span.id: span for span in run.spans}
    last_ns = max(tape.extent_ns()[1] for tape in run.tapes)
    filled = []
    for trial in trials:
        span = spans.get(trial.span or "")
        ended_ns = None if span is None else span.end_ns
        if span and ended_ns is not None and (not live or (trial.energy is None and ended_ns < last_ns)):
            trial = replace(trial, energy=run.energy(span), net=run.energy_net(span))
        filled.append(trial)
    return filled


def with_power(trials: Sequence[Trial], run: Run) -> list[Trial]:
    """The trials with what the sensors read meanwhile, as far as there were readings."""
    edges = {span.id: (span.start_ns, span.end_ns) for span in run.spans if span.end_ns is not None}
    lines = {
        tape: [line for source in addable(sources(tape)) if (line := power_line(source)) is not None]
        for tape in run.tapes
    }
    found = []
    for trial in trials:
        span = edges.get(trial.span or "")
        samples = [one for mine in lines.values() if span and (one := _samples(mine, *span)) is not None]
        found.append(replace(trial, power=samples[0]) if samples else trial)
    return found


def _samples(lines: Sequence[PowerLine], start_ns: int, end_ns: int) -> PowerSamples | None:
    """The sum of all devices between two readings of the slowest of them."""
    inside = [line.at_ns[(line.at_ns >= start_ns) & (line.at_ns <= end_ns)] for line in lines]
    if not inside or min(map(len, inside)) < 2:
        return None
    at_ns = min(inside, key=len)
    watts = np.sum([line.means(at_ns) for line in lines], axis=0)
    watts = watts[np.isfinite(watts)]
    if not len(watts):
        return None
    return PowerSamples(
        float(watts.mean()),
        float(watts.std(ddof=1)) if len(watts) > 1 else None,
        float(watts.min()),
        float(np.median(watts)),
        float(watts.max()),
        len(watts),
        (len(at_ns) - 1) / (int(at_ns[-1] - at_ns[0]) / NS),
    )
