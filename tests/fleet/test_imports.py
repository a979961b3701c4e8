"""Series become nodes, channels and joules."""

from array import array

import pytest

import everywatt
from everywatt.core.channels import Domain, Kind, Pedigree
from everywatt.energy.sources import sources
from everywatt.fleet.imports import energy, targets, translate, write_run
from everywatt.fleet.metrics import LOW_HIGH
from everywatt.fleet.query import Series
from everywatt.tape.reader import Tape

START = 1_700_000_000_000
E, P, INFO = "everywatt_energy_joules_total", "everywatt_power_watts", "everywatt_device_info"


def series(name, values, /, *, at=START, step=1000, **labels):
    return Series(name, labels, array("q", [at + step * n for n in range(len(values))]), array("d", map(float, values)))


def node(instance, scale=1.0, job="everywatt", **more):
    """A node of one package of 60 W, and its core, and one card of 200 W, for 10 s."""
    place = {"instance": instance, "job": job, **more}
    cpu, gpu = {"device": "cpu.0", **place}, {"device": "gpu.0", "domain": "gpu", "pedigree": "counter", **place}
    return [
        series(E, [scale * 60 * n for n in range(11)], domain="package", pedigree="counter", **cpu),
        series(E, [scale * 40 * n for n in range(11)], domain="core", pedigree="counter", **cpu),
        series(P, [scale * 60] * 11, domain="package", pedigree="counter", **cpu),
        series(E, [scale * 200 * n for n in range(11)], **gpu),
        series(P, [scale * 200] * 11, **gpu),
        series("everywatt_utilisation_ratio", [0.5] * 11, device="gpu.0", **place),
        series(INFO, [1] * 11, name="NVIDIA A100-SXM4-40GB", total="1", device="gpu.0", domain="gpu", **place),
    ]  # fmt: skip


def run_of(found, tmp_path):
    nodes, notes = targets(found)
    return everywatt.load(write_run(tmp_path / "run", nodes, "http://store", {})), notes


def test_joules_of_counters_and_nothing_twice(tmp_path):
    run, notes = run_of(node("n1:9876"), tmp_path)
    figure = run.energy()
    assert notes == [] and figure.joules == pytest.approx(2600, abs=1e-9) and figure.scope == "cpu+gpu"
    card = run.energy(device="gpu.0")
    assert figure.pedigree == "counter" and card.low < 2000 * 0.93  # an A100 that nobody calibrated
    (tape,) = run.tapes
    assert tape.meta["host"]["name"] == "n1" and tape.meta["labels"]["instance"] == "n1:9876"
    assert {s.channel.name for s in sources(tape)} == {"cpu.0.package.energy", "cpu.0.core.energy", "gpu.0.energy"}


def test_two_nodes_are_two_tapes(tmp_path):
    run, _ = run_of([*node("n1:1"), *node("n2:1", 2.0)], tmp_path)
    assert len(run.tapes) == 2 and run.energy().joules == pytest.approx(3 * 2600)


def test_two_agents_behind_one_name_are_two(tmp_path):
    run, notes = run_of([*node("n1:1"), *node("n1:2", 2.0)], tmp_path)
    assert len(run.tapes) == 2 and notes == [] and run.energy().joules == pytest.approx(3 * 2600)


def test_what_is_scraped_and_written_counts_once(tmp_path):
    run, notes = run_of([*node("n1:9876"), *node("host1"), *node("n1:9876", replica="b")], tmp_path)
    assert len(run.tapes) == 1 and run.energy().joules == pytest.approx(2600)
    assert len(notes) == 2 and all("they are counted once" in note for note in notes)


def test_two_nodes_that_say_the_same_of_themselves_are_two():
    nodes, notes = targets(
        [
            series(name, [1] * 5, device="gpu.0", instance=host)
            for host in ("n1", "n2")
            for name in (P, "everywatt_sensor_up")
        ]
    )
    assert [node.host for node in nodes] == ["n1", "n2"] and notes == []


def test_other_exporters_of_a_node_lie_beside_it(tmp_path):
    load = series("node_load1", [1.0] * 11, instance="n1:9100", job="node")
    run, _ = run_of([*node("n1:9876"), load], tmp_path)
    (tape,) = run.tapes
    assert any(c.name == "node_load1" for g in tape.groups for c in g.info.channels)


