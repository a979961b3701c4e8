"""The line in a job's output: what it says, and that nothing but the user's own file is touched."""

import os
import pwd
from dataclasses import replace
from pathlib import Path

import known_site
import pytest
from waiting import until

from everywatt.slurm.node.check import check_node
from everywatt.slurm.node.hooks import Site, hook, make_spool, unit
from everywatt.slurm.node.job_line import MOST, JobLines, job_line
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.node.scontrol import parse_job

ME = pwd.getpwuid(os.geteuid()).pw_name
ROW = known_site.job(1, ME, 1, 1, 3_600 * 840 * 10**6, idle_uj=3_600 * 360 * 10**6)
LINE = (
    "JobId=7 JobName=x UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A JobState=RUNNING NodeList=n[1-2] BatchHost=n1 "
    "NumNodes=2 Command=/home/ada/run.sh WorkDir=/home/ada StdErr=/tmp/e StdIn=/dev/null StdOut={} Power="
)


def test_what_it_says() -> None:
    assert job_line(ROW) == (
        "everywatt: this job used 840 Wh ± 84 (95 %); its idle allocation drew 360.0 Wh more (30.0 % of both)."
    )
    two = known_site.job(1, ME, 1, 1, 3_600 * 10**6, nodes=2)
    assert job_line(two) == "everywatt: this job used 1.00 Wh ± 0.10 (95 %) on n1 (1 of its 2 nodes)."
    assert job_line(known_site.job(1, ME, 1, 1, None)) is None


def test_it_says_how_much_was_observed_and_how_certain_the_idle_share_is() -> None:
    ends = {"idle_low_uj": 3_600 * 300 * 10**6, "idle_high_uj": 3_600 * 420 * 10**6}
    assert job_line(replace(ROW, coverage=0.6, **ends)) == (
        "everywatt: this job used 840 Wh ± 84 (95 %, coverage 60.0 %); "
        "its idle allocation drew 360 Wh ± 60 more (30.0 % of both)."
    )


def test_where_it_goes() -> None:
    assert parse_job(LINE.format("/home/ada/slurm-7.out"), "n1")["stdout"] == "/home/ada/slurm-7.out"
    assert parse_job(LINE.format("/home/ada/my file.out"), "n1")["stdout"] == "/home/ada/my file.out"
    assert "stdout" not in parse_job(LINE.format("/home/ada/slurm-7.out"), "n2")  # its script does not run there
    assert "stdout" not in parse_job(LINE.format("/home/ada/slurm-%j.out"), "n1")
    assert "stdout" not in parse_job(LINE.format("none"), "n1")


def append(lines: JobLines, path: Path, **more: object) -> None:
    facts = {"user": ME, "uid": os.geteuid(), "stdout": str(path), **more}
    lines.append(NodeJob(1, 0, 0.0, 1.0, **facts), ROW)  # type: ignore[arg-type]


def finished(lines: JobLines) -> None:
    until(lambda: all(shell.poll() is not None for shell, _ in lines._shells), "the shells have ended")


def test_only_a_file_of_its_user(tmp_path: Path) -> None:
    out, lines = tmp_path / "my 'job'.out", JobLines()
    out.write_text("result\n")
    append(lines, out)
    finished(lines)
    assert out.read_text() == f"result\n{job_line(ROW)}\n"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path / "pipe", Path("/dev/null"), tmp_path):
        append(lines, path)
        finished(lines)
    assert not (tmp_path / "none").exists()
    append(lines, out, user="nobody-knows-this-name")
    append(lines, out, uid=os.geteuid() + 1)
    assert out.read_text().count("everywatt") == 1


def test_shells_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, lines = tmp_path / "out", JobLines()
    out.touch()
    monkeypatch.setattr("everywatt.slurm.node.job_line._APPEND", "exec sleep 60")
    for _ in range(MOST + 3):
        append(lines, out)
    assert len(lines._shells) == MOST
    monkeypatch.setattr("everywatt.slurm.node.job_line.LONGEST_S", -1.0)
    append(lines, out)  # they are killed
    finished(lines)
    append(lines, tmp_path / "none")
    assert len(lines._shells) <= 1


def test_hook_and_unit_ask_for_it_where_wanted(tmp_path: Path) -> None:
    places = {"spool": tmp_path / "spool", "folder": tmp_path / "etc", "store": tmp_path / "store"}
    plain, asked = Site(**places), Site(**places, job_line=True)
    assert "--job-line" not in hook("start", plain) + unit("everywatt-slurm.service", plain)
    assert "ProtectSystem=strict\nPrivateTmp=yes\n" in unit("everywatt-slurm.service", plain)
    assert "--period 2s --job-line\n" in hook("start", asked)
    assert "--quiet --job-line\n" in unit("everywatt-slurm.service", asked)
    assert "strict" not in unit("everywatt-slurm.service", asked)
    make_spool(asked.spool)
    asked.folder.mkdir()
    for event, name in (("start", "prolog.sh"), ("end", "epilog.sh"), ("task", "task-prolog.sh")):
        (asked.folder / name).write_text(hook(event, asked))
        (asked.folder / name).chmod(0o755)
    found = {check.name: check for check in check_node(plain, "n1", tmp_path / "slurm.conf")}
    assert not found["hook start"].cure and not found["hook end"].cure
