"""Ratios and differences of figures hold the truth where errors are drawn as the figures say that they are."""

from __future__ import annotations

import numpy as np
import pytest
from tapes import at, write_tape

from everywatt.api.run import load
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree, fresh
from everywatt.energy.window import MODEL_ALIKE, MODEL_OWN

DRAWS = 20_000
GAIN, OFFSET_W = 0.08, 12.0  # 95 % half-widths
ALIKE = (0.4, 0.7)
CORRELATION = -0.39
FIRST, SECOND = (1, 9), (11, 19)  # windows, in seconds; the first at 300 W, the second at 120 W


def gauge(device, **facts):
    known = Facts(period_s=0.1, window_s=0.1, max_w=400.0, gain_pct=100 * GAIN, offset_w=OFFSET_W, **facts)
    return Channel(f"{device}.power", "W", Kind.GAUGE, device, Domain.GPU, facts=known, pedigree=Pedigree.INTEGRATED)


def recorded(path, *devices):
    """Every device draws 300 W for 10 s and then 120 W."""
    groups = []
    for device in devices:
        channel = gauge(device, cards="X", correlation=CORRELATION, gain_alike=ALIKE[0], offset_alike=ALIKE[1])
        ticks = [fresh(at(n / 10), (300.0 if n <= 100 else 120.0,)) for n in range(202)]
        groups.append((GroupInfo(device, "test", device, (channel,)), 0.1, ticks))
    return load(write_tape(path, groups))


def drawn(rng, cards):
    """Gains and offsets (W) of cards of one model, each `cards` × DRAWS."""
    own, shared = rng.standard_normal((2, cards, DRAWS)), rng.standard_normal((2, 1, DRAWS))
    gain, rest = (np.sqrt(a) * s + np.sqrt(1 - a) * o for a, s, o in zip(ALIKE, shared, own, strict=True))
    offset = CORRELATION * gain + np.sqrt(1 - CORRELATION**2) * rest
    return GAIN / 1.96 * gain, OFFSET_W / 1.96 * offset


def holds(low, high, truth):
    return np.mean((truth >= low) & (truth <= high))


@pytest.mark.parametrize("card", [0, 1])
def test_two_windows_of_one_card_or_of_two_cards_of_one_model(tmp_path, card):
    devices = ("gpu.0", "gpu.1")
    run = recorded(tmp_path / "a.tape", *devices)
    top, bottom = run.energy(between=FIRST, device="gpu.0"), run.energy(between=SECOND, device=devices[card])
    gain, offset = drawn(np.random.default_rng(card), 2)
    true_top = (top.joules - 8 * offset[0]) / (1 + gain[0])
    true_bottom = (bottom.joules - 8 * offset[card]) / (1 + gain[card])
    ratio, difference = top.ratio(bottom), top - bottom
    assert 0.93 <= holds(ratio.low, ratio.high, true_top / true_bottom) <= 0.985
    assert 0.93 <= holds(difference.low, difference.high, true_top - true_bottom) <= 0.985
    alone = np.hypot(top.half_width / top.joules, bottom.half_width / bottom.joules) * ratio.value
    assert (ratio.high - ratio.low) / 2 < (0.85, 0.95)[card] * alone


@pytest.mark.parametrize("sd", [0.1, 0.25, 0.6])
def test_two_loads_of_a_modelled_machine(tmp_path, sd):
    """The model's interval is lopsided; what it says of the machine is the same error in both windows."""
    sides = np.exp(-1.645 * sd), np.exp(1.645 * sd)  # 90 %, as models give it
    watts = Channel("host.power", "W", Kind.GAUGE, "host", Domain.NODE, pedigree=Pedigree.MODELLED)
    names = ("low", "high", "outside")
    beside = [Channel(f"modelled.{name}", "W", Kind.GAUGE, "host", pedigree=Pedigree.MODELLED) for name in names]
    ticks = [
        fresh(at(n / 10), (w, w * sides[0], w * sides[1], 0.0))
        for n in range(202)
        for w in (300.0 if n <= 100 else 120.0,)
    ]
    group = GroupInfo("modelled.host", "modelled", "host", (watts, *beside))
    parts = [("part", 1 + n / 2, 1.4 + n / 2, None, {}) for n in range(12)]
    run = load(write_tape(tmp_path / "a.tape", [(group, 0.1, ticks)], parts))
    top, bottom = run.energy(between=FIRST), run.energy(between=SECOND)
    rng = np.random.default_rng(1)
    machine, *loads = rng.standard_normal((3, DRAWS))
    own = min(np.sqrt(1 - MODEL_ALIKE) * sd, MODEL_OWN / 1.96)
    errors = [np.exp(np.sqrt(sd**2 - own**2) * machine + own * one) for one in loads]
    ratio = top.ratio(bottom)
    assert 0.93 <= holds(ratio.low, ratio.high, top.joules * errors[0] / (bottom.joules * errors[1])) <= 0.985
    for figure, error in zip((top, bottom), errors, strict=True):
        assert holds(figure.low, figure.high, figure.joules * error) >= 0.93
    # Twelve windows of one load do not make each other surer, however they are asked for.
    repeated = run.energy("part"), run.energy("part", device="host")
    for figure in repeated:
        assert figure.half_width / figure.joules == pytest.approx(top.half_width / top.joules, rel=0.01)


def compared(top, bottom, true_top, true_bottom):
    """Whether the difference and the ratio of two figures hold the truth."""
    difference, ratio = top - bottom, top.ratio(bottom)
    return (
        difference.low <= true_top - true_bottom <= difference.high,
        ratio.low <= true_top / true_bottom <= ratio.high,
    )


@pytest.mark.parametrize("name", ["telegraph 60 ms", "square 0.7 s", "decode pulses"])
def test_what_a_part_time_sensor_misses_of_two_windows_does_not_cancel(product, tmp_path, name):
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sensor = product.SENSORS["gauge 25 of 100 ms"]
        recorded = product.record(product.LOADS[name](rng), sensor, tmp_path / f"{seed}.tape", rng)
        starts = rng.uniform(3, 50, (40, 2))
        truth = recorded.truth(starts, starts + 1.0)
        for (a, b), true in zip(starts.tolist(), truth.tolist(), strict=True):
            found.append(compared(*(recorded.run.energy(between=(at_s, at_s + 1.0)) for at_s in (a, b)), *true))
    assert np.mean(found, axis=0).min() >= 0.93


def test_equal_cards_under_loads_of_their_own_are_not_off_by_the_same(product, tmp_path):
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        loads = [product.LOADS["telegraph 60 ms"](rng) for _ in range(2)]
        sensor = product.Sensor(counter=True, model="A100")
        recorded = product.record(loads, [sensor] * 2, tmp_path / f"{seed}.tape", rng, in_phase=True)
        for at_s in rng.uniform(3, 50, 40).tolist():
            figures = [recorded.run.energy(between=(at_s, at_s + 0.3), device=f"gpu.{n}") for n in range(2)]
            begin_s = 1.0 - recorded.span_s[0]
            found.append(compared(*figures, *(load.energy(at_s + begin_s, at_s + begin_s + 0.3) for load in loads)))
    assert np.mean(found, axis=0).min() >= 0.93
