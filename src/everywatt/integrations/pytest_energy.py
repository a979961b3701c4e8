"""Energy in tests: the fixture `energy`, the mark `max_energy`, and baselines in a file. `everywatt.testing` has them.

@pytest.mark.max_energy("5 J")
def test_sorting_is_cheap(): ...

@pytest.mark.max_energy("+10%")          # of the stored baseline; pytest --energy-update stores it
def test_does_not_get_dearer(): ...

def test_block(energy):
    with energy.measure() as block:
        work()
    energy.at_most(block.energy, "5 J")
"""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everywatt.api.measurement import Measurement
    from everywatt.core.energy import Energy

MARK = "max_energy"
FILE = "energy-baselines.json"
PROPERTY = "energy"
SHARED = ("gain", "offset", "model", "aliasing", "baseline")


class EnergyWarning(UserWarning):
    """A limit on energy could not be decided: there was no figure, or its interval holds the limit."""


class Baselines:
    """Stored energies by the test's id, in a JSON file that is replaced as a whole."""

    def __init__(self, path: Path, *, update: bool) -> None:
        self.path = path
        self.update = update

    def get(self, name: str) -> dict[str, Any] | None:
        """What is stored for that name."""
        found: dict[str, Any] | None = self._read().get(name)
        return found

    def put(self, name: str, energy: Energy) -> None:
        """Store a figure; several processes of one test run may do so at once."""
        import fcntl

        lock = self.path.with_name(f".{self.path.name}.lock")
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            known = self._read()
            known[name] = {
                "joules": energy.joules,
                "own": own_half(energy),
                "low": energy.low,
                "high": energy.high,
                "scope": energy.scope,
                "pedigree": energy.pedigree,
                "host": platform.node(),
            }
            partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
            partial.write_text(
                json.dumps(
                    {"schema": "everywatt/1", "kind": "energy-baselines", "tests": dict(sorted(known.items()))},
                    indent=2,
                )
                + "\n"
            )
            partial.replace(self.path)
        lock.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            told = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise pytest.UsageError(f"{self.path} is not JSON: {error}") from None
        tests: dict[str, Any] = told.get("tests", {})
        return tests


def own_half(energy: Energy) -> float:
    """Half-width of what differs from measurement to measurement on one machine: not gain, offset or model."""
    from everywatt.core.budget import Budget

    terms = tuple(term for term in energy.budget.terms if term.source not in SHARED)
    bounds = tuple(bound for bound in energy.budget.bounds if bound.source not in SHARED)
    return sum(Budget(terms, bounds).sides()) / 2


def over(energy: Energy, limit_j: float) -> bool | None:
    """Whether it is above the limit; None where the interval holds the limit or there is no figure."""
    if energy.joules is None or energy.low is None or energy.high is None:
        return None
    if energy.low > limit_j:
        return True
    return False if energy.high <= limit_j else None


def over_baseline(energy: Energy, stored: dict[str, Any], share: float) -> tuple[bool | None, str]:
    """Whether it is above the baseline by more than `share`, and a sentence.

    On the machine of the baseline what both figures share (a sensor's gain, a model) does not count.
    """
    if energy.joules is None:
        return None, f"no energy: {energy.refused}"
    if energy.scope != stored["scope"]:
        return None, f"the baseline covers {stored['scope']}, this energy covers {energy.scope}"
    same = platform.node() == stored["host"] and energy.pedigree == stored["pedigree"]
    below = own_half(energy) if same else energy.joules - (energy.low or 0.0)
    above = float(stored["own"]) if same else float(stored["high"]) - float(stored["joules"])
    limit = float(stored["joules"]) * (1 + share)
    text = f"{energy} against a baseline of {stored['joules']:.4g} J {share:+.0%} = {limit:.4g} J"
    if energy.joules - below > limit + above:
        return True, text
    return (False if energy.joules + below <= limit + above else None), text


