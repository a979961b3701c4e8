"""Remote write: a thread that takes batches from the tape and posts them, in order, until each is answered for.

Sent means that the receiver took it; rejected, that it said no to those very samples; whatever else happens is tried
again. The position is kept after each batch, so a kill repeats one batch at most, which receivers know already.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from everywatt.core.clocks import NS, Clock, SystemClock, Task
from everywatt.core.errors import NetworkError
from everywatt.fleet import state
from everywatt.fleet.encodings import ENCODINGS, Sample
from everywatt.fleet.options import AgentOptions
from everywatt.fleet.segments import Batch, Position, Queue, number_of, segments
from everywatt.net.client import Client, Limits
from everywatt.net.http1 import Backoff, retry_after_s
from everywatt.net.tls import ClientTls, read_token

TIMEOUT_S = 30.0
KEEP_S = 600.0
MAX_ANSWER_BYTES = 4096  # of an error's text; the rest adds nothing
REFUSED = (400, 409, 413, 422)
# Prometheus answers 500 to samples that it can never take.
HOPELESS = re.compile(r"out of bounds|out of order|too old|too far|duplicate sample|out-of-order", re.IGNORECASE)
FILE = "remote-write.json"
WAITS = Backoff(retries=12, first_s=0.5, most_s=30.0)
MOST_POSTS = 256  # for one batch that is refused in part
IDLE_S = 30.0
EVERY_S = 5.0
PENDING_S = 5.0
Series = Sequence[tuple[bytes, tuple[Sample, ...]]]


class Verdict(Enum):
    """What became of a post."""

    TAKEN = "taken"
    REFUSED = "refused"
    LATER = "later"


class Answer(NamedTuple):
    """A verdict, why, and how long the receiver asks to wait (None: not given)."""

    verdict: Verdict
    why: str = ""
    wait_s: float | None = None


class Poster:
    """Keeps one connection to the receiver. Raises nothing but UsageError, when it is made."""

    def __init__(self, options: AgentOptions, *, timeout_s: float = TIMEOUT_S) -> None:
        assert options.remote_write is not None
        self._encoding = ENCODINGS[options.remote_write_format]
        token, scheme = read_token(None, options.remote_write_token_file), self._encoding.scheme
        own = {} if token is None or scheme == "Bearer" else {"Authorization": f"{scheme} {token}"}
        self._client = Client(
            options.remote_write,
            token=None if own else token,
            headers={**self._encoding.headers, **own},
            tls=ClientTls(options.remote_write_ca, options.remote_write_cert, options.remote_write_key),
            limits=Limits(
                connect_s=timeout_s,
                silence_s=timeout_s,
                total_s=4 * timeout_s,
                body_bytes=MAX_ANSWER_BYTES,
                truncate=True,
                keep_s=KEEP_S,
            ),
        )

    def post(self, series: Sequence[tuple[bytes, tuple[Sample, ...]]]) -> Answer:
        body = self._encoding.write(series)
        # Only ends of series: there may be nothing to send for them.
        return self.send(body) if body else Answer(Verdict.TAKEN)

    def send(self, body: bytes) -> Answer:
        """Send a request that is written already. Receivers know samples that come twice, so it may be repeated."""
        try:
            kind = self._encoding.content_type
            response = self._client.request("POST", body=body, content_type=kind, repeatable=True)
        except NetworkError as error:
            return Answer(Verdict.LATER, error.reason)
        text = response.text.strip()
        if 200 <= response.status < 300:
            return Answer(Verdict.TAKEN)
        why = f"{response.status} {text[:200]}".strip()
        if response.status in REFUSED or (response.status == 500 and HOPELESS.search(text)):
            return Answer(Verdict.REFUSED, why)
        return Answer(Verdict.LATER, why, retry_after_s(response.headers.get("retry-after")))

    def close(self) -> None:
        self._client.close()


class Sender:
    """One receiver. `wake` announces new samples."""

    def __init__(
        self,
        options: AgentOptions,
        folder: Path,
        tapes: Path,
        live: Path,
        *,
        say: Callable[[str], None],
        clock: Clock | None = None,
        sleep: Callable[[float], bool] | None = None,
        most: int = 5000,
    ) -> None:
        assert options.remote_write is not None
        self.url = options.remote_write
        self.live = live
        self._file = folder / FILE
        self._say = say
        self._poster = Poster(options)
        kept, counts = self._restore()
        labels = {"instance": options.instance, "job": "everywatt"}
        # A receiver that is new gets what comes from now on.
        self.queue = Queue(tapes, labels, kept or Position(number_of(live), 0), most, number_of(live))
        self.counts: dict[str, int] = {"sent": 0, "dropped": 0, "rejected": 0, **counts}
        self._clock: Clock = clock or SystemClock()
        self._awake, self._ended = self._clock.event(), self._clock.event()
        self._sleep = sleep or self._ended.wait
        self._thread: Task | None = None
        self._trouble = ""
        self._unsent_ms: int | None = None
        self._pending = (0.0, 0)
        self._deadline_s: float | None = None
        self._next_s = 0.0
        self._more = False

    def _restore(self) -> tuple[Position | None, dict[str, int]]:
        try:
            data = json.loads(self._file.read_text(encoding="utf-8"))
            counts = {str(key): int(value) for key, value in data["samples"].items()}
            if data["url"] != _bare(self.url):
                return None, counts
            return Position(int(data["segment"]), int(data["table"])), counts
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, {}

    def _keep(self) -> None:
        position = self.queue.position
        data = {
            "schema": "everywatt/1",
            "kind": "remote-write",
            "url": _bare(self.url),
            "segment": position.segment,
            "table": position.table,
            "samples": self.counts,
        }
        with contextlib.suppress(OSError):  # then more is sent twice after a kill
            state.write_json(self._file, data)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / NS

    # The thread.

    def start(self) -> None:
        self._keep()  # the first position, in case the receiver does not answer for long
        self._thread = self._clock.spawn(self._run, "remote-write")

    def wake(self) -> None:
        """There may be something new on the tape. Posts are some seconds apart, unless there is much to send."""
        if self._now_s() >= self._next_s:
            self._awake.set()

    def close(self, drain_s: float = 0.0) -> None:
        """End, after sending what is there where that takes no longer than `drain_s`."""
        self._deadline_s = self._now_s() + drain_s
        self._ended.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join(drain_s + 1.0)
        self._poster.close()
        if self._thread is None or not self._thread.is_alive():
            self.queue.close()

    def _run(self) -> None:
        while True:
            self._awake.clear()
            try:
                going = self.step()
            except Exception as error:  # noqa: BLE001 - whatever a receiver or a disk does, recording goes on
                self._tell(f"{type(error).__name__}: {error}")
                going = False
                self._ended.wait(WAITS.first_s)
            if self._ended.is_set() and (not going or self._now_s() >= (self._deadline_s or 0.0)):
                return
            if not going or not (self._more or self._ended.is_set()):
                self._next_s = self._now_s() + EVERY_S
                self._awake.wait(IDLE_S)

    def step(self) -> bool:
        """Send one batch and keep the position; False if there was nothing to send or the thread must end."""
        batch = self.queue.next()
        if batch is None:
            self._unsent_ms = None
            return False
        self._unsent_ms = batch.first_ms
        if not self._deliver(batch):
            return False
        self.queue.accept(batch)
        self._more = batch.more
        self._unsent_ms = self._unsent_ms if batch.more else None
        self._keep()
        return True

    def _deliver(self, batch: Batch) -> bool:
        """Until every sample of a batch is answered for; False where the end came first."""
        posts = 0
        rejected: list[tuple[int, str]] = []
        parts: list[Series] = [batch.series]
        while parts:
            part = parts.pop()
            answer = self._insist(part)
            posts += 1
            size = sum(len(samples) for _, samples in part)
            if answer is None:
                return False
            if answer.verdict is Verdict.TAKEN:
                self.counts["sent"] += size
            elif size > 1 and posts < MOST_POSTS:
                parts += reversed(_halves(part))
            else:
                self.counts["rejected"] += size
                rejected.append((size, answer.why))
        if rejected:
            self._tell(f"{self._name} rejected {sum((size for size, _ in rejected))} samples: {rejected[0][1]}")
        return True

    def _insist(self, part: Series) -> Answer | None:
        """The answer to a part, after as many tries as it takes; None where the end came first."""
        waits = WAITS.delays()
        while True:
            answer = self._poster.post(part)
            if answer.verdict is not Verdict.LATER:
                if self._trouble and answer.verdict is Verdict.TAKEN:
                    self._say(f"{self._name} accepts samples again.")
                    self._trouble = ""
                return answer
            self._tell(f"{self._name} does not accept samples at present: {answer.why}. They are kept.")
            wait_s = next(waits, WAITS.most_s)
            wait_s = wait_s if answer.wait_s is None else answer.wait_s
            if self._sleep(wait_s) or self._ended.is_set():
                return None

    @property
    def _name(self) -> str:
        return _bare(self.url)

    def _tell(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._say(text)

    # What others ask.

    def needs(self) -> Path | None:
        """The first segment that is not sent yet."""
        number = self.queue.position.segment
        return next((path for path in segments(self.queue.folder) if number_of(path) >= number), None)

    def drop(self, path: Path) -> int:
        """A segment is about to be removed: counts what of it was not sent."""
        lost = self.queue.left_in(path)
        self.counts["dropped"] += lost
        return lost

    def figures(self) -> Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]:
        """Samples by outcome, bytes that wait, and how old the oldest unsent sample is."""
        now_s = self._now_s()
        if self._unsent_ms is None:
            self._pending = (now_s, 0)
        elif now_s - self._pending[0] > PENDING_S or not self._pending[1]:
            self._pending = (now_s, self.queue.pending_bytes())
        lag_s = 0.0 if self._unsent_ms is None else max(0.0, self._clock.utc_ns() / NS - self._unsent_ms / 1000)
        outcomes: dict[Any, float] = {(("outcome", name),): float(count) for name, count in self.counts.items()}
        return {
            "everywatt_remote_write_samples_total": outcomes,
            "everywatt_remote_write_pending_bytes": {(): float(self._pending[1])},
            "everywatt_remote_write_lag_seconds": {(): round(lag_s, 3)},
        }


def _halves(part: Series) -> list[Series]:
    if len(part) > 1:
        return [part[: len(part) // 2], part[len(part) // 2 :]]
    labels, samples = part[0]
    return [[(labels, samples[: len(samples) // 2])], [(labels, samples[len(samples) // 2 :])]]


def _bare(url: str) -> str:
    """An address without the secret that may stand in it."""
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
