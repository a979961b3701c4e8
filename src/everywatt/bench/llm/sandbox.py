"""Code that a model wrote, run apart: in a process of its own, a folder of its own, with limits, and without a network
where the kernel lets us.

It is a fence against mistakes, not a prison: the file system stays readable for whoever the code runs as (`nobody`
where everywatt is root, and never root). So nothing is run unless the user asks for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everywatt.core.errors import MeasurementRefused

MOST_SECONDS = 10.0
MOST_BYTES = 1 << 30
MOST_OUTPUT_BYTES = 4000
PROBE_S = 60.0  # what cannot start ends at once; what can may be held up
NOBODY = 65534
MOST_OF_NOBODY = 512  # processes, of all that run as nobody here
MOUNT_PROC = "--mount-proc"
# An interpreter in a home directory may start for `nobody` and then find no library.
_PROBE = "import collections, json, re, socket"
# The limits are set by the process itself, before it reads a line of what the model wrote.
_LIMITS = f"""
import os, resource, sys
seconds, who = int(sys.argv[2]), int(sys.argv[3])
for what, most in (("CPU", seconds), ("AS", {MOST_BYTES}), ("FSIZE", 1 << 24), ("NOFILE", 64), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + what), (most, most))
try:
    import ctypes
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: a set-uid program gives nothing
except (ImportError, OSError, AttributeError):
    pass
if who:
    resource.setrlimit(resource.RLIMIT_NPROC, ({MOST_OF_NOBODY}, {MOST_OF_NOBODY}))
    os.setgroups([]); os.setgid(who); os.setuid(who)
with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
del os, resource, seconds, who, file
exec(compile(text, "answer.py", "exec"), {{"__name__": "__main__"}})
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended: its code (None where it was stopped for taking too long) and the end of its stderr."""

    code: int | None
    said: str


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A way to run Python apart. `before` is the command in front of the interpreter, `user` a uid to become, or 0."""

    before: tuple[str, ...] = ()
    user: int = 0
    python: str = sys.executable

    @property
    def about(self) -> str:
        """For the record: `no network, own processes, no other processes visible, as nobody`."""
        words = ["no network, own processes" if self.before else "network not isolated"]
        words += ["no other processes visible"] if MOUNT_PROC in self.before else []
        words += ["as nobody"] if self.user else []
        words += [f"by {self.python}"] if self.python != sys.executable else []
        return ", ".join(words)

    @classmethod
    def find(cls) -> Sandbox:
        """The strictest one that works here. MeasurementRefused where code would run as root, or not at all."""
        root = os.geteuid() == 0
        for before in _namespaces(root):
            for python in pythons():
                one = cls(before, NOBODY if root else 0, python)
                if one.run(_PROBE, seconds=PROBE_S).code == 0:
                    return one
        if root:
            raise MeasurementRefused(
                "Code written by a model would run as root: the user 'nobody' can read no Python on this machine.",
                cure="run everywatt as another user, or install a python3 that all users can read",
            )
        raise MeasurementRefused("Python cannot be started in a process of its own, so code cannot be scored.")

    def run(self, text: str, *, seconds: float = MOST_SECONDS) -> Ending:
        """Run a Python program; it and all that it started are gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="everywatt-code-") as name:
            folder = Path(name)
            (folder / "answer.py").write_text(text, encoding="utf-8", errors="replace")
            folder.chmod(0o777 if self.user else 0o700)
            words = [*self.before, self.python, "-I", "-c", _LIMITS, str(folder / "answer.py")]
            return _ended([*words, str(max(1, round(seconds))), str(self.user)], folder, seconds)


def pythons() -> tuple[str, ...]:
    """This interpreter, and the system's: one in a home directory is of no use to the user `nobody`."""
    found = shutil.which("python3", path=os.defpath)
    return (sys.executable,) if found is None else (sys.executable, found)


def _namespaces(root: bool) -> Sequence[tuple[str, ...]]:
    """Ways to cut the network off, and to have every child process end with the first; those come first in which the
    code sees no process but its own: what others keep in their environment is none of its business."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ((),)
    apart = ("--net", "--pid", "--fork", "--kill-child")
    users: tuple[tuple[str, ...], ...] = ((),) if root else (("--user", "--map-current-user"), ("--map-root-user",))
    ways = [(unshare, *user, *apart, *more) for more in ((MOUNT_PROC,), ()) for user in users]
    return (*ways, ())


def _ended(words: Sequence[str], folder: Path, seconds: float) -> Ending:
    environment = {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    with (folder / "stderr").open("wb") as said:
        child = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            code: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(child)
    try:
        text = (folder / "stderr").read_bytes()[-MOST_OUTPUT_BYTES:].decode("utf-8", "replace").strip()
    except OSError:
        text = ""
    return Ending(code, text)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """The child and everything in its session."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    child.wait()
