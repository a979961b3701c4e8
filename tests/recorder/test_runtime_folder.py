"""Where the recorder's socket is: a folder of the user's own, which nobody else could have put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import everywatt.core.machine as machine
from everywatt.core.errors import RecorderError
from everywatt.recorder import channel
from everywatt.recorder.wire import own_folder

STRANGER = 54321
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_a_folder_that_others_may_write_is_refused_in_a_shared_one(shared: Path) -> None:
    (shared / "mine").mkdir()
    (shared / "mine").chmod(0o777)
    with pytest.raises(RecorderError, match="others may write") as caught:
        own_folder({"EVERYWATT_RUNTIME_DIR": str(shared / "mine")})
    assert "EVERYWATT_RUNTIME_DIR" in str(caught.value.cure)


@needs_root
def test_a_folder_of_another_user_is_refused(shared: Path) -> None:
    (shared / "theirs").mkdir(mode=0o700)
    os.chown(shared / "theirs", STRANGER, -1)
    with pytest.raises(RecorderError) as caught:
        own_folder({"EVERYWATT_RUNTIME_DIR": str(shared / "theirs")})
    assert "EVERYWATT_RUNTIME_DIR" in str(caught.value.cure)


@needs_root
def test_the_session_folder_of_another_user_is_not_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shared / "user").mkdir(mode=0o700)
    os.chown(shared / "user", STRANGER, -1)
    found = machine.runtime_dir({"XDG_RUNTIME_DIR": str(shared / "user")})
    assert not found.is_relative_to(shared)


def test_the_folder_that_the_system_made_for_the_user_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / str(os.getuid())
    made.mkdir(mode=0o700)
    monkeypatch.setattr(machine, "RUN_USER", tmp_path)
    assert machine.runtime_dir({}) == made / "everywatt"


@needs_root
def test_a_socket_of_another_user_is_not_talked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    from everywatt.core.clocks import SystemClock
    from everywatt.recorder.channel import Patience
    from everywatt.recorder.wire import SOCKET

    monkeypatch.setenv("EVERYWATT_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.setattr(channel, "start", lambda patience: None)
    folder = own_folder()
    with socket.socket(socket.AF_UNIX) as listener:
        os.seteuid(0)
        listener.bind(str(folder / SOCKET))
        (folder / SOCKET).chmod(0o777)
        os.seteuid(STRANGER)  # whoever calls listen() is the peer that others see
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(RecorderError):
            channel.reach(Patience(SystemClock()))
