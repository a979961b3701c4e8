"""Channels and groups survive the tape's JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.channels import Cadence, Channel, Domain, Facts, GroupInfo, Kind, Pedigree, fresh

numbers = st.none() | st.floats(0, 1e12, allow_nan=False)
facts = st.builds(
    Facts, period_s=numbers, window_s=numbers, quantum=numbers, wrap=numbers, max_w=numbers, gain_pct=numbers,
    offset_w=numbers, cards=st.none() | st.text(max_size=5), calibrated=st.booleans(), gain=st.floats(0.5, 2),
    bias_w=st.floats(-5, 5),
)  # fmt: skip
channels = st.builds(
    Channel, st.text(min_size=1, max_size=9), st.sampled_from(["J", "W", "B"]), st.sampled_from(Kind),
    st.text(max_size=9), st.none() | st.sampled_from(Domain), st.floats(1e-9, 1e3), st.sampled_from(Pedigree),
    st.none() | st.text(min_size=1, max_size=9), facts,
)  # fmt: skip
groups = st.builds(
    GroupInfo, st.text(max_size=9), st.text(max_size=9), st.text(max_size=9), st.lists(channels, max_size=3).map(tuple),
    st.sampled_from(Cadence), st.booleans(), st.booleans(), st.booleans(), st.text(max_size=9),
)  # fmt: skip


@given(groups)
def test_round_trip_through_json(info):
    again = GroupInfo.from_dict(json.loads(json.dumps(info.to_dict())))
    assert again == info
    assert all(isinstance(channel.kind, Kind) for channel in again.channels)


def test_keys_of_later_versions_are_ignored():
    info = GroupInfo("g", "s", "d", (Channel("c", "J", Kind.COUNTER, "d", Domain.GPU),))
    data = json.loads(json.dumps(info.to_dict()))
    data["colour"] = data["channels"][0]["shape"] = data["channels"][0]["facts"]["smell"] = "new"
    assert GroupInfo.from_dict(data) == info


def test_what_carries_energy():
    assert Channel("c", "J", Kind.COUNTER, "d", Domain.GPU).carries_energy
    assert not Channel("c", "J", Kind.COUNTER, "d").carries_energy
    assert not Channel("c", "B", Kind.GAUGE, "d", Domain.GPU).carries_energy


def test_a_fresh_row():
    assert fresh(1000, (1.0,), 300) == (1000, 700, 1000, (1.0,))
