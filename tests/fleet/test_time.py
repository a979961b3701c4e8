"""An agent in a time of its own: soaks at many times real speed, clock steps, disks that are full."""

import errno
import gc
import os
import re
import shutil
import sqlite3
from collections import deque

import pytest
from agents import told_on
from fake_clock import FakeClock

from everywatt.api.power import power_line
from everywatt.api.run import load
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, Row
from everywatt.core.clocks import NS
from everywatt.core.machine import Machine
from everywatt.energy.sources import sources
from everywatt.energy.window import source_energies
from everywatt.fleet import segments, state
from everywatt.fleet.agent import Agent
from everywatt.fleet.options import AgentOptions
from everywatt.ledger.counters import OwnerKey
from everywatt.recorder.session import EARLY_NS
from everywatt.sensors.base import Report, State

WATTS = 100.0
ENERGY = "everywatt_energy_joules_total"


class Meter:
    """A counter that follows a fake clock."""

    def __init__(self, clock: FakeClock, device: str = "cpu.0", domain: Domain = Domain.PACKAGE, lag_s=0.0) -> None:
        channel = Channel(
            f"{device}.{domain.value}.energy", "J", Kind.COUNTER, device, domain, facts=Facts(period_s=0.001)
        )
        self.info = GroupInfo(f"meter.{device}", "meter", device, (channel,))
        self._clock, self._lag_ns = clock, round(lag_s * NS)

    def read(self):
        """What it had counted `lag_s` ago."""
        at_ns = self._clock.now_ns - self._lag_ns
        return [Row(self._clock.now_ns, at_ns, at_ns, (WATTS * (at_ns - 990 * NS) / NS,))]

    def close(self):
        pass


class VagueCard(Meter):
    """A card whose period is not known: when every third value was published is only known to half a second."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, "gpu.0", Domain.GPU)
        self._reads = 0

    def read(self):
        self._reads += 1
        (row,) = super().read()
        return [row._replace(early_ns=row.late_ns - (NS if self._reads % 3 == 1 else NS // 50))]


class Model(Meter):
    """A power model beside a sensor; from the ninth read on it no longer fits."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        watts = Channel("host.power", "W", Kind.GAUGE, "host", Domain.NODE, pedigree=Pedigree.MODELLED)
        beside = (Channel(f"model.{word}", "", Kind.GAUGE, "host") for word in ("ratio", "drift"))
        self.info = GroupInfo("model.power", "model", "host", (watts, *beside))
        self._reads = 0

    def read(self):
        self._reads += 1
        at_ns = self._clock.now_ns
        return [Row(at_ns, at_ns, at_ns, (WATTS, 1.25, float(self._reads > 8)))]


class Processes:
    """200 processes that all work, and new ones every second."""

    def __init__(self, clock: FakeClock) -> None:
        self.info = GroupInfo("use.processes", "use", "host", (), table=True)
        self._clock, self._tick, self._all, self._start = clock, 0, True, 0

    def read_table(self):
        self._tick += 1
        rows = [
            {"pid": 100 + n, "start": 1, "ppid": 1, "name": f"p{n}", "cpu_s": self._tick * 0.01 * n, "rss_bytes": 2**20}
            for n in range(200)
        ]
        for row in rows if self._all else ():
            n = row["pid"]
            row |= {"uid": n, "user": f"user{n}", "cgroup": f"/system.slice/unit{n % 20}.service"}
        self._all = False
        born, start = 10_000 + self._tick, self._clock.now_ns * 100 // NS - 20
        rows.append(
            {"pid": born, "start": start, "ppid": 1, "name": "short", "cpu_s": 0.1, "uid": born, "user": f"u{born}"}
        )
        rows.append({"pid": born - 1, "start": self._start, "gone": True})
        self._start = start
        return self._clock.now_ns, rows

    def follow(self, pids):
        self._all = True

    def close(self):
        pass


