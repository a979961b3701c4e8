"""A measured command as a child process: started like a shell would, signals passed on, waited for with all it left."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.platforms import own_peak_bytes

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
LOOK_S = 0.5
FROM_KERNEL = 0x80  # si_code of a signal that the terminal sent, to us and to the command alike
_SET_CHILD_SUBREAPER = 36


@contextmanager
def held_signals(numbers: Iterable[int] = (*PASSED_ON, signal.SIGCHLD)) -> Iterator[tuple[set[int], set[int]]]:
    """Signals wait until they are asked for, so that none is lost around the command's start. No handler is needed.

    Gives the signals to wait for, and the mask that the command is to have. What was ignored for us (nohup) stays
    ignored for the command. What arrives after its end is dropped: there is no process left to pass it on to. A thread
    that existed before would not hold them, and one signal could end us: no library with threads may be loaded before
    this.
    """
    if signal.SIGCHLD in (numbers := set(numbers)) and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise the command could not be waited for
    caught = {int(number) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, caught)}
    try:
        yield caught, before
    finally:
        while signal.sigtimedwait(caught, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def load() -> None:
    """Import what `adopt_orphans` and `spawn` need: 3 ms, for whoever waits for something else before."""
    for name in ("ctypes", "subprocess"):
        import_module(name)


def adopt_orphans(adopt: bool = True) -> bool:
    """Keep processes whose parents end below this one, so that they can be waited for. False where it is refused."""
    import ctypes

    try:
        return bool(ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def cannot_start(name: str) -> OSError | None:
    """Why a command cannot be started, as far as that is known before it is tried."""
    places = [Path(name)] if "/" in name else [Path(folder, name) for folder in os.get_exec_path() if name]
    # As shutil.which: that module would bring every kind of compression, 2 ms before each command.
    # Access first: `is_file` raises where a folder may not be looked into, such as one in the PATH that su keeps.
    if any(os.access(place, os.X_OK) and place.is_file() for place in places):
        return None
    try:
        found = places[0].exists() if "/" in name else any(os.access(place, os.F_OK) for place in places)
    except OSError as error:
        return error
    code = errno.EACCES if found else errno.ENOENT
    return OSError(code, os.strerror(code))  # Python makes the right kind of it


def spawn(words: Sequence[str], mask: set[int], *, to_stderr: bool, join: Callable[[], None] | None = None) -> int:
    """Start the command as a shell would, and give its process id. OSError where it cannot be started.

    It gets our files too (a jobserver's, those of `3>file`), the signal mask that we were started with, and the signals
    that Python ignores for itself back. `join` is called in the child before the command takes over.
    """
    if join is None:
        moved = [(os.POSIX_SPAWN_DUP2, 2, 1)] if to_stderr else []
        restored = [signal.SIGPIPE, signal.SIGXFSZ]
        return os.posix_spawnp(
            words[0], list(words), os.environ, file_actions=moved, setsigmask=mask, setsigdef=restored
        )

    def prepare() -> None:
        with suppress(OSError):  # then it is counted otherwise
            join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    import subprocess

    child = subprocess.Popen(list(words), stdout=2 if to_stderr else None, close_fds=False, preexec_fn=prepare)
    child.returncode = 0  # it is waited for here, not by its object
    return child.pid


def become(words: Sequence[str], *, to_stderr: bool) -> NoReturn:
    """Let the command take the place of this process. OSError where it cannot be started."""
    adopt_orphans(False)
    sys.stdout.flush()
    sys.stderr.flush()
    if to_stderr:
        os.dup2(2, 1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(words[0], list(words))


@dataclass
class Ended:
    """How the command ended (128+n: by signal n), and what it and the orphans that were waited for have used.

    The kernel hands the peak of the process that starts a command down to it. So a command that stayed below ours
    (`floor_bytes`, taken before it is started) has no peak that could be distinguished.
    """

    code: int = 0
    cpu_s: float = 0.0
    floor_bytes: int = field(default_factory=own_peak_bytes)
    peak_bytes: int = 0

    def add(self, usage: resource.struct_rusage) -> None:
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)

    def memory(self) -> dict[str, int | str | None]:
        """`max_rss_bytes` of the command; None with the reason if it cannot be determined."""
        if self.peak_bytes > self.floor_bytes:
            return {"max_rss_bytes": self.peak_bytes}
        reason = f"at most {self.floor_bytes} bytes: a peak below everywatt's own cannot be distinguished from it"
        return {"max_rss_bytes": None, "max_rss_reason": reason}


def watch(pid: int, caught: set[int], ended: Ended, look: Callable[[], None] = lambda: None) -> None:
    """Return when the command has ended; it is not waited for yet. Signals go to it, orphans are waited for.

    Signals that the terminal sent have reached it already. `look` is called twice a second.
    """
    while True:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None and found.si_pid == pid:
            return
        if found is not None:
            _reap(found.si_pid, ended)
            continue
        # A thread of a library may swallow SIGCHLD, so the command is also looked at now and then.
        arrived = signal.sigtimedwait(caught, LOOK_S)
        if arrived is None:
            look()
        elif arrived.si_signo != signal.SIGCHLD and arrived.si_code != FROM_KERNEL:
            with suppress(ProcessLookupError):
                os.kill(pid, arrived.si_signo)


def reap(pid: int, ended: Ended) -> None:
    """Wait for the command, which has ended, and for every orphan that has."""
    _, status, usage = os.wait4(pid, 0)
    ended.add(usage)
    code = os.waitstatus_to_exitcode(status)
    ended.code = 128 - code if code < 0 else code
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            _reap(found.si_pid, ended)


def _reap(pid: int, ended: Ended) -> None:
    with suppress(ChildProcessError):
        _, _, usage = os.wait4(pid, 0)
        ended.add(usage)
