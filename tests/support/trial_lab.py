"""A machine in virtual time: a recording that is written as its clock is moved, and commands that only take time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

from fake_clock import FakeClock
from tapes import counter_group

from everywatt.core.channels import Row
from everywatt.core.clocks import NS, take_anchor
from everywatt.core.spans import Span
from everywatt.tape.writer import TapeWriter

TICK_NS = NS // 10


class TrialLab(FakeClock):
    """A clock and the recording beside it: ten readings a second of a counter, of `power_w()` at each.

    It stands for a meter (`recording`), for its recording (`path`, `span_open`, `span_close`), and runs commands
    (`execute`): the words are a number of seconds, its watts, and an exit code.
    """

    def __init__(self, folder: Path, idle_w: float = 20.0) -> None:
        super().__init__()
        self.idle_w = idle_w
        self.power_w: Callable[[], float] = lambda: idle_w
        self.recording = self
        self.path = folder / "box-0001.tape"
        self.spans = 0
        self._joules = 0.0
        self._writer = TapeWriter(self.path, {"host": {"name": "box"}, "period_s": 0.1}, clock=self)
        self._writer.anchor(take_anchor(self))
        self._group = self._writer.add_group(counter_group(quantum=1e-6, max_w=1000.0), 0.1)
        self._next_ns = self.now_ns
        self._read()

    def _read(self) -> None:
        row = Row(self._next_ns, self._next_ns, self._next_ns, (self._joules,))
        self._writer.append(self._group, [row])
        self._next_ns += TICK_NS

    def sleep_until(self, deadline_ns: int) -> None:
        """Time passes, and is recorded."""
        while self._next_ns <= deadline_ns:
            self.now_ns = self._next_ns
            self._joules += self.power_w() * TICK_NS / NS
            self._read()
        super().sleep_until(deadline_ns)
        self._writer.flush()

    def span_open(self, name: str, *, attributes: dict) -> str:
        self.spans += 1
        self._writer.span_open(Span(f"s{self.spans}", name, self.now_ns, None, None, attributes))
        return f"s{self.spans}"

    def span_close(self, uid: str, *, attributes: dict | None = None) -> None:
        self._writer.span_close(uid, self.now_ns, attributes)
        self._writer.flush()

    def execute(self, words: Sequence[str], *, show_output: bool = False) -> tuple[int, float, int | None]:
        seconds, watts, code = map(float, words)
        before, self.power_w = self.power_w, lambda: watts
        self.sleep_until(self.now_ns + round(seconds * NS))
        self.power_w = before
        return int(code), seconds, None

    @property
    def now_s(self) -> float:
        return (self.now_ns - FakeClock.now_ns) / NS

    def meter(self) -> SimpleNamespace:
        return SimpleNamespace(recording=self)
