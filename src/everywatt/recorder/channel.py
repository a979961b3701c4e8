"""Two ways from a recording to its tape: a socket to the recorder, or a writer in this very process.

`reach` connects to the recorder that runs, or starts one. `Inline` reads cheap counters where a span starts and ends,
which the measured program does itself in both.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from everywatt.core.channels import GroupInfo, Row
from everywatt.core.clocks import NS, Clock
from everywatt.core.errors import RecorderError
from everywatt.recorder.wire import LOCK, address_in, encode, own_folder
from everywatt.sensors import registry
from everywatt.sensors.base import Group, Request, TableGroup, checked

if TYPE_CHECKING:
    import subprocess

    from everywatt.recorder.session import Session
    from everywatt.recorder.wire import Message, Reply, Use

MOST_BACKLOG = 64 << 20
PATIENCE_S = 2.0  # how long in all a program waits for a recorder that shows no sign of life
SILENCE_S = 1.5  # how long at once, so that a little is left for one that comes back
RECOVERY = 300  # seconds after which a second of patience is there again
SIGN_S = 0.5  # a recorder at work shows a sign of life more often than this; so much silence costs no patience
LONGEST_S = 60.0  # and one that does nothing but show signs of life is given up in the end
GONE = frozenset({errno.EBADF, errno.ENOTCONN, errno.ENOTSOCK})  # besides those that Python calls ConnectionError
MUTED_NS = NS  # how long a counter that failed at a span's edge is left alone
EDGES_ONLY_S = 3600.0  # without a recorder a counter may be read once an hour, and that is no gap


class Patience:
    """How long a program still waits for silent recorders: two seconds in all, and a little more after minutes."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.left_s = PATIENCE_S
        self._asked_ns = clock.monotonic_ns()

    def deadline_ns(self, most_s: float = SILENCE_S) -> int:
        """Until when to wait for the next sign of life."""
        now_ns = self.clock.monotonic_ns()
        self.left_s = min(PATIENCE_S, self.left_s + (now_ns - self._asked_ns) / NS / RECOVERY)
        self._asked_ns = now_ns
        return now_ns + round(min(most_s, self.left_s) * NS)

    def spend(self, since_ns: int) -> None:
        """Count the silence since then."""
        silent_s = (self.clock.monotonic_ns() - since_ns) / NS
        if silent_s > SIGN_S:
            self.left_s = max(0.0, self.left_s - silent_s)


class Remote:
    """The socket. `send` never blocks: what the recorder does not take yet waits here.

    Nor is a recorder given up because the system has no memory or descriptor for a message: it goes on recording, and
    the message is sent with the next one.

    sign     what the recorder said last about what it is doing
    trouble  why the system did not take the last message
    """

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._clock = patience.clock
        self._patience = patience
        self._backlog = bytearray()
        self._replies = bytearray()
        self._id = 0
        self.tape = 0
        self.sign = ""
        self.trouble: OSError | None = None
        self.heard_ns = self._clock.monotonic_ns()

    def send(self, message: Message) -> None:
        """Hand over a message. Raises OSError where the recorder is gone."""
        data = encode({"tape": self.tape, **message})
        if self._backlog:
            if len(self._backlog) > MOST_BACKLOG:
                raise BrokenPipeError("the recorder closed the connection")
            self._backlog += data
            self._push()
            return
        sent = self._taken(data)
        if sent < len(data):
            self._backlog += data[sent:]

    def _push(self) -> None:
        while self._backlog:
            sent = self._taken(self._backlog[: 1 << 20])
            if not sent:
                return
            del self._backlog[:sent]

    def _taken(self, data: bytes | bytearray) -> int:
        """How many bytes the system takes now. OSError: the recorder is gone."""
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            if isinstance(error, ConnectionError) or error.errno in GONE:
                raise
            self.trouble = error
            return 0
        self.trouble = None
        self.heard_ns = self._clock.monotonic_ns()
        return sent

    def ask(self, message: Message) -> None:
        """Send a message whose reply is waited for later, or never."""
        self._id += 1
        self.sign = ""
        self.send({**message, "id": self._id})

    def request(self, message: Message, silence_s: float = SILENCE_S) -> Reply:
        """Send a message and wait for its reply.

        OSError, EOFError: the recorder is gone, or the message cannot be sent; TimeoutError: it shows no sign of life
        for `silence_s`.
        """
        self.ask(message)
        since_ns = began_ns = self._clock.monotonic_ns()
        deadline_ns = self._patience.deadline_ns(silence_s)
        while True:
            if self.trouble is not None:
                raise self.trouble
            reply = self._reply()
            if reply is not None:
                return reply
            now_ns = self._clock.monotonic_ns()
            if now_ns >= deadline_ns or now_ns - began_ns > LONGEST_S * NS:
                self._patience.spend(since_ns)
                raise TimeoutError(f"no response for {(now_ns - since_ns) / NS:.1f} s")
            self._clock.poll(self._sock.fileno(), write=bool(self._backlog), timeout_s=(deadline_ns - now_ns) / NS)
            self._push()
            if self._received():
                self._patience.spend(since_ns)
                since_ns = self._clock.monotonic_ns()
                deadline_ns = self._patience.deadline_ns(silence_s)

    def heard(self) -> bool:
        """Whether the recorder has sent anything unasked. OSError, EOFError: it is gone."""
        found = self._received()
        while self._reply() is not None:
            pass
        return found

    def _received(self) -> bool:
        """Take what has come from the recorder, without waiting."""
        try:
            data = self._sock.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            raise EOFError("the recorder has exited")
        self.heard_ns = self._clock.monotonic_ns()
        self._replies += data
        return True

    def _reply(self) -> Reply | None:
        while b"\n" in self._replies:
            line, _, rest = bytes(self._replies).partition(b"\n")
            self._replies = bytearray(rest)
            reply: Reply = json.loads(line)
            if isinstance(reply, dict):
                self.sign = str(reply.get("sign", self.sign))
                if reply.get("id") == self._id:
                    return reply
        return None

    def close(self) -> None:
        """Hang up; after a fork only this process's copy of the descriptor."""
        self._sock.close()

    forget = __del__ = close


