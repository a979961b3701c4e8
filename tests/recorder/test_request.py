"""The parameters of a recording: the same value on both sides of the recorder's socket."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.config import resolve
from everywatt.core.errors import UsageError
from everywatt.core.machine import Machine
from everywatt.recorder.request import RecordRequest

requests = st.builds(
    RecordRequest,
    period_s=st.floats(min_value=1e-3, max_value=3600),
    sensors=st.none() | st.lists(st.text(max_size=5), max_size=3),
    devices=st.none() | st.text(max_size=8),
    pids=st.lists(st.integers(min_value=1, max_value=1 << 22), max_size=3),
    estimate=st.booleans(),
    options=st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), st.integers()), max_size=2),
    everything=st.booleans(),
    memory=st.sampled_from(["rss", "pss"]),
    reaper=st.none() | st.integers(min_value=1, max_value=1 << 22),
    cgroup=st.none() | st.text(max_size=8),
)


@given(requests)
def test_what_is_sent_is_what_arrives(request) -> None:
    message = json.loads(json.dumps({"op": "open", **request.to_dict(), "of a newer client": 1}))
    assert RecordRequest.from_dict(message) == request


def test_what_an_older_client_does_not_send_has_its_default() -> None:
    assert RecordRequest.from_dict({"period_s": 0.5}) == RecordRequest(period_s=0.5)


@pytest.mark.parametrize("wrong", [{"period_s": 0.0}, {"period_s": float("nan")}, {"memory": "all"}])
def test_what_makes_no_sense_is_refused(wrong) -> None:
    with pytest.raises(UsageError):
        RecordRequest(**wrong)


def test_settings_and_sensors(tmp_path) -> None:
    flags = {"period": "50ms", "sensors": "rapl,nvml", "estimate": False, "memory": "pss"}
    request = RecordRequest.of_settings(resolve(flags, environ={}, cwd=tmp_path, home=tmp_path))
    assert request == RecordRequest(0.05, ("rapl", "nvml"), estimate=False, memory="pss")
    machine = Machine.here()
    asked = request.for_sensors(machine, 2.0)
    assert (asked.machine, asked.estimate, asked.memory, asked.patience_s) == (machine, False, "pss", 2.0)
