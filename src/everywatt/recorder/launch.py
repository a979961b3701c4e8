"""The client's way to the recorder: connect to the one that runs, or start one."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core.clocks import NS
from everywatt.core.errors import RecorderError
from everywatt.recorder.channel import Patience
from everywatt.recorder.wire import LOCK, Address, own_folder

if TYPE_CHECKING:
    import subprocess

SEND_BUFFER = 1 << 20
LOCK_NS = 5_000_000  # between two looks at the lock of a client that is starting the recorder


def reach(patience: Patience) -> socket.socket:
    """A socket to the user's recorder, started where none runs. RecorderError says why there is none."""
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
        with Address(folder) as address:
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
