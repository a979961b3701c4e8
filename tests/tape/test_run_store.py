"""Where runs are, and what they are called."""

import pytest

from everywatt.core.errors import RunNotFound, TapeError
from everywatt.tape import run_store

UTC_NS = 1_794_772_230 * 10**9  # 2026-11-15 19:50:30


def test_home_is_the_argument_then_the_environment_then_here(tmp_path):
    env = {"EVERYWATT_HOME": str(tmp_path / "env"), "HOME": str(tmp_path / "user")}
    assert run_store.home(tmp_path / "arg", env, tmp_path) == (tmp_path / "arg", None)
    assert run_store.home(None, env, tmp_path) == (tmp_path / "env", None)
    here = run_store.home(None, {}, tmp_path)
    assert here == (tmp_path / "everywatt-runs", None)
    assert (here.path / ".gitignore").read_text() == "*\n"
    assert run_store.existing_home(None, {}, tmp_path) == here.path


@pytest.mark.parametrize("env", [{}, {"EVERYWATT_HOME": "FILE/x"}])
def test_home_falls_back_to_the_state_folder_and_says_so(tmp_path, env):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    env = {key: value.replace("FILE", str(blocked)) for key, value in env.items()}
    path, why = run_store.home(None, {**env, "XDG_STATE_HOME": str(tmp_path / "state")}, blocked)
    assert path == tmp_path / "state" / "everywatt" and path.is_dir()
    assert "cannot be written" in why and str(path) in why
    assert (
        run_store.state_folder({"XDG_STATE_HOME": "relative", "HOME": "/h"}).as_posix() == "/h/.local/state/everywatt"
    )
    with pytest.raises(TapeError, match="EVERYWATT_HOME"):
        run_store.home(blocked / "x", {"XDG_STATE_HOME": str(blocked)})


def test_a_configured_home_that_cannot_be_made_falls_back_too_and_what_was_kept_is_found(tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    path, why = run_store.home(blocked / "x", env)
    assert path == tmp_path / "state" / "everywatt" and f"Runs are kept in {path}." in why
    assert run_store.existing_home(blocked / "x", env) == path
    assert run_store.existing_home(tmp_path / "new", env) == tmp_path / "new", (
        "it can be made: nothing was kept elsewhere"
    )


def test_runs_are_named_by_start_and_tag(tmp_path):
    assert run_store.new_run(tmp_path, "train", UTC_NS).name == "20261115-195030-train"
    assert run_store.new_run(tmp_path, "train", UTC_NS).name == "20261115-195030-train-2"
    assert run_store.new_run(tmp_path, "train", UTC_NS).name == "20261115-195030-train-3"
    assert run_store.new_run(tmp_path, "", UTC_NS).name == "20261115-195030"


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("a/b\\c\x00d\n", "a-b-c-d"),
        ("🔥🔥", ""),
        ("Größe 10 %", "Groe-10"),
        ("-rf .", "rf"),
        ("x" * 500, "x" * 48),
    ],
)
def test_a_tag_is_never_a_path(tmp_path, tag, name):
    run = run_store.new_run(tmp_path / "home", tag, UTC_NS)
    assert run.parent == tmp_path / "home"
    assert run.name == "-".join(filter(None, ("20261115-195030", name)))


def test_segments_are_numbered_by_host(lab, tmp_path):
    run = run_store.new_run(tmp_path, "x", UTC_NS)
    first = run_store.next_segment(run, "node/1.cluster")
    assert first.name == "node-1.cluster-0001.tape"
    lab.write_small(first)
    (run / "node-1.cluster-0007.tape").write_text("")
    (run / ".hidden.tape").write_text("")
    assert run_store.next_segment(run, "node/1.cluster").name == "node-1.cluster-0008.tape"
    assert run_store.next_segment(run, "node").name == "node-0001.tape"
    assert run_store.next_segment(run, "../..").name == "host-0001.tape"
    assert [path.name for path in run_store.segments(run)] == ["node-1.cluster-0001.tape", "node-1.cluster-0007.tape"]
    assert run_store.segments(first) == [first]


def test_runs_are_found_by_name_path_and_last(lab, tmp_path, monkeypatch):
    tmp_path = tmp_path / "inner"  # nobody else leaves tapes in the folder above
    tmp_path.mkdir()
    home = tmp_path / "home"
    with pytest.raises(RunNotFound, match="no runs"):
        run_store.find_run("last", home)
    older = run_store.new_run(home, "a", UTC_NS)
    newer = run_store.new_run(home, "b", UTC_NS + 10**9)
    run_store.new_run(home, "empty", UTC_NS + 2 * 10**9)
    for run in (newer, older):
        lab.write_small(run / "h-0001.tape")
    single = home / "20200101-000000-old.tape"
    lab.write_small(single)
    assert run_store.list_runs(home) == [single, older, newer]
    assert run_store.find_run("last", home) == newer
    assert run_store.find_run(older.name, home) == older
    assert run_store.find_run("20200101-000000-old", home) == single
    assert run_store.find_run(older / "h-0001.tape", home) == older / "h-0001.tape"
    monkeypatch.chdir(tmp_path)
    assert run_store.find_run(f"home/{older.name}", tmp_path / "elsewhere").resolve() == older.resolve()
    for wrong in ("nothing", "", "..", "../home", "20261115-195032-empty"):
        with pytest.raises(RunNotFound):
            run_store.find_run(wrong, home)
    assert run_store.list_runs(tmp_path / "none") == []
