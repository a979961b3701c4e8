"""The daily work: twice is once, one at a time, and a user's folder is the user's alone."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import known_site
import pytest
from known_site import T0

from everywatt.core.errors import UsageError
from everywatt.footprint.carbon import Factors, Intensity
from everywatt.slurm.locks import exclusive
from everywatt.slurm.site.daily import Done, daily, open_to_all, protect
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.users import Person, as_person, make_folder, person, put

DAY = date(2026, 11, 15)
FACTORS = Factors(Intensity(52.0, "given"), pue=1.36)
ROOT = os.geteuid() == 0


def me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The site, of which ada is us and bob is nobody's account here."""
    opened = Store(tmp_path / "store")
    for row in known_site.jobs():
        opened.append([replace(row, user=me() if row.user == "ada" else row.user)], row.node)
    opened.append_hours(known_site.hours(), "n1")
    return opened


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_twice_is_once(store: Store) -> None:
    before = store.jobs(0, 2e9).to_pylist()
    done = daily(store, DAY, FACTORS)
    first = tree(store.path)
    assert done.compacted == {"jobs/2026-11-15": 6, "nodes/2026-11-15": 1}
    assert (done.users, done.without_account) == ([me()], ["bob", "cy"])
    again = daily(store, DAY, FACTORS)
    assert again.compacted == {}
    assert tree(store.path) == first
    assert store.jobs(0, 2e9).to_pylist() == before


def test_the_day_by_user(store: Store) -> None:
    daily(store, DAY, FACTORS)
    day = json.loads((store.path / "daily" / "2026-11-15.json").read_text())
    assert (day["kind"], day["date"], day["total"]["jobs"]) == ("slurm-day", "2026-11-15", 5)
    mine = next(row for row in day["by_user"] if row["group"] == me())
    assert mine["energy_j"] == 7_600_000
    assert mine["carbon_g"] == pytest.approx(7.6 / 3.6 * 52 * 1.36)
    assert day["nodes"]["total_j"] == pytest.approx(sum(day["nodes"][f"{n}_j"] for n in ("jobs", "idle", "system")))


def test_a_user_has_a_folder_with_the_same_jobs(store: Store) -> None:
    daily(store, DAY, FACTORS)
    own = store.path / "users" / me()
    assert own.stat().st_mode & 0o777 == 0o700
    rows = Store(own).jobs(0, 2e9).to_pylist()
    assert [(row["job_id"], row["node"]) for row in rows] == [(1, "n1"), (2, "n1"), (2, "n2")]
    assert json.loads((own / "daily" / "2026-11-15.json").read_text())["total"]["energy_j"] == 7_600_000


def test_a_late_record_makes_its_day_anew(store: Store) -> None:
    daily(store, DAY, FACTORS)
    late = replace(known_site.jobs()[0], job_id=9, user=me())
    store.append([late], "n1")
    done = daily(store, date(2026, 11, 16), FACTORS)
    assert done.compacted == {"jobs/2026-11-15": 2}
    assert len(Store(store.path / "users" / me()).jobs(0, 2e9)) == 4
    assert json.loads((store.path / "daily" / "2026-11-15.json").read_text())["total"]["jobs"] == 6


def test_names_that_are_paths_get_no_folder(tmp_path: Path) -> None:
    assert [person(name) for name in ("", "../x", "a/b", ".x", "x\n", "-rf")] == [None] * 6
    store = Store(tmp_path)
    store.append([known_site.job(1, "../../x", 1, 1, 5)], "n1")
    assert daily(store, DAY, FACTORS).without_account == ["../../x"]
    assert not (tmp_path.parent.parent / "x").exists()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users can pass through, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="everywatt-site-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(not ROOT, reason="only root writes folders of others")
def test_root_writes_with_the_rights_of_the_user(shared: Path) -> None:
    nobody = person("nobody")
    assert nobody is not None
    own = make_folder(shared, nobody)
    put(nobody, own / "jobs" / "a.parquet", b"x")
    told = [path.stat() for path in (own, own / "jobs", own / "jobs" / "a.parquet")]
    assert [entry.st_uid for entry in told] == [nobody.uid] * 3
    assert [entry.st_mode & 0o777 for entry in (told[0], told[2])] == [0o700, 0o600]
    # A link that a user put there does not make root write elsewhere.
    secret = shared / "secret"
    secret.mkdir(mode=0o700)
    (own / "daily").symlink_to(secret)
    with pytest.raises(PermissionError):
        put(nobody, own / "daily" / "x.json", b"x")
    assert list(secret.iterdir()) == []
    assert os.geteuid() == 0 and os.getegid() == 0
    someone = Person("other", 12345, 12345)
    with as_person(someone), pytest.raises(PermissionError):
        list(own.iterdir())


def test_the_store_is_given_to_a_group(store: Store) -> None:
    import grp

    assert open_to_all(store.path)
    protect(store.path, grp.getgrgid(os.getegid()).gr_name)
    assert not open_to_all(store.path)
    assert (store.path / "jobs").stat().st_mode & 0o7777 == 0o2750
    assert store.path.stat().st_mode & 0o777 == 0o711
    with pytest.raises(UsageError, match="There is no group"):
        protect(store.path, "no-such-group-here")


def test_a_lock_is_held_by_one_and_left_by_the_dead(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    code = (
        "import sys, time; from pathlib import Path; from everywatt.slurm.locks import exclusive\n"
        "with exclusive(Path(sys.argv[1])) as mine: print(mine, flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "True\n"
        with exclusive(lock) as mine:
            assert not mine
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    with exclusive(lock, 5.0) as mine:
        assert mine


def test_day_and_night_of_utc(store: Store) -> None:
    daily(store, date(2026, 11, 14), FACTORS)
    assert json.loads((store.path / "daily" / "2026-11-14.json").read_text())["total"]["jobs"] == 0
    assert T0 % 86_400 == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be another user")
def test_a_store_that_users_cannot_pass_through_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(UsageError, match="passed through") as told:
        make_folder(tmp_path, Person("nobody", 65534, 65534))
    assert told.value.cure == f"chmod o+x {tmp_path}"
    tmp_path.chmod(0o711)
    assert make_folder(tmp_path, Person("nobody", 65534, 65534)).is_dir()


def test_the_line_of_a_day_says_how_certain_it_is(tmp_path: Path) -> None:
    made = Store(tmp_path / "site")
    row = known_site.job(8, "dan", 3, 1, 36 * 10**11, coverage=0.6, high_uj=54 * 10**11)
    made.append([row], "n1")
    (line, *_) = daily(made, DAY, Factors()).tables()[0].notes
    assert line == "2026-11-15: 1 job, 1000 Wh −100/+500 (coverage 60.0 %), 0 records without energy"


def test_one_of_them_is_singular() -> None:
    summary = {"total": {"jobs": 1, "energy_j": 3.6e6, "refused": 1}}
    done = Done(date(2026, 11, 15), {"jobs/2026-11-15": 1}, summary, sacct={"jobs": 1, "changed": 1, "added": 0})
    assert done.tables()[0].notes == (
        "2026-11-15: 1 job, 1000 Wh, 1 record without energy",
        "sacct: 1 job, 1 record changed, 0 jobs added",
        "compact: jobs/2026-11-15 (1 file)",
        "users: none",
    )
