"""The frozen corpus: staging its files, running commands on them, and comparing what they print with what they printed.

`data/` is what the commit in `benchmarks/BASE` recorded (see make.py), `expected/` what its commands printed. A case is
one or more command lines, run one after the other in a fresh copy of the files that they name. Each case has a file in
`expected/`, with a section for every command: exit code, stdout, stderr, and the files that it wrote to `out/`.

Only what truly varies is made neutral before the comparison, all of it in `neutral`. JSON is compared by structure;
numbers with ten or more digits may differ by 1e-9 of their value, everything else has to be the same text.
"""

from __future__ import annotations

import contextlib
import difflib
import gzip
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

from everywatt.core.clocks import SystemClock

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
EXPECTED = HERE / "expected"
MANIFEST = HERE / "manifest.json"
LATER_S = 4_000_000_000.0  # 2096: folders of runs that a command writes to become the oldest, whatever the date is
NOW_S = 1_794_916_800.0  # 2026-11-17T12:00:00Z, a day after the recordings: "now" of every command
NEUTRAL_ROOT = "/tmp/everywatt-corpus-00000000"
RELATIVE = 1e-9
ABSOLUTE = 1e-9
DIGITS = 10  # a number with fewer digits was rounded for people, and has to be the same text
LARGE = 60_000  # an expectation with more characters is kept compressed
MARK = "=== "


@dataclass(frozen=True)
class Case:
    """Command lines (without the `everywatt` in front) with one expectation.

    needs   files of `data/` that no word of the commands names
    env     variables of the environment besides the plain ones; {root} is the folder of the case
    apart   run in a process of its own: for commands that start others or write to the file descriptors themselves
    shape   keeps of a text only what is the same each time
    extra   a package that has to be installed
    serves  a file of `data/` that a web server gives as /metrics; URL in the commands is where
    """

    name: str
    steps: Sequence[Sequence[str]]
    needs: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    apart: bool = False
    shape: Callable[[str], str] | None = None
    extra: str = ""
    serves: str = ""


# Staging.


def stage(root: Path, paths: Sequence[str]) -> None:
    """Copy files or folders of `data/` below `root`, with the modes and times that they had."""
    manifest = json.loads(MANIFEST.read_text(encoding="utf-8"))
    (root / "runs").mkdir(exist_ok=True)
    for path in paths:
        for name, (mode, mtime_ns) in manifest.items():
            if name != path and not name.startswith(f"{path}/"):
                continue
            target = root / name
            if name.endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(DATA / name, target)
            target.chmod(mode)
            os.utime(target, ns=(mtime_ns, mtime_ns))
    for number, run in enumerate(sorted((root / "runs").iterdir())):
        if run.is_dir():  # the order of runs that have no time in their name
            os.utime(run, (LATER_S + number, LATER_S + number))


def named(case: Case) -> list[str]:
    """The files of `data/` that a case needs."""
    names = list(case.needs)
    for word in (word for step in case.steps for word in step):
        for path in (word, word.rpartition("=")[2], word.removeprefix("n1=")):
            names += [found for found in (path, f"runs/{path}", f"runs/{path}.tape") if path and _held(found)]
    return list(dict.fromkeys(names))


def _held(path: str) -> bool:
    return not path.startswith(("/", ".")) and (DATA / path).exists() and path not in ("runs", "foreign")


