"""What the chips do not explain, of a run that has a meter beside them."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from everywatt.api.run import load
from everywatt.cli.common.group import dispatch
from everywatt.core.budget import Budget, Term
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.meters.series import Part, Table, write_part
from everywatt.report.html.data import wall_view
from everywatt.report.text import summary
from everywatt.report.wall import wall_of

ORIGIN_S = 1_760_000_000


def group(device, domain, pedigree=Pedigree.INTEGRATED):
    channel = Channel(f"{device}.power", "W", Kind.GAUGE, device, domain, pedigree=pedigree, facts=Facts(gain_pct=1.0))
    return GroupInfo(device, "test", device, (channel,))


def rows(t, watts):
    return [(round((ORIGIN_S + at) * NS), (float(w),)) for at, w in zip(t, watts, strict=True)]


def load_w(t):
    edges = np.cumsum(np.random.default_rng(3).uniform(2, 9, 60))
    return np.where(np.searchsorted(edges, t) % 2 == 1, 300.0, 100.0)


@pytest.fixture
def both(tmp_path):
    """A card, and a wall that is 60 W + 1.1 times the card, by a meter whose clock is 3.7 s ahead."""
    t = np.arange(0, 120, 0.1)
    tables = [
        (group("gpu.0", Domain.GPU), rows(t, load_w(t))),
        (group("wall.a", Domain.WALL), rows(t, 30 + 0.55 * load_w(t - 3.7))),
        (group("wall.b", Domain.WALL), rows(t, 30 + 0.55 * load_w(t - 3.7))),
    ]
    return load(write_part(tmp_path / "both.tape", Part([Table(*one) for one in tables]), [tmp_path / "x"], {}))


def test_two_totals_and_their_difference(both):
    found = wall_of(both)
    assert found.devices == ("wall.a", "wall.b")
    assert found.chips.joules == pytest.approx(both.energy().joules)
    assert found.unexplained.joules == pytest.approx(found.wall.joules - found.chips.joules)
    assert found.share == pytest.approx(found.unexplained.joules / found.wall.joules)
    assert found.unexplained.half_width > max(found.wall.half_width, found.chips.half_width) * 0.9
    (line,) = [line for line in summary(both) if line.startswith("  wall ")]
    assert "not explained by the chips" in line


def test_the_report_prints_the_offset_of_the_clocks(both, tmp_path):
    view = wall_view(both)
    assert view["clock_offset_s"] == pytest.approx(-3.7, abs=0.1)
    slope = float(re.search(r"\(([\d.]+)( ±|\) ×)", view["overhead"])[1])
    assert slope == pytest.approx(1.1, abs=0.03)
    out = tmp_path / "r.html"
    assert dispatch(["report", str(both.path), "--out", str(out)]) == 0
    text = re.search(r'id="document">(.*?)</script>', out.read_text(), re.DOTALL)[1]
    told = json.loads(text)["runs"][0]["wall"]
    assert told["clock"].startswith("-3.7") and told["unexplained"]["joules"] > 0


@pytest.mark.parametrize("other", [None, ("machine", Domain.NODE, Pedigree.MODELLED)])
def test_without_a_meter_there_is_no_such_section(tmp_path, other):
    t = np.arange(0, 20, 0.1)
    tables = [(group("gpu.0", Domain.GPU), rows(t, load_w(t)))]
    if other:
        tables.append((group(*other), rows(t, load_w(t))))
    run = load(write_part(tmp_path / "one.tape", Part([Table(*one) for one in tables]), [tmp_path / "x"], {}))
    assert wall_of(run) is None and wall_view(run) is None
    assert not any(line.startswith("  wall ") for line in summary(run))


def test_a_flat_load_has_a_difference_but_no_offset(tmp_path):
    t = np.arange(0, 30, 0.1)
    tables = [
        (group("gpu.0", Domain.GPU), rows(t, np.full(len(t), 100.0))),
        (group("wall.a", Domain.WALL), rows(t, np.full(len(t), 150.0))),
    ]
    run = load(write_part(tmp_path / "flat.tape", Part([Table(*one) for one in tables]), [tmp_path / "x"], {}))
    assert wall_of(run).share == pytest.approx(1 / 3, abs=0.01)
    view = wall_view(run)
    assert view["clock_offset_s"] is None and "flat" in view["clock"] and view["overhead"] is None


def test_the_unexplained_share_has_the_digits_of_its_interval(both, monkeypatch):
    found = wall_of(both)
    wide = Budget((Term("gain", "x", 0.2 * found.wall.value),))
    unexplained = replace(found.unexplained, budget=wide)
    monkeypatch.setattr("everywatt.report.text.wall_of", lambda run: replace(found, unexplained=unexplained))
    (line,) = (line for line in summary(both) if line.startswith("  wall"))
    assert re.search(r" \(\d\d %\)$", line), line


def test_a_meter_that_does_not_see_all_chips_says_so(tmp_path):
    """A platform counter beside a card of its own: the difference is nothing that the chips leave unexplained."""
    t = np.arange(0, 30, 0.1)
    tables = [
        (group("gpu.0", Domain.GPU), rows(t, np.full(len(t), 200.0))),
        (group("psys", Domain.WALL), rows(t, np.full(len(t), 80.0))),
    ]
    run = load(write_part(tmp_path / "less.tape", Part([Table(*one) for one in tables]), [tmp_path / "x"], {}))
    words = "psys shows less than the chips: it does not measure all of them"
    assert wall_of(run).remark == words and wall_view(run)["remark"] == words
    assert any(words in line for line in summary(run))


def test_a_meter_that_sees_all_chips_needs_no_remark(both):
    assert wall_of(both).remark == "" and wall_view(both)["remark"] == ""
