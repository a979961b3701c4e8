"""The table of known sensors against the figures it was made from (Yang et al., SC 2024, Overall_Results.xlsx)."""

import math

import pytest

# _DATA is the file itself: what it says is compared with what it is taken for.
from everywatt.sensors.nvidia.gpu_known import _DATA, CARDS, facts_for, in_slot, model_of, row_for, spread, timing


@pytest.mark.parametrize(
    ("name", "driver", "reading", "period_s", "window_s"),
    [
        ("NVIDIA A100-PCIE-40GB", "535.54.03", "draw", 0.1, 0.025),
        ("NVIDIA A100-SXM4-80GB", "525.85.12", "instant", 0.1, 0.025),
        ("NVIDIA A100-PCIE-40GB", "535.54.03", "average", 0.1, None),
        ("NVIDIA H100 PCIe", "525.105.17", "instant", 0.1, 0.025),
        ("NVIDIA H100 80GB HBM3", "590.48.01", "draw", 0.1, 1.0),
        ("NVIDIA GeForce RTX 3090", "525.89.02", "draw", 0.1, 1.0),
        ("NVIDIA GeForce RTX 3090", "530.30.02", "draw", 0.1, 0.1),
        ("NVIDIA GeForce RTX 3090", "535.54.03", "draw", 0.1, 1.0),
        ("NVIDIA GeForce RTX 3090", "535.54.03", "instant", 0.1, 0.1),
        ("NVIDIA GeForce RTX 3090", "", "draw", 0.1, 1.0),
        ("NVIDIA RTX A5000", "535.54.03", "instant", 0.1, 0.08),
        ("NVIDIA GeForce RTX 2080 SUPER", "595.71.05", "draw", 0.1, 0.1),
        ("Quadro RTX 8000", "525.116.04", "draw", 0.1, 0.02),
        ("Tesla T4", "470.57", "draw", 0.1, None),
        ("Tesla V100-SXM2-16GB", "525.116.04", "draw", 0.02, 0.01),
        ("Tesla P100-PCIE-16GB", "535.54.03", "draw", 0.02, 0.01),
        ("NVIDIA GeForce GTX 1080 Ti", "535.54.03", "draw", 0.02, 0.01),
        ("NVIDIA TITAN X (Pascal)", "535.54.03", "draw", 0.02, 0.01),
        ("NVIDIA GeForce GTX TITAN X", "535.54.03", "draw", 0.1, None),
        ("Tesla M40", "535.54.03", "draw", 0.031, 0.014),
        ("NVIDIA B200", "570.1", "draw", None, 1.0),
        ("Some Other Card", "570.1", "instant", None, None),
        ("NVIDIA A100-PCIE-40GB", "535.54.03", "counter", 0.1, 0.025),
        ("NVIDIA GeForce RTX 3090", "535.54.03", "counter", 0.1, None),
    ],
)
def test_period_and_window(name, driver, reading, period_s, window_s):
    assert timing(name, driver, reading) == (period_s, window_s)


def test_every_row_says_where_it_comes_from():
    for row in (*_DATA["sensors"], *_DATA["cards"]):
        assert row["source"] and set(row["source"]) <= set(_DATA["sources"]), row
    assert all(row["note"] for row in _DATA["sensors"])


def test_what_is_not_published_is_unknown():
    """Of Blackwell and GB10 only the average is documented; their gain is that of an unknown card."""
    for name in ("NVIDIA GB10", "NVIDIA GB200", "NVIDIA GeForce RTX 5090", "NVIDIA B300 SXM6 AC"):
        assert timing(name, "580.95.05", "instant") == (None, None)
        assert timing(name, "580.95.05", "draw") == (None, 1.0)
        assert timing(name, "580.95.05", "counter") == (None, None)


def test_families_are_told_apart_by_whole_words():
    assert row_for("NVIDIA RTX A3000 Laptop GPU", "535").family == "Ampere"
    assert row_for("NVIDIA A30", "535").family == "GA100"
    assert row_for("NVIDIA L4", "535").family == "Ada"
    assert row_for("NVIDIA GH200 480GB", "550").family == "Hopper"
    assert row_for("NVIDIA RTX 6000 Ada Generation", "550").family == "Ada"


def test_a_declared_exact_card_has_no_gain_error_and_no_assumed_period():
    facts = facts_for("everywatt Simulated Exact A100", "535.0", 400.0, "counter")
    assert (facts.gain_pct, facts.offset_w, facts.period_s, facts.window_s) == (0.0, 0.0, None, None)
    assert facts_for("everywatt Simulated GPU", "535.0", None, "draw").gain_pct > 0.0


def test_spread_of_the_measured_cards():
    # t(17) = 2.110 on the root mean square (3.74 %, 5.82 W), with one more card to come.
    wide = spread()
    assert wide.gain_pct == pytest.approx(8.11, abs=0.02)
    assert wide.offset_w == pytest.approx(12.62, abs=0.02)
    assert wide.correlation == pytest.approx(-0.293, abs=0.002)
    assert wide.freedom == 17


def test_offset_grows_with_the_limit_of_boards_larger_than_measured_ones_only():
    offset_w = {limit_w: facts_for("NVIDIA A100", "535", limit_w, "draw").offset_w for limit_w in (None, 70, 400, 900)}
    assert offset_w == pytest.approx({None: 12.62, 70: 12.62, 400: 12.62, 900: 2 * 12.62}, abs=0.02)


def test_spread_covers_95_percent_of_cards_that_were_left_out():
    covered = checked = 0
    for card in CARDS:
        wide = spread(card.model)
        for share in (0.15, 0.3, 0.5, 0.7, 0.85, 1.0):
            watts = share * card.limit_w
            error = abs(card.offset_w + card.gradient_pct / 100 * watts)
            bound = math.hypot(wide.gain_pct / 100 * watts, wide.offset_w)
            covered, checked = covered + (error <= bound), checked + 1
    assert covered / checked >= 0.95


@pytest.mark.parametrize("share", [0.1, 0.17, 0.3, 0.5, 0.7, 1.0])
def test_at_every_level_of_power_one_card_of_19_may_be_further_off_than_other_models_say(share):
    beyond = []
    for card in CARDS:
        facts = facts_for("NVIDIA Z900", "600", card.limit_w, "draw", leave_out=(card.model,))
        watts = share * card.limit_w
        gain, offset = facts.gain_pct / 100 * watts, facts.offset_w
        bound = math.sqrt(gain**2 + offset**2 + 2 * facts.correlation * gain * offset)
        if abs(card.offset_w + card.gradient_pct / 100 * watts) > bound:
            beyond.append(card.model)
    assert len(beyond) <= 1, beyond


def test_cards_of_one_model_share_a_key():
    assert model_of("NVIDIA GeForce RTX 3090") == model_of("GeForce RTX 3090") == "RTX 3090"


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("NVIDIA H100 PCIe", True),
        ("NVIDIA L40S", True),
        ("NVIDIA GeForce RTX 4090", True),
        ("NVIDIA GH200 480GB", False),
        ("NVIDIA GB200", False),
        ("NVIDIA H100 80GB HBM3", False),
        ("NVIDIA GH200 144G HBM3e PCIe", False),
        ("NVIDIA A100-PCIE-40GB", True),
        ("NVIDIA H100 NVL", True),
        ("NVIDIA GB200 NVL72", False),
    ],
)
def test_cards_in_slots_are_in_no_module(name, slot):
    assert in_slot(name) is slot