def environment(root: Path, case: Case) -> dict[str, str]:
    """The whole environment of a case. Programs of this machine (Slurm's, nvidia-smi) are not found in it."""
    return {
        "PATH": os.environ.get("PATH", os.defpath) if case.apart else str(root / "bin"),
        "HOME": str(root / "home"),
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "80",
        "TERM": "dumb",
        "USER": "user",
        "LOGNAME": "user",
        "EVERYWATT_HOME": "runs",
        "EVERYWATT_RUNTIME_DIR": str(root / "r"),
        **{name: os.environ[name] for name in ("LD_LIBRARY_PATH", "OPENBLAS_NUM_THREADS") if name in os.environ},
        **{name: value.format(root=root) for name, value in case.env.items()},
    }


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder whose path always has the same length, so that tables that show it have the same widths."""
    root = Path(tempfile.mkdtemp(prefix="everywatt-corpus-", dir="/tmp"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


# Running.


def play(case: Case) -> list[tuple[str, str]]:
    """Run a case; gives the sections of its expectation: titles with texts."""
    with place() as root, serving(case.serves) as url:
        stage(root, named(case))
        (root / "out").mkdir()
        (root / "home").mkdir(exist_ok=True)
        sections: list[tuple[str, str]] = []
        seen: dict[str, int] = {}
        for step in case.steps:
            words = [word.replace("URL", url) if url else word for word in step]
            code, out, err = (_apart if case.apart else _inside)(case, root, words)
            if url:
                out, err = (text.replace(url, "URL").replace(url[7:], "HOST:PORT") for text in (out, err))
            shape = case.shape or (lambda text: text)
            sections += [
                (f"$ everywatt {' '.join(step)}", ""),
                (f"exit {code}", ""),
                ("stdout", shape(neutral(out, root))),
                ("stderr", neutral(err, root)),
            ]
            for path in sorted((root / "out").rglob("*")):
                name = str(path.relative_to(root))
                if path.is_file() and seen.get(name) != path.stat().st_mtime_ns:
                    seen[name] = path.stat().st_mtime_ns
                    sections.append((f"file {neutral(name, root)}", neutral(content(path), root)))
    return [(title, text) for title, text in sections if text or title.startswith(("$ ", "exit"))]


def _apart(case: Case, root: Path, words: list[str]) -> tuple[int, str, str]:
    env = environment(root, case) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "everywatt", *(sys.executable if word == "PYTHON" else word for word in words)]
    done = subprocess.run(
        command, env=env, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def _inside(case: Case, root: Path, words: list[str]) -> tuple[int, str, str]:
    """`main(words)` in this process, as good as in its own: streams, environment, folder, time zone and clock."""
    from everywatt.cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    before = Path.cwd()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment(root, case), clear=True))
        stack.callback(os.chdir, before)
        os.chdir(root)
        stack.enter_context(mock.patch.object(sys, "argv", ["everywatt", *words]))
        stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())))
        stack.enter_context(mock.patch.object(time, "time", lambda: NOW_S))
        stack.enter_context(mock.patch.object(time, "time_ns", lambda: int(NOW_S) * 10**9))
        stack.enter_context(mock.patch.object(SystemClock, "utc_ns", staticmethod(lambda: int(NOW_S) * 10**9)))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        time.tzset()
        code = main(words)
    time.tzset()
    out.flush()
    err.flush()
    texts = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err)]  # type: ignore[attr-defined]
    return code, texts[0], texts[1]


@contextlib.contextmanager
def serving(name: str) -> Iterator[str]:
    """A web server on this machine whose /metrics is a file of `data/`. Gives its address; nothing without a file."""
    if not name:
        yield ""
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = (DATA / name).read_bytes() if found else b""
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


# What files hold.


def content(path: Path) -> str:
    """A file as text: tables with their columns and types, pages by the data in them, tapes by what they hold."""
    if path.suffix in (".parquet", ".arrow"):
        return _table(path)
    if path.suffix == ".html":
        return _page(path.read_text(encoding="utf-8"))
    if path.suffix == ".tape":
        return _tape(path)
    if path.suffix == ".svg":
        return "".join(f"{word}\n" for word in re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text("utf-8")))
    data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(data)} bytes that begin with {data[:4]!r}\n"


def _table(path: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        table = pq.read_table(path)
    else:
        with pa.memory_map(str(path)) as source:
            try:
                table = pa.ipc.open_file(source).read_all()
            except pa.ArrowInvalid:
                table = pa.ipc.open_stream(source).read_all()
    meta = {key.decode(): value.decode("utf-8", "replace") for key, value in (table.schema.metadata or {}).items()}
    head = [f"{one.name}: {one.type}\n" for one in table.schema]
    head += [f"metadata {key}: {value}\n" for key, value in sorted(meta.items())]
    return "".join([*head, *(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in table.to_pylist())])


def _page(html: str) -> str:
    """The data of a page (its scripts of type application/json), and the words that it shows without a script."""
    parts = []
    for found in re.finditer(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL):
        text = found.group(1).replace("<\\/", "</")
        with contextlib.suppress(ValueError):
            text = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
        parts.append(text)
    bare = re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
    words = re.sub(r"<[^>]+>", "\n", bare)
    parts.append("\n".join(line.strip() for line in words.split("\n") if line.strip()))
    return "\n".join(parts) + "\n"


def _tape(path: Path) -> str:
    import sqlite3

    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        lines = []
        for name in tables:
            columns = [row[1] for row in base.execute(f'PRAGMA table_info("{name}")')]
            (count,) = base.execute(f'SELECT count(*) FROM "{name}"').fetchone()
            lines.append(f"table {name}({', '.join(columns)}): {count} rows\n")
    return "".join(lines)


# Making neutral.


def neutral(text: str, root: Path) -> str:
    """The text without what is different each time, or on each machine, for a reason that nobody broke.

    - the folder of the case, which gets a name of the same length
    - versions of everywatt: what runs now, and what wrote a tape
    - when a page or a file was made, and the process that made it
    - the interpreter and where packages are installed
    - terminal colours, which are not asked for
    """
    text = text.replace(str(root), NEUTRAL_ROOT).replace(root.name, Path(NEUTRAL_ROOT).name)
    text = text.replace(sys.executable, "PYTHON")
    text = re.sub(r"(everywatt,? (?:version )?)\d+\.\d+\.\d+\S*", r"\1VERSION", text)
    text = re.sub(r'("everywatt": ?")\d+\.\d+\.\d+[^"]*"', r'\1VERSION"', text)
    text = re.sub(r'("made(?:_at)?": ?")[^"]*"', r'\1NOW"', text)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    for prefix in sorted({sys.prefix, sys.base_prefix}, key=len, reverse=True):
        text = text.replace(prefix, "PREFIX")
    return text


# Comparing.


def to_text(sections: Sequence[tuple[str, str]]) -> str:
    """Sections as the text of an expectation."""
    parts = []
    for title, text in sections:
        parts.append(f"{MARK}{title}\n")
        if text:
            parts.append(text if text.endswith("\n") else f"{text}\n{MARK}without a newline at the end\n")
    return "".join(parts)


def of_text(text: str) -> list[tuple[str, str]]:
    """The sections of an expectation."""
    sections: list[tuple[str, str]] = []
    for line in re.findall(r"[^\n]*\n", text):
        if line.startswith(MARK):
            title = line[len(MARK) :].rstrip("\n")
            if title == "without a newline at the end":
                sections[-1] = (sections[-1][0], sections[-1][1][:-1])
            else:
                sections.append((title, ""))
        else:
            sections[-1] = (sections[-1][0], sections[-1][1] + line)
    return sections


def stored(name: str) -> str | None:
    """The expectation of a case; None where there is none yet."""
    path = EXPECTED / f"{name}.txt"
    if path.exists():
        return path.read_bytes().decode("utf-8")
    packed = EXPECTED / f"{name}.txt.gz"
    return gzip.decompress(packed.read_bytes()).decode("utf-8") if packed.exists() else None


def store(name: str, text: str) -> None:
    """Write the expectation of a case."""
    EXPECTED.mkdir(exist_ok=True)
    path, packed = EXPECTED / f"{name}.txt", EXPECTED / f"{name}.txt.gz"
    path.unlink(missing_ok=True)
    packed.unlink(missing_ok=True)
    if len(text) > LARGE:
        packed.write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))
    else:
        path.write_bytes(text.encode("utf-8"))


def difference(expected: str, found: Sequence[tuple[str, str]]) -> str:
    """Nothing where they agree; else what a person needs to see."""
    old, new = of_text(expected), list(of_text(to_text(found)))
    parts = []
    if [title for title, _ in old] != [title for title, _ in new]:
        parts.append(_diff([f"{title}\n" for title, _ in old], [f"{title}\n" for title, _ in new], "sections"))
    told = dict(_numbered(new))
    for title, text in _numbered(old):
        if title in told and not same(text, told[title]):
            parts.append(_diff(_lines(text), _lines(told[title]), title))
    return "\n".join(parts)


def _numbered(sections: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    command = ""
    for title, text in sections:
        command = title if title.startswith("$ ") else command
        yield f"{command}: {title}", text


def _lines(text: str) -> list[str]:
    with contextlib.suppress(ValueError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False, sort_keys=True)
    return [f"{line[:2000]}\n" for line in text.removesuffix("\n").split("\n")]


def _diff(old: Sequence[str], new: Sequence[str], title: str) -> str:
    lines = list(difflib.unified_diff(old, new, f"expected {title}", f"found {title}", n=2))
    more = f"… and {len(lines) - 200} lines more\n" if len(lines) > 200 else ""
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines[:200]) + more


def same(old: str, new: str) -> bool:
    """Whether two texts are the same but for the last digits of long numbers."""
    if old == new:
        return True
    try:
        return _alike(json.loads(old), json.loads(new))
    except ValueError:
        return _same_words(old, new)


_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")


def _same_words(old: str, new: str) -> bool:
    if _NUMBER.sub("#", old) != _NUMBER.sub("#", new):
        return False
    pairs = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True)
    return all(a == b or (min(_digits(a), _digits(b)) >= DIGITS and _close(float(a), float(b))) for a, b in pairs)


def _digits(number: str) -> int:
    return len(re.sub(r"[eE].*|\D", "", number).lstrip("0")) if "." in number or "e" in number.lower() else 0


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b if isinstance(a, int) and isinstance(b, int) else type(a) is type(b) and _close(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, str) and isinstance(b, str):
        return a == b or _same_words(a, b)
    return False