class Local:
    """A tape that this process writes itself, with what it reads at span edges."""

    def __init__(
        self, path: Path, meta: Mapping[str, Any], groups: Sequence[GroupInfo], clock: Clock, notes: Sequence[str]
    ) -> None:
        from everywatt.recorder.session import Session  # what writes a tape is not loaded where a recorder does it

        self._session: Session | None = Session(path, meta, round(EDGES_ONLY_S * 1e9), clock, mode=0o600)
        self._clock = clock
        self._cpu_s = time.thread_time()
        self.heard_ns = clock.monotonic_ns()
        for group in groups:
            self._session.add_group(group, EDGES_ONLY_S)
        for note in notes:
            self._session.remark(self.heard_ns, "recorder", note)

    def heard(self) -> bool:
        """This process answers to itself."""
        return True

    def ask(self, message: Message) -> None:
        """There is nothing to be heard."""

    def send(self, message: Message) -> None:
        if self._session is not None and message["op"] != "follow":
            for name, *row in message.get("edges") or ():
                self._session.own_rows(name, [Row(*row)])
            self._session.apply(message)
            self._session.tend(self._clock.monotonic_ns())

    def request(self, message: Message, silence_s: float = SILENCE_S) -> Reply:
        session = self._session
        if session is None:
            return {"ok": False, "error": "The tape is closed."}
        seconds = (self._clock.monotonic_ns() - session.started_ns) / 1e9
        meter: Use = {
            "cpu_s": None,
            "seconds": seconds,
            "rss_bytes": None,
            "reads": sum(f.rows for f in session.figures.values()),
        }
        if message["op"] == "read":
            return {"ok": True, "exits": False}
        if message["op"] == "status":
            rows = {name: figures.rows for name, figures in session.figures.items()}
            return cast("Reply", {"ok": True, **meter, "rows": rows})
        why = session.finish(meter)
        self._session = None
        return {
            "ok": True,
            "path": str(session.writer.path),
            "cost": meter,
            "notes": session.remarks + ([why] if why else []),
        }

    def close(self) -> None:
        if self._session is not None:
            self.request({"op": "close"})

    def forget(self) -> None:
        """After a fork: the parent writes, this process does not."""
        self._session = None


class Inline:
    """The inline groups of a run, opened in this process too. A group that fails is left alone for a second.

    differing  names of groups of which this process finds other channels than the recorder, so that they are not read
    """

    def __init__(
        self, groups: Sequence[Group | TableGroup], clock: Clock, differing: frozenset[str] = frozenset()
    ) -> None:
        self.differing = differing
        self._groups = [(group.info.name, cast("Group", group)) for group in groups]
        self._muted: dict[str, int] = {}
        self._clock = clock

    @classmethod
    def opened(cls, infos: Sequence[GroupInfo], targets: Mapping[str, str], request: Request) -> Inline:
        wanted = {info.name: info for info in infos if info.inline and info.sensor in targets}
        sensors = sorted({info.sensor for info in wanted.values()})
        groups, differing = [], set()
        for group in registry.choose(targets, request, sensors).groups if sensors else ():
            theirs = wanted.get(group.info.name)
            if theirs is not None and theirs.layout == group.info.layout:
                groups.append(group)
                continue
            group.close()
            if theirs is not None:
                differing.add(theirs.name)
        return cls(groups, request.machine.clock, frozenset(differing))

    def read(self) -> list[tuple[str, Row]]:
        edges = []
        for name, group in self._groups:
            if self._muted and self._muted.get(name, 0) > self._clock.monotonic_ns():
                continue
            try:
                rows = group.read()
                if rows:
                    edges.append((name, checked(rows[-1], group.info)))
            except Exception:  # noqa: BLE001 - a plug-in may do anything; the recorder notes the outage
                self._muted[name] = self._clock.monotonic_ns() + MUTED_NS
        return edges

    def close(self) -> None:
        for _, group in self._groups:
            try:
                group.close()
            except Exception:  # noqa: BLE001 - a plug-in may do anything; its values were taken long before
                pass
        self._groups = []


