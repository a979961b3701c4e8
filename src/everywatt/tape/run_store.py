"""Runs on disk: where they are kept, what they are called, which segments they have.

Names from elsewhere (a tag, a host) are never used as paths: they become slugs.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from everywatt.core.errors import RunNotFound, TapeError
from everywatt.core.files import can_make
from everywatt.core.machine import state_folder
from everywatt.tape import SUFFIX

FOLDER: Final = "everywatt-runs"
_LONGEST: Final = 48
_STAMP: Final = re.compile(r"\d{8}-\d{6}")


class Home(NamedTuple):
    """The folder of runs, and a sentence where it is not the one that was to be expected."""

    path: Path
    why: str | None = None


def home(argument: Path | None = None, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Home:
    """The folder that runs are written to, made where it is missing.

    The argument, else EVERYWATT_HOME, else ./everywatt-runs; where that cannot be written, the user's state folder, and
    a sentence says so.
    """
    wanted, by_default = _wanted(argument, environ, cwd)
    try:
        _make(wanted, ignore=by_default)
        return Home(wanted)
    except TapeError as error:
        state = state_folder(environ)
        _make(state)
        return Home(state, f"{error.message} Runs are kept in {state}.")


def existing_home(
    argument: Path | None = None, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Path:
    """The folder that runs are read from; nothing is made. One that was asked for is left where it cannot be made."""
    wanted, by_default = _wanted(argument, environ, cwd)
    state = state_folder(environ)
    there = os.access(wanted, os.F_OK) if by_default else wanted.is_dir()  # the working folder may be closed to us
    kept_elsewhere = not there and state.is_dir() and (argument is None or not can_make(wanted))
    return state if kept_elsewhere else wanted


def _wanted(argument: Path | None, environ: Mapping[str, str] | None, cwd: Path | None) -> tuple[Path, bool]:
    """The folder that was asked for, and whether it is only the default."""
    asked = argument or (os.environ if environ is None else environ).get("EVERYWATT_HOME")
    return (Path(asked), False) if asked else ((cwd or Path.cwd()) / FOLDER, True)


def _make(folder: Path, *, ignore: bool = False) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
        mark = folder / ".gitignore"
        if ignore and not mark.exists():
            mark.write_text("*\n", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise TapeError(f"{folder} cannot be written: {reason}.", cure="set EVERYWATT_HOME") from None


def slug(text: str) -> str:
    """Letters, digits, dots, dashes and underscores of a text: safe as one part of a path. May be empty."""
    if not text.isascii():
        import unicodedata

        text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)[:_LONGEST].strip("-._")


def new_run(home: Path, tag: str, utc_ns: int) -> Path:
    """Make the folder of a new run, named by its start in UTC and its tag: `20261115-195030-train`."""
    stamp = datetime.fromtimestamp(utc_ns // 1_000_000_000, UTC).strftime("%Y%m%d-%H%M%S")
    base = "-".join(filter(None, (stamp, slug(tag))))
    for number in range(1, 10_000):
        folder = home / (base if number == 1 else f"{base}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise TapeError(
                f"{folder} cannot be created: {error.strerror or error}.", cure="set EVERYWATT_HOME"
            ) from None
    raise TapeError(f"{home} already contains 10,000 runs called {base}.")


def segments(run: Path) -> list[Path]:
    """The tapes of a run: a folder's, by host and number, or the file itself."""
    if run.is_dir():
        return sorted(path for path in run.glob(f"*{SUFFIX}") if path.is_file() and not path.name.startswith("."))
    return [run] if run.is_file() else []


def next_segment(run: Path, host: str) -> Path:
    """The path of a run's next tape from this host: `HOST-0001.tape`, …"""
    name = slug(host) or "host"
    pattern = re.compile(re.escape(name) + r"-(\d{4,})" + re.escape(SUFFIX))
    taken = [int(match.group(1)) for path in run.glob(f"*{SUFFIX}*") if (match := pattern.match(path.name))]
    return run / f"{name}-{max(taken, default=0) + 1:04d}{SUFFIX}"


def segment_after(path: Path) -> Path:
    """The first free name after `path`: HOST-0001.tape, HOST-0002.tape, …"""
    stem, dash, number = path.stem.rpartition("-")
    if not (dash and number.isdecimal()):
        stem, number = path.stem, "1"
    count = int(number)
    while True:
        count += 1
        found = path.with_name(f"{stem}-{count:04d}{path.suffix}")
        if not os.path.lexists(found):
            return found


def list_runs(home: Path) -> list[Path]:
    """Every run in a folder, oldest first: folders with tapes, and tapes that lie there alone."""
    if not home.is_dir():
        return []
    runs = [path for path in home.iterdir() if not path.name.startswith(".") and _is_run(path)]
    return sorted(runs, key=_age)


def _is_run(path: Path) -> bool:
    return bool(segments(path)) if path.is_dir() else path.suffix == SUFFIX and path.is_file()


def _age(path: Path) -> tuple[str, int, str]:
    changed_ns = path.stat().st_mtime_ns
    match = _STAMP.match(path.name)
    stamp = match.group() if match else datetime.fromtimestamp(changed_ns / 1e9, UTC).strftime("%Y%m%d-%H%M%S")
    return stamp, changed_ns, path.name


def find_run(name: str | Path, home: Path) -> Path:
    """The run that a name, a path or `last` means. Raises RunNotFound."""
    text = str(name)
    if text == "last":
        runs = list_runs(home)
        if not runs:
            raise RunNotFound(f"There are no runs in {home}.", cure="everywatt run -- COMMAND")
        return runs[-1]
    if text and "/" not in text and text not in (".", ".."):
        for candidate in (home / text, home / f"{text}{SUFFIX}"):
            if candidate.exists() and _is_run(candidate):
                return candidate
    path = Path(text)
    if text and path.exists():
        if path.is_file() or _is_run(path):
            return path
        raise RunNotFound(f"{path} contains no tape.", cure="everywatt list")
    raise RunNotFound(f"There is no run '{text}' in {home}.", cure="everywatt list")


def run_argument(path: Path, home: Path) -> str:
    """The word of a command line that means this run: its name in the folder of runs, its path elsewhere; quoted."""
    name = path.stem if path.is_file() else path.name
    try:
        named = find_run(name, home).samefile(path)
    except RunNotFound:
        named = False
    return shlex.quote(name if named else str(path))
