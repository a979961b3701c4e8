"""The worker: a small process that runs one command at a time and reports its result to the parent.

It is started by its path, so it imports the standard library alone. Messages are JSON lines on stdin and stdout. When
its parent is gone it ends what it runs, with all that this started, and itself: a resumed batch then finds nothing of
the earlier one still at work. Its commands are in its session, by which whoever started it ends them if it is killed;
and on a leash, by which the kernel ends them if no process is left to do so.

    in    {"run": {"words": […], "timeout_s": 5.0, "file": "a.wav", "prompt": true,
                   "exit": {"file": "batch-exits.jsonl", "id": "a", "attempt": 1}}}      {"kill": true}
    out   {"ready": true}     {"started": pid, "file": {…}}     {"ended": {"exit_code": 0, "runtime_s": …, …}}
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

MARK = "EVERYWATT_BATCH"
"""Environment variable that gives a command the folder of its batch."""
ROUNDS = 20  # a process may start another while they are looked for
TAIL_BYTES = 4000
GRACE_S = 5.0  # between being asked to end and being ended
LINGER_S = 0.2  # for output of processes that outlive their command
NOT_FOUND, NOT_EXECUTABLE = 127, 126
ORDINARY = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that we, or Python, ignore; they are restored for a command."""
PROMPT_S = 0.02
"""A command that ends within this is reported once, unless prompt notice is requested: a message wakes the parent."""


