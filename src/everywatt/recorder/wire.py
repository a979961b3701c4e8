"""JSON lines over a Unix socket: the recorder's end, and where the socket is."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.errors import RecorderError
from everywatt.core.machine import runtime_dir
from everywatt.core.platforms import user_id

if TYPE_CHECKING:  # made at run time they would cost each recorder a millisecond
    from typing import TypedDict

    class Message(TypedDict, total=False):
        """What a client says; which fields there are depends on `op`. `open` has those of a RecordRequest too."""

        op: str
        id: int  # where a reply is wanted
        tape: Any  # its number, of `open` the path
        meta: Mapping[str, Any]
        targets: Mapping[str, str]  # `module:Class` of each sensor
        path: list[str]  # where the client imports from
        roots: Mapping[str, str]  # of /sys, /proc and /dev
        uid: str
        name: str
        parent: str | None
        at_ns: int
        attributes: Mapping[str, Any] | None
        edges: list[Any]  # [group, read_ns, early_ns, late_ns, values] where the program read a counter itself
        value: Any
        span: str | None
        kind: str
        text: str
        data: Mapping[str, Any]
        pids: list[int]
        cgroup: str | None
        linger: bool

    class Use(TypedDict, total=False):
        """What recording has cost; None where that is not known."""

        cpu_s: float | None
        seconds: float
        rss_bytes: int | None
        reads: int
        wakes: int
        tapes: int
        pid: int

    class Reply(Use, total=False):
        """What the recorder answers: a failure, or what was asked for."""

        id: int
        sign: str  # no answer yet, but it is at work on one
        ok: bool
        error: str
        cure: str | None
        kind: str
        tape: int
        groups: list[dict[str, Any]]
        reports: Any
        notes: list[str]
        tenants: Sequence[Mapping[str, Any]]  # processes that were on the GPUs already
        exits: bool
        rows: Mapping[str, int]
        path: str
        cost: Use
        sealed: bool


# Part of what is said are the modules of sensors (`module:Class`): moving one needs a new number, so that a recorder of
# an earlier version that still runs is left alone and a client starts its own.
PROTOCOL = 3
SOCKET = f"recorder-{PROTOCOL}.sock"
LOCK = f"recorder-{PROTOCOL}.lock"
LOG = "recorder.log"
CHUNK = 1 << 16
LONGEST = 64 << 20
SEALING = "sealing"  # all that the client has sent is in the tape
_LONGEST_PATH = 100  # sun_path holds 108 bytes

_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def encode(message: Mapping[str, object]) -> bytes:
    """A message as a line. Paths that are no text arrive as they are, which is what `json.loads` of bytes expects."""
    return _to_json(message).encode("utf-8", "surrogatepass") + b"\n"


class Connection:
    """One client as the recorder sees it. Never blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._in = bytearray()
        self._out = bytearray()
        self.open = True

    @property
    def pending(self) -> bool:
        return bool(self._out)

    def pull(self) -> list[Message] | None:
        """The messages that have arrived; None where the client is gone."""
        try:
            data = self._sock.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data or len(self._in) > LONGEST:
            return None
        self._in += data
        if b"\n" not in data:
            return []
        *lines, rest = bytes(self._in).split(b"\n")
        self._in = bytearray(rest)
        messages: list[Message] = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                messages.append(message)  # type: ignore[arg-type]  # of that shape where it is one of our clients
        return messages

    def put(self, reply: Reply) -> None:
        """Send a reply as soon as the client takes it."""
        self._out += encode(reply)
        self.push()

    def sign(self, doing: str) -> None:
        """Show a client that waits for a reply that the recorder is at work."""
        if self.open and not self._out:
            self.put({"sign": doing})

    def push(self) -> None:
        """Send what is pending, as far as it goes."""
        try:
            sent = self._sock.send(self._out)
            del self._out[:sent]
        except (BlockingIOError, InterruptedError):
            pass  # the rest goes out when the socket takes more
        except OSError:
            self._out.clear()  # the end of the stream is noticed by `pull`

    def close(self) -> None:
        self.open = False
        self._sock.close()


def own_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The runtime folder, made where it is missing; RecorderError where it is not, or may not be, the user's own."""
    folder = runtime_dir(environ)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(folder)
        if found.st_mode & 0o022 and os.stat(folder.parent).st_mode & 0o002:  # noqa: PTH116 - as lstat above
            raise RecorderError(
                f"{folder} lies in a shared folder and others may write to it.",
                cure=f"rm -r {folder}, or set EVERYWATT_RUNTIME_DIR to a folder of your own",
            )
        if stat.S_ISDIR(found.st_mode) and found.st_uid == user_id() and found.st_mode & 0o077:
            folder.chmod(0o700)
            found = os.lstat(folder)
    except OSError as error:
        raise RecorderError(f"{folder} cannot be used: {error.strerror}.", cure="set EVERYWATT_RUNTIME_DIR") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user_id():
        raise RecorderError(
            f"{folder} belongs to another user.", cure="set EVERYWATT_RUNTIME_DIR to a folder that you own"
        )
    return folder


@contextmanager
def address_in(folder: Path) -> Iterator[str]:
    """The socket's address, also where its path is too long for one."""
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield path
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)
