"""The check of a node: all is well after an installation, and each thing that breaks is named with a cure."""

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from everywatt import __version__
from everywatt.cli.main import main
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


def test_a_site_with_hooks_of_its_own_beside_ours_is_in_order(site: Site) -> None:
    """As `slurm install` advises: both in a folder given to Slurm as a pattern, and a TaskProlog that calls ours."""
    for name in ("prolog", "epilog"):
        folder = site.store.parent / f"{name}.d"
        folder.mkdir()
        (folder / "10-site.sh").write_text("#!/bin/sh\n")
        (folder / "20-everywatt.sh").symlink_to(site.folder / f"{name}.sh")
    task = site.store.parent / "task.sh"
    task.write_text(f"#!/bin/sh\nmodule load site\nexec {site.folder / 'task-prolog.sh'}\n")
    conf = [f"{key}={site.store.parent}/{key.lower()}.d/*" for key in ("Prolog", "Epilog")]
    text = "\n".join([*conf, f"TaskProlog={task}", "PrologFlags=Alloc,Contain"])
    (site.store.parent / "slurm.conf").write_text(text)
    assert wrong(site) == {}
    (site.store.parent / "prolog.d/20-everywatt.sh").unlink()
    task.write_text("#!/bin/sh\n")
    found = wrong(site)["slurm.conf"]
    assert f"Prolog is {site.store.parent}/prolog.d/* now" in found and "TaskProlog is" in found
    assert "Epilog is" not in found


def test_what_is_seen_in_slurm_conf_is_not_the_cure(site: Site) -> None:
    conf = site.store.parent / "slurm.conf"
    conf.write_text("ClusterName=x\nEpilog=/etc/site.sh\n")
    (found,) = [one for one in check_node(site, "n1", conf) if one.name == "slurm.conf"]
    assert found.seen == f"{conf} does not call prolog.sh, epilog.sh, task-prolog.sh; PrologFlags lacks Alloc"
    assert f"Prolog={site.folder / 'prolog.sh'}" in found.cure


@pytest.fixture
def with_srun(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`slurm check --nodes` with an srun that answers as node n1, whose clock is off by some seconds."""

    def run(nodes: str, off_s: float) -> tuple[int, dict[str, str]]:
        answer = {"nodes": {"n1": []}, "ok": True, "utc_s": time.time() + off_s}
        (tmp_path / "srun").write_text(f"#!/bin/sh\necho '0: {json.dumps(answer)}'\n")
        (tmp_path / "srun").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        code = main(["slurm", "check", "--nodes", nodes, "--json"])
        out = capsys.readouterr().out
        checks = json.loads(out)["nodes"]["n1"] if code < 2 else []
        return code, {check["name"]: check["seen"] for check in checks if check["verdict"] == "fail"}

    return run


def test_a_node_whose_clock_is_off_is_named(with_srun) -> None:
    assert with_srun("n1", 0.0) == (0, {})
    code, found = with_srun("n1", 90.0)
    assert code == 1 and re.fullmatch(r"ahead of this machine by (89|90)\.\d s", found["clock offset"])
    code, found = with_srun("n1", -30.0)
    assert code == 1 and re.fullmatch(r"behind this machine by (30|31)\.\d s", found["clock offset"])


def test_what_is_no_list_of_nodes_is_refused(with_srun) -> None:
    assert with_srun("n[1", 0.0)[0] == 2


def test_slurm_conf_is_where_slurm_looks_for_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    places = [f"--{name}={getattr(site, name)}" for name in ("folder", "spool", "store")]
    main(["slurm", "check", *places, "--json"])
    (checks,) = json.loads(capsys.readouterr().out)["nodes"].values()
    assert {check["name"]: check["verdict"] for check in checks}["slurm.conf"] == "pass"
