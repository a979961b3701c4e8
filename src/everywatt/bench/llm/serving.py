"""A server that the benchmark starts itself: `--serve 'CMD {port}'`.

A small shell stands between: the recorder follows it and its children from before the server starts, so loading is
measured from its first instruction, and a server that is started again belongs to the same process tree. The shell
leads a process group of its own, which is ended as a whole, also where the benchmark itself is killed.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from everywatt.bench.trials import last_line
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.sensors.child import end_group
from everywatt.sensors.procfs import parse_process_stat

READY_S = 600.0  # the longest time that loading may take
MOST_STARTS = 4  # a server that died so often is not started again
GRACE_S = 10.0  # from asking a server to end until it is killed
LOG = "server.log"
# By their paths, because some shells take one digit alone after <& and >&.
_FD = "/proc/self/fd/"
# The first line waits at a pipe that closes when the benchmark is gone, however it ended; then the server ends too.
# The second starts the command whenever a line comes, and tells its process and how it ended; its output is the log.
_SHELL = f"""
(trap "" TERM; read -r gone <{_FD}LIFELINE; kill -TERM 0; sleep 10; kill -KILL 0) &
while read -r go; do "$@" </dev/null >>{_FD}LOG 2>&1 & echo "$!"; wait "$!"; echo "ended $?"; done
"""


def free_port() -> int:
    """A TCP port of this host that no program listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Serving:
    """The server of one benchmark. Nothing runs until `prepare`, and the command not until `start`."""

    def __init__(self, command: str, *, model: str = "", url: str = "") -> None:
        port = urlsplit(url).port if url else free_port()
        if "{port}" not in command:
            raise UsageError("--serve has no {port}.", cure="--serve 'llama-server -m model.gguf --port {port}'")
        self.command = command
        self.url = url or f"http://127.0.0.1:{port}"
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--serve cannot be split into words: {error}.") from None
        self._words = [word.replace("{port}", str(port)).replace("{model}", model) for word in words]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        self._shell: subprocess.Popen[str] | None = None
        self._pid = 0
        self._lifeline = -1
        self.starts = 0

    def prepare(self) -> int:
        """Start the shell that waits to start the server, and give its process id, which the recorder follows."""
        lives, self._lifeline = os.pipe()
        shell = _SHELL.replace("LIFELINE", str(lives)).replace("LOG", str(self._log.fileno()))
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", shell, "sh", *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(self._log.fileno(), lives),
            text=True,
            start_new_session=True,
        )
        os.close(lives)
        return self._shell.pid

    def start(self) -> None:
        """Start the server, again where it ran before."""
        shell = self._shell
        assert shell is not None and shell.stdin is not None and shell.stdout is not None
        if self.starts:
            shell.stdout.readline()  # how the last one ended
        shell.stdin.write("go\n")
        shell.stdin.flush()
        self._pid = int(shell.stdout.readline())
        self.starts += 1

    @property
    def alive(self) -> bool:
        """Whether the process that was started last has not ended."""
        try:
            return parse_process_stat(Path(f"/proc/{self._pid}/stat").read_bytes()).state != "Z"
        except OSError:
            return False

    def kill(self) -> None:
        """End a server that hangs, so that it can be started again."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.kill(self._pid, number)
            except ProcessLookupError:
                return
            until = time.monotonic() + GRACE_S
            while self.alive and time.monotonic() < until:
                time.sleep(0.05)
            if not self.alive:
                return

    def last_words(self) -> str:
        """The last line that the server printed: often the reason why it ended."""
        return last_line(self._log, 300)

    def failed(self, why: str) -> MeasurementRefused:
        """What to say of a server that did not start."""
        words = self.last_words()
        return MeasurementRefused(f"The server did not start: {why}" + (f": {words}" if words else "."))

    def stop(self, folder: Path | None = None) -> None:
        """End the server and all its processes, and keep what it printed in the run's folder."""
        shell, self._shell = self._shell, None
        if shell is None:
            return
        end_group(shell, GRACE_S)
        for stream in (shell.stdin, shell.stdout):
            if stream is not None:
                stream.close()
        os.close(self._lifeline)
        if folder is not None and folder.is_dir():
            file = folder / LOG
            file.touch(mode=0o600)
            with file.open("ab") as out:
                size = os.fstat(self._log.fileno()).st_size
                out.write(os.pread(self._log.fileno(), size, 0))
        self._log.close()
