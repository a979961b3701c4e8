"""The recorder as a process of its own: detached, on all CPUs, quiet, small, with one socket."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from everywatt.core.clocks import Clock, SystemClock
from everywatt.core.errors import EverywattError
from everywatt.recorder.server import Server
from everywatt.recorder.wire import LOCK, LOG, SOCKET, address_in, own_folder

LOG_BYTES = 200_000


def serve(ready_fd: int | None = None) -> int:
    """Run the recorder in this process until it is time to leave. `ready_fd` gets a byte when the socket is there."""
    os.umask(0o077)
    try:
        folder = own_folder()
        log = Log(folder / LOG)
        server = server_in(folder, SystemClock(), log)
    except (OSError, EverywattError) as error:
        _report(ready_fd, f"{error}")
        return 1
    if server is None:
        _report(ready_fd, "ready")
        return 0
    detach(log)
    server.extra.append(_signals())
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "stop", True))
    _report(ready_fd, "ready")
    # What is loaded by now stays; little of what comes is cyclic.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    try:
        server.run()
    except Exception as error:  # noqa: BLE001 - the last words go to the log
        log(f"{type(error).__name__}: {error}")
        return 1
    finally:
        server.listener.close()
        if server.stop:
            server.may_leave()
    return 0


def server_in(folder: Path, clock: Clock, log: Callable[[str], None]) -> Server | None:
    """A server that listens in a runtime folder; None where another recorder does already."""
    listener, inode = _listen(folder)
    if listener is None:
        return None
    return Server(
        listener,
        clock,
        idle_s=float(os.environ.get("EVERYWATT_RECORDER_IDLE_S", "10")),
        may_leave=lambda: _take_down(folder, inode),
        gone=lambda: _inode(folder) != inode,
        log=log,
    )


class Log:
    """A small log file; it starts again when it has grown too large."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, text: str) -> None:
        try:
            mode = "a" if not self._path.exists() or self._path.stat().st_size < LOG_BYTES else "w"
            with self._path.open(mode, encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {os.getpid()} {text}\n")
        except OSError:
            pass  # a full disk must not end the recording; there is no other place to report it


def detach(log: Log) -> None:
    """Let go of the program that started it: session, folder, streams, CPU mask, terminal signals."""
    try:
        os.setsid()
    except OSError:
        pass  # it leads a session already
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)
    # A program that holds its signals back may have started it.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    except (OSError, ValueError) as error:
        log(f"The CPU mask stays as inherited: {error}")


def _listen(folder: Path) -> tuple[socket.socket | None, int]:
    """A listening socket and its inode; None where another recorder is there already."""
    path = folder / SOCKET
    with address_in(folder) as address:
        try:
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(address)
            return None, 0
        except OSError:
            path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
    path.chmod(0o600)
    listener.listen(128)
    listener.setblocking(False)
    return listener, _inode(folder)


def _inode(folder: Path) -> int:
    try:
        return (folder / SOCKET).stat().st_ino
    except OSError:
        return -1


def _take_down(folder: Path, inode: int) -> bool:
    """Remove the socket before leaving. False while a client holds the lock, because it is just about to connect."""
    try:
        with open(folder / LOCK, "wb") as lock:  # noqa: PTH123 - the descriptor is what matters
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _inode(folder) == inode:
                (folder / SOCKET).unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the folder is gone, and the socket with it
    return True


def _signals() -> int:
    """A descriptor that becomes readable on a signal, so that the loop wakes up for it."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    return read_fd


def _report(ready_fd: int | None, text: str) -> None:
    if ready_fd is None:
        return
    try:
        os.write(ready_fd, text.encode("utf-8", "backslashreplace")[:1000] + b"\n")
        os.close(ready_fd)
    except OSError:
        pass  # the client that started it has ended


def main() -> int:
    return serve(int(sys.argv[1]) if len(sys.argv) > 1 else None)
