"""The agent in virtual time, on a machine whose joules are known: counters, owners, restarts, kills, lost cards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Receiver, microjoules, told_on
from virtual_world import RunningAgent, VirtualWorld

from everywatt.api.run import load
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.fleet import state
from everywatt.fleet.segments import segments
from everywatt.ledger.engine import MODULE_REST, NO_USER
from everywatt.tape.reader import Tape

pytest.importorskip("cramjam")
ENERGY = "everywatt_energy_joules_total"
OWNERS = "everywatt_owner_energy_joules_total"
BOUNDS = tuple(name.replace("_joules", f"_{side}_joules") for name in (ENERGY, OWNERS) for side in ("low", "high"))
SIDES = ("_low_joules", "_joules", "_high_joules")
DEVICES = {"cpu.0": ("cpu", "package"), "gpu.0": ("gpu", "gpu")}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VirtualWorld]:
    with VirtualWorld(tmp_path, cpu="constant:60W", gpu="square:100W,300W,2s") as made:
        yield made


def key(device: str, domain: str) -> str:
    return f'{ENERGY}{{device="{device}",domain="{domain}",pedigree="counter"}}'


def monotonic_ns(world: VirtualWorld, at_ms: int | None) -> int:
    assert at_ms is not None
    return at_ms * 1_000_000 - world.time.utc_offset_ns


def check_intervals(values: dict[str, tuple[float, int | None]]) -> None:
    """Every amount has its interval, of the same tick."""
    found = [name for name in values if name.startswith((ENERGY, OWNERS))]
    assert found
    for name in found:
        ends = [values[name.replace("_joules", f"_{side}_joules")] for side in ("low", "high")]
        assert ends[0][0] <= values[name][0] <= ends[1][0], name
        assert ends[0][1] == ends[1][1] == values[name][1], name


def test_the_interval_of_a_device_is_what_is_known_of_its_sensor(world) -> None:
    world.machine.gain_pct = 2.0
    agent = world.agent(period_s=1.0)
    world.sleep(100)
    values = agent.values()
    agent.end()
    check_intervals(values)
    low, counted, high = (values[key("gpu.0", "gpu").replace("_joules", side)][0] for side in SIDES)
    assert (counted - low, high - counted) == pytest.approx((0.02 * counted, 0.02 * counted), rel=0.01)
    assert values['everywatt_interval_info{device="gpu.0",domain="gpu",covers="all"}'][0] == 1


def test_a_sensor_of_unknown_error_says_that_its_interval_covers_sampling_only(world) -> None:
    agent = world.agent(period_s=1.0)
    world.sleep(60)
    values = agent.values()
    agent.end()
    check_intervals(values)
    assert values['everywatt_interval_info{device="gpu.0",domain="gpu",covers="sampling only"}'][0] == 1
    # Nobody is on the card, which works all the same.
    assert values[f'everywatt_unattributed_info{{device="gpu.0",reason="{NO_USER}"}}'][0] == 1


def test_counters_are_the_truth_and_owners_add_up(world) -> None:
    agent = world.agent(period_s=0.2)
    agent.wait_for(key("gpu.0", "gpu"))
    world.sleep(3)  # by then it is known when the card publishes
    first = agent.values()
    world.sleep(120)
    last = agent.values()
    for device, (name, domain) in DEVICES.items():
        (a_j, a_ms), (b_j, b_ms) = first[key(device, domain)], last[key(device, domain)]
        truth = world.machine.energy_j(name, monotonic_ns(world, a_ms), monotonic_ns(world, b_ms))
        assert b_j - a_j == pytest.approx(truth, rel=1e-4), device
        owned = sum(
            round(value * 1e6)
            for series, (value, _) in last.items()
            if series.startswith(OWNERS) and series.endswith(f'device="{device}"}}')
        )
        assert owned == round(b_j * 1e6), device
    assert last['everywatt_sensor_up{sensor="virtual"}'][0] == 1
    power = last['everywatt_power_watts{device="cpu.0",domain="package",pedigree="counter"}'][0]
    assert power == pytest.approx(60, rel=0.01)
    agent.end()
    # Sealed in order, and the tape's own joules are what was told.
    (path,) = segments(agent.folder / "tape")
    with Tape.open(path) as tape:
        assert tape.sealed and not tape.trouble
        told = told_on([path])
        for line, entry in tape.meta["agent"]["devices"].items():
            device, domain = line.split("|")
            labels = tuple(sorted({"device": device, "domain": domain, "pedigree": "counter"}.items()))
            newest = list(told[ENERGY, labels].values())[-1]
            counted = state.tape_joules(tape, entry["group"], entry["channel"], entry["at_ns"])
            assert newest == pytest.approx(counted, abs=1e-5)


def test_counters_go_on_over_a_restart_and_a_rotation(world) -> None:
    options = {"period_s": 0.2, "rotate_s": 10.0, "retention_s": 3600.0}
    agent = world.agent(**options)
    agent.wait_for(key("gpu.0", "gpu"))
    world.sleep(35)
    before = agent.values()
    agent.end()
    agent = world.agent(**options)
    after = agent.wait_for(key("gpu.0", "gpu"))
    check_intervals(after)
    for head in (ENERGY, OWNERS, *BOUNDS, "everywatt_owner_cpu_seconds_total"):
        for name, (value, _) in before.items():
            if name.startswith(head):
                assert after[name][0] >= value, name
    assert microjoules(after, OWNERS) == microjoules(after, ENERGY)
    agent.end()
    found = segments(agent.folder / "tape")
    assert len(found) >= 4
    check_stored(found)


def test_old_segments_are_removed_when_their_time_is_over(world) -> None:
    agent = world.agent(period_s=1.0, rotate_s=20.0, retention_s=200.0)
    world.sleep(420)
    found = segments(agent.folder / "tape")
    assert 10 <= len(found) <= 14
    agent.end()


def check_stored(found: list[Path]) -> None:
    """What is told on the tape is monotone, and is each tape's own energy on top of where it began."""
    for (name, labels), samples in told_on(found).items():
        if name in (ENERGY, OWNERS, *BOUNDS):
            values = [samples[at] for at in sorted(samples)]
            assert values == sorted(values), (name, labels)
    end: dict[str, int] = {}
    for path in found:
        if not path.stat().st_size:
            continue  # killed while it was made
        with Tape.open(path) as tape:
            for line, entry in tape.meta.get("agent", {"devices": {}})["devices"].items():
                if line in end:
                    assert abs(entry["uj"] - end[line]) <= 2, (path, line)
                counted = state.tape_joules(tape, entry["group"], entry["channel"], entry["at_ns"])
                end[line] = entry["uj"] + round(counted * 1e6)


