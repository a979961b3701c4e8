"""What `everywatt doctor` checks: the sensors, then whether a recording can be started and kept. Read-only."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from everywatt.core.format import format_bytes
from everywatt.core.machine import Machine, runtime_dir, state_folder
from everywatt.doctor.diagnose import Check, Diagnosis, Verdict, diagnose
from everywatt.recorder.wire import SOCKET, address_in
from everywatt.tape.places import filesystem, is_network
from everywatt.tape.run_store import FOLDER

LITTLE_SPACE_BYTES = 100 << 20
_TRY_RUNTIME = "set EVERYWATT_RUNTIME_DIR to a folder that you own"


def check_up(
    machine: Machine,
    home: Path | None = None,
    *,
    cwd: Path | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    clock_synchronised: Callable[[], bool | None] | None = None,
) -> Diagnosis:
    """Check everything that a run needs. `home` is the configured folder of runs, None for ./everywatt-runs."""
    found = diagnose(machine, options=options, clock_synchronised=clock_synchronised)
    more = (check_recorder(machine.environ), *check_home(home or (cwd or Path.cwd()) / FOLDER, machine.environ))
    return replace(found, checks=(*found.checks, *more))


def check_recorder(environ: Mapping[str, str]) -> Check:
    """Whether the recorder's folder is the user's own, and who answers on its socket. Nothing is started or made."""
    name, folder = "recorder", runtime_dir(environ)
    lacking = "; without the recorder, gauges such as GPU power are refused"
    try:
        state = os.lstat(folder)
    except FileNotFoundError:
        if _can_make(folder):
            return Check(name, Verdict.PASS, f"not running; {folder} can be created on demand")
        return Check(name, Verdict.FAIL, f"{folder} cannot be created{lacking}", _TRY_RUNTIME)
    except OSError as error:
        return Check(name, Verdict.FAIL, f"{folder}: {error.strerror}{lacking}", _TRY_RUNTIME)
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        return Check(name, Verdict.FAIL, f"{folder} belongs to another user{lacking}", _TRY_RUNTIME)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(name, Verdict.FAIL, f"{folder} is not writable{lacking}", _TRY_RUNTIME)
    return _socket(folder)


def _socket(folder: Path) -> Check:
    place = folder / SOCKET
    if not os.path.lexists(place):
        return Check("recorder", Verdict.PASS, f"not running; it is started in {folder} on demand")
    if not stat.S_ISSOCK(place.lstat().st_mode):
        return Check(
            "recorder", Verdict.FAIL, f"{place} is not a socket, so no recorder can listen there", f"rm -r {place}"
        )
    with socket.socket(socket.AF_UNIX) as sock, address_in(folder) as address:
        sock.settimeout(1.0)
        try:
            sock.connect(address)
        except ConnectionRefusedError:
            return Check("recorder", Verdict.PASS, f"stale socket of a dead recorder in {folder}; it will be replaced")
        except OSError as error:
            return Check(
                "recorder", Verdict.FAIL, f"{folder / SOCKET} does not respond: {error}", f"rm {folder / SOCKET}"
            )
    return Check("recorder", Verdict.PASS, f"running, in {folder}")


def check_home(home: Path, environ: Mapping[str, str]) -> list[Check]:
    """Whether runs can be kept, and whether there is room for them."""
    name = "run directory"
    if _can_make(home):
        return [Check(name, Verdict.PASS, f"{home} is writable{_spooled(home)}"), *_space(home)]
    state = state_folder(environ)
    if _can_make(state):
        seen = f"{home} is not writable; runs are kept in {state}"
        return [Check(name, Verdict.WARN, seen, "set EVERYWATT_HOME"), *_space(state)]
    return [Check(name, Verdict.FAIL, f"neither {home} nor {state} is writable", "set EVERYWATT_HOME")]


def _can_make(folder: Path) -> bool:
    """True where the folder can be written, or made below one that can."""
    existing = _existing(folder)
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK) and not _read_only(existing)


def _read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _existing(folder: Path) -> Path:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _spooled(home: Path) -> str:
    kind = filesystem(home)
    return f" ({kind}: tapes are written locally and moved there)" if is_network(kind) else ""


def _space(folder: Path) -> list[Check]:
    try:
        free = shutil.disk_usage(_existing(folder)).free
    except OSError as error:
        return [Check("disk space", Verdict.WARN, f"unknown: {error.strerror}")]
    if free >= LITTLE_SPACE_BYTES:
        return [Check("disk space", Verdict.PASS, f"{format_bytes(free)} free")]
    seen = f"{format_bytes(free)} free; an hour of recording takes up to 60 MB"
    return [Check("disk space", Verdict.WARN, seen, "free some, or set EVERYWATT_HOME to another disk")]
