"""N agents played at M times their speed, by remote write: what can a receiver take?

    python -m everywatt.fleet.loadgen http://store:8428 --nodes 1000 --channels 60 --for 60s --speed 10

A third of the channels are energy counters, a third power, a third states that seldom change: numbers as agents tell
them, from a fixed seed. Times of samples are of the past and end now, so nothing lies in the future at any speed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from everywatt.core.errors import EverywattError, MeasurementRefused, UsageError
from everywatt.core.jsonio import dumps
from everywatt.core.units import parse_duration_s
from everywatt.fleet.encodings import labels_bytes, varint
from everywatt.fleet.options import AgentOptions
from everywatt.fleet.sender import Poster, Verdict
from everywatt.net.api import corrected

BATCH_S: Final = 5  # as agents send
POST_SAMPLES: Final = 10_000
WORKERS: Final = 2
TRIES: Final = 5
_RECORD: Final = np.dtype([("head", "u1", 3), ("value", "<f8"), ("tag", "u1"), ("at", "u1", 6)])


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of it. `bytes_sent` is what went over the wire, compressed."""

    nodes: int
    channels: int
    simulated_s: float
    wall_s: float
    samples: int
    rejected: int
    posts: int
    bytes_sent: int

    @property
    def samples_per_s(self) -> float:
        """Samples that were taken in a second."""
        return self.samples / self.wall_s

    @property
    def speed(self) -> float:
        """How many times faster than such a fleet sends them."""
        return self.simulated_s / self.wall_s

    def to_dict(self) -> dict[str, Any]:
        rates = {"samples_per_s": round(self.samples_per_s), "speed": round(self.speed, 2)}
        return {**asdict(self), **rates, "bytes_per_sample_sent": round(self.bytes_sent / max(self.samples, 1), 2)}


def channel_labels(node: int, channel: int) -> bytes:
    """Name and labels of a channel of a node."""
    name = ("everywatt_energy_joules_total", "everywatt_power_watts", "everywatt_temperature_celsius")[channel % 3]
    device = f"gpu.{channel // 3}"
    more = {} if channel % 3 == 2 else {"domain": "gpu", "pedigree": "counter"}
    return labels_bytes(name, {"device": device, "instance": f"node{node:05d}", "job": "everywatt", **more})


class Node:
    """The channels of one node, tick after tick."""

    def __init__(self, number: int, channels: int) -> None:
        self._chance = np.random.default_rng(number)
        self.labels = [channel_labels(number, channel) for channel in range(channels)]
        self._kinds = np.arange(channels) % 3
        self._level_w = self._chance.uniform(40, 350, channels)
        self._joules = self._chance.uniform(0, 1e6, channels)
        self._state = np.round(self._chance.uniform(30, 80, channels))

    def ticks(self, count: int) -> npt.NDArray[np.float64]:
        """The next values, (ticks, channels): joules to the microjoule, watts to six digits, whole degrees."""
        watts = self._level_w * self._chance.normal(1.0, 0.03, (count, len(self.labels)))
        watts[:, 1::3] = watts[:, 0 : watts.shape[1] - 1 : 3]  # the power beside a counter is that of its device
        joules = self._joules + np.cumsum(watts, axis=0)
        moved = self._chance.random((count, len(self.labels))) < 0.05
        state = self._state + np.cumsum(np.where(moved, self._chance.integers(-1, 2, moved.shape), 0), axis=0)
        self._joules, self._state = joules[-1], state[-1]
        return np.choose(self._kinds, (np.round(joules, 6), np.round(watts, 6), state))


def request(labels: Sequence[bytes], values: npt.NDArray[np.float64], at_ms: npt.NDArray[np.int64]) -> bytes:
    """A remote write of series (columns of `values`) at these times, not yet compressed.

    Times of our days have six bytes as a varint, so every sample has eighteen, and whole columns are made at once.
    """
    times = np.array([list(varint(int(at))) for at in at_ms], np.uint8)
    if times.shape[1:] != (6,):
        raise UsageError("Times before 1972 or after 2109 are not supported.")
    block = np.zeros((len(labels), len(at_ms)), _RECORD)
    block["head"] = (0x12, 16, 0x09)
    block["value"] = values.T
    block["tag"] = 0x10
    block["at"] = times
    out = []
    for mine, row in zip(labels, block, strict=True):
        body = mine + row.tobytes()
        out.append(b"\x0a" + varint(len(body)) + body)
    return b"".join(out)