def test_killed_at_random_moments(world) -> None:
    """Counters never go back, and what the receiver has is what the tapes have, to the last sample."""
    chance = random.Random(1)
    told: dict[str, float] = {}

    def look(agent: RunningAgent) -> None:
        for name, (value, _) in agent.values().items():
            if name.startswith((ENERGY, OWNERS, *BOUNDS)):
                assert value >= told.get(name, 0.0), f"{name} went back after a kill"
                told[name] = value

    with Receiver() as receiver:
        options = {"period_s": 0.1, "rotate_s": 1.0, "retention_s": 3600.0, "remote_write": receiver.url}
        for _ in range(8):
            agent = world.agent(**options)
            agent.wait_for(key("gpu.0", "gpu"))
            world.sleep(chance.uniform(0, 2.5))
            look(agent)
            agent.kill()
        agent = world.agent(**options)
        agent.wait_for(key("gpu.0", "gpu"))
        look(agent)
        agent.end()
        found = segments(agent.folder / "tape")
        check_stored(found)
        # What came twice is the same.
        sent = {
            (
                dict(labels)["__name__"],
                tuple((k, v) for k, v in labels if k not in ("__name__", "instance", "job")),
            ): dict(sample for sample in samples if sample[1] == sample[1])
            for labels, samples in receiver.samples.items()
        }
        for (name, labels), samples in told_on(found).items():
            if name in (ENERGY, OWNERS):
                assert sent[name, labels] == samples, (name, labels)


def test_no_owner_may_have_more_than_its_device_after_an_outage(tmp_path) -> None:
    with VirtualWorld(tmp_path, cpu="constant:60W", gpu="constant:100W") as world:
        agent = world.agent(period_s=1.0)
        world.sleep(5)
        agent.kill()
        world.sleep(20)
        agent = world.agent(period_s=1.0)
        world.sleep(10)
        values = agent.values()
        agent.end()
    for device, (_, domain) in DEVICES.items():
        most_j = values[key(device, domain).replace(*SIDES[1:])][0]
        found = [name for name in values if name.startswith(BOUNDS[3]) and f'device="{device}"' in name]
        assert found and all(values[name][0] <= most_j for name in found), (most_j, {n: values[n] for n in found})
    check_intervals(values)


