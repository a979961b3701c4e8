"""Remote write on the wire, read by the letter."""

import math
import struct

from agents import decode
from hypothesis import given
from hypothesis import strategies as st

from everywatt.fleet.encodings import labels_bytes, series_bytes, varint, write_request

text = st.text(max_size=20).filter(bool)


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), text, max_size=4),
    st.lists(st.tuples(st.integers(-(2**40), 2**62), st.floats(allow_nan=False)), max_size=4),
)
def test_series_come_back(labels, samples):
    labels.pop("__name__", None)
    body = write_request([(labels_bytes("everywatt_x", labels), samples)])
    clean = {key: value.encode("utf-8", "replace").decode() for key, value in labels.items()}
    assert decode(body) == [({"__name__": "everywatt_x", **clean}, samples)]


def test_labels_are_in_order_and_empty_ones_left_out():
    ((labels, _),) = decode(write_request([(labels_bytes("m", {"z": "1", "a": "2", "none": ""}), [])]))
    assert list(labels) == ["__name__", "a", "z"]


def test_the_end_of_a_series_is_a_nan_of_its_own():
    ((_, ((_, value),)),) = decode(series_bytes(labels_bytes("m", {}), [(1, None)]))
    assert math.isnan(value)
    assert struct.pack("<Q", 0x7FF0000000000002) in series_bytes(labels_bytes("m", {}), [(1, None)])


def test_numbers_are_seven_bits_a_byte():
    assert varint(0) == b"\x00"
    assert varint(300) == b"\xac\x02"
    assert len(varint(-1)) == 10