class Tail:
    """The last bytes of a stream, and how many there were."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor, self.data, self.count, self.open = descriptor, b"", 0, True

    def take(self) -> None:
        while self.open:
            try:
                chunk = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            self.open = bool(chunk)
            self.count += len(chunk)
            self.data = (self.data + chunk)[-TAIL_BYTES:]

    @property
    def text(self) -> str:
        """As text; invalid UTF-8 is replaced."""
        return self.data.decode("utf-8", "replace")


def describe_file(path: str) -> dict[str, Any] | None:
    """Size, change time and SHA-256 of a file; None if it is not a file."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib would double the time to start
            facts = os.fstat(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
    return {"bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns, "sha256": digest}


def oom_kills() -> int | None:
    """How many processes the kernel has ended for want of memory; None where it does not say."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:  # noqa: PTH123 - as above
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except OSError:
        return None


def own_peak_bytes() -> int:
    """The most memory that this process has had resident since it began; 0 where the kernel does not say."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as above
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


def peak_of(usage_bytes: int, floor_bytes: int) -> dict[str, Any]:
    """`max_rss_bytes` of a command; None with the reason where it is no more than what its starter handed down."""
    if usage_bytes > floor_bytes:
        return {"max_rss_bytes": usage_bytes}
    reason = f"at most {floor_bytes} bytes: a peak below that of the worker cannot be distinguished from it"
    return {"max_rss_bytes": None, "max_rss_reason": reason}


class Leash:
    """Ends a command, with its process group, at the moment at which this process is gone, however it went.

    The command inherits one end of a pipe whose other end is ours. When ours closes, the kernel tells the owner of the
    command's end, which is its group, by the signal that was chosen for it. So nothing has to happen between fork and
    exec, where a death signal (prctl) would have to be asked for at the price of a copy of this process.
    """

    def __init__(self) -> None:
        self.end, self._held = os.pipe()
        os.set_inheritable(self.end, True)
        fcntl.fcntl(self.end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(self.end, fcntl.F_SETFL, fcntl.fcntl(self.end, fcntl.F_GETFL) | os.O_ASYNC)

    def hold(self, group: int) -> None:
        """From now on this process group ends with us; 0: none, as what a command left behind is not ours."""
        fcntl.fcntl(self.end, fcntl.F_SETOWN, -group)


class Worker:
    """The loop. `wake` is a pipe on which the end of a child shows."""

    def __init__(self) -> None:
        self.wake, write = os.pipe()
        for end in (self.wake, write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.leash = Leash()
        self.environ = dict(os.environb)
        self.null = os.open(os.devnull, os.O_RDWR)
        self.floor_bytes = own_peak_bytes()
        self.rest = b""
        self.ended = False
        self.kill_asked = False
        self.job: dict[str, Any] | None = None
        self.news: dict[str, Any] | None = None

    def serve(self) -> None:
        while not self.ended:
            self._wait([0], None)
            while self.job is not None and not self.ended:
                job, self.job = self.job, None
                self._run(job)

    def _wait(self, descriptors: list[int], timeout_s: float | None) -> None:
        ready, _, _ = select.select(descriptors, [], [], timeout_s)
        if 0 in ready:
            self._listen()

    def _listen(self) -> None:
        data = os.read(0, 1 << 16)
        if not data:
            self.ended = True
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "run" in message:
                self.job, self.kill_asked = message["run"], False  # a kill in the same read is meant for this job
            elif message.get("kill"):
                self.kill_asked = True

    def _run(self, job: dict[str, Any]) -> None:
        about = describe_file(job["file"]) if job.get("file") else None
        began_ns = time.monotonic_ns()
        try:
            pid, *streams = self._start(job["words"])
        except (OSError, ValueError) as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            why = getattr(error, "strerror", None) or str(error)
            tell({"started": None, "file": about})
            tell({"ended": {"exit_code": code, "runtime_s": 0.0, "stderr": f"{job['words'][0]}: {why}"}})
            return
        self.leash.hold(pid)
        self.news = {"started": pid, "file": about, "at_ns": began_ns}
        if job.get("prompt"):
            self._tell_news()
        before = oom_kills()  # while the command already runs: it needs longer than this to fill a memory
        tails = Tail(streams[0]), Tail(streams[1])
        timed_out, code, usage = self._follow(pid, tails, job.get("timeout_s"))
        ended_ns = time.monotonic_ns()
        self.leash.hold(0)
        if "exit" in job:
            _write_exit(job["exit"], code, (ended_ns - began_ns) / 1e9, usage.ru_utime + usage.ru_stime, timed_out)
        if self.ended:
            end_session(os.getpid())
        self._linger(tails)
        for stream in streams:
            os.close(stream)
        after = oom_kills() if code else None
        ended: dict[str, Any] = {
            "exit_code": 128 - code if code < 0 else code,
            "runtime_s": (ended_ns - began_ns) / 1e9,
            "ended_ns": ended_ns,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            **self._peak(usage.ru_maxrss * 1024),
            "stdout": tails[0].text,
            "stderr": tails[1].text,
        }
        if timed_out:
            ended["timed_out"] = True
        if self.kill_asked:
            ended["killed"] = True
        if before is not None and after is not None and after > before:
            ended["oom_kills"] = after - before
        tell(*([self.news] if self.news is not None else []), {"ended": ended})
        self.news = None

    def _start(self, words: list[str]) -> tuple[int, int, int]:
        """Its process id and the ends of its output. Spawned: to fork a copy of us costs more than a short command."""
        out, err = os.pipe(), os.pipe()
        actions = [
            (os.POSIX_SPAWN_DUP2, self.null, 0),
            *((os.POSIX_SPAWN_DUP2, end[1], n) for n, end in ((1, out), (2, err))),
        ]
        try:
            pid = os.posix_spawnp(words[0], words, self.environ, file_actions=actions, setpgroup=0, setsigdef=ORDINARY)
        except BaseException:
            os.close(out[0])
            os.close(err[0])
            raise
        finally:
            os.close(out[1])
            os.close(err[1])
        return pid, out[0], err[0]

    def _peak(self, usage_bytes: int) -> dict[str, Any]:
        """Our own peak only ever grows, so it is looked up where it matters."""
        if usage_bytes > self.floor_bytes:
            self.floor_bytes = own_peak_bytes()
        return peak_of(usage_bytes, self.floor_bytes)

    def _tell_news(self) -> None:
        if self.news is not None:
            tell(self.news)
            self.news = None

    def _follow(self, pid: int, tails: tuple[Tail, Tail], timeout_s: float | None) -> tuple[bool, int, Any]:
        """Until the command has ended; whether it took too long, its code (negative: a signal), what it used."""
        began = time.monotonic()
        timed_out, asked = False, None
        while True:
            found, status, usage = os.wait4(pid, os.WNOHANG)
            if found:
                if timed_out or self.kill_asked or self.ended:
                    _signal(pid, signal.SIGKILL)  # what the command left behind
                return timed_out, os.waitstatus_to_exitcode(status), usage
            now = time.monotonic()
            if now - began >= PROMPT_S:
                self._tell_news()
            if self.ended or (asked is not None and now - asked > GRACE_S):
                _signal(pid, signal.SIGKILL)
            elif asked is None and (self.kill_asked or (timeout_s is not None and now - began >= timeout_s)):
                timed_out = not self.kill_asked
                asked = now
                _signal(pid, signal.SIGTERM)
            until = [0.5 if self.ended or asked is not None else 10.0]
            if timeout_s is not None and asked is None:
                until.append(max(timeout_s - (now - began), 0.0))
            if self.news is not None:
                until.append(PROMPT_S)
            listened = [] if self.ended else [0]
            self._wait([*listened, self.wake, *(tail.descriptor for tail in tails if tail.open)], min(until))
            for tail in tails:
                tail.take()
            try:
                os.read(self.wake, 1 << 12)
            except BlockingIOError:
                pass

    def _linger(self, tails: tuple[Tail, Tail]) -> None:
        """The rest of the output. A process that was left behind may keep it open indefinitely."""
        deadline = time.monotonic() + LINGER_S
        for tail in tails:
            tail.take()
        while any(tail.open for tail in tails) and (left := deadline - time.monotonic()) > 0:
            select.select([tail.descriptor for tail in tails if tail.open], [], [], left)
            for tail in tails:
                tail.take()


def _write_exit(about: dict[str, Any], code: int, runtime_s: float, cpu_s: float, timed_out: bool) -> None:
    """One line on the command's end, before anything else: the parent, which keeps the journal, may be gone."""
    record = {"id": about["id"], "attempt": about["attempt"], "exit_code": code, "runtime_s": runtime_s, "cpu_s": cpu_s}
    line = json.dumps({**record, **({"timed_out": True} if timed_out else {})}).encode() + b"\n"
    try:
        file = os.open(about["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)
    except OSError:
        pass  # on a full disk the parent's journal, which waits for room, has to do


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def end_session(leader: int) -> int:
    """SIGKILL for all processes of a session but this one, also those in groups of their own; gives how many."""
    return _end_all(lambda pid: _session(pid) == leader)


def end_batch(folder: str) -> int:
    """SIGKILL for all processes that were started for this batch, on this host, by this user; gives how many.

    A recorder that an item has started is left: it may serve others by now.
    """
    wanted = f"{MARK}={os.path.realpath(folder)}".encode()
    recorder = b"everywatt/recorder"
    return _end_all(lambda pid: wanted in _proc(pid, "environ").split(b"\0") and recorder not in _proc(pid, "cmdline"))


def _end_all(ours: Callable[[int], bool]) -> int:
    ended: set[int] = set()
    for _ in range(ROUNDS):
        found = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - as above
        fresh = [pid for pid in found if pid != os.getpid() and pid not in ended and ours(pid)]
        if not fresh:
            break
        for pid in fresh:
            ended.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
    return len(ended)


def _session(pid: int) -> int | None:
    try:
        return int(_proc(pid, "stat").rpartition(b")")[2].split()[3])
    except (ValueError, IndexError):
        return None


def _proc(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - as above
            return file.read()
    except OSError:
        return b""


def tell(*messages: dict[str, Any]) -> None:
    """Lines to the parent. Where it is gone, stdin says so too."""
    data = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        pass


def main() -> None:
    """Serve until the parent is gone. Ctrl-C is the parent's to decide on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    made = Worker()
    tell({"ready": True})
    made.serve()


if __name__ == "__main__":
    main()
