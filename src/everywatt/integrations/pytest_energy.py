"""Energy in tests: the fixture `energy`, the mark `max_energy`, and baselines in a file. `everywatt.testing` has them.

@pytest.mark.max_energy("5 J")
def test_sorting_is_cheap(): ...

@pytest.mark.max_energy("5 J", cpu="200 ms")   # where power is only modelled, CPU time decides
def test_also_without_sensors(): ...

@pytest.mark.max_energy("+10%")          # of the stored baseline; pytest --energy-update stores it
def test_uses_no_more_than_before(): ...

def test_block(energy):
    with energy.measure() as block:
        work()
    energy.at_most(block, "5 J")

A limit is decided by what is known: joules where they are measured, CPU seconds where power is only modelled. A limit
that cannot be decided is shown in the summary, and fails with --energy-strict.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import pytest

if TYPE_CHECKING:
    from everywatt.api.measurement import Measurement
    from everywatt.core.energy import Energy

MARK = "max_energy"
FILE = "energy-baselines.json"
PROPERTY, UNDECIDED = "energy", "energy undecided"
CPU_SHARE, CPU_SLACK_S = 0.02, 0.005
"""CPU time of the same work varies by about so much: a share of the limit, and seconds."""


class EnergyWarning(UserWarning):
    """A limit on energy could not be decided: there was no figure, or its interval holds the limit."""


class Baseline(TypedDict):
    """A stored figure. `own` is the half-width of what differs between measurements on its host; files of earlier
    versions have no `cpu_s`."""

    joules: float | None
    cpu_s: NotRequired[float | None]
    own: float
    low: float | None
    high: float | None
    scope: str
    pedigree: str
    host: str


class Baselines:
    """Stored energies by the test's id, in a JSON file that is replaced as a whole."""

    def __init__(self, path: Path, *, update: bool, strict: bool = False) -> None:
        self.path = path
        self.update = update
        self.strict = strict

    def get(self, name: str) -> Baseline | None:
        return self._read().get(name)

    def put(self, name: str, energy: Energy, cpu_s: float | None = None) -> None:
        """Store a figure; several processes of one test run may do so at once."""
        import fcntl

        # The folder is the lock: a lock file would stay behind, or be removed while another process waits for it.
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            known = self._read()
            known[name] = {
                "joules": energy.joules,
                "cpu_s": cpu_s,
                "own": own_half(energy),
                "low": energy.low,
                "high": energy.high,
                "scope": energy.scope,
                "pedigree": energy.pedigree,
                "host": platform.node(),
            }
            from everywatt.core.files import replace_text

            tests = {"schema": "everywatt/1", "kind": "energy-baselines", "tests": dict(sorted(known.items()))}
            replace_text(self.path, json.dumps(tests, indent=2) + "\n")
        finally:
            os.close(folder)

    def _read(self) -> dict[str, Baseline]:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise pytest.UsageError(f"{self.path} is not JSON: {error}") from None
        tests: dict[str, Baseline] = data.get("tests", {})
        return tests


def own_half(energy: Energy) -> float:
    """Half-width of what differs from measurement to measurement on one machine: not gain, offset or model."""
    return sum(energy.budget.repeated(shared=False).sides()) / 2


def over(energy: Energy, limit_j: float) -> bool | None:
    """Whether it is above the limit; None where the interval holds the limit or there is no figure."""
    if energy.joules is None or energy.low is None or energy.high is None:
        return None
    if energy.low > limit_j:
        return True
    return False if energy.high <= limit_j else None


def over_baseline(energy: Energy, stored: Baseline, share: float) -> tuple[bool | None, str]:
    """Whether it is above the baseline by more than `share`, and a sentence.

    On the machine of the baseline what both figures share (a sensor's gain, a model) does not count. What is left
    of the two intervals is independent, so their half-widths add in quadrature.
    """
    from everywatt.core.format import format_joules, format_rounded

    if energy.joules is None:
        return None, f"no energy: {energy.refused}"
    if stored["joules"] is None:
        return None, "the baseline has no energy"
    if energy.scope != stored["scope"]:
        return None, f"the baseline covers {stored['scope']}, this energy covers {energy.scope}"
    same = platform.node() == stored["host"] and energy.pedigree == stored["pedigree"]
    limit = stored["joules"] * (1 + share)
    allowed = f"{format_joules(stored['joules'])} {share:+.0%} = {format_joules(limit)}"
    text = f"energy: {energy} against a baseline of {allowed}"
    if same:
        below = above = math.hypot(own_half(energy), (1 + share) * stored["own"])
        text += f" (here ± {format_rounded('J', above, above)}: errors that both share cancel)"
    else:
        low, high = stored["low"] or 0.0, stored["high"] or 0.0
        below = math.hypot(energy.joules - (energy.low or 0.0), (1 + share) * (high - stored["joules"]))
        above = math.hypot((energy.high or 0.0) - energy.joules, (1 + share) * (stored["joules"] - low))
    if energy.joules - below > limit:
        return True, text
    return (False if energy.joules + above <= limit else None), text


