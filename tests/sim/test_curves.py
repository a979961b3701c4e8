import gzip
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.core.errors import SimError, UsageError
from everywatt.sim.curves import Load, parse_curve

CURVES = [
    "constant:100W",
    "square:100W,300W,1.3s",
    "square:50W,250W,0.7s,0.2",
    "ramp:100W,300W,10s",
    "step:100W,300W,5s",
    "step:100W,300W,2s,4s",
    "sine:200W,80W,0.9s",
    "telegraph:80W,320W,0.2s,7",
]


@pytest.mark.parametrize(
    ("text", "a", "b", "joules"),
    [
        ("constant:100W", 0.0, 5.0, 500.0),
        ("constant:1.5kW", -1.0, 1.0, 3000.0),
        ("square:100W,300W,2s", 0.0, 4.0, 800.0),
        ("square:100W,300W,2s", 0.5, 1.5, 200.0),
        ("square:100W,300W,1s,0.25", 0.0, 1.0, 150.0),
        ("ramp:100W,300W,10s", 0.0, 10.0, 2000.0),
        ("ramp:100W,300W,10s", 5.0, 12.0, (200 + 300) / 2 * 5 + 600),
        ("step:100W,300W,5s", 4.0, 6.0, 400.0),
        ("step:100W,300W,5s,6s", 4.0, 8.0, 600.0),
        ("sine:200W,50W,2s", 0.0, 2.0, 400.0),
        ("sine:200W,50W,2s", 0.0, 1.0, 200 + 50 * 2 / math.pi),
    ],
)
def test_joules_by_hand(text, a, b, joules):
    assert parse_curve(text).energy_j(a, b) == pytest.approx(joules, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "limit", "joules"),
    [
        ("square:100W,300W,2s", 200.0, 2 * (100 + 200)),
        ("ramp:100W,300W,10s", 140.0, 240 + 280),
        ("constant:100W", 40.0, 160.0),
        ("sine:200W,50W,2s", 140.0, 560.0),
        ("sine:200W,50W,2s", 200.0, 4 * 200 - 2 * 50 * 2 / math.pi),
    ],
)
def test_a_limit_clips_the_power(text, limit, joules):
    assert parse_curve(text).energy_j(0.0, 4.0, limit) == pytest.approx(joules, abs=1e-9)


def riemann(curve, a, b, limit):
    """Midpoint sums: an independent path to the same joules."""
    steps = 20_000
    width = (b - a) / steps
    return sum(curve.power_w(a + (i + 0.5) * width, limit) for i in range(steps)) * width


@pytest.mark.parametrize("text", CURVES)
@pytest.mark.parametrize("limit", [math.inf, 210.0])
def test_the_formula_is_the_integral_of_the_power(text, limit):
    curve = parse_curve(text)
    assert curve.energy_j(0.37, 7.91, limit) == pytest.approx(riemann(curve, 0.37, 7.91, limit), rel=5e-4)


@given(a=st.floats(-5, 50), b=st.floats(-5, 50), c=st.floats(-5, 50), limit=st.sampled_from([math.inf, 150.0, 30.0]))
@settings(max_examples=25, deadline=None)
def test_windows_add_up(a, b, c, limit):
    for text in CURVES:
        curve = parse_curve(text)
        whole = curve.energy_j(a, c, limit)
        assert curve.energy_j(a, b, limit) + curve.energy_j(b, c, limit) == pytest.approx(whole, abs=1e-6)


def test_telegraph_noise_is_the_same_for_the_same_seed():
    one, same, other = (parse_curve(f"telegraph:100W,300W,0.5s,{seed}") for seed in (3, 3, 4))
    assert one.energy_j(0, 60) == same.energy_j(0, 60)
    assert one.energy_j(0, 60) != other.energy_j(0, 60)
    assert one.energy_j(0, 2000) / 2000 == pytest.approx(200, rel=0.05)


def test_replay_is_straight_between_its_readings_and_repeats(tmp_path):
    path = tmp_path / "meter.csv.gz"
    path.write_bytes(gzip.compress(b"unix_s,watts\n1000.0,100\n1001.0,200\n1003.0,200\nbroken,x\n"))
    curve = parse_curve(f"replay:{path}")
    assert curve.energy_j(0.0, 3.0) == pytest.approx(150 + 400)
    assert curve.power_w(0.5) == pytest.approx(150)
    assert curve.energy_j(3.0, 6.0) == pytest.approx(550)


def test_replay_reads_what_nvidia_smi_printed(tmp_path):
    path = tmp_path / "smi.csv"
    path.write_text(
        "timestamp, pstate, power.draw [W]\n"
        "2023/07/14 10:12:46.500, P0, 60.00 W\n"
        "2023/07/14 10:12:47.000, P0, [N/A]\n"
        "2023/07/14 10:12:47.500, P0, 80.00 W\n"
    )
    assert parse_curve(f"replay:{path}").energy_j(0.0, 1.0) == pytest.approx(70.0)


def test_load_follows_a_share():
    curve = parse_curve("load:50W,250W,2")
    assert isinstance(curve, Load)
    assert [curve.at_share_w(u) for u in (0.0, 0.5, 1.0, 2.0)] == [50.0, 100.0, 250.0, 250.0]


@pytest.mark.parametrize(
    "text",
    ["", "steady:100W", "constant:", "constant:ten", "constant:-5W", "square:1W,2W", "square:1W,2W,1s,1.5",
     "square:1W,2W,0s",
     "sine:10W,20W,1s", "step:1W,2W,5s,4s", "load:90W,10W", "telegraph:1W,2W,1s,x"],
)  # fmt: skip
def test_a_wrong_curve_is_a_usage_error(text):
    with pytest.raises(UsageError):
        parse_curve(text)


def test_a_recording_that_is_not_there_or_has_no_power(tmp_path):
    with pytest.raises(SimError):
        parse_curve(f"replay:{tmp_path}/none.csv")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SimError, match="no column"):
        parse_curve(f"replay:{tmp_path}/x.csv")