def test_counters_go_on_while_the_agent_is_dead(tmp_path) -> None:
    """100 W, twice killed for 6 s: every joule is in the series, and in the tapes."""
    with VirtualWorld(tmp_path, cpu="constant:60W", gpu="constant:100W") as world:
        agent = world.agent(period_s=0.2)
        first_j, first_ms = agent.wait_for(key("gpu.0", "gpu"))[key("gpu.0", "gpu")]
        for _ in range(2):
            world.sleep(3)
            before = agent.values()
            agent.kill()
            world.sleep(6)
            agent = world.agent(period_s=0.2)
            world.sleep(3)
            values = agent.values()
            for device, (_, domain) in DEVICES.items():
                assert values[key(device, domain)][0] >= before[key(device, domain)][0]
                assert values[f'everywatt_coverage_ratio{{device="{device}",domain="{domain}"}}'][0] > 0.99
        last_j, last_ms = values[key("gpu.0", "gpu")]
        truth = world.machine.energy_j("gpu", monotonic_ns(world, first_ms), monotonic_ns(world, last_ms))
        assert truth > 1500 and last_j - first_j == pytest.approx(truth, rel=1e-4)
        assert microjoules(values, OWNERS) == microjoules(values, ENERGY)
        assert any("while the agent was not running" in text for text in agent.said)
        agent.end()
        check_stored(segments(agent.folder / "tape"))
        run = load(agent.folder / "tape")
        assert run.duration_s > truth / 100
        assert run.energy(device="gpu.0").joules == pytest.approx(100 * run.duration_s, rel=0.01)


def test_the_time_of_a_dead_agent_is_charged_by_what_processes_used_in_it(tmp_path) -> None:
    """Ada uses three quarters of a CPU all the time: hers is what the package drew above its idle level."""
    with VirtualWorld(tmp_path, cpu="constant:60W") as world:
        ada = f'{OWNERS}{{kind="user",owner="ada",device="cpu.0"}}'
        agent = world.agent(period_s=1.0)
        world.sleep(60)
        before = agent.values()
        agent.kill()
        world.sleep(100)
        agent = world.agent(period_s=1.0)
        world.sleep(20)
        values = agent.values()
        agent.end()
    grown_j = values[key("cpu.0", "package")][0] - before[key("cpu.0", "package")][0]
    assert grown_j == pytest.approx(60 * 120, rel=0.02)
    assert microjoules(values, OWNERS) == microjoules(values, ENERGY)
    assert values[ada][0] - before[ada][0] > 0.3 * grown_j
    assert not any("unattributed" in name for name in values)
    check_intervals(values)
    # Of what happened in that time the interval allows for nothing up to twice as much.
    low, high = (values[ada.replace("_joules", side)][0] for side in ("_low_joules", "_high_joules"))
    assert high - low > grown_j / 2


def test_cpu_seconds_go_on_while_the_agent_is_dead(tmp_path) -> None:
    used = 'everywatt_owner_cpu_seconds_total{kind="user",owner="ada"}'
    with VirtualWorld(tmp_path, cpu="constant:60W") as world:
        agent = world.agent(period_s=1.0)
        world.sleep(25)  # some seconds after the state was written
        before, began_ns = agent.values()[used][0], world.now_ns
        agent.kill()
        world.sleep(30)
        agent = world.agent(period_s=1.0)
        world.sleep(15)
        grown_s, passed_s = agent.values()[used][0] - before, (world.now_ns - began_ns) / NS
        agent.end()
    assert grown_s == pytest.approx(0.75 * passed_s, abs=0.75 * 3)


def test_joules_of_a_card_while_the_agent_is_dead_are_of_who_was_on_it_before_and_after(tmp_path) -> None:
    ada = f'{OWNERS}{{kind="user",owner="ada",device="gpu.0"}}'
    with VirtualWorld(tmp_path, cpu="constant:60W", gpu="constant:200W") as world:
        world.machine.tenants = (101,)
        agent = world.agent(period_s=1.0)
        world.sleep(60)
        before = agent.values()
        agent.kill()
        world.sleep(60)
        agent = world.agent(period_s=1.0)
        world.sleep(10)
        values = agent.values()
        agent.end()
    share = before[ada][0] / before[key("gpu.0", "gpu")][0]
    grown_j = values[key("gpu.0", "gpu")][0] - before[key("gpu.0", "gpu")][0]
    assert grown_j == pytest.approx(200 * 70, rel=0.05)
    low, mine, high = (
        values[ada.replace("_joules", side)][0] - before[ada.replace("_joules", side)][0] for side in SIDES
    )
    assert mine == pytest.approx(share * grown_j, rel=0.15)
    # Anything may have happened in that time, but that more was drawn than was counted.
    assert low <= 0.3 * share * grown_j and high >= 0.99 * min(1.7 * share, 1.0) * grown_j
    assert microjoules(values, OWNERS) == microjoules(values, ENERGY)


