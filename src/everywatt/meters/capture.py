"""A capture around the clock: port to journal, a new journal every day at a set hour, finished ones to the archive.

Bytes come from a serial port, a pty, a named pipe, standard input or a file. A thread does nothing but read them; what
is read is written to the disk by another.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import subprocess
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from everywatt.core.clocks import NS
from everywatt.core.foreign import text_lines
from everywatt.meters.archive import pack, safe_name
from everywatt.meters.journal import Journal, head_of, journal_path, journals, kind_of, tail_of, whole_size
from everywatt.meters.omegawatt_csv import HEADER
from everywatt.meters.omegawatt_serial import BAUD, HELD_UP_NS, Decoder
from everywatt.meters.ring_buffer import SHARED, RingBuffer, ring_path

FIRST_WAIT_S = 0.2
LAST_WAIT_S = 5.0


class Port:
    """An opened source. `read_into` gives 0 where nothing came in time, and None where it ended or was unplugged."""

    def __init__(self, name: str, baud: int = BAUD) -> None:
        self.name = name
        self.standard_input = name == "-"
        self._fd = sys.stdin.fileno() if self.standard_input else os.open(name, _flags(name))
        self.tty = os.isatty(self._fd)
        if self.tty:
            _raw(self._fd, baud)

    @property
    def ends(self) -> bool:
        """True where an end is the end: a file, or a pipe whose writer left."""
        return self.standard_input or stat.S_ISREG(os.fstat(self._fd).st_mode)

    def read_into(self, ring: RingBuffer, timeout_s: float) -> int | None:
        """Read what has come into the ring, waiting for some of it; gives how many bytes."""
        try:
            ready, _, _ = select.select([self._fd], [], [], timeout_s)
            if not ready:
                return 0 if self._there() else None
            return ring.fill(self._fd, time.time_ns()) or None
        except BlockingIOError:
            return 0
        except OSError:  # EIO: the adapter, or the other side of a pty, is gone
            return None

    def _there(self) -> bool:
        """False where the device's file has gone: some drivers say nothing when they are unplugged."""
        return self.standard_input or Path(self.name).exists()

    def close(self) -> None:
        if not self.standard_input:
            with contextlib.suppress(OSError):
                os.close(self._fd)


def _flags(name: str) -> int:
    mode = Path(name).stat().st_mode
    # A named pipe that is open for writing too has no end where its writer leaves: another may come.
    both = stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
    return (os.O_RDWR if both else os.O_RDONLY) | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC


def _raw(fd: int, baud: int) -> None:
    speed = getattr(termios, f"B{baud}", None)
    tty.setraw(fd, termios.TCSANOW)  # not after a flush: what came already is data
    if speed is not None:
        settings = termios.tcgetattr(fd)
        settings[4] = settings[5] = speed
        settings[2] |= termios.CLOCAL | termios.CREAD
        termios.tcsetattr(fd, termios.TCSANOW, settings)


QUIET_S: Final = 0.5
DRAIN_S: Final = 5.0  # a port that never falls silent must not keep a capture from ending


class Reader:
    """Reads a port into a ring until `stop`, or until the source ends; opens it again where it was unplugged."""

    def __init__(self, name: str, baud: int, ring: RingBuffer) -> None:
        self._name, self._baud, self._ring = name, baud, ring
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everywatt-port", daemon=True)
        self.outages = self._read_bytes = 0
        self.messages: deque[str] = deque()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take what the port has now, and end. Returns at once."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until it has ended after `stop`."""
        if self._thread.ident is not None:
            self._thread.join(DRAIN_S + 2 * QUIET_S)

    @property
    def reading(self) -> bool:
        """False when nothing more will be read."""
        return self._thread.is_alive()

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        since: float | None = None
        while True:  # asked to end before this thread ran, it still takes what the port has
            try:
                port = Port(self._name, self._baud)
            except OSError as error:
                if since is None:
                    since = time.monotonic()
                    self.messages.append(f"{self._name} cannot be opened: {error.strerror}. Waiting for it.")
                if self._stopping.wait(wait_s):
                    break
                wait_s = min(wait_s * 2, LAST_WAIT_S)
                continue
            if since is not None:
                self.messages.append(f"{self._name} is back after {time.monotonic() - since:.1f} s.")
            before, since = self._read_bytes, None
            try:
                ended = self._read(port)
            finally:
                port.close()
            if ended:
                break
            if self._read_bytes > before:
                wait_s = FIRST_WAIT_S
            else:  # what opens and gives nothing is not asked all the time
                self._stopping.wait(wait_s)
                wait_s = min(wait_s * 2, LAST_WAIT_S)
            since = time.monotonic()
            self.outages += 1
            self.messages.append(f"{self._name} was unplugged. Waiting for it.")
        self._ring.wake()

    def _read(self, port: Port) -> bool:
        """Until the port is gone (False) or nothing more is to come or wanted (True)."""
        until: float | None = None
        while True:
            if until is None and self._stopping.is_set():
                until = time.monotonic() + DRAIN_S
            if until is not None and time.monotonic() > until:
                return True
            if self._ring.full:
                time.sleep(0.01)  # the disk is slow: the kernel holds what comes
                continue
            got = port.read_into(self._ring, QUIET_S if until is None else 0.0)
            self._read_bytes += got or 0
            if got is None:
                return port.ends or self._stopping.is_set()
            if not got and until is not None:
                return True


