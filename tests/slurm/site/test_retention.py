"""What is deleted of a user is exactly what was counted, everywhere, and nothing else."""

import json
import os
import pwd
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import known_site
import pytest
from known_site import T0

from everywatt.cli.main import main
from everywatt.core.errors import EverywattError, UsageError
from everywatt.footprint.carbon import Factors
from everywatt.slurm.node.hooks import make_spool
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.node.state import STATE, State
from everywatt.slurm.site.daily import LOCK, daily
from everywatt.slurm.site.retention import Whose, forget
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.users import Pseudonyms, read_key

DAY = date(2026, 11, 15)
LATER = T0 + 86_400
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The known site, of which ada is us, so that she has a folder."""
    opened = Store(tmp_path / "store")
    for row in known_site.jobs():
        opened.append([replace(row, user=ME if row.user == "ada" else row.user)], row.node)
    opened.append_hours(known_site.hours(), "n1")
    return opened


def rows(store: Store, *without: str) -> list[dict[str, object]]:
    return [row for row in store.jobs(0, 2e9).to_pylist() if row["user"] not in without]


@pytest.mark.parametrize("compact", [True, False])
def test_deleted_is_what_was_counted(store: Store, compact: bool) -> None:
    if compact:
        daily(store, DAY, Factors())
        store.append([replace(known_site.jobs()[0], job_id=8, user=ME)], "n1")
    others, hours = rows(store, ME), store.query("SELECT * FROM nodes ORDER BY hour_s", [], 0, 2e9).to_pylist()
    counted = forget(store, None, Whose(ME, LATER), delete=False)
    assert (len(counted.jobs), counted.records) == ((3, 4) if compact else (2, 3))
    deleted = forget(store, None, Whose(ME, LATER), delete=True)
    assert deleted.to_dict() == {**counted.to_dict(), "deleted": True} and not deleted.left
    assert rows(store) == others
    assert store.query("SELECT * FROM nodes ORDER BY hour_s", [], 0, 2e9).to_pylist() == hours
    assert forget(store, None, Whose(ME, LATER), delete=False).nothing


def test_the_daily_sums_and_the_users_folder_follow(store: Store) -> None:
    daily(store, DAY, Factors())
    own = store.path / "users" / ME
    path = store.path / "daily" / f"{DAY}.json"
    before = json.loads(path.read_text())
    # Her first job ended at 11:00, her second at 15:00.
    part = forget(store, None, Whose(ME, T0 + 12 * 3600), delete=True)
    assert (len(part.jobs), part.folders) == (1, 1)
    assert {row["job_id"] for row in Store(own).jobs(0, 2e9).to_pylist()} == {2}
    after = json.loads(path.read_text())
    assert after["total"] == before["total"] and ME not in {row["group"] for row in after["by_user"]}
    assert len(after["by_user"]) == len(before["by_user"]) - 1
    forget(store, None, Whose(ME, LATER), delete=True)
    assert Store(own).days() == []


def test_all_users(store: Store) -> None:
    found = forget(store, None, Whose(None, T0 + 12 * 3600), delete=True)
    assert len(found.jobs) == 1 and {row["job_id"] for row in rows(store)} == {2, 7, 5, 6}


def test_a_damaged_file_is_named_and_left(store: Store) -> None:
    bad = store.path / "jobs" / f"date={DAY}" / "n9.1.jsonl"
    bad.write_text('{"user": "a')
    found = forget(store, None, Whose(ME, LATER), delete=True)
    assert len(found.left) == 1 and str(bad) in found.left[0] and bad.exists()


def test_not_while_another_works_on_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everywatt.slurm.site.retention.exclusive", _busy)
    with pytest.raises(EverywattError, match="Another process"):
        forget(store, None, Whose(ME, LATER), delete=True)
    assert not forget(store, None, Whose(ME, LATER), delete=False).nothing


def _busy(path: Path, wait_s: float = 0.0) -> object:
    assert path.name == LOCK and wait_s > 0
    from contextlib import nullcontext

    return nullcontext(False)


def test_what_the_node_has_not_stored_yet(store: Store, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    make_spool(spool)
    (spool / "quarantine").mkdir()
    own = spool / "tasks" / str(os.geteuid())
    own.mkdir()
    for path, user in (
        (spool / "events" / "end-1-0-1.event", ME),
        (spool / "events" / "end-2-0-1.event", "bob"),
        (spool / "quarantine" / "x.event", ME),
        (own / "t.event", "bob"),  # what a task says of itself does not matter
    ):
        path.write_text(f"event=end\nuser={user}\n")
        os.utime(path, (T0, T0))
    (spool / "events" / "new.event").write_text(f"user={ME}\n")
    os.utime(spool / "events" / "new.event", (LATER, LATER))
    (spool / "events" / "link.event").symlink_to("/etc/passwd")
    state = State([NodeJob(1, 0, T0, T0 + 1, user=ME), NodeJob(2, 0, T0, user=ME)])
    state.write(spool / STATE)
    counted = forget(store, spool, Whose(ME, LATER), delete=False)
    assert counted.events == 4
    assert forget(store, spool, Whose(ME, LATER), delete=True).events == 4
    names = sorted(path.name for path in spool.rglob("*.event"))
    assert names == ["end-2-0-1.event", "link.event", "new.event"]
    assert [job.job_id for job in State.read(spool / STATE).jobs] == [2]


def test_the_command_asks_or_refuses(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["slurm", "forget", "--user", ME, "--before", "2026-11-16T00:00Z", "--store", str(store.path)]
    words += ["--spool", str(tmp_path / "none")]
    before = rows(store)
    assert main(words) == 2  # no terminal, no --yes
    err = capsys.readouterr().err
    assert f"2 jobs of {ME} before 2026-11-16T00:00Z, 3 records in 3 files" in err and "--yes" in err
    assert main(["slurm", "forget", "--before", "now", "--store", str(store.path)]) == 2
    assert main([*words, "--dry"]) == 0 and rows(store) == before
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_a, **_k: False)
    assert main(words) == 2 and rows(store) == before
    monkeypatch.setattr("click.confirm", lambda *_a, **_k: True)
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["jobs"], facts["records"], facts["deleted"]) == (2, 3, True)
    assert rows(store) == [row for row in before if row["user"] != ME]
    assert main([*words, "--yes"]) == 0 and "There are no records of" in capsys.readouterr().out


def test_pseudonyms_are_stable_and_keyed(tmp_path: Path) -> None:
    first = read_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert read_key(tmp_path / "key") == first
    name = first.of("user", "ada")
    assert name.startswith("user-") and name == first.of("user", "ada") != first.of("account", "ada")
    assert name != Pseudonyms(b"1" * 32).of("user", "ada") and first.of("user", "") == ""
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(UsageError, match="others"):
        read_key(tmp_path / "key")
    (tmp_path / "short").write_text("abcd")
    (tmp_path / "short").chmod(0o600)
    with pytest.raises(UsageError, match="not a key"):
        read_key(tmp_path / "short")


def test_exports_without_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = known_site.make(tmp_path / "store")
    key = ["--pseudonyms", str(tmp_path / "key"), "--store", str(store.path)]
    since = ["--since", "2026-11-14", "--until", "2026-11-30"]
    for words in (
        ["slurm", "jobs", *since],
        ["slurm", "jobs", "--by", "user", *since],
        ["slurm", "jobs", "--by", "account", "--json", *since],
        ["slurm", "jobs", "--json", "--user", "ada", *since],
        ["slurm", "report", "--month", "2026-11"],
        ["slurm", "report", "--month", "2026-11", "-o", str(tmp_path / "m.csv")],
        ["slurm", "report", "--month", "2026-11", "-o", str(tmp_path / "m.html")],
        ["slurm", "export", "--to", "labia-csv", "-o", str(tmp_path / "csv"), *since],
        ["slurm", "export", "--to", "labia-tree", "-o", str(tmp_path / "tree"), *since],
    ):
        assert main([*words, *key]) == 0
    out = capsys.readouterr().out
    made = [path for path in tmp_path.rglob("*") if store.path not in path.parents]
    texts = [out, *map(str, made), *(path.read_text() for path in made if path.is_file() and path.name != "key")]
    for name in ("ada", "bob", "phys", "chem"):
        assert not any(re.search(rf"\b{name}\b", text.replace(str(tmp_path), "")) for text in texts), name
    assert read_key(tmp_path / "key").of("user", "ada") in out
    assert len(list((tmp_path / "csv").iterdir())) >= 2