SEND_BUFFER = 1 << 20
LOCK_NS = 5_000_000  # between two looks at the lock of a client that is starting the recorder


def reach(patience: Patience) -> socket.socket:
    """A socket to the user's recorder, started if it is not running. RecorderError, with the reason, if that fails."""
    folder = own_folder()
    sock = _connect(folder)
    if sock is not None:
        return sock
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RecorderError(
            f"{folder} cannot be written: {error.strerror}.", cure="set EVERYWATT_RUNTIME_DIR"
        ) from None
    try:
        _lock(lock, patience)
        sock = _connect(folder)
        if sock is None:
            start(patience)
            sock = _connect(folder)
    finally:
        os.close(lock)
    if sock is None:
        raise RecorderError("The recorder was started but cannot be reached.")
    return sock


def _lock(fd: int, patience: Patience) -> None:
    """One client starts the recorder, the others wait for it."""
    import fcntl  # Windows has no such module

    clock = patience.clock
    since_ns, deadline_ns = clock.monotonic_ns(), patience.deadline_ns()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            now_ns = clock.monotonic_ns()
            if now_ns > deadline_ns:
                patience.spend(since_ns)
                raise RecorderError("Another process has been starting the recorder for too long.") from None
            clock.sleep_until(now_ns + LOCK_NS)
    patience.spend(since_ns)


def _connect(folder: Path) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        with address_in(folder) as address:
            sock.connect(address)
        _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        sock.close()
        return None
    if uid != os.geteuid():
        sock.close()
        raise RecorderError(
            f"The recorder in {folder} is another user's.", cure="set EVERYWATT_RUNTIME_DIR to a folder of your own"
        )
    return sock


def import_path() -> list[str]:
    """Where this program imports from, as absolute folders, everywatt's own first."""
    own = str(Path(__file__).resolve().parents[2])
    entries = [own, *(os.path.abspath(entry or os.curdir) for entry in sys.path)]  # noqa: PTH100 - links stay links
    return list(dict.fromkeys(entry for entry in entries if os.path.exists(entry)))  # noqa: PTH110


def start(patience: Patience) -> None:
    """Start a recorder and wait until it listens."""
    if not sys.executable:
        raise RecorderError("This process does not know its Python interpreter, so the recorder cannot be started.")
    import subprocess  # only the program that starts the recorder needs it

    ready, write = os.pipe2(os.O_CLOEXEC)
    environ = {**os.environ, "EVERYWATT_RECORDER_PATH": os.pathsep.join(import_path())}
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("__main__.py")), str(write)]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environ,
            close_fds=True,
            pass_fds=(write,),
            start_new_session=True,
        )
        os.close(write)
        write = -1
        answer = _await(ready, patience)
        _reap(child)
    except OSError as error:
        raise RecorderError(f"The recorder cannot be started: {error.strerror or error}.") from None
    finally:
        os.close(ready)
        if write >= 0:
            os.close(write)
    if answer != "ready":
        raise RecorderError(f"The recorder did not start: {answer}")


def _await(fd: int, patience: Patience) -> str:
    """What the recorder says in one line; dots before it are signs of life."""
    said = b""
    while b"\n" not in said:
        since_ns, deadline_ns = patience.clock.monotonic_ns(), patience.deadline_ns()
        heard = patience.clock.poll(fd, write=False, timeout_s=(deadline_ns - since_ns) / NS)
        patience.spend(since_ns)
        if not heard:
            return "no response in time."
        data = os.read(fd, 2000)
        if not data:
            break
        said += data
    return said.lstrip(b".").decode(errors="replace").strip() or "it exited at once."


def _reap(child: subprocess.Popen[bytes]) -> None:
    """The child forks and ends at once; one that does not is ended."""
    import subprocess

    try:
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