def test_owners_of_a_superchip_add_up_to_its_module(tmp_path) -> None:
    """Also over a restart: what is beside the chips is unattributed, with the reason."""
    with VirtualWorld(tmp_path, cpu="constant:60W", gpu="constant:100W", module="constant:240W") as world:
        agent = world.agent(period_s=1.0)
        world.sleep(20)
        agent.kill()
        world.sleep(20)
        agent = world.agent(period_s=1.0)
        world.sleep(20)
        values = agent.values()
        agent.end()
    owned_j = sum(value for name, (value, _) in values.items() if name.startswith(f"{OWNERS}{{"))
    assert owned_j == pytest.approx(values[key("module.0", "module")][0], rel=0.02)  # a tick of the card is a second
    assert values[f'{OWNERS}{{kind="unattributed",owner="unattributed",device="module rest"}}'][0] > 70 * 58
    assert f'everywatt_unattributed_info{{device="module rest",reason="{MODULE_REST}"}}' in values
    check_intervals({name: found for name, found in values.items() if not name.startswith(ENERGY)})


def test_an_owner_that_ended_while_the_agent_was_dead_is_counted_once_after_another_kill(tmp_path) -> None:
    with VirtualWorld(tmp_path, cpu="constant:60W") as world:
        world.machine.users = {102: "bob"}
        agent = world.agent(period_s=1.0)
        world.sleep(40)
        before_j = agent.values()[f'{OWNERS}{{kind="user",owner="bob",device="cpu.0"}}'][0]
        for _ in range(2):
            agent.kill()
            world.machine.ended = (102,)
            world.sleep(5)
            agent = world.agent(period_s=1.0)
            world.sleep(5)
        values = agent.values()
        agent.end()
    assert values[f'{OWNERS}{{kind="rest",owner="rest",device="cpu.0"}}'][0] == pytest.approx(before_j, rel=0.05)
    assert microjoules(values, OWNERS) == microjoules(values, ENERGY)


@pytest.mark.parametrize("scraped", [False, True])
def test_series_of_an_owner_that_ended_are_gone_two_periods_later(tmp_path, scraped) -> None:
    with VirtualWorld(tmp_path, cpu="constant:60W") as world:
        world.machine.users = {102: "bob"}
        agent = world.agent(period_s=1.0)
        world.sleep(20.3)
        # One that is scraped keeps the final values until they were fetched.
        assert not scraped or any('owner="bob"' in name for name in agent.values())
        world.machine.ended = (102,)
        for _ in range(2):
            world.sleep(1.0)
            if scraped:
                agent.values()
        world.sleep(0.1)
        values = agent.values()
        agent.end()
    assert not any('owner="bob"' in name for name in values)
    assert microjoules(values, OWNERS) == microjoules(values, ENERGY)


@pytest.mark.parametrize("reboot", [False, True])
def test_what_cannot_be_bridged_is_time_that_was_not_observed(tmp_path, monkeypatch, reboot) -> None:
    """A gauge says nothing of the time without the agent, and after a reboot counters do not either."""
    with VirtualWorld(tmp_path, gpu="constant:100W", board="constant:100W") as world:
        agent = world.agent(period_s=0.2)
        agent.wait_for(key("gpu.0", "gpu"))
        world.sleep(3)
        agent.kill()
        if reboot:
            monkeypatch.setattr(state, "boot_id", lambda proc: "another")
        world.sleep(6)
        agent = world.agent(period_s=0.2)
        world.sleep(3)
        values = agent.values()
        covered = {
            device: values[f'everywatt_coverage_ratio{{device="{device}",domain="gpu"}}'][0]
            for device in ("gpu.0", "gpu.1")
        }
        assert covered["gpu.1"] == pytest.approx(1 / 3, abs=0.1)
        assert covered["gpu.0"] == pytest.approx(1 / 3 if reboot else 1.0, abs=0.1)
        for device, share in covered.items():  # of twelve seconds at 100 W
            pedigree = "counter" if device == "gpu.0" else "integrated"
            labels = f'{{device="{device}",domain="gpu",pedigree="{pedigree}"}}'
            amount_j, high_j = values[f"{ENERGY}{labels}"][0], values[f"everywatt_energy_high_joules_total{labels}"][0]
            assert high_j - amount_j >= 0.95 * 100 * 9 * (1 - share)
        agent.end()


