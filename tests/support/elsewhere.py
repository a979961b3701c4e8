"""Run a program as if this machine ran macOS or Windows: `python elsewhere.py darwin|win32 CODE`.

The standard library and the installed packages are loaded first, as they are here. Then everything that Python does not
have on that system is taken away, and /proc and /sys do not exist. What the code imports of everywatt after that meets
the other system.
"""

from __future__ import annotations

import importlib.abc
import os
import signal
import socket
import sys
import time

POSIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "_posixsubprocess"}
LINUX_OS = (
    "sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "pipe2", "memfd_create", "eventfd", "pidfd_open",
    "posix_fadvise", "splice", "setns", "unshare", "getrandom", "fdatasync",
)  # fmt: skip
WINDOWS_LACKS_OS = (
    "uname", "getuid", "geteuid", "getgid", "getegid", "sysconf", "fork", "setsid", "killpg", "pread", "preadv",
    "pwrite", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "WIFEXITED", "WNOHANG", "wait4", "chown",
    "fchmod", "fchown", "nice", "getloadavg", "statvfs", "mkfifo", "getpgid", "setpgid", "ctermid",
)  # fmt: skip
WINDOWS_LACKS_SIGNAL = (
    "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPIPE", "SIGALRM", "SIGQUIT", "SIGTSTP",
)  # fmt: skip
LIBRARIES = (
    "asyncio", "subprocess", "multiprocessing", "tempfile", "shutil", "sqlite3", "ssl", "http.client", "logging",
    "concurrent.futures", "uuid", "platform", "getpass", "pathlib", "webbrowser", "ctypes", "selectors", "zipfile",
    "numpy", "click", "rich.console", "rich.table", "click.testing", "unittest.mock", "importlib.metadata", "pynvml",
    "http.server", "urllib.request", "mmap", "select", "email.message", "decimal", "statistics", "random",
)  # fmt: skip


class Blocked(importlib.abc.MetaPathFinder):
    """Modules that Windows does not have."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in POSIX_MODULES:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def become(platform: str) -> None:
    """Take away what the other system lacks."""
    for name in LIBRARIES:
        __import__(name)
    sockets = ("SO_PEERCRED", "AF_NETLINK", "AF_VSOCK")
    for module, names in ((os, LINUX_OS), (signal, ("sigtimedwait",)), (socket, sockets)):
        for name in names:
            module.__dict__.pop(name, None)
    time.__dict__.pop("CLOCK_BOOTTIME", None)
    sys.platform = platform
    if platform == "win32":
        for name in POSIX_MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, Blocked())
        for module, names in ((os, WINDOWS_LACKS_OS), (signal, WINDOWS_LACKS_SIGNAL), (socket, ("AF_UNIX",))):
            for name in names:
                module.__dict__.pop(name, None)
        for name in ("clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC", "clock_getres"):
            time.__dict__.pop(name, None)
    os.environ["EVERYWATT_PROC"] = os.environ["EVERYWATT_SYS"] = "/nowhere"


if __name__ == "__main__":
    become(sys.argv[1])
    exec(compile(sys.argv[2], "<elsewhere>", "exec"), {"__name__": "elsewhere"})
