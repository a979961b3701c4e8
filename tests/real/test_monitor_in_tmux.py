"""The monitor in a real terminal multiplexer: it draws, obeys keys, and gives the screen back."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from everywatt.sim.machine import SimMachine

pytest.importorskip("textual")
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (make system-packages)")


class Screen:
    """A tmux server of the test's own with one window."""

    def __init__(self, folder, env):
        self.socket = str(folder / "tmux.sock")
        fixed = ("TMUX", "TMUX_PANE", "COLUMNS", "LINES")  # what runs the tests may say how wide its own output is
        self.env = {key: value for key, value in env.items() if key not in fixed}
        self.env |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}

    def __call__(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-S", self.socket, *words], env=self.env, capture_output=True, timeout=240)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def text(self) -> str:
        return self("capture-pane", "-p", "-t", "m")

    def until(self, words: str, seconds: float = 30.0) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            shown = self.text()
            if words in shown:
                return shown
            time.sleep(0.1)
        raise AssertionError(f"'{words}' never came:\n{self.text()}")


@pytest.fixture
def screen(tmp_path):
    made = SimMachine.of(gpus=["constant:100W"], replicate=8, packages=["constant:40W"])
    with made.start() as lab:
        env = {**lab.environment(), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        found = Screen(tmp_path, env)
        command = f"exec sh -c 'echo BEFORE; {sys.executable} -m everywatt monitor; echo ENDED $?; sleep 60'"
        found("new-session", "-d", "-s", "m", "-x", "80", "-y", "24", "-c", str(tmp_path), command)
        yield found
        found("kill-server")


def test_it_draws_obeys_and_gives_the_screen_back(screen):
    shown = screen.until("100.0 W")
    for number in range(8):
        assert f" gpu.{number} " in shown
    assert len(max(shown.splitlines(), key=len)) <= 80
    screen.until("OWNER")
    screen("send-keys", "-t", "m", "/")
    screen("send-keys", "-t", "m", "gpu.7", "Enter")
    shown = screen.until("filter: gpu.7")
    assert " gpu.7 " in shown and " gpu.6 " not in shown
    screen("send-keys", "-t", "m", "Escape")
    shown = screen.until(" gpu.6 ").splitlines()
    row = next(number for number, line in enumerate(shown, 1) if line.split()[:1] == ["▾DEVICE"])
    column = shown[row - 1].index("POWER") + 1
    for end in "Mm":  # the button goes down and up
        screen("send-keys", "-t", "m", "-l", f"\x1b[<0;{column};{row}{end}")
    screen.until(" DEVICE ")  # no longer marked
    screen("send-keys", "-t", "m", "d", "d", "d", "d")  # by name again
    screen.until("▾DEVICE")
    screen("send-keys", "-t", "m", "u")
    screen.until(" Wh")
    screen("resize-window", "-t", "m", "-x", "150", "-y", "40")
    screen.until("LIMIT")
    screen("send-keys", "-t", "m", "q")
    shown = screen.until("ENDED 0")
    assert "BEFORE" in shown and "gpu.0" not in shown
