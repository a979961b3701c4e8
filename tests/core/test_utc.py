"""Between monotonic time and UTC: drift is followed, a step is a step."""

from everywatt.core.clocks import Anchor, UtcMap

S = 10**9


def anchors(*pairs):
    return UtcMap([Anchor(round(m * S), round(u * S), round(m * S), 0) for m, u in pairs])


def test_one_anchor():
    clock = anchors((10, 1000))
    assert clock.to_utc_ns(5 * S) == 995 * S
    assert clock.to_utc_ns(15 * S) == 1005 * S
    assert clock.from_utc_ns(995 * S) == 5 * S


def test_a_slow_drift_is_interpolated():
    clock = anchors((0, 1000), (100, 1100.01))
    assert clock.to_utc_ns(50 * S) == round(1050.005 * S)
    assert clock.from_utc_ns(round(1050.005 * S)) == 50 * S
    assert clock.to_utc_ns(200 * S) == round(1200.01 * S)


def test_a_step_of_the_wall_clock():
    forward = anchors((0, 1000), (60, 4660), (120, 4720))
    assert forward.to_utc_ns(30 * S) == 1030 * S
    assert forward.to_utc_ns(90 * S) == 4690 * S
    assert forward.from_utc_ns(1030 * S) == 30 * S
    assert forward.from_utc_ns(2000 * S) == 60 * S
    assert forward.from_utc_ns(4690 * S) == 90 * S
    back = anchors((0, 5000), (60, 1460), (120, 1520))
    assert back.to_utc_ns(90 * S) == 1490 * S
    assert back.from_utc_ns(5030 * S) == 30 * S
