"""Code that a model wrote, run apart: in a process of its own, a folder of its own, with limits, and without a network
where the kernel lets us.

It is a fence against mistakes, not a prison: the file system stays readable for whoever the code runs as (`nobody`
where everywatt is root). So nothing is run unless the user asks for it.
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

MOST_SECONDS = 10.0
MOST_BYTES = 1 << 30
MOST_OUTPUT_BYTES = 4000
NOBODY = 65534
# An interpreter in somebody's home may start for `nobody` and then find no library.
_PROBE = "import collections, json, re, socket"
# The limits are set by the process itself, before it reads a line of what the model wrote.
_LIMITS = f"""
import os, resource, sys
seconds, who = int(sys.argv[2]), int(sys.argv[3])
for what, most in (("CPU", seconds), ("AS", {MOST_BYTES}), ("FSIZE", 1 << 24), ("NOFILE", 64), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + what), (most, most))
if who:
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

    @property
    def about(self) -> str:
        """For the record: `no network, own processes, as nobody`."""
        words = ["no network, own processes" if self.before else "the network is open"]
        who = ["as nobody"] if self.user else ["as root"] if os.geteuid() == 0 else []
        return ", ".join([*words, *who])

    @classmethod
    def find(cls) -> Sandbox:
        """The strictest one that works here."""
        users = (NOBODY, 0) if os.geteuid() == 0 else (0,)
        for before in _namespaces():
            for user in users:
                one = cls(before, user)
                if one.run(_PROBE, seconds=5.0).code == 0:
                    return one
        return cls()

    def run(self, text: str, *, seconds: float = MOST_SECONDS) -> Ending:
        """Run a Python program; it and all that it started are gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="everywatt-code-") as name:
            folder = Path(name)
            (folder / "answer.py").write_text(text, encoding="utf-8", errors="replace")
            folder.chmod(0o777 if self.user else 0o700)
            words = [*self.before, sys.executable, "-I", "-c", _LIMITS, str(folder / "answer.py")]
            return _ended([*words, str(max(1, round(seconds))), str(self.user)], folder, seconds)


def _namespaces() -> Sequence[tuple[str, ...]]:
    """Ways to cut the network off, and to have every child process end with the first."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ((),)
    apart = ("--net", "--pid", "--fork", "--kill-child")
    if os.geteuid() == 0:
        return (unshare, *apart), ()
    return (unshare, "--user", "--map-current-user", *apart), (unshare, "--map-root-user", *apart), ()


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
