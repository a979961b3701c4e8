"""The load generator: its bytes are remote write, its numbers are as agents tell them."""

import json

import numpy as np
import pytest

pytest.importorskip("cramjam")
from agents import Receiver, decode

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.fleet.loadgen import Node, main, play, request

NOW_MS = 1_700_000_000_000


def test_its_bytes_are_those_of_the_protocol():
    node = Node(3, 6)
    values, at_ms = node.ticks(4), NOW_MS + 1000 * np.arange(4)
    series = decode(request(node.labels, values, at_ms))
    assert len(series) == 6
    for place, (labels, samples) in enumerate(series):
        assert samples == [(int(at), float(values[tick, place])) for tick, at in enumerate(at_ms)]
        assert labels["instance"] == "node00003" and labels["job"] == "everywatt"
    assert series[0][0]["__name__"] == "everywatt_energy_joules_total" and series[0][0]["device"] == "gpu.0"
    with pytest.raises(UsageError, match="not supported"):
        request(node.labels, values, np.arange(4))


def test_counters_grow_by_the_power_that_is_told():
    node = Node(1, 3)
    values = np.vstack([node.ticks(5), node.ticks(5)])
    np.testing.assert_array_less(0, np.diff(values[:, 0]))
    assert (
        40 * 0.8 < np.diff(values[:, 0]).mean() < 350 * 1.2 and values[:, 2].tolist() == np.round(values[:, 2]).tolist()
    )


def test_every_sample_arrives_once():
    with Receiver() as receiver:
        figures = play(receiver.url, nodes=7, channels=6, seconds=12, now_ms=lambda: NOW_MS)
        assert (figures.samples, figures.rejected, figures.simulated_s) == (7 * 6 * 10, 0, 10)
        assert len(receiver.samples) == 42 and len(receiver) == 420
        for samples in receiver.samples.values():
            assert [at for at, _ in samples] == [NOW_MS - 10_000 + 1000 * second for second in range(10)]
    assert figures.bytes_sent > 0 and figures.samples_per_s > 0


def test_it_keeps_to_its_speed():
    slept = []
    with Receiver() as receiver:
        play(receiver.url, nodes=1, channels=1, seconds=10, speed=100.0, workers=1, sleep=slept.append)
    assert len(slept) == 2 and 0 < slept[0] <= 0.05 and slept[1] <= 0.1


def test_what_is_refused_is_counted_and_nobody_there_is_said(capsys):
    with Receiver(lambda series: (400, {}, "no")) as receiver:
        assert main([receiver.url, "--nodes", "1", "--channels", "2", "--for", "5s"]) == 1
        url = receiver.url
    assert json.loads(capsys.readouterr().out)["rejected"] == 10
    with pytest.raises(MeasurementRefused, match="rejects samples"):
        play(url, nodes=1, seconds=5, sleep=lambda s: None)
    assert main([url, "--nodes", "0"]) == 2
