"""Sensors of one node side by side: another scope is named, and what cannot be is an alert."""

import json
from dataclasses import replace
from pathlib import Path

import known_site
import numpy as np
import pytest
from known_site import HOUR, MJ, T0

from everywatt.cli.main import main
from everywatt.meters.wall import MeterLine
from everywatt.net.api import ApiClient
from everywatt.slurm.schema import NodeHour
from everywatt.slurm.site.reconcile import ALERT, SCOPE, Sensor, reconcile, sensors_in_series
from everywatt.slurm.site.store import Store

# Minutes of an IBM AC922 (W): sum of its chips, BMC, input of the supplies, rack PDU. tud-zih-energy/2022-power9-occ.
POWER9 = [
    (436.66, 459.57, 633.43, 648.86),
    (598.73, 623.86, 818.29, 824.00),
    (598.63, 622.29, 820.00, 827.57),
    (592.44, 617.43, 812.14, 807.14),
    (537.59, 559.43, 746.43, 744.43),
    (795.02, 819.00, 1026.71, 1026.29),
]
UJ = 1_000_000


def steady(watts: list[float], start_s: float = T0, step_s: float = HOUR) -> MeterLine:
    times = start_s + step_s * np.arange(len(watts) + 1)
    joules = np.concatenate(([0.0], np.cumsum(np.array(watts) * step_s)))
    return MeterLine(times, joules, times - start_s)


def hour(number: int, watts: float, **more: object) -> NodeHour:
    uj = round(watts * HOUR * UJ)
    at = int(T0 + number * HOUR)
    row = NodeHour(at, "n1", "cpu.0", "package", "rapl", uj, uj, 0, 0, 1.0, float(at), at + HOUR)
    return replace(row, **more)


@pytest.fixture
def power9(tmp_path: Path) -> tuple[Store, list[Sensor]]:
    """Each phase as an hour; a job that fills the first one gives the chips an interval of 10 %."""
    store = Store(tmp_path)
    store.append_hours([hour(number, row[0]) for number, row in enumerate(POWER9)], "n1")
    store.append([known_site.job(1, "ada", 0, 1, MJ)], "n1")
    lines = [steady([row[place] for row in POWER9]) for place in (1, 2, 3)]
    return store, [Sensor(d, line, 0.01) for d, line in zip(("node", "psu", "wall"), lines, strict=True)]


def test_a_bmc_at_three_quarters_of_the_pdu_is_another_scope(power9: tuple[Store, list[Sensor]]) -> None:
    store, sensors = power9
    (day,) = reconcile(store, {"n1": sensors}, T0, T0 + 24 * HOUR)
    assert (day.node, day.day.isoformat(), day.hours) == ("n1", "2026-11-15", 6)
    assert day.figures["wall"].joules == pytest.approx(HOUR * sum(row[3] for row in POWER9))
    found = {(one.inner, one.outer): one for one in day.findings}
    # The supplies agree with the PDU; the BMC is another scope against both; chips below others are what chips are.
    assert set(found) == {("node", "psu"), ("node", "wall")}
    bmc = found["node", "wall"]
    assert bmc.kind == SCOPE and bmc.ratio == pytest.approx(0.76, abs=0.01) and bmc.low < bmc.ratio < bmc.high < 1
    assert "node sensor at 0.76 of the wall: another scope" in bmc.text


def test_a_part_larger_than_the_whole_is_an_alert(power9: tuple[Store, list[Sensor]]) -> None:
    store, _ = power9
    wrong = Sensor("wall", steady([300.0] * 6), 0.01)  # the plug of another node
    (day,) = reconcile(store, {"n1": [wrong]}, T0, T0 + 24 * HOUR)
    (one,) = day.findings
    assert (one.kind, one.inner, one.outer) == (ALERT, "chips", "wall") and one.low > 1
    # Within the 10 % of the chips there is nothing to tell.
    near = Sensor("wall", steady([0.95 * row[0] for row in POWER9]), 0.01)
    assert reconcile(store, {"n1": [near]}, T0, T0 + 24 * HOUR)[0].findings == ()
    unsure = Sensor("wall", steady([300.0] * 6))
    assert "interval of the wall unknown" in reconcile(store, {"n1": [unsure]}, T0, T0 + 24 * HOUR)[0].findings[0].text


