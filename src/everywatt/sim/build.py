"""Compiling the laboratory's two C libraries on demand, into a cache that is keyed by their source."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core.errors import SimError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCES = Path(__file__).parent
NVML = "libnvidia-ml.so.1"
PRELOAD = "everywatt-powercap.so"
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden")
_LIBRARIES = {NVML: "nvml.c", PRELOAD: "powercap.c"}
_FILES = ("truth.h", "card.h", "use.h", "nvml.c", "powercap.c")


def compiler(environ: Mapping[str, str] | None = None) -> list[str]:
    """The C compiler's command: $CC, cc, gcc or clang on PATH, else the `ziglang` package."""
    env = os.environ if environ is None else environ
    if env.get("CC"):
        return env["CC"].split()
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name, path=env.get("PATH"))
        if found:
            return [found]
    if importlib.util.find_spec("ziglang"):
        return zig()
    raise SimError(
        "The simulated libraries need a C compiler, and none was found.",
        cure="pip install 'everywatt[sim]' (brings ziglang), or install gcc",
    )


def zig() -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc"]


def libraries(environ: Mapping[str, str] | None = None, command: Sequence[str] | None = None) -> Path:
    """The folder that holds `libnvidia-ml.so.1` and the powercap preload, compiled if they were not there."""
    digest = hashlib.sha256(repr(FLAGS).encode())
    for name in _FILES:
        digest.update((SOURCES / name).read_bytes())
    name = f"sim-{digest.hexdigest()[:16]}"
    for root in _caches(os.environ if environ is None else environ):
        folder = root / name
        if all(os.access(folder / library, os.F_OK) for library in _LIBRARIES):
            return folder
        try:
            root.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=root))
        except OSError:
            continue
        return _fill(fresh, folder, list(command or compiler(environ)))
    raise SimError(
        "No writable cache directory was found for the compiled libraries.",
        cure="set XDG_CACHE_HOME to a writable folder",
    )


def _caches(env: Mapping[str, str]) -> list[Path]:
    home = env.get("XDG_CACHE_HOME") or (env["HOME"] + "/.cache" if env.get("HOME") else None)
    private = Path(tempfile.gettempdir()) / f"everywatt-cache-{os.getuid()}"
    if private.exists() and private.stat().st_uid != os.getuid():
        private = Path(tempfile.mkdtemp(prefix="everywatt-cache-"))  # another user made that folder
    return [*([Path(home) / "everywatt"] if home else []), private]


def _fill(fresh: Path, folder: Path, command: list[str]) -> Path:
    """Compile into a fresh folder and rename it, so that two who compile at once do not meet."""
    try:
        for library, source in _LIBRARIES.items():
            compile_library(SOURCES / source, fresh / library, command)
        try:
            fresh.rename(folder)
        except OSError:  # another process was faster
            if not (folder / NVML).exists():
                raise
        return folder
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def compile_library(source: Path, into: Path, command: Sequence[str]) -> None:
    """Compile one C file to a shared library whose soname is its file name."""
    words = [*command, *FLAGS, f"-Wl,-soname,{into.name}", str(source), "-o", str(into), "-lm", "-lpthread", "-ldl"]
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise SimError(f"{source.name} did not compile with {' '.join(command)}: {done.stderr.strip()[-800:]}")
