"""Compiling on demand: warnings, caches, and the compiler from a package."""

import importlib.util
import os
import subprocess
import sys

import pytest

from everywatt.core.errors import SimError
from everywatt.sim import build


@pytest.mark.parametrize("source", ["nvml.c", "powercap.c"])
def test_the_sources_have_no_warnings(source, tmp_path):
    build.compile_library(build.SOURCES / source, tmp_path / "x.so", [*build.compiler(), "-Werror"])


def test_a_cache_that_is_there_is_used(tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    first = build.libraries(env)
    stamp = (first / build.NVML).stat().st_mtime_ns
    assert first.parent == tmp_path / "everywatt"
    assert build.libraries(env, command=["false"]) == first
    assert (first / build.NVML).stat().st_mtime_ns == stamp
    assert [p.name for p in first.parent.iterdir()] == [first.name]


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_one(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = build.libraries({"XDG_CACHE_HOME": str(tmp_path / "file"), "PATH": os.environ["PATH"]})
    assert folder.parent == tmp_path / f"everywatt-cache-{os.getuid()}"


def test_the_compiler_is_found_by_name_or_said(monkeypatch, tmp_path):
    assert build.compiler({"CC": "clang -m64"}) == ["clang", "-m64"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SimError, match="C compiler"):
        build.compiler({"PATH": str(tmp_path)})


def test_a_compiler_that_fails_says_so(tmp_path):
    with pytest.raises(SimError, match="did not compile"):
        build.libraries({"XDG_CACHE_HOME": str(tmp_path)}, command=["false"])
    assert list((tmp_path / "everywatt").iterdir()) == []


@pytest.mark.skipif(
    not (importlib.util.find_spec("ziglang") or os.environ.get("EVERYWATT_ZIG_PYTHON")),
    reason="the ziglang package is not installed; EVERYWATT_ZIG_PYTHON may name a Python that has it",
)
def test_the_packaged_compiler_works_where_there_is_no_cc(tmp_path):
    python = os.environ.get("EVERYWATT_ZIG_PYTHON", sys.executable)
    folder = build.libraries({"XDG_CACHE_HOME": str(tmp_path)}, command=[python, *build.zig()[1:]])
    code = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); print(l.nvmlInit_v2())"
    done = subprocess.run([sys.executable, "-c", code, str(folder / build.NVML)], capture_output=True, text=True)
    assert done.stdout == "9\n"  # it loads, and outside of a machine there is no driver
