"""Net energy: above an idle level that was observed, and refused where none was. Machines whose idle power is known."""

import json
import tracemalloc
from dataclasses import replace

import pytest
from machines import Process, write_machine
from tapes import counter_group, gauge_group, rows, write_tape

from everywatt.api.run import Run, load
from everywatt.core.energy import Energy, total
from everywatt.formats.aipowermeter import END, FILE, import_aipowermeter
from everywatt.ledger.idle import MODEL_ERROR, Idle, Watched, find_idle, net_energy, with_cure
from everywatt.tape.reader import Tape

IDLE_W, FULL_W, CPUS = 20.0, 120.0, 2


def watts(uses):
    """A package whose power is proportional to use, as `sim --package load:20W,120W`."""
    return [IDLE_W + (FULL_W - IDLE_W) * min(use / CPUS, 1.0) for use in uses]


def machine(tmp_path, own, other=None, **options):
    """A run of `own` CPUs busy in each second, `other` CPUs of other programs beside it."""
    other = other or [0.0] * len(own)
    both = [a + b for a, b in zip(own, other, strict=True)]
    path = write_machine(
        tmp_path / "a.tape",
        {"cpu.0": watts(both)},
        [Process(100, own)],
        seconds=len(own),
        other=other,
        cpus=CPUS,
        **options,
    )
    return Run(path, [Tape.open(path)])


def refused(net, *words):
    assert net.joules is None, f"{net}"
    for word in words:
        assert word in net.refused, net.refused
    return True


def test_a_busy_run_has_no_idle_in_it(tmp_path):
    """4 CPU seconds: 200 J above idle, of which the run's own power says nothing."""
    run = machine(tmp_path, [1.0] * 12)
    assert refused(run.energy_net(), "cpu.0", "--idle 10s")


def test_a_baseline_beside_a_busy_core_is_rejected(tmp_path):
    spans = [("idle", 0, 2, {"role": "idle"}), ("run", 2, 6, {})]
    run = machine(tmp_path, [0.0, 0.0, 1.0, 1.0, 1.0, 1.0], [1.0] * 6, spans=spans)
    assert refused(run.energy_net(), "50.0 % busy", "stop other programs")
    assert run.baseline is None


def test_a_baseline_of_an_idle_machine_gives_the_truth(tmp_path):
    spans = [("idle", 0, 4, {"role": "idle"}), ("run", 4, 8, {})]
    run = machine(tmp_path, [0.0] * 4 + [1.0] * 4, spans=spans)
    net = run.energy_net()
    assert net.joules == pytest.approx(200.0, abs=2.0) and net.low <= 200.0 <= net.high
    assert run.baseline.method == "measured"


def test_quiet_time_of_the_run_gives_the_truth(tmp_path):
    run = machine(tmp_path, [0.0] * 12 + [1.0] * 8)
    net = run.energy_net()
    assert net.low <= 400.0 <= net.high and net.joules == pytest.approx(400.0, rel=0.05)


def test_the_ledger_and_net_energy_have_one_idle(tmp_path):
    run = machine(tmp_path, [0.04] * 12 + [1.0] * 8)
    ledger = run.ledger()
    idle = next(entry for entry in ledger.entries if entry.owner.kind.value == "idle")
    assert run.energy().value - run.energy_net().value == pytest.approx(idle.energy.value, rel=1e-3)


@pytest.mark.parametrize(("idle_span", "utilisation"), [(False, None), (False, 100.0), (True, 100.0)])
def test_a_card_at_work_is_not_idle(tmp_path, idle_span, utilisation):
    """200 W throughout: whether the card was at work or its use is unknown, no idle was seen."""
    spans = [("idle", 0, 4, {"role": "idle"}), ("run", 4, 12, {})] if idle_span else []
    use = None if utilisation is None else {"gpu.0": [utilisation] * 12}
    path = write_machine(
        tmp_path / "a.tape", {"gpu.0": [200.0] * 12}, (), seconds=12, gauges=["gpu.0"], utilisation=use, spans=spans
    )
    run = Run(path, [Tape.open(path)])
    assert refused(run.energy_net(), "gpu.0")


def test_a_card_with_a_process_of_which_the_driver_reports_no_use_is_not_idle(tmp_path):
    row = {"gpu": 0, "pid": 100, "type": "C", "memory_bytes": 1 << 30, "sm": None}
    path = write_machine(
        tmp_path / "a.tape", {"gpu.0": [200.0] * 12}, [Process(100, [0.0] * 12)], seconds=12, gpu_rows={1: [row]}
    )
    assert refused(Run(path, [Tape.open(path)]).energy_net(), "gpu.0", "utilisation was not recorded")


def test_a_card_that_draws_most_of_its_limit_without_utilisation_is_not_idle():
    seen = Watched([200.0] * 40, [0.0] * 40, 0.25, "gpu", [False] * 40, limit_w=300.0)
    found = find_idle(seen)
    assert not found.observed and "67 % of its power limit" in found.note.replace("66.7", "67")
    assert find_idle(replace(seen, watts=[50.0] * 40)).method == "quiet"