def test_a_receiver_that_is_away_for_a_minute_gets_everything_then(world) -> None:
    away_until_ns = world.now_ns + 60 * NS
    with Receiver(lambda series: (204, {}, "") if world.now_ns > away_until_ns else (503, {}, "away")) as receiver:
        agent = world.agent(period_s=1.0, remote_write=receiver.url)
        world.sleep(30)
        assert not len(receiver)
        values = agent.values()
        assert values["everywatt_remote_write_lag_seconds"][0] > 20
        world.sleep(90)
        assert agent.values()["everywatt_remote_write_lag_seconds"][0] < 10
        agent.end()
        stored = told_on(segments(agent.folder / "tape"))
        assert len(receiver) >= sum(len(samples) for samples in stored.values())


def test_an_end_right_after_a_rotation_sends_the_last_segment_too(world) -> None:
    """The segment before the last is still being sealed then."""
    with Receiver() as receiver:
        agent = world.agent(period_s=1.0, rotate_s=10.0, retention_s=3600.0, remote_write=receiver.url)
        assert agent.agent is not None
        seal = agent.agent._seal

        def slowly(*session: Any) -> None:
            world.sleep(2.0)
            seal(*session)

        world.patch.setattr(agent.agent, "_seal", slowly)
        world.until(lambda: len(segments(agent.folder / "tape")) == 3)
        world.sleep(0.5)
        agent.end()
        stored = told_on(segments(agent.folder / "tape"))
        assert len(receiver) >= sum(len(samples) for samples in stored.values())


def test_a_card_that_is_lost_gives_no_power_and_an_age(world) -> None:
    power = 'everywatt_power_watts{device="gpu.0"'
    agent = world.agent(period_s=0.2)
    agent.wait_for(power)
    world.machine.broken["virtual.card"] = "GPU is lost"

    def without_power():
        values = agent.values()
        return values if not any(name.startswith(power) for name in values) else None

    values = world.until(without_power)
    assert values['everywatt_tick_age_seconds{device="gpu.0",domain="gpu"}'][0] > 4
    assert values['everywatt_sensor_up{sensor="virtual"}'][0] == 0
    coverage = 'everywatt_coverage_ratio{device="gpu.0",domain="gpu"}'
    world.until(lambda: agent.values()[coverage][0] < 0.95)
    assert any("cannot be read" in line for line in agent.said)
    assert key("cpu.0", "package") in agent.values(), "the others go on"
    del world.machine.broken["virtual.card"]
    world.until(lambda: agent.values()['everywatt_sensor_up{sensor="virtual"}'][0] == 1)
    agent.wait_for(power)
    agent.end()


def test_small_flushes_less_often_and_sends_all(world) -> None:
    with Receiver() as receiver:
        agent = world.agent(profile="small", listen=None, remote_write=receiver.url, period_s=1.0)
        world.sleep(60)
        agent.end()
    names = {dict(labels)["__name__"] for labels in receiver.samples}
    assert {ENERGY, OWNERS, "everywatt_power_watts"} <= names


def test_a_folder_has_one_agent(world) -> None:
    world.agent()
    with pytest.raises(UsageError, match="Another agent is using"):
        world.agent()


def test_a_state_that_was_broken_is_put_aside(world) -> None:
    (world.folder / "agent").mkdir()
    (world.folder / "agent" / "state.json").write_text("{")
    agent = world.agent()
    agent.wait_for(ENERGY)
    assert any("was moved aside" in line for line in agent.said)


def test_names_of_other_exporters_are_sent_too(world) -> None:
    """Also by a small agent, which has no page to show them on."""
    with Receiver() as receiver:
        agent = world.agent(profile="small", listen=None, remote_write=receiver.url, period_s=1.0, compat=("dcgm",))
        world.sleep(30)
        agent.end()
    sent = {dict(labels)["__name__"]: samples for labels, samples in receiver.samples.items()}
    counted = [value for _, value in sent["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] if value == value]
    assert counted == sorted(counted) and counted[-1] > 0
    powers = [value for _, value in sent["DCGM_FI_DEV_POWER_USAGE"] if value == value]
    assert powers and all(100 <= value <= 300 for value in powers)