def play(
    url: str,
    *,
    nodes: int,
    channels: int = 60,
    seconds: float = 60.0,
    speed: float = 0.0,
    workers: int = WORKERS,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    sleep: Callable[[float], object] = time.sleep,
) -> Figures:
    """Play so many nodes for so many seconds of theirs at `speed` (0: as fast as it goes). Each channel ticks at 1 Hz.

    MeasurementRefused where the receiver takes nothing any more.
    """
    if nodes < 1 or channels < 1 or seconds < BATCH_S or speed < 0:
        raise UsageError(
            f"At least one node, one channel and {BATCH_S} s are required.", cure="--nodes 10 --channels 60 --for 60s"
        )
    fleet = [Node(number, channels) for number in range(nodes)]
    batches = int(seconds // BATCH_S)
    first_ms = now_ms() - batches * BATCH_S * 1000
    target = corrected(url)[0] + "/api/v1/write"
    posters = [Poster(AgentOptions(remote_write=target)) for _ in range(workers)]
    shares = [fleet[place::workers] for place in range(workers)]
    began = time.perf_counter()
    try:
        with ThreadPoolExecutor(workers) as pool:
            work = [
                pool.submit(_worker, poster, share, batches, first_ms, speed, began, sleep)
                for poster, share in zip(posters, shares, strict=True)
            ]
            done = [one.result() for one in work]
    finally:
        for poster in posters:
            poster.close()
    wall_s = time.perf_counter() - began
    taken, rejected, posts, size = (sum(column) for column in zip(*done, strict=True))
    return Figures(nodes, channels, batches * BATCH_S, wall_s, taken, rejected, posts, size)


def _worker(
    poster: Poster,
    nodes: Sequence[Node],
    batches: int,
    first_ms: int,
    speed: float,
    began: float,
    sleep: Callable[[float], object],
) -> tuple[int, int, int, int]:
    taken = rejected = posts = size = 0
    for batch in range(batches):
        if speed:
            sleep(max(0.0, began + (batch + 1) * BATCH_S / speed - time.perf_counter()))
        at_ms = first_ms + 1000 * np.arange(batch * BATCH_S, (batch + 1) * BATCH_S, dtype=np.int64)
        for some in _parts(nodes):
            labels = [one for node in some for one in node.labels]
            values = np.hstack([node.ticks(BATCH_S) for node in some])
            sent = _insist(poster, request(labels, values, at_ms), sleep)
            posts, size = posts + 1, size + abs(sent)
            taken += values.size if sent > 0 else 0
            rejected += values.size if sent < 0 else 0
    return taken, rejected, posts, size


def _parts(nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    """Some nodes at a time, about as many samples as one post should have."""
    if not nodes:
        return
    most = max(1, POST_SAMPLES // (BATCH_S * len(nodes[0].labels)))
    for start in range(0, len(nodes), most):
        yield nodes[start : start + most]


def _insist(poster: Poster, body: bytes, sleep: Callable[[float], object]) -> int:
    """Bytes that were sent; negative where they were refused for good."""
    import cramjam

    packed = bytes(cramjam.snappy.compress_raw(body))
    why = ""
    for number in range(TRIES):
        answer = poster.send(packed)
        if answer.verdict is not Verdict.LATER:
            return len(packed) if answer.verdict is Verdict.TAKEN else -len(packed)
        why = answer.why
        sleep(answer.wait_s if answer.wait_s is not None else 0.2 * 2**number)
    raise MeasurementRefused(f"The receiver rejects samples: {why}.")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; one JSON object on stdout."""
    parser = argparse.ArgumentParser(prog="python -m everywatt.fleet.loadgen", description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="URL of the receiver, such as http://store:8428")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--channels", type=int, default=60)
    parser.add_argument("--for", dest="seconds", default="60s", help="how much simulated time to send (60s)")
    parser.add_argument("--speed", type=float, default=0.0, help="speed factor; 0 means as fast as possible")
    parser.add_argument("--workers", type=int, default=WORKERS, help="connections")
    args = parser.parse_args(arguments)
    try:
        seconds = parse_duration_s(args.seconds)
        figures = play(
            args.url, nodes=args.nodes, channels=args.channels, seconds=seconds, speed=args.speed, workers=args.workers
        )
    except EverywattError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    print(dumps({"schema": "everywatt/1", "kind": "loadgen", **figures.to_dict()}))
    return 0 if not figures.rejected else 1


if __name__ == "__main__":
    sys.exit(main())
