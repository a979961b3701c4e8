"""The serial line of an Omegawatt box: binary frames found in a stream of bytes, checked, and turned into rows.

A frame, little-endian: FE FD FC FB, u16 length, then `length` bytes (u16 number, u32 duration in 1/2³² s, u32 sample
count, three sums of squared volts; for each module of six plugs six sums of squared amperes and six of watts), then one
byte, the XOR of length and content. length = 22 + 8 × plugs, which is how the number of modules is found.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from everywatt.core.clocks import NS
from everywatt.meters.block import PHASES, Block

MAGIC: Final = b"\xfe\xfd\xfc\xfb"
BAUD: Final = 921_600
MODULE: Final = 6
FIXED_BYTES: Final = 22
MOST_MODULES: Final = 32
HELD_UP_NS: Final = 30 * NS
_HEAD = struct.Struct("<HHII3f")
_LONGEST: Final = len(MAGIC) + 2 + FIXED_BYTES + 8 * MODULE * MOST_MODULES + 1


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as measured: root mean squares of volts and amperes, mean watts, over `delta_s` (`samples` of them)."""

    number: int
    delta_s: float
    samples: int
    volts: tuple[float, float, float]
    amps: tuple[float, ...]
    watts: tuple[float, ...]


def decode(content: bytes) -> Frame | None:
    """The frame of a checked content (length included), None where its numbers make no sense."""
    plugs, rest = divmod(len(content) - 2 - FIXED_BYTES, 8)
    if rest or plugs <= 0 or plugs % MODULE or plugs > MODULE * MOST_MODULES:
        return None
    _, number, delta, samples, *volts = _HEAD.unpack_from(content)
    values = struct.unpack_from(f"<{2 * plugs}f", content, _HEAD.size)
    if not samples or not all(map(math.isfinite, (*volts, *values))):
        return None
    currents = [v for first in range(0, 2 * plugs, 2 * MODULE) for v in values[first : first + MODULE]]
    powers = [v for first in range(MODULE, 2 * plugs, 2 * MODULE) for v in values[first : first + MODULE]]
    if min(*volts, *currents) < 0:  # sums of squares
        return None
    root = tuple(math.sqrt(v / samples) for v in volts)
    amps = tuple(math.sqrt(v / samples) for v in currents)
    return Frame(number, delta / 2**32, samples, (root[0], root[1], root[2]), amps, tuple(v / samples for v in powers))


class Decoder:
    """Finds frames in bytes that come in any pieces. Counts what was wrong; never raises.

    bad_check   frames whose checksum failed
    bad_frames  whole frames whose length or numbers make no sense
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self.bad_check = self.bad_frames = 0

    @property
    def pending(self) -> bytes:
        """The bytes of a frame that has not wholly come."""
        return bytes(self._held)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete."""
        held = self._held
        held += data
        found: list[Frame] = []
        at = 0
        while True:
            start = held.find(MAGIC, at)
            if start < 0:
                at = len(held) - _tail(held, at)
                break
            at = start
            if len(held) - at < len(MAGIC) + 2:
                break
            length = held[at + 4] | held[at + 5] << 8
            end = at + len(MAGIC) + 2 + length + 1
            if (length - FIXED_BYTES) % (8 * MODULE) or not length > FIXED_BYTES or end - at > _LONGEST:
                self.bad_frames += 1
                at += 1  # perhaps a true start lies inside what looked like one
                continue
            if len(held) < end:
                break
            content = bytes(held[at + len(MAGIC) : end - 1])
            if int(np.bitwise_xor.reduce(np.frombuffer(content, dtype=np.uint8))) != held[end - 1]:
                self.bad_check += 1
                at += 1
                continue
            frame = decode(content)
            if frame is None:
                self.bad_frames += 1
            else:
                found.append(frame)
            at = end
        del held[:at]
        return found


def _tail(held: bytearray, at: int) -> int:
    """How many bytes at the end may be the start of a start mark."""
    for size in range(min(len(MAGIC) - 1, len(held) - at), 0, -1):
        if held.endswith(MAGIC[:size]):
            return size
    return 0


def settled_ns(times_ns: Sequence[int], frames: Sequence[Frame], last_ns: int) -> list[int]:
    """When frames were sent that were read at these instants: none after its follower began, and all after the last.

    What a busy machine reads late it reads in several goes, all at one instant: those times are moved back. A step of
    more than `HELD_UP_NS` is a clock that was set, and moves nothing.
    """
    times = list(times_ns)
    for place in range(len(times) - 2, -1, -1):
        began_ns = times[place + 1] - round(frames[place + 1].delta_s * NS)
        if began_ns < times[place] < began_ns + HELD_UP_NS:
            times[place] = began_ns
    for place, time_ns in enumerate(times):
        times[place] = last_ns = max(time_ns, last_ns + 1)
    return times


def block_of(times_ns: Sequence[int], frames: Sequence[Frame]) -> Block:
    plugs = len(frames[0].watts) if frames else 0
    count = len(frames)
    return Block(
        np.array(times_ns, dtype=np.int64),
        np.ones(count, dtype=np.bool_),
        np.array([frame.volts for frame in frames], dtype=np.float64).reshape(count, PHASES),
        np.array([frame.amps for frame in frames], dtype=np.float64).reshape(count, plugs),
        np.array([frame.watts for frame in frames], dtype=np.float64).reshape(count, plugs),
    )