class ShortLived(Processes):
    """Fifty processes a second that are gone the next, each of a user and in a container of its own."""

    def read_table(self):
        at_ns, rows = super().read_table()
        for n in range(50):
            born = 100_000 + 50 * self._tick + n
            cgroup = f"/system.slice/docker-{born:064x}.scope"
            row = {"pid": born, "start": at_ns * 100 // NS - 20, "ppid": 1, "name": "short", "cpu_s": 0.01}
            rows.append({**row, "uid": born, "user": f"u{born}", "cgroup": cgroup})
            rows.append({"pid": born - 50, "start": (at_ns - NS) * 100 // NS - 20, "gone": True})
        return at_ns, rows


def entries(thing: object) -> dict[str, int]:
    """How many entries each dictionary, list and set has that an object of the agent keeps, and those below it."""
    found: dict[str, int] = {}
    seen: set[int] = set()

    def look(one: object, path: str, depth: int) -> None:
        if id(one) in seen or depth > 8:
            return
        seen.add(id(one))
        if isinstance(one, dict | list | set | deque):
            found[path] = len(one)
            for inner in list(one.values()) if isinstance(one, dict) else list(one):
                if not isinstance(inner, str | bytes | int | float | tuple):
                    look(inner, f"{path}[]", depth + 1)
        elif type(one).__module__.startswith("everywatt."):
            names = [
                *getattr(one, "__dict__", ()),
                *(n for kind in type(one).__mro__ for n in kind.__dict__.get("__slots__", ())),
            ]
            for name in names:
                look(getattr(one, name, None), f"{path}.{name}", depth + 1)

    look(thing, type(thing).__name__, 0)
    return found


class Lab:
    """An agent whose loop is driven by hand, a second at a time."""

    def __init__(self, folder, *more, processes=Processes, **options) -> None:
        self.clock = FakeClock()
        options = {"state": folder, "rotate_s": 3600.0, "retention_s": 6 * 3600.0, **options}
        self.said: list[str] = []
        self.agent = Agent(
            AgentOptions(**options), clock=self.clock, machine=Machine(clock=self.clock), say=self.said.append
        )
        from everywatt.recorder.source import Source

        groups = [Meter(self.clock), *(make(self.clock) for make in more), processes(self.clock)]
        sources = [Source(group, self.clock) for group in groups]
        self.agent._reports = [Report("meter", State.USABLE)]
        self.agent._open_sensors = lambda: sources
        self.agent.start()

    def tick(self, seconds: float = 1.0) -> None:
        """One second: every source is read, then the session is tended as the loop does."""
        self.clock.advance(seconds)
        for source in self.agent.watcher.sources:
            source.read()
        self.agent.session.flush_ns = self.clock.now_ns
        self.agent.loop._tend()

    @property
    def energy_uj(self) -> int:
        return self.agent.watcher.lines.all[0].settled_uj

    def owned_uj(self) -> int:
        return self.agent.counters.device_uj("cpu.0")


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(folder, hours: float, disk_bytes: int = 60 * 10**6) -> tuple[int, int, Lab]:
    """Memory after a sixth of the time and at the end."""
    lab = Lab(folder, disk_bytes=disk_bytes)
    ticks = round(hours * 3600)
    early = 0
    for tick in range(ticks):
        lab.tick()
        if tick == ticks // 6:
            gc.collect()
            early = rss_bytes()
    gc.collect()
    return early, rss_bytes(), lab


def test_a_sample_is_told_at_the_instant_that_its_joules_are_of(tmp_path):
    lab = Lab(tmp_path, VagueCard)
    for _ in range(20):
        lab.tick()
    told = told_on(segments.segments(tmp_path / "tape"))
    (samples,) = (told[key] for key in told if key[0] == ENERGY and ("device", "gpu.0") in key[1])
    (first_ms, first_j), *later = sorted(samples.items())
    assert len(later) > 10
    for at_ms, joules in later:
        assert joules - first_j == pytest.approx(WATTS * (at_ms - first_ms) / 1000, abs=0.02 * WATTS)


def test_a_model_that_drifts_is_exported(tmp_path):
    lab = Lab(tmp_path, Model)
    for drift in (0, 1):
        for _ in range(5):
            lab.tick()
        assert f'everywatt_model_drift{{device="host"}} {drift} ' in lab.agent.text()
    assert 'everywatt_model_ratio{device="host"} 1.25 ' in lab.agent.text()
    lab.agent.finish()


def test_ten_minutes_at_once_keep_the_law(tmp_path):
    lab = Lab(tmp_path, rotate_s=200.0, retention_s=400.0)
    for _ in range(600):
        lab.tick()
    assert lab.energy_uj == pytest.approx(WATTS * 600 * 1e6, rel=0.002)
    assert lab.owned_uj() == lab.energy_uj
    assert len(segments.segments(tmp_path / "tape")) >= 3
    owners = [owner for owner in lab.agent.counters.uj if owner.kind == "container"]
    assert len(owners) == 20
    lab.agent.finish()
    again = state.recover(state.read(tmp_path), tmp_path / "tape")
    assert again.devices["cpu.0|package"] == lab.energy_uj


def test_the_segment_that_a_killed_agent_left_is_sealed_and_has_lost_nothing(tmp_path):
    lab = Lab(tmp_path)
    for _ in range(5):
        lab.tick()
    left = tmp_path / "left"  # as it is on the disk while the agent lives is what a kill leaves
    shutil.copytree(tmp_path / "tape", left)
    told = {line.key: line.settled_uj for line in lab.agent.watcher.lines.all}
    lab.agent.finish()
    assert state.recover(state.State(), left).devices == told
    state.seal_left(left)
    (tape,) = load(left).tapes
    assert tape.sealed and not any("may be lost" in text for text in tape.trouble)


def test_all_that_is_read_in_a_second_is_read_and_written_in_one_go(tmp_path):
    lab = Lab(
        tmp_path, lambda clock: Meter(clock, "gpu.0", Domain.GPU), lambda clock: Meter(clock, "gpu.1", Domain.GPU)
    )
    slots = lab.agent.loop.schedule.slots.values()
    assert len(slots) == 4 and {slot.deadline_ns for slot in slots} == {lab.clock.now_ns + NS}
    for _ in range(3):
        lab.tick()
    assert lab.agent.session.flush_ns == lab.clock.now_ns + NS + EARLY_NS // 2, "a flush joins reads just before it"
    lab.agent.finish()


def test_segments_join_without_overlap_and_add_up(tmp_path):
    lab = Lab(tmp_path, lambda clock: Meter(clock, "gpu.0", Domain.GPU, lag_s=0.4), rotate_s=5.0, retention_s=600.0)
    for _ in range(22):
        lab.tick()
    lab.agent.finish()
    paths = segments.segments(tmp_path / "tape")
    assert len(paths) >= 4
    run = load(tmp_path / "tape")
    bounds = [tape.extent_ns() for tape in run.tapes]
    assert [end for _, end in bounds[:-1]] == [start for start, _ in bounds[1:]]
    whole_s = (bounds[-1][1] - bounds[0][0]) / NS
    assert run.energy().joules == pytest.approx(2 * WATTS * whole_s, rel=1e-6)
    for tape, (start_ns, end_ns) in zip(run.tapes, bounds, strict=True):
        for source in sources(tape):
            found = source_energies(source, [(start_ns, end_ns)])
            assert found.joules == pytest.approx(WATTS * (end_ns - start_ns) / NS, rel=1e-6)
            line = power_line(source)
            assert line.inside([(start_ns, end_ns)]) == pytest.approx(WATTS, rel=1e-6)
    told = {line.key: line.settled_uj for line in lab.agent.watcher.lines.all}
    assert state.recover(state.State(), tmp_path / "tape").devices == told, "rows that two segments share count once"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_half_a_day_keeps_memory_flat_and_disk_bounded(tmp_path):
    early, late, lab = soak(tmp_path, 12.0)
    assert late - early < 4 * 2**20
    assert sum(map(segments.size_bytes, segments.segments(tmp_path / "tape"))) < 80 * 10**6
    assert lab.owned_uj() == lab.energy_uj
    assert len(lab.agent.counters.uj) <= 500 + 5 + 11, "the cap, those that are none, and who came since it was kept"
    lab.agent.finish()


def test_owners_are_capped_and_the_rest_keeps_the_law(tmp_path):
    lab = Lab(tmp_path, owners=10)
    for _ in range(60):
        lab.tick()
    assert lab.agent.counters.uj[OwnerKey("rest", "rest")]["cpu.0"] > 0
    assert len(lab.agent.counters.uj) < 40
    assert lab.owned_uj() == lab.energy_uj
    text = lab.agent.text()
    assert 'kind="rest",owner="rest"' in text
    lab.agent.finish()


def test_thousands_of_owners_that_come_and_go_leave_nothing_behind(tmp_path):
    lab = Lab(tmp_path, processes=ShortLived, rotate_s=60.0)
    for _ in range(90):
        lab.tick()
    gc.collect()
    early = entries(lab.agent)
    for _ in range(180):
        lab.tick()
    gc.collect()
    late = entries(lab.agent)
    grown = {path: (early.get(path, 0), size) for path, size in late.items() if size > 1.1 * early.get(path, 0) + 60}
    assert len(early) > 60 and not grown, "9,000 owners and processes, of which all but some have ended"
    assert lab.owned_uj() == lab.energy_uj
    lab.agent.finish()


def test_a_clock_that_is_set_back_is_waited_for(tmp_path):
    lab = Lab(tmp_path)
    for _ in range(5):
        lab.tick()
    before = lab.agent.exporter.utc.ms(lab.clock.now_ns)
    lab.clock.utc_offset_ns -= 10 * NS
    times = []
    for _ in range(25):
        lab.tick()
        times.append(lab.agent.exporter.utc.ms(lab.clock.now_ns) - before)
    assert times[:20] == [500 * n for n in range(1, 21)], "half as fast, and never back"
    assert times[20:] == [10_000 + 1000 * n for n in range(1, 6)], "and then right again"
    assert lab.said == []
    lab.agent.finish()
    (path,) = segments.segments(tmp_path / "tape")
    for samples in told_on([path]).values():
        assert list(samples) == sorted(samples)
    energy = next(v for (name, _), v in told_on([path]).items() if name == "everywatt_energy_joules_total")
    assert len(energy) >= 29, "no tick was left out"


def test_a_clock_that_was_wrong_by_an_hour_moves_no_joule(tmp_path):
    lab = Lab(tmp_path)
    for _ in range(5):
        lab.tick()
    before = lab.agent.exporter.utc.ms(lab.clock.now_ns)
    lab.clock.utc_offset_ns -= 3600 * NS
    lab.tick()
    assert lab.agent.exporter.utc.ms(lab.clock.now_ns) == before + 1000 - 3_600_000
    assert any("The clock was set back by 3600 s." in text for text in lab.said)
    lab.clock.utc_offset_ns += 7200 * NS
    lab.tick()
    assert lab.energy_uj == pytest.approx(WATTS * 7e6, rel=0.02)
    lab.agent.finish()
    rows = [row for row in state.sample_rows(segments.segments(tmp_path / "tape")[0]) if "t" in row]
    assert rows[-1]["t"] > before + 3_000_000, "samples go on after every step"


def test_a_disk_that_is_full_stops_nothing_and_loses_nothing(tmp_path, monkeypatch):
    lab = Lab(tmp_path)
    for _ in range(3):
        lab.tick()
    writer = lab.agent.session.writer
    real = type(writer)._write
    monkeypatch.setattr(type(writer), "_write", lambda self, db: _full())
    monkeypatch.setattr(
        state, "write_json", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
    )
    for _ in range(20):
        lab.tick()
    assert lab.owned_uj() == lab.energy_uj, "books are kept"
    assert "everywatt_energy_joules_total" in lab.agent.text()
    assert any("No space left" in text for text in lab.said)
    monkeypatch.setattr(type(writer), "_write", real)
    monkeypatch.undo()
    lab.tick()
    lab.agent.finish()
    (path,) = segments.segments(tmp_path / "tape")
    assert state.recover(state.State(), tmp_path / "tape").devices["cpu.0|package"] == lab.energy_uj
    ticks = [row["t"] for row in state.sample_rows(path) if "t" in row]
    assert len(ticks) >= 24, "every second is on the tape"


def _full():
    from everywatt.core.errors import TapeError

    raise TapeError(f"the tape cannot be written: {sqlite3.OperationalError('database or disk is full')}.")


def users(text: str) -> set[str]:
    """Owners of the kind `user` with an energy series."""
    return set(re.findall(r'everywatt_owner_energy_joules_total\{kind="user",owner="u(\d+)"', text))


def test_an_owner_that_ended_leaves_the_series_after_two_periods(tmp_path):
    """Every second a user comes for one second. Nothing scrapes, so nothing is waited for."""
    lab = Lab(tmp_path)
    for _ in range(40):
        lab.tick()
        born = 10_000 + lab.agent.watcher.cpu.readings
        exported = {owner.id for owner in lab.agent.counters.uj if owner.kind == "user"}
        assert exported <= {f"u{born}", f"u{born - 1}", f"u{born - 2}"}
    assert lab.owned_uj() == lab.energy_uj
    lab.agent.finish()


def test_an_owner_that_ended_stays_until_its_last_value_was_scraped(tmp_path):
    lab, seen = Lab(tmp_path), set()
    for second in range(60):
        lab.tick()
        if second % 10 == 9:
            seen |= users(lab.agent.text())
    assert seen >= {str(number) for number in range(10_012, 10_060)}, "whoever came since the first scrape"
    assert len(users(lab.agent.text())) <= 12
    assert lab.owned_uj() == lab.energy_uj
    lab.agent.finish()


def test_owners_that_became_the_rest_are_not_counted_again_after_a_kill(tmp_path):
    lab = Lab(tmp_path)
    for _ in range(25):  # the state is kept every ten seconds, the tape is written every second
        lab.tick()
    owners = {tuple(owner): amounts for owner, amounts in lab.agent.counters.uj.items()}
    lab.agent.session.writer.abandon()
    found = state.recover(state.read(tmp_path), tmp_path / "tape")
    assert sum(row[3].get("cpu.0", 0) for row in found.owners) == lab.energy_uj
    assert {(row[0], row[1]): row[3] for row in found.owners if row[3]} == owners