class EnergyFixture:
    """What the fixture `energy` gives: measure blocks, compare them with a limit or with the stored baseline."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def measure(self, name: str = "") -> Measurement:
        """A block to measure (`with energy.measure() as m: …`); nothing of it stays on disk."""
        from everywatt.api.measurement import measure

        found: Measurement = measure(name or self._item.nodeid, save=False)
        return found

    def at_most(self, block: Measurement | Energy, limit: str, *, cpu: str | None = None) -> None:
        """Fail where a block is above `limit`: `5 J`, or `+10%` of the stored baseline.

        `cpu` is a limit on CPU time (`200 ms`), which decides where power is only modelled.
        """
        from everywatt.core.energy import Energy

        found, cpu_s = (block, None) if isinstance(block, Energy) else (block.energy, block.cpu_s)
        check(self._item, found, limit, cpu_s=cpu_s, cpu=cpu)


def check(item: pytest.Item, energy: Energy, limit: str, *, cpu_s: float | None = None, cpu: str | None = None) -> None:
    """Fail the test where it is certainly above the limit. Where that cannot be said: fail if strict, else warn.

    The figure, and what is undecided, go to the test's properties, for the summary and for JUnit files.
    """
    from everywatt.core.errors import UsageError

    baselines = _baselines(item.config)
    item.user_properties.append((PROPERTY, _figure(energy, cpu_s)))
    try:
        verdict, text = decide(energy, limit, item.nodeid, baselines, cpu_s=cpu_s, cpu=cpu)
    except UsageError as error:
        raise pytest.fail.Exception(f"{MARK}: {error}", pytrace=False) from None
    if verdict is True:
        pytest.fail(f"too much {text}", pytrace=False)
    if verdict is None and baselines.strict:
        pytest.fail(f"limit undecided: {text}", pytrace=False)
    if verdict is None:
        item.user_properties.append((UNDECIDED, text))
        item.warn(EnergyWarning(f"{item.nodeid}: undecided: {text}"))


def decide(
    energy: Energy, limit: str, name: str, baselines: Baselines, *, cpu_s: float | None = None, cpu: str | None = None
) -> tuple[bool | None, str]:
    """Whether a block is above its limit (None: that cannot be said), and a sentence."""
    from everywatt.core.units import parse_duration_s, parse_energy_j

    modelled = not energy.measured
    relative = limit.strip().endswith("%")
    limit_s = None if cpu is None else parse_duration_s(cpu)
    decisions: list[tuple[bool | None, str]] = []
    if modelled and limit_s is not None and cpu_s is not None:
        decisions.append(_over_cpu(cpu_s, limit_s, f"the limit of {cpu}"))
    if relative:
        decisions.append(_against_baseline(energy, limit, name, baselines, cpu_s if modelled else None, cpu_s))
    elif not decisions:
        verdict = over(energy, parse_energy_j(limit))
        text = f"energy: {energy} {'exceeds' if verdict else 'against'} the limit of {limit}"
        if energy.joules is None:
            text = f"no figure for the limit of {limit} ({energy.refused})"
        if verdict is None and modelled and cpu is None:
            text += '; a limit such as cpu="200 ms" beside it decides without a sensor'
        decisions.append((verdict, text))
    # Above one limit is above; below needs all of them.
    return min(decisions, key=lambda decision: (True, None, False).index(decision[0]))


def _over_cpu(cpu_s: float, limit_s: float, what: str) -> tuple[bool | None, str]:
    from everywatt.core.format import format_duration

    over = cpu_s > limit_s * (1 + CPU_SHARE) + CPU_SLACK_S
    compared = f"{format_duration(cpu_s)} {'exceeds' if over else 'against'} {what}"
    text = f"CPU time: {compared}; energy is only modelled here"
    return (True if over else False if cpu_s <= limit_s else None), text


def _figure(energy: Energy, cpu_s: float | None) -> str:
    """What a test took; what is certain first."""
    from everywatt.core.format import format_duration

    return str(energy) if energy.measured or cpu_s is None else f"{format_duration(cpu_s)} of CPU time, {energy}"


def _against_baseline(
    energy: Energy, limit: str, name: str, baselines: Baselines, decisive_s: float | None, cpu_s: float | None
) -> tuple[bool | None, str]:
    from everywatt.core.format import format_duration

    try:
        share = float(limit.strip().rstrip("%").strip()) / 100
    except ValueError:
        from everywatt.core.errors import UsageError

        raise UsageError(f"'{limit}' is not a percentage.", cure="+10%, or an energy such as 5 J") from None
    if baselines.update and (energy.joules is not None or cpu_s is not None):
        baselines.put(name, energy, cpu_s)
        return False, "stored"
    stored = baselines.get(name)
    if stored is None:
        return None, f"no baseline in {baselines.path.name}; pytest --energy-update stores {energy}"
    known_s = stored.get("cpu_s")
    if decisive_s is not None and known_s is not None and stored["host"] == platform.node():
        limit_s = known_s * (1 + share)
        return _over_cpu(decisive_s, limit_s, f"the baseline {share:+.0%} = {format_duration(limit_s)}")
    return over_baseline(energy, stored, share)


def _baselines(config: pytest.Config) -> Baselines:
    path = config.rootpath / str(config.getini("energy_baselines"))
    update, strict = (bool(config.getoption(name)) for name in ("--energy-update", "--energy-strict"))
    return Baselines(path, update=update, strict=strict)


@pytest.fixture
def energy(request: pytest.FixtureRequest) -> EnergyFixture:
    """Measure blocks of a test, and hold them to a limit or to the stored baseline."""
    return EnergyFixture(request.node)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option and the setting of baselines."""
    group = parser.getgroup("everywatt")
    group.addoption("--energy-update", action="store_true", help="Store the energies of marked tests as baselines.")
    group.addoption("--energy-strict", action="store_true", help="Fail tests whose energy limit cannot be decided.")
    parser.addini("energy_baselines", f"File of stored energies, relative to the configuration ({FILE}).", default=FILE)


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers",
        f'{MARK}(limit, cpu=None): fail above this energy: "5 J", or "+10%" relative to the baseline; where energy is '
        "only modelled, above this CPU time",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure a marked test's own call, without its fixtures, and hold it to its limit."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        yield
        return
    if len(mark.args) != 1 or mark.kwargs.keys() - {"cpu"}:
        pytest.fail(f'write @pytest.mark.{MARK}("5 J"), ("+10%") or ("5 J", cpu="200 ms")', pytrace=False)
    from everywatt.api.measurement import measure

    block: Measurement = measure(item.nodeid, save=False)
    block.start()
    outcome: Any = yield
    found = block.stop()
    if outcome.excinfo is not None:
        item.user_properties.append((PROPERTY, str(found)))
        return
    try:
        check(item, found, str(mark.args[0]), cpu_s=block.cpu_s, cpu=mark.kwargs.get("cpu"))
    except BaseException as error:  # noqa: BLE001 - pytest's own way to fail is an exception, handed on here
        outcome.force_exception(error)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What marked tests took, and which limits could not be decided."""
    lines: list[str] = []
    undecided = 0
    reports = [report for stated in terminalreporter.stats.values() for report in stated]
    for report in sorted(
        (report for report in reports if getattr(report, "when", None) == "call"), key=lambda each: str(each.nodeid)
    ):
        for key, value in report.user_properties:
            if key == PROPERTY:
                lines.append(f"{report.nodeid}: {value}")
            elif key == UNDECIDED:
                lines.append(f"    undecided: {value}")
                undecided += 1
    if lines:
        terminalreporter.section("energy")
        for line in lines:
            terminalreporter.line(line)
    if undecided:
        limits = "1 limit" if undecided == 1 else f"{undecided} limits"
        terminalreporter.line(f"{limits} undecided; pytest --energy-strict makes that a failure", yellow=True)
