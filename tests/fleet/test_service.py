"""What systemd hears."""

import os
import socket

from everywatt.fleet.service import Notifier


def test_ready_alive_and_reloading_reach_the_socket(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}
        notifier = Notifier(env)
        assert notifier.tell("READY=1", "STATUS=fine")
        assert sock.recv(100) == b"READY=1\nSTATUS=fine"
        for now_s in (100.0, 101.0, 103.0, 104.5):
            notifier.alive(now_s)
        notifier.reloading(5_000)
        assert [sock.recv(100)[:11] for _ in range(3)] == [b"WATCHDOG=1", b"WATCHDOG=1", b"RELOADING=1"]


def test_an_abstract_socket_and_none_at_all(tmp_path):
    name = f"everywatt-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name)
        assert Notifier({"NOTIFY_SOCKET": "@" + name}).tell("READY=1")
        assert sock.recv(100) == b"READY=1"
    assert not Notifier({}).tell("READY=1")
    assert (
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).every_s is None
    )


def test_somebody_who_does_not_read_holds_nobody_up(tmp_path):
    """The kernel queues ten datagrams or so, and then a sender waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        taken = [notifier.tell("WATCHDOG=1") for _ in range(5000)]
        assert taken[0] and not taken[-1]
