"""The check of a node: all is well after an installation, and each thing that breaks is named with a cure."""

import os
import sys
from pathlib import Path

import pytest

from everywatt import __version__
from everywatt.slurm.node import check
from everywatt.slurm.node.check import check_node
from everywatt.slurm.node.hooks import EVENTS, NAMES, Site, hook, make_spool, slurm_conf_lines


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """An installed node whose clock is right."""
    monkeypatch.setattr(check, "_clock", lambda: check._check("clock", "synchronised"))
    made = Site(tmp_path / "spool", tmp_path / "etc", tmp_path / "store", tmp_path / "everywatt", "5s")
    made.command.write_text(f"#!/bin/sh\necho everywatt {__version__}\n")
    made.command.chmod(0o755)
    made.store.mkdir()
    made.folder.mkdir()
    make_spool(made.spool)
    for event in EVENTS:
        (made.folder / NAMES[event]).write_text(hook(event, made))
        (made.folder / NAMES[event]).chmod(0o755)
    (tmp_path / "slurm.conf").write_text("\n".join(slurm_conf_lines(made)))
    return made


def wrong(site: Site) -> dict[str, str]:
    found = check_node(Site(site.spool, site.folder, site.store, site.command), "n1", site.store.parent / "slurm.conf")
    assert all(one.seen for one in found)
    return {one.name: f"{one.seen}: {one.cure}" for one in found if one.verdict == "fail"}


def test_a_node_that_is_in_order(site: Site) -> None:
    assert wrong(site) == {}
    assert list(site.store.iterdir()) == [], "what was written is removed"
    assert list((site.spool / "events").iterdir()) == []


def test_what_is_missing_is_named(site: Site) -> None:
    (site.folder / "epilog.sh").unlink()
    (site.folder / "prolog.sh").write_text("#!/bin/sh\n")
    (site.store.parent / "slurm.conf").write_text("ClusterName=x\n")
    (site.spool / "tasks").chmod(0o777)
    site.command.write_text("#!/bin/sh\necho everywatt 0.0.9\n")
    site.store.rmdir()
    found = wrong(site)
    assert list(found) == ["program", "hook start", "hook end", "slurm.conf", "spool", "store"]
    assert "one version on all nodes" in found["program"] and "slurm install" in found["hook end"]
    assert "PrologFlags=Alloc" in found["slurm.conf"] and "chmod 711" in found["spool"]


def test_a_program_that_does_not_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "ANSWER_S", 0.3)
    site.command.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(5)\n")
    assert "does not answer" in wrong(site)["program"]
    site.command.unlink()
    assert os.strerror(2) in wrong(site)["program"]