class EnergyFixture:
    """What the fixture `energy` gives: measure blocks, compare them with a limit or with the stored baseline."""

    def __init__(self, name: str, baselines: Baselines) -> None:
        self.name = name
        self._baselines = baselines

    def measure(self, name: str = "") -> Measurement:
        """A block to measure (`with energy.measure() as m: …`); nothing of it stays on disk."""
        from everywatt.api.measurement import measure

        found: Measurement = measure(name or self.name, save=False)
        return found

    def at_most(self, energy: Energy, limit: str) -> None:
        """Fail where the energy is above `limit`: `5 J`, or `+10%` of the stored baseline."""
        check(energy, limit, self.name, self._baselines)


def check(energy: Energy, limit: str, name: str, baselines: Baselines) -> None:
    """Fail the test where the figure is certainly above the limit; warn where that cannot be said."""
    if limit.strip().endswith("%"):
        verdict, text = _against_baseline(energy, limit, name, baselines)
    else:
        from everywatt.core.units import parse_energy_j

        verdict, text = over(energy, parse_energy_j(limit)), f"{energy} exceeds the limit of {limit}"
    if verdict is True:
        pytest.fail(f"too much energy: {text}", pytrace=False)
    if verdict is None:
        warnings.warn(EnergyWarning(f"{name}: undecided: {text}"), stacklevel=2)


def _against_baseline(energy: Energy, limit: str, name: str, baselines: Baselines) -> tuple[bool | None, str]:
    try:
        share = float(limit.strip().rstrip("%").strip()) / 100
    except ValueError:
        raise pytest.UsageError(
            f"max_energy: '{limit}' is neither an energy such as 5 J nor a percentage such as +10%"
        ) from None
    if baselines.update and energy.joules is not None:
        baselines.put(name, energy)
        return False, "stored"
    stored = baselines.get(name)
    if stored is None:
        return None, f"no baseline in {baselines.path.name}; pytest --energy-update stores {energy}"
    return over_baseline(energy, stored, share)


def _baselines(config: pytest.Config) -> Baselines:
    path = config.rootpath / str(config.getini("energy_baselines"))
    return Baselines(path, update=bool(config.getoption("--energy-update")))


@pytest.fixture
def energy(request: pytest.FixtureRequest) -> EnergyFixture:
    """Measure blocks of a test, and hold them to a limit or to the stored baseline."""
    return EnergyFixture(request.node.nodeid, _baselines(request.config))


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option and the setting of baselines."""
    group = parser.getgroup("everywatt")
    group.addoption("--energy-update", action="store_true", help="Store the energies of marked tests as baselines.")
    parser.addini("energy_baselines", f"File of stored energies, relative to the configuration ({FILE}).", default=FILE)


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers", f'{MARK}(limit): fail above this energy: "5 J", or "+10%" relative to the baseline'
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure a marked test's own call, without its fixtures, and hold it to its limit."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        yield
        return
    if len(mark.args) != 1 or mark.kwargs:
        raise pytest.UsageError(f'{item.nodeid}: write @pytest.mark.{MARK}("5 J") or ("+10%")')
    from everywatt.api.measurement import measure

    block: Measurement = measure(item.nodeid, save=False)
    block.start()
    outcome: Any = yield
    found = block.stop()
    item.user_properties.append((PROPERTY, str(found)))
    if outcome.excinfo is not None:
        return
    try:
        check(found, str(mark.args[0]), item.nodeid, _baselines(item.config))
    except BaseException as error:  # noqa: BLE001 - pytest's own way to fail is an exception, handed on here
        outcome.force_exception(error)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What marked tests took."""
    lines = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                told = dict(getattr(report, "user_properties", ()))
                if PROPERTY in told:
                    lines.append(f"{report.nodeid}: {told[PROPERTY]}")
    if lines:
        terminalreporter.section("energy")
        for line in sorted(lines):
            terminalreporter.line(line)
