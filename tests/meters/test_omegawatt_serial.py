"""Frames of the serial line: every one found, none made up."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everywatt.meters.omegawatt_serial import Decoder, block_of, settled_ns
from everywatt.sim.omegawatt import MAGIC, frame_bytes, numbered

FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("plugs", [6, 24, 36])
@pytest.mark.parametrize("size", [1, 13, 4096])
def test_frames_come_out_as_they_went_in_whatever_the_pieces(plugs, size):
    data = b"noise" + b"".join(numbered(number, plugs) for number in range(65_530, 65_545))
    decoder = Decoder()
    found = [frame for at in range(0, len(data), size) for frame in decoder.feed(data[at : at + size])]
    assert [round(f.watts[1]) * 65536 + round(f.watts[0]) for f in found] == list(range(65_530, 65_545))
    assert all(len(f.watts) == plugs and abs(f.volts[0] - 230) < 1e-4 for f in found)
    assert abs(found[0].amps[2] - 102 / 230) < 1e-6 and abs(found[0].delta_s - 0.01) < 1e-9
    assert (decoder.bad_check, len(decoder.pending)) == (0, 0)


def test_a_bad_checksum_costs_one_frame():
    frames = [bytearray(numbered(number)) for number in range(5)]
    frames[2][20] ^= 1
    decoder = Decoder()
    found = decoder.feed(b"".join(frames))
    assert [frame.number for frame in found] == [0, 1, 3, 4] and decoder.bad_check == 1


def test_the_box_unplugged_in_the_midst_of_a_frame():
    decoder = Decoder()
    found = decoder.feed(numbered(1) + numbered(2)[:30] + numbered(3) + numbered(4))
    assert [frame.number for frame in found] == [1, 3, 4]


def test_the_start_mark_inside_of_a_frame_is_data():
    watts = [0.0] * 6
    number = int.from_bytes(MAGIC[:2], "little")
    data = frame_bytes(number, (230.0, 0.0, 0.0), watts, watts, delta_s=int.from_bytes(MAGIC, "little") / 2**32)
    assert data.count(MAGIC) == 2
    assert [frame.number for frame in Decoder().feed(data * 3)] == [number] * 3


def test_times_of_frames_that_came_in_one_read():
    frames = Decoder().feed(b"".join(numbered(n) for n in range(3)))
    times = settled_ns([10**18] * len(frames), frames, 0)
    assert times[2] == 10**18 and abs(times[0] - (10**18 - 20_000_000)) < 10
    assert settled_ns([5] * len(frames), frames, 100) == [101, 102, 103], "a clock that was set back"
    assert block_of(times, frames).watts[:, 0].tolist() == [0.0, 1.0, 2.0]


@FUZZ
@given(st.lists(st.one_of(st.binary(max_size=80), st.just(MAGIC), st.integers(0, 99).map(numbered)), max_size=6))
def test_any_bytes_are_decoded_without_a_crash(pieces):
    decoder = Decoder()
    found = sum(len(decoder.feed(piece)) for piece in pieces)
    sent = sum(map(len, pieces))
    assert found * len(numbered(0)) + len(decoder.pending) <= sent


@FUZZ
@given(st.binary(max_size=200).filter(lambda noise: MAGIC not in noise), st.integers(6, 60).map(lambda n: n // 6 * 6))
def test_noise_before_a_frame_does_not_cost_the_frame_after_the_next(noise, plugs):
    frames = numbered(7, plugs) + numbered(8, plugs)
    found = [frame.number for frame in Decoder().feed(noise + frames)]
    assert found[-1:] == [8]