def test_joules_of_other_exporters_are_not_added_to_ours(tmp_path):
    rail = series("tegra_wattage_current_milliwatts", [5000] * 11, sensor="vdd_in", instance="n1:9101", job="tegra")
    card = series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", [200e3 * n for n in range(11)], gpu="1", instance="n1:9400")
    run, _ = run_of([*node("n1:9876"), rail, card], tmp_path / "both")
    assert run.energy().joules == pytest.approx(2600)
    for theirs, joules, scope in ((rail, 50, "soc"), (card, 2000, "gpu")):
        run, _ = run_of([theirs], tmp_path / scope)
        assert run.energy().joules == pytest.approx(joules) and run.energy().scope == scope


def test_a_counter_that_starts_again_is_a_gap(tmp_path):
    values = [0, 60, 120, 180, 5, 65, 125]
    run, _ = run_of([series(E, values, device="cpu.0", domain="package", pedigree="counter", instance="n")], tmp_path)
    figure = run.energy()
    assert figure.joules == pytest.approx(180 + 120) and figure.coverage == pytest.approx(5 / 6)


@pytest.mark.parametrize("scraped", [False, True], ids=["written", "scraped"])
def test_what_no_agent_saw_is_not_observed_and_what_it_bridged_is(tmp_path, scraped):
    """Two cards of 100 W, no agent for 6 s: the joules of one, which has a counter, came later, those of the other not.

    Coverage is written when it changes, but scraped each time; then the agent is away between two scrapes.
    """
    times = list(range(0, 60, 15)) if scraped else [*range(15), *range(21, 60)]
    found = []
    for card, lost_s in (("gpu.0", 0), ("gpu.1", 6)):
        labels = {"device": card, "domain": "gpu", "instance": "n"}
        joules = [100.0 * (t - (lost_s if t >= 20 else 0)) for t in times]
        shares = [(t, 1 - lost_s / (t - 14) if t >= 20 and lost_s else 1.0) for t in times]
        kept = [(t, c) for n, (t, c) in enumerate(shares) if scraped or not n or c != shares[n - 1][1]]
        for name, more, pairs in (
            (E, {"pedigree": "counter"}, list(zip(times, joules, strict=True))),
            ("everywatt_coverage_ratio", {}, kept),
        ):
            at_ms, values = zip(*pairs, strict=True)
            found.append(Series(name, labels | more, array("q", [START + 1000 * t for t in at_ms]), array("d", values)))
    run, _ = run_of(found, tmp_path)
    whole, partly = (run.energy(device=card) for card in ("gpu.0", "gpu.1"))
    truth_j = 100.0 * (times[-1] - times[0])
    assert whole.joules == pytest.approx(truth_j) and whole.coverage == 1.0
    assert partly.coverage == pytest.approx(1 - (15 if scraped else 7) / times[-1])
    assert partly.low <= truth_j <= partly.high and partly.joules < 0.9 * truth_j


def test_jobs_are_spans(tmp_path):
    job = series("everywatt_job_info", [1] * 4, exported_job="42", user="ada", instance="n1:9876", job="everywatt")
    again = series("everywatt_job_info", [1] * 3, at=START + 8000, exported_job="42", user="ada", instance="n1:9876")
    job.at_ms.extend(again.at_ms)
    job.values.extend(again.values)
    run, _ = run_of([*node("n1:9876"), job], tmp_path)
    spans = [span for span in run.spans if span.name == "job 42"]
    assert [round((s.end_ns - s.start_ns) / 1e9) for s in spans] == [3, 2] and spans[0].attributes["user"] == "ada"


