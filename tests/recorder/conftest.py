"""A recorder of its own for each test, with a sensor in closed form; nothing is left running."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

HERE = Path(__file__).parent


class Lab:
    """Folders and environment of one test, and which recorders it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = folder / "rt"
        self.reads = folder / "reads"
        self.fault = folder / "fault"
        self.reads.mkdir()
        self.environ = {
            "EVERYWATT_PLUGINS": "fake=closed_form:Fake",
            "EVERYWATT_RUNTIME_DIR": str(self.runtime),
            "EVERYWATT_RECORDER_IDLE_S": "0.2",
            "EVERYWATT_TEST_READS": str(self.reads),
            "EVERYWATT_TEST_FAULT": str(self.fault),
        }

    def tape(self, name: str = "run/host-0001.tape") -> Path:
        return self.folder / name

    def recorders(self) -> list[int]:
        """Processes that serve this lab's runtime folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    command = (entry / "cmdline").read_bytes()
                    environ = (entry / "environ").read_bytes()
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if b"recorder" in command and os.fsencode(self.runtime) in environ and state != "Z":
                    found.append(int(entry.name))
        return found

    def wait_gone(self) -> None:
        until(lambda: not self.recorders(), "the recorder to leave")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(tmp_path)
    for key, value in made.environ.items():
        monkeypatch.setenv(key, value)
    monkeypatch.syspath_prepend(str(HERE))
    yield made
    made.wait_gone()
    sys.modules.pop("closed_form", None)
