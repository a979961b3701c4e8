"""Exit records: for every process that ends, the kernel reports its identity and what it used (taskstats).

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
from pathlib import Path
from typing import NamedTuple

_GENERIC = 16  # NETLINK_GENERIC; also the number of the controller family
_ERROR, _REQUEST, _ACK = 2, 1, 4
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_GET, _ASK_PID, _REGISTER = 1, 1, 3
_STATS, _OF_THREAD = 3, 4
_STATS_KIND = struct.pack("=H", _STATS)
_BUFFER_BYTES = 4 << 20
_SO_RCVBUFFORCE = 33
_HEAD = struct.Struct("=IHHII")
_GENERIC_HEAD = struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")
# struct taskstats since version 12: flags, CPU ns, name, uid, pid, parent, thread group, µs that the group lived.
_RECORD = struct.Struct("=8xB63xQ32s8xI4xII232xI4xQ")
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
            self._enlarge()
            self._ask(self._family, _GET, _attribute(_REGISTER, _all_cpus() + b"\0"))
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
        """The process whose end a message reports; None for a thread whose process continues."""
        at = self._at
        # All messages begin alike; one that does not is looked through.
        if data[at - 2 : at] != _STATS_KIND or len(data) < at + _RECORD.size:
            found = _stats_at(data)
            if found is None:
                return None
            at = found
        flags, cpu_ns, name, uid, pid, ppid, group, lived_us = _RECORD.unpack_from(data, at)
        if not flags & _LAST_OF_GROUP:
            self._threads[group] = self._threads.get(group, 0) + cpu_ns
            return None
        if self._threads:
            cpu_ns += self._threads.pop(group, 0)
        text = name.partition(b"\0")[0].decode("utf-8", "replace")
        return Exit(group or pid, ppid, uid, text, cpu_ns / 1e9, lived_us / 1e6)

    def _enlarge(self) -> None:
        for option in (_SO_RCVBUFFORCE, socket.SO_RCVBUF):
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
                return
            except OSError:
                continue

    def _resolve(self) -> int:
        reply = self._ask(_GENERIC, _GET_FAMILY, _attribute(_FAMILY_NAME, b"TASKSTATS\0"))
        for kind, at, _ in _attributes(reply, _HEAD.size + _GENERIC_HEAD.size, len(reply)):
            if kind == _FAMILY_ID:
                return int(struct.unpack_from("=H", reply, at)[0])
        raise OSError(errno.ENOENT, "this kernel has no task statistics")

    def _check(self) -> None:
        """Ask for ourselves: a kernel whose record looks otherwise is not believed."""
        reply = self._ask(self._family, _GET, _attribute(_ASK_PID, struct.pack("=I", os.getpid())))
        at = _stats_at(reply)
        if at is None:
            raise ValueError("the kernel's task statistics are older than version 12 or not understood")
        _, cpu_ns, _, _, pid, _, group, _ = _RECORD.unpack_from(reply, at)
        # The record is about the first thread; the process may have others.
        if pid != os.getpid() or group != pid or not 0 < cpu_ns <= time.process_time_ns():
            raise ValueError("the kernel's task statistics have an unknown layout")
        self._at = at

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


def _all_cpus() -> bytes:
    """All CPUs that there may be, also those that are off now, as a list such as 0-7."""
    try:
        return Path("/sys/devices/system/cpu/possible").read_bytes().strip()
    except OSError:
        return b"0-%d" % ((os.cpu_count() or 1) - 1)


def _stats_at(data: bytes) -> int | None:
    """The offset of the thread's struct taskstats in a message, or None if it has no usable one."""
    for kind, start, end in _attributes(data, _HEAD.size + _GENERIC_HEAD.size, len(data)):
        if kind != _OF_THREAD:
            continue
        for inner, at, last in _attributes(data, start, end):
            known = inner == _STATS and min(last, len(data)) - at >= _RECORD.size
            if known and struct.unpack_from("=H", data, at)[0] >= _OLDEST:
                return at
    return None


def _attribute(kind: int, value: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(size, kind) + value + b"\0" * (-size % 4)


def _attributes(data: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """The attributes between two places: kind, where the value starts and ends."""
    found = []
    while at + _ATTRIBUTE.size <= min(end, len(data)):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size:
            break
        found.append((kind & 0x3FFF, at + _ATTRIBUTE.size, at + size))
        at += (size + 3) & ~3
    return found