SYNC_EVERY_S = 30.0

_BAD = re.compile(rb"\s*\d+\.\d+\s*[,;]\s*(?:false\b|true\b.*\b(?:nan|inf))", re.IGNORECASE)  # a line of a bad frame


@dataclass
class Progress:
    """What a capture has seen so far."""

    frames: int = 0
    bytes: int = 0
    rotations: int = 0
    outages: int = 0
    lost_bytes: int = 0
    bad: int = 0
    packed: list[str] = field(default_factory=list)


def next_turn_ns(utc_ns: int, at: tuple[int, int]) -> int:
    """The first instant after `utc_ns` at which local clocks show this hour and minute (also across clock changes)."""
    now = datetime.fromtimestamp(utc_ns / NS)
    turn = now.replace(hour=at[0], minute=at[1], second=0, microsecond=0)
    if turn <= now:
        turn += timedelta(days=1)
    found = round(turn.timestamp()) * NS
    return found if found > utc_ns else found + 86_400 * NS


class Capture:
    """One meter being recorded. `run` returns when `stop` was called, the source ended, or the time is over.

    port     a serial device, pty, pipe or file, or `-`
    archive  the folder that gets raw rows and copies; journals lie in it until they are packed
    kind     `serial` (binary frames) or `text` (what wattmetre-read prints)
    turn     local hour and minute of the daily rotation, None for none
    zips     also write zips in Lab-IA's layout and names
    """

    def __init__(
        self,
        port: str,
        archive: Path,
        meter: str,
        kind: str,
        *,
        turn: tuple[int, int] | None = (7, 0),
        baud: int = BAUD,
        zips: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._name, self._archive, self._kind, self._turn, self._baud = port, archive, kind, turn, baud
        self._meter = safe_name(meter)
        self._zip_turn = (turn or (0, 0)) if zips else None
        self._tell = tell
        self.progress = Progress()
        self._stopping = self._turning = False
        self._decoder = Decoder()
        self._line = b""
        self._header = b""
        self._last_ns = 0
        self._packers: list[subprocess.Popen[str]] = []
        self._journal = self._take_up()
        self._ring = RingBuffer(ring_path(archive, self._meter) if SHARED.is_dir() else None)
        self._ring.skip_written(self._journal_size)
        self._turn_ns = next_turn_ns(time.time_ns(), turn) if turn else None

    def _journal_size(self, began_ns: int) -> int:
        if began_ns == self._journal.began_ns:
            return self._journal.size
        try:
            return whole_size(journal_path(self._archive, self._meter, began_ns))
        except OSError:
            return 0

    def stop(self) -> None:
        """End soon: what was read is kept and packed."""
        self._stopping = True

    def rotate(self) -> None:
        self._turning = True

    def _take_up(self) -> Journal:
        """The journal that a killed capture left, to go on with; older ones are packed. Else a new one.

        A frame or line that was cut by the kill is carried on, also into a new journal.
        """
        left = journals(self._archive, self._meter)
        now_ns = time.time_ns()
        if left and left[-1][2].stat().st_size == 0:
            left.pop()[2].unlink()  # killed between making it and its first line
        if not left:
            return Journal(journal_path(self._archive, self._meter, now_ns), self._kind)
        began_ns, _, path = left[-1]
        old = self._turn is not None and next_turn_ns(began_ns, self._turn) <= now_ns
        goes_on = not old and kind_of(path) == self._kind
        journal = Journal(path if goes_on else journal_path(self._archive, self._meter, now_ns), self._kind)
        before = [older for _, _, older in left if older != journal.path]
        if goes_on:
            self._tell(f"Continuing {path.name}.")
            self._look_back(path)
        if journal.empty and before and kind_of(before[-1]) == self._kind:
            self._look_back(before[-1])
            self._carry(journal, now_ns)
        for older in before:
            self._pack_later(older)
        return journal

    def _look_back(self, path: Path) -> None:
        """Know what a journal ends with, as if this capture had read it."""
        self._last_ns, tail = tail_of(path)
        if self._kind == "serial":
            self._decoder.feed(tail)
            self._decoder.bad_check = self._decoder.bad_frames = 0
            return
        self._line = tail.rpartition(b"\n")[2]
        self._header = next((line for line in head_of(path).split(b"\n") if HEADER.search(line)), b"")

    def _carry(self, journal: Journal, now_ns: int) -> None:
        """Begin a journal with when the one before ended, and what it has of an unfinished frame or line."""
        journal.append(self._last_ns, b"")
        carried = self._decoder.pending if self._kind == "serial" else self._header + b"\n" + self._line
        if carried.strip(b"\n"):
            journal.append(now_ns, carried)

    def run(self, duration_s: float | None = None) -> Progress:
        until = None if duration_s is None else time.monotonic() + duration_s
        reader = Reader(self._name, self._baud, self._ring)
        try:
            self._take_all()  # what a killed capture had read
            reader.start()
            self._loop(reader, until)
        finally:
            reader.stop()
            reader.join()
            self._take_all()
            self._finish()
        return self.progress

    def _loop(self, reader: Reader, until: float | None) -> None:
        synced = time.monotonic()
        while True:
            if self._stopping or (until is not None and time.monotonic() > until):
                reader.stop()
            reading = reader.reading
            self._ring.wait(QUIET_S if reading and not self._stopping else 0.0)
            self._take_all()
            while reader.messages:
                self._tell(reader.messages.popleft())
            self.progress.outages = reader.outages
            if time.monotonic() - synced > SYNC_EVERY_S:
                synced = time.monotonic()
                self._journal.sync()
            self._mind()
            if not reading:
                return

    def _take_all(self) -> None:
        for read_ns, data in self._ring.take():
            self._take(data, read_ns)

    def _take(self, data: bytes, now_ns: int) -> None:
        """To the journal first; then look at it."""
        if self._last_ns - now_ns > HELD_UP_NS:  # the clock was set back: rows must not wait until it is there again
            self._turning, self._last_ns = True, 0
        if self._turning or (self._turn_ns is not None and now_ns >= self._turn_ns):
            self._rotate(now_ns)
        self._ring.goes_to(self._journal.began_ns, self._journal.size)
        self._journal.append(now_ns, data)
        self._last_ns = max(self._last_ns, now_ns)
        self.progress.bytes += len(data)
        if self._kind == "serial":
            self.progress.frames += len(self._decoder.feed(data))
            self.progress.bad = self._decoder.bad_check + self._decoder.bad_frames
            return
        lines = (self._line + data).split(b"\n")
        self._line = lines.pop()[-65_536:]
        self.progress.frames += len(lines)
        self.progress.bad += sum(_BAD.match(line) is not None for line in lines)
        self._header = next((line for line in lines if HEADER.search(line)), self._header)

    def _mind(self) -> None:
        """What is not the port: a disk that was full, packers that ended."""
        had = self._journal.trouble
        if self._journal.waiting and self._journal.retry():
            self._tell("There is disk space again; no buffered rows were lost.")
        elif self._journal.trouble and not had:
            self._tell(f"{self._journal.path} cannot be written: {self._journal.trouble}. Buffering rows in memory.")
        self.progress.lost_bytes = self._journal.lost_bytes
        for packer in [one for one in self._packers if one.poll() is not None]:
            self._packers.remove(packer)
            self._packed(packer)

    def _rotate(self, now_ns: int) -> None:
        """A new journal, which begins with what the old one has of an unfinished frame or line."""
        self._turning = False
        self._turn_ns = next_turn_ns(now_ns, self._turn) if self._turn else None
        if not self._journal.retry():
            return  # a full disk: the old one goes on
        old = self._journal
        fresh = Journal(journal_path(self._archive, self._meter, now_ns), self._kind)
        self._carry(fresh, now_ns)
        self._journal = fresh
        old.close()
        self.progress.rotations += 1
        self._pack_later(old.path)

    def _pack_later(self, path: Path) -> None:
        command = [sys.executable, "-m", "everywatt.meters.archive", str(self._archive), self._meter, str(path)]
        if self._zip_turn is not None:
            command.append(f"{self._zip_turn[0]:02d}:{self._zip_turn[1]:02d}")
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        self._packers.append(subprocess.Popen(command, env=environ, text=True, start_new_session=True, **pipes))  # type: ignore[call-overload]

    def _packed(self, packer: subprocess.Popen[str]) -> None:
        out, err = packer.communicate()
        self.progress.packed += out.split("\n")[:-1]
        for line in text_lines(err.strip()):
            self._tell(line)

    def _finish(self) -> None:
        """Close and pack, also what is still being packed."""
        self._journal.close()
        self._ring.close(remove=not self._journal.waiting_bytes)
        self.progress.lost_bytes = self._journal.lost_bytes + self._journal.waiting_bytes
        for packer in self._packers:
            packer.wait()
            self._packed(packer)
        self._packers = []
        packed = pack(self._archive, self._meter, self._journal.path, self._zip_turn)
        self.progress.packed += [str(path) for path in packed]