def test_odd_names_and_labels_survive(tmp_path):
    odd, shown = 'he said "watt"\\\nœuvre\x1b[31m', 'he said "watt"\\\\nœuvre\\x1b[31m'
    owner = series(
        "everywatt_owner_energy_joules_total", [0, 5], kind="container", owner=odd, device="cpu.0", instance=odd
    )
    run, _ = run_of([*node(odd), owner], tmp_path)
    (tape,) = run.tapes
    assert tape.meta["host"]["name"] == shown
    names = [c.name for g in tape.groups for c in g.info.channels]
    assert any("œuvre" in name and name.startswith("everywatt_owner_energy") for name in names)
    assert all(name.isprintable() for name in names)
    assert run.energy().joules == pytest.approx(2600)
    with Tape.open(tape.path) as again:
        assert again.meta["host"]["name"] == shown


@pytest.mark.parametrize(
    "device, domain, name, own",
    [
        ("cpu.0", "package", "cpu.0.package.energy", "cpu.0"),
        ("dram.1", "dram", "cpu.1.dram.energy", "dram.1"),
        ("gpu.3", "gpu", "gpu.3.energy", "gpu.3"),
        ("jetson VDD_SOC", "rail", "jetson.VDD_SOC.energy", "jetson"),
        ("jetson", "soc", "jetson.energy", "jetson"),
        ("psys", "node", "psys.energy", "psys"),
        ("x", "somewhere", "x.energy", "x"),
    ],
)
def test_names_of_energy(device, domain, name, own):
    found = energy(device, domain, "counter")
    assert (found.name, found.device, found.kind) == (name, own, Kind.COUNTER)
    assert found.domain == (Domain(domain) if domain != "somewhere" else None)


def test_what_is_modelled_stays_so_and_is_wide(tmp_path):
    told = [series(E, [0, 100, 200], device="host", domain="node", pedigree="modelled", instance="n")]
    run, _ = run_of(told, tmp_path)
    figure = run.energy()
    assert figure.pedigree == "modelled" and figure.low <= 0.5 and figure.high >= 399.5
    assert energy("host", "node", "modelled").pedigree is Pedigree.MODELLED


@pytest.mark.parametrize(
    "metric, labels, name, unit, scale, domain",
    [
        ("everywatt_utilisation_ratio", {"device": "gpu.0"}, "gpu.0.utilisation", "%", 100.0, None),
        ("everywatt_clock_hertz", {"device": "gpu.0", "clock": "sm"}, "gpu.0.clock_sm", "MHz", 1e-6, None),
        ("everywatt_host_cpu_seconds_total", {"mode": "busy"}, "host.cpu_time", "s", 1.0, None),
        ("everywatt_host_memory_bytes", {}, "host.memory", "B", 1.0, None),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", {"gpu": "1", "modelName": "X"}, "gpu.1.energy", "J", 1e-3, Domain.GPU),
        ("DCGM_FI_DEV_POWER_USAGE", {"gpu": "1"}, "gpu.1.power", "W", 1.0, Domain.GPU),
        ("node_rapl_package_joules_total", {"index": "0"}, "cpu.0.package.energy", "J", 1.0, Domain.PACKAGE),
        ("tegra_wattage_current_milliwatts", {"sensor": "vdd_in"}, "soc.power", "W", 1e-3, Domain.SOC),
        ("container_cpu_usage_seconds_total", {"container": "stressme", "instance": "n", "job": "c"},
         'container_cpu_usage_seconds_total{container="stressme"}', "s", 1.0, None),
    ],
)  # fmt: skip
def test_channels(metric, labels, name, unit, scale, domain):
    channel = translate(Series(metric, labels)).channel
    assert (channel.name, channel.unit, channel.scale, channel.domain) == (name, unit, scale, domain)


def test_what_an_agent_integrated_keeps_its_provenance_and_is_no_more_certain(tmp_path):
    """A board of 8 W for a minute, of which the agent knew ± 10 %: more than the gain of its sensor."""
    place = {"device": "jetson", "domain": "soc", "pedigree": "integrated", "instance": "n"}
    shares = {E: 1.0, LOW_HIGH[0]: 0.9, LOW_HIGH[1]: 1.1}
    run, _ = run_of(
        [series(name, [share * 8 * n for n in range(61)], **place) for name, share in shares.items()], tmp_path
    )
    figure = run.energy()
    assert figure.pedigree == "integrated" and figure.joules == pytest.approx(480)
    assert 400 < figure.low <= 433 and 527 <= figure.high < 560
