"""What benchmarks share: the table, the peers' Python, the clock of other processes, a bounded programme."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from everywatt.cli.common.output import Output
from everywatt.core.tables import Cell, Table


class Tables(Output):
    """The output of a benchmark: tables of cells that are text already."""

    def table(  # type: ignore[override]
        self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Sequence[int] = (), title: str = ""
    ) -> None:
        """One table on stdout; `right` are the places of its columns of numbers."""
        super().table(Table.of(*headers, rows=rows, right=right, title=title))


OUT = Tables()
HERE = Path(__file__).resolve().parent
SOURCE = Path(os.environ.get("BENCH_SOURCE") or HERE.parent / "src").resolve()  # what our subjects import
MIB = 2**20


def say(text: str) -> None:
    """A message for the person."""
    print(text, file=sys.stderr, flush=True)


def bench_python() -> str | None:
    """The Python that has the peers (BENCH_PYTHON), None where there is none."""
    path = os.environ.get("BENCH_PYTHON")
    return path if path and os.access(path, os.X_OK) else None


def data_folder() -> Path | None:
    """The folder of recordings that `--data` (`make bench DATA=FOLDER`) named, None where it named none."""
    path = os.environ.get("BENCH_DATA")
    return Path(path) if path else None


def keep_figure(benchmark: str, name: str, value: str, what: str, kind: str) -> None:
    """Write a measured figure into the file that BENCH_FIGURES names (docs/figures.json), from which pages take it."""
    path = os.environ.get("BENCH_FIGURES")
    if not path:
        return
    file = Path(path)
    figures = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    asked = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=HERE, capture_output=True, text=True)
    figures[name] = {
        "value": value,
        "what": what,
        "command": f"python -m benchmarks {benchmark}",
        "commit": os.environ.get("BENCH_COMMIT") or asked.stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "kind": kind,
    }
    file.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def as_block(headers: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[int], title: str = "") -> str:
    """A table as a block of a page."""
    return f"\n```text\n{Table.of(*headers, rows=rows, right=right, title=title).text().rstrip()}\n```\n"


def verdict(value: float, most: float) -> str:
    """Whether a figure reached its target: `reached` or by which factor it is missed."""
    return "reached" if value <= most else f"missed by {value / most:.2f}×"


def environment(base: Mapping[str, str] | None = None, *, ours: bool = True) -> dict[str, str]:
    """The environment of a subject: everywatt importable for our own Python, and not for the peers'."""
    env = dict(os.environ if base is None else base)
    path = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry and Path(entry).resolve() != SOURCE]
    env["PYTHONPATH"] = os.pathsep.join([str(SOURCE), *path] if ours else path)
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start would compile what it imports
    return env


def tree(pid: int) -> list[int]:
    """A process and all below it that are alive."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, young = [], [pid]
    while young:
        found += young
        young = [child for parent in young for child in children.get(parent, ())]
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of a process with all its threads, also those that ended; 0 where it is gone."""
    try:
        # The clock of another process: its number, inverted, and 2 for "what the scheduler gave it".
        return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
    except OSError:
        return 0.0


def rss_bytes(pid: int) -> int:
    """Resident memory of a process, 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def written_bytes(pid: int) -> int:
    """Bytes that a process had written: to storage where the kernel counts that, else to files."""
    pairs = (line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    io = {key: int(value) for key, value in pairs}
    return io["write_bytes"] or io["wchar"]


@contextmanager
def subject(command: Sequence[str], env: Mapping[str, str], wait_s: float = 60.0) -> Iterator[tuple[int, list[str]]]:
    """A programme that says `ready [WORD…]` and goes on until its input ends. Gives its pid and the words."""
    process = subprocess.Popen(
        list(command),
        env=dict(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.setitimer(signal.ITIMER_REAL, wait_s)
    try:
        words: list[str] = []
        for line in process.stdout:
            words = line.split()
            if words[:1] == ["ready"]:
                break
        signal.setitimer(signal.ITIMER_REAL, 0)
        if words[:1] != ["ready"]:
            raise RuntimeError(f"{command[0]} {' '.join(command[1:4])} did not start (exit code {process.wait()})")
        yield process.pid, words[1:]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        process.stdin.close()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
