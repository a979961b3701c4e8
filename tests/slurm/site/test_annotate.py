"""Comments in Slurm's accounting: what is written, and what is left alone. sacct and sacctmgr are scripts here."""

import json
from pathlib import Path

import known_site
import pytest

from everywatt.cli.main import main
from everywatt.slurm.site.sacct import comment_of, existing
from everywatt.slurm.site.totals import Wanted, jobs

WORDS = ["slurm", "annotate", "--since", "2026-11-15T00:00Z", "--until", "2026-11-16T00:00Z", "--json"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sacct knows jobs 1, 2 and 7; the comment of 7 is another tool's. sacctmgr keeps what it was told."""
    known_site.make(tmp_path / "store")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tmp_path / "said").write_text("1|c|\n2|c|everywatt: old\n7|c|JS1:gzip|x\n1.batch|c|\n")
    (tools / "sacct").write_text(f"#!/bin/sh\ncat '{tmp_path}/said'\n")
    (tools / "sacctmgr").write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >>'{tmp_path}/told'\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("EVERYWATT_SLURM_STORE", str(tmp_path / "store"))
    return tmp_path


def test_what_is_written(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--dry"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == 2 and not (site / "told").exists()
    assert main(WORDS) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["written"], found["same"], found["foreign"], found["unknown"]) == (2, 0, ["3_4"], [])
    told = (site / "told").read_text().splitlines()
    assert told[:8] == [
        *("-i", "modify", "job", "where", "jobid=1", "cluster=c", "set"),
        "AdminComment=everywatt: 1 kwh (95% 0.9 to 1.1), idle share 0.1111 kwh",
    ]
    assert "jobid=7" not in told


def test_a_comment_says_how_much_was_observed(site: Path) -> None:
    row = {row["job_id"]: row for row in jobs(_store(site), Wanted(0, 2e9))}[1]
    ends = {"idle_low_uj": 36 * 10**10, "idle_high_uj": 72 * 10**10}
    assert comment_of({**row, "coverage": 0.6, **ends}) == (
        "everywatt: 1 kwh (95% 0.9 to 1.1, coverage 60.0 %), idle share 0.1111 kwh (0.1 to 0.2)"
    )


def test_again_writes_nothing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["job_id"]: row for row in jobs(_store(site), Wanted(0, 2e9))}
    (site / "said").write_text("".join(f"{n}|c|{comment_of(rows[n])}\n" for n in (1, 2)))
    assert main(WORDS) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["written"], found["same"], found["unknown"]) == (0, 2, ["3_4"])
    assert not (site / "told").exists()


def test_a_refusal_is_told(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "bin" / "sacctmgr").write_text("#!/bin/sh\necho 'Access denied' >&2\nexit 1\n")
    assert main(WORDS) == 1
    assert json.loads(capsys.readouterr().out)["failed"] == {"1": "Access denied", "2": "Access denied"}


def test_a_job_without_a_figure_has_no_comment(site: Path) -> None:
    rows = {row["job_id"]: comment_of(row) for row in jobs(_store(site), Wanted(0, 2e9))}
    assert rows[5] is None and rows[6] is None  # refused; torn
    assert all(text is None or text.isascii() for text in rows.values())
    assert existing("x|y|z\n3|c|a|b\n") == {("c", 3): "a|b", ("", 3): "a|b"}


def _store(site: Path):  # type: ignore[no-untyped-def]
    from everywatt.slurm.site.store import Store

    return Store(site / "store")