def test_idle_is_taken_off_the_time_that_was_observed(tmp_path):
    """A card of 30 W at rest and 130 W at work, of which two of eight seconds were not read."""
    path = write_machine(
        tmp_path / "a.tape",
        {"gpu.0": [30.0] * 6 + [130.0] * 8},
        (),
        seconds=14,
        gauges=["gpu.0"],
        missing=[9, 10],
        utilisation={"gpu.0": [0.0] * 6 + [100.0] * 8},
        spans=[("run", 6, 14, {})],
    )
    net = Run(path, [Tape.open(path)]).energy_net()
    assert net.joules == pytest.approx(100.0 * 8 * net.coverage, rel=0.05) and net.coverage < 0.85
    assert net.low <= 800.0 <= net.high


def test_power_that_use_does_not_explain_is_not_idle(tmp_path):
    """40 W and 300 W in turns while no CPU was busy: the interval of idle holds 40 W."""
    path = write_machine(
        tmp_path / "a.tape", {"cpu.0": [40.0, 40.0, 300.0, 300.0] * 8}, [Process(100, [0.0] * 32)], seconds=32
    )
    run = Run(path, [Tape.open(path)])
    idle = run.ledger().idle["cpu.0"]
    assert idle["watts"] - idle["spread_w"] <= 40.0 <= idle["watts"] + idle["spread_w"]
    assert refused(run.energy_net(), "cpu.0", "varied")


def test_without_utilisation_net_is_refused(tmp_path):
    ticks = rows(lambda t: 100.0, 0, 30, 0.1)
    path = write_tape(tmp_path / "a.tape", [(gauge_group(), 0.1, ticks)])
    assert refused(Run(path, [Tape.open(path)]).energy_net(), "utilisation was not recorded")


def test_a_tape_of_a_month_costs_no_more_memory(tmp_path):
    month_s = 3_000_000
    ticks = rows(lambda t: 50.0 * t, 0, 10, 0.1) + rows(lambda t: 50.0 * t, month_s, month_s + 10, 0.1)
    run = Run(tmp_path, [Tape.open(write_tape(tmp_path / "a.tape", [(counter_group(), 0.1, ticks)]))])
    run.energy()
    tracemalloc.start()
    try:
        run.energy_net()
        assert tracemalloc.get_traced_memory()[1] < 12e6
    finally:
        tracemalloc.stop()


def test_the_time_between_two_segments_of_aipowermeter_is_not_idle(tmp_path):
    lines = []
    for minute in (0, 30):
        for second in range(20):
            reading = {"date": f"2026-03-01 10:{minute:02d}:{second:02d}.000000"}
            lines.append(json.dumps(reading | {"metrics": {"cpu": {"intel_power": 70.0, "psys_power": -1}}}))
        lines.append(json.dumps(END))
    (tmp_path / FILE).write_text("\n".join(lines) + "\n")
    run = load(import_aipowermeter([tmp_path], tmp_path / "out.tape", {}))
    idle = run.ledger().idle["cpu.0"]
    assert idle["watts"] == pytest.approx(70.0) and idle["spread_w"] >= 50.0
    assert run.energy().joules == pytest.approx(2 * 19 * 70.0)
    assert refused(run.energy_net(), "utilisation was not recorded")


def test_each_device_has_its_own_reason_for_a_net_figure_that_is_refused():
    """Two reasons in one sentence contradict one another unless it says which device each is of."""
    parts = {
        label: Energy(10.0, scope="cpu", pedigree="counter", coverage=1.0) for label in ("cpu.0", "gpu.0", "gpu.1")
    }
    never, short = (
        Idle(1.0, 1.0, "prior", note=note) for note in ("it was never idle", "it was idle for less than 2 s")
    )
    gross = total(parts, scope="cpu+gpu")
    net = net_energy(gross, {"cpu.0": never, "gpu.0": short, "gpu.1": short}, 1.0)
    assert net.refused == (
        "the idle power of cpu.0 is not known: it was never idle; of gpu.0, gpu.1: it was idle for less than 2 s"
    )
    same = net_energy(gross, dict.fromkeys(parts, never), 1.0)
    assert same.refused == "the idle power of cpu.0, gpu.0, gpu.1 is not known: it was never idle"


def test_a_model_that_is_too_uncertain_is_no_matter_of_idle():
    """Recording again with idle time would not help; where idle is not known it would."""
    modelled, unknown = (
        Energy.refuse(MODEL_ERROR),
        Energy.refuse("the idle power of cpu.0 is not known: it was never idle"),
    )
    assert with_cure(modelled, lambda: "record idle").refused == MODEL_ERROR
    assert with_cure(unknown, lambda: "record idle").refused.endswith("never idle; record idle")
