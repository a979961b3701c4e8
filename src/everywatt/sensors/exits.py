"""Exit records: the kernel tells of every process that ends, who it was and what it had used (taskstats).

Needs CAP_NET_ADMIN in the first user and process namespace. Records come by generic netlink, are kept by the kernel in
a buffer until they are asked for, and a buffer that overflowed says so. A record is written shortly before the end of
a process, so what it used after the scheduler last looked (at most one tick of the kernel, 1 to 10 ms) is not in it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import NamedTuple

_GENERIC = 16  # NETLINK_GENERIC; also the number of the controller family
_ERROR, _REQUEST, _ACK = 2, 1, 4
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_GET, _ASK_PID, _REGISTER, _LEAVE = 1, 1, 3, 4
_STATS, _OF_THREAD = 3, 4
_BUFFER_BYTES = 4 << 20
_SO_RCVBUFFORCE = 33
_HEAD = struct.Struct("=IHHII")
_GENERIC_HEAD = struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")
# Offsets in struct taskstats: flags, CPU ns, name, uid, pid, parent, elapsed µs; the thread group since version 12.
_FLAGS, _CPU_NS, _NAME, _WHO, _ELAPSED, _GROUP = 8, 72, 80, 120, 144, 368
_LAST_OF_GROUP = 0x20
_OLDEST = 12
_LONGEST_S = 0.2


class Exit(NamedTuple):
    """A process that ended: seconds of CPU of all its threads, and how long it lived."""

    pid: int
    ppid: int
    uid: int
    name: str
    cpu_s: float
    age_s: float


class ExitRecords:
    """The kernel's exit records from now on. OSError (or ValueError for a layout that is not known) where they cannot
    be had.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _GENERIC)
        try:
            self._socket.bind((0, 0))
            self._socket.settimeout(_LONGEST_S)
            self._family = self._resolve()
            self._check()
            self._cpus = f"0-{(os.cpu_count() or 1) - 1}\0".encode()
            self._enlarge()
            self._ask(self._family, _GET, _attribute(_REGISTER, self._cpus))
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self._threads: dict[int, int] = {}

    def drain(self) -> tuple[list[Exit], bool]:
        """The processes that ended since the last call, and whether the list is complete."""
        found: list[Exit] = []
        complete = True
        while True:
            try:
                data = self._socket.recv(8192)
            except (BlockingIOError, InterruptedError):
                return found, complete
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                complete = False
                self._threads.clear()
                continue
            one = self._exit(data)
            if one is not None:
                found.append(one)

    def close(self) -> None:
        """Leave; the kernel drops listeners whose socket is gone."""
        self._socket.close()

    def _exit(self, data: bytes) -> Exit | None:
        """The process that a message tells the end of; None for a thread whose process goes on."""
        stats = _stats_of(data)
        if stats is None:
            return None
        pid, ppid = struct.unpack_from("=II", stats, _WHO + 8)
        (group,) = struct.unpack_from("=I", stats, _GROUP)
        (cpu_ns,) = struct.unpack_from("=Q", stats, _CPU_NS)
        if not stats[_FLAGS] & _LAST_OF_GROUP:
            self._threads[group] = self._threads.get(group, 0) + cpu_ns
            return None
        cpu_ns += self._threads.pop(group, 0)
        (uid,) = struct.unpack_from("=I", stats, _WHO)
        (elapsed_us,) = struct.unpack_from("=Q", stats, _GROUP + 8)
        name = stats[_NAME : _NAME + 32].split(b"\0", 1)[0].decode("utf-8", "replace")
        return Exit(group or pid, ppid, uid, name, cpu_ns / 1e9, elapsed_us / 1e6)

    def _enlarge(self) -> None:
        for option in (_SO_RCVBUFFORCE, socket.SO_RCVBUF):
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
                return
            except OSError:
                continue

    def _resolve(self) -> int:
        reply = self._ask(_GENERIC, _GET_FAMILY, _attribute(_FAMILY_NAME, b"TASKSTATS\0"))
        for kind, value in _attributes(reply[20:]):
            if kind == _FAMILY_ID:
                return int(struct.unpack_from("=H", value)[0])
        raise OSError(errno.ENOENT, "this kernel has no task statistics")

    def _check(self) -> None:
        """Ask for ourselves: a kernel whose record looks otherwise is not believed."""
        reply = self._ask(self._family, _GET, _attribute(_ASK_PID, struct.pack("=I", os.getpid())))
        stats = _stats_of(reply)
        if stats is None:
            raise ValueError("the kernel's task statistics are older than version 12 or not understood")
        (pid,) = struct.unpack_from("=I", stats, _WHO + 8)
        (group,) = struct.unpack_from("=I", stats, _GROUP)
        (cpu_ns,) = struct.unpack_from("=Q", stats, _CPU_NS)
        # The record is about the first thread; the process may have others.
        if pid != os.getpid() or group != pid or not 0 < cpu_ns <= time.process_time_ns():
            raise ValueError("the kernel's task statistics have a layout that is not known")

    def _ask(self, family: int, command: int, attributes: bytes) -> bytes:
        body = _GENERIC_HEAD.pack(command, 1, 0) + attributes
        self._socket.send(_HEAD.pack(_HEAD.size + len(body), family, _REQUEST | _ACK, 1, 0) + body)
        answer = b""
        while True:
            data = self._socket.recv(65536)
            if _HEAD.unpack_from(data)[1] != _ERROR:
                answer = data
                continue
            (code,) = struct.unpack_from("=i", data, _HEAD.size)
            if code:
                raise OSError(-code, os.strerror(-code))
            return answer


def _stats_of(data: bytes) -> bytes | None:
    """struct taskstats of the thread in a message, None where there is none that is understood."""
    for kind, value in _attributes(data[20:]):
        if kind != _OF_THREAD:
            continue
        for inner, stats in _attributes(value):
            if inner == _STATS and len(stats) >= _GROUP + 16 and struct.unpack_from("=H", stats)[0] >= _OLDEST:
                return stats
    return None


def _attribute(kind: int, value: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(size, kind) + value + b"\0" * (-size % 4)


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size:
            break
        found.append((kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + size]))
        at += (size + 3) & ~3
    return found