def test_only_hours_that_all_saw(power9: tuple[Store, list[Sensor]]) -> None:
    store, (bmc, _, _) = power9
    late = Sensor("wall", steady([row[3] for row in POWER9[4:]], T0 + 4 * HOUR), 0.01)
    (day,) = reconcile(store, {"n1": [bmc, late]}, T0, T0 + 24 * HOUR)
    assert day.hours == 2
    assert day.figures["chips"].joules == pytest.approx(HOUR * (POWER9[4][0] + POWER9[5][0]))
    assert day.figures["node"].joules == pytest.approx(HOUR * (POWER9[4][1] + POWER9[5][1]))


def test_two_supplies_are_added(power9: tuple[Store, list[Sensor]]) -> None:
    store, (_, psu, _) = power9
    (day,) = reconcile(store, {"n1": [psu, psu]}, T0, T0 + 24 * HOUR)
    figure = day.figures["psu"]
    assert figure.joules == pytest.approx(2 * HOUR * sum(row[2] for row in POWER9))
    assert figure.low == pytest.approx(0.99 * figure.joules)


def test_slurm_is_compared_over_jobs_that_were_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    alone = known_site.job(1, "ada", 1, 1, MJ, idle_uj=MJ, slurm_energy_j=4e6)
    shared = [known_site.job(n, "bob", 3 + n / 4, 1, MJ, idle_uj=0, slurm_energy_j=9e6) for n in (2, 3)]
    two = known_site.job(9, "bob", 10, 1, MJ, idle_uj=0, slurm_energy_j=9e6, nodes=2)
    store.append([alone, *shared, two], "n1")
    (day,) = reconcile(store, {}, T0, T0 + 24 * HOUR)
    assert day.slurm is not None and day.ours is not None
    assert (day.jobs, day.slurm.joules, day.ours.joules) == (1, 4e6, 2e6)
    assert [(one.kind, one.ratio) for one in day.findings] == [(SCOPE, 0.5)]
    assert "2.00 times" in day.findings[0].text
    store.append([replace(alone, slurm_energy_j=1e6, written_s=9e9)], "n1")
    (day,) = reconcile(store, {}, T0, T0 + 24 * HOUR)
    assert [one.kind for one in day.findings] == [ALERT]
    store.append([replace(alone, slurm_energy_j=2.05e6, written_s=9.1e9)], "n1")
    assert reconcile(store, {}, T0, T0 + 24 * HOUR)[0].findings == ()


def test_sensors_from_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that began again and a gap are not observed; what is left is."""
    times = [T0 + 300 * n for n in (0, 1, 2, 3, 10, 11)]
    joules = [0.0, 300.0, 600.0, 0.0, 2100.0, 2400.0]
    line = {("n1", "node"): (times, joules)}
    monkeypatch.setattr("everywatt.slurm.site.reconcile.energy_lines", lambda *_: line)
    ((sensor,),) = sensors_in_series(ApiClient("http://x"), T0, T0 + HOUR).values()
    got, share = sensor.line.seen(np.array([T0, T0]), np.array([T0 + 600, T0 + 3300]))
    assert share.tolist() == [1.0, pytest.approx(900 / 3300)] and got[0] == 600.0
    assert (sensor.domain, sensor.relative) == ("node", None)


def test_the_command(power9: tuple[Store, list[Sensor]], capsys: pytest.CaptureFixture[str], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    store, sensors = power9
    words = ["slurm", "reconcile", "--store", str(store.path), "--since", "2026-11-15T00:00Z", "--until", "2026-11-16"]
    words += ["--from", "http://127.0.0.1:1"]
    monkeypatch.setattr("everywatt.cli.slurm.wall.sensors_in_series", lambda *_: {"n1": sensors})
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "another scope" in out and "POWER SUPPLY" in out and "Chips: package." in out and "0 alerts" in out
    wrong = Sensor("wall", steady([300.0] * 6), 0.01)
    monkeypatch.setattr("everywatt.cli.slurm.wall.sensors_in_series", lambda *_: {"n1": [wrong]})
    assert main(words) == 1 and "ALERT: chips" in capsys.readouterr().out
    assert main([*words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["alerts"] == 1 and found["days"][0]["figures"]["chips"]["scope"] == "package" and not found["ok"]


def test_a_small_share_that_slurm_counted_is_not_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([known_site.job(1, "ada", 10, 1, 4 * MJ, idle_uj=0, slurm_energy_j=1234.0)], "n1")
    hour = NodeHour(int(T0 + 10 * HOUR), "n1", "cpu.0", "package", "rapl", 5 * MJ, 4 * MJ, MJ, 0, 1.0)
    store.append_hours([hour], "n1")
    (day,) = reconcile(store, {}, T0, T0 + 24 * HOUR)
    assert [one.text for one in day.findings] == ["Slurm counted 0.031 % of what the chips of the same jobs drew"]
