"""Hooks: what they drop, and that nothing makes them fail, wait or write elsewhere."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hung import can_mount_fuse, hung_mount
from waiting import until

from everywatt.core.errors import UsageError
from everywatt.slurm.node.hooks import EVENTS, RUNTIME, Site, hook, make_spool, slurm_conf_lines, unit
from everywatt.slurm.node.spool import forget, holder, read_events

JOB = {
    "SLURM_JOB_ID": "3",
    "SLURMD_NODENAME": "n1",
    "SLURM_CLUSTER_NAME": "probe",
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_UID": str(os.getuid()),
    "SLURM_JOB_PARTITION": "p",
    "SLURM_JOB_CPUS_PER_NODE": "2",
    "SLURM_JOB_GPUS": "1",
    "SLURM_JOB_RESTART_COUNT": "0",
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    places = {"spool": tmp_path / "spo ol", "folder": tmp_path / "etc", "store": Path("/srv/jobs")}
    made = Site(**places, command=tmp_path / "missing", period="2s")
    make_spool(made.spool)
    yield made
    (tmp_path / "started.end").touch()  # for the command of `started_file`


def call(site: Site, event: str, *, timeout: float = 60, **more: str) -> subprocess.CompletedProcess[bytes]:
    """As slurmd calls it: without PATH and HOME."""
    path = site.spool.parent / f"{event}.sh"
    path.write_text(hook(event, site))
    return subprocess.run(["/bin/sh", str(path)], env={**JOB, **more}, capture_output=True, timeout=timeout)


def check_silent(done: subprocess.CompletedProcess[bytes]) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_a_hook_says_is_read_back(site: Site) -> None:
    check_silent(call(site, "start"))
    (event,) = read_events(site.spool)
    assert (event.kind, event.job_id, event.uid) == ("start", 3, os.getuid())
    assert (event.text("user"), event.text("node"), event.number("cpus"), event.text("period")) == (
        "ada",
        "n1",
        2,
        "2s",
    )
    assert abs(event.at_s - time.time()) < 60
    forget(event)
    assert read_events(site.spool) == []


def test_a_task_tells_its_array_and_nothing_that_it_could_lie_about(site: Site) -> None:
    name = "x\nuser=root\njob_id=99\nuid=0"
    (site.spool / "tasks" / str(os.getuid())).mkdir()
    check_silent(call(site, "task", SLURM_ARRAY_JOB_ID="1", SLURM_ARRAY_TASK_ID="4", SLURM_JOB_NAME=name))
    (event,) = read_events(site.spool)
    assert (event.job_id, event.number("array_job_id"), event.number("array_task_id")) == (3, 1, 4)
    assert "user" not in event.values
    assert "uid" not in event.values


def test_events_come_in_the_order_of_their_times(site: Site) -> None:
    for number, (event, job) in enumerate([("start", "7"), ("start", "5"), ("end", "7")]):
        call(site, event, SLURM_JOB_ID=job)
        newest = max((site.spool / "events").glob("*.event"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (100 + number, 100 + number))
    assert [(event.kind, event.job_id) for event in read_events(site.spool)] == [("start", 7), ("start", 5), ("end", 7)]


@pytest.mark.parametrize("event", EVENTS)
def test_a_spool_that_is_not_there_harms_nobody(site: Site, event: str) -> None:
    shutil.rmtree(site.spool)
    check_silent(call(site, event))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_harms_nobody(site: Site) -> None:
    text = hook("start", site).replace('>"$new"', ">/dev/full")
    script = site.spool.parent / "full.sh"
    script.write_text(text)
    done = subprocess.run(["/bin/sh", str(script)], env=JOB, capture_output=True, timeout=20)
    check_silent(done)
    assert read_events(site.spool) == []


def test_an_agent_that_is_stopped_is_not_waited_for(site: Site) -> None:
    agent = subprocess.Popen(["sleep", "60"])
    try:
        began = Path(f"/proc/{agent.pid}/stat").read_text().rsplit(") ", 1)[1].split()[19]
        (site.spool / "agent.pid").write_text(f"{agent.pid} {began}\n")
        agent.send_signal(signal.SIGSTOP)
        started = started_file(site)
        check_silent(call(site, "start"))
        assert len(read_events(site.spool)) == 1
        assert not started.exists()
    finally:
        agent.kill()
        agent.wait()


def started_file(site: Site) -> Path:
    """A command in the place of everywatt that says that it was called, and runs until the test is over."""
    started = site.spool.parent / "started"
    site.command.write_text(f'#!/bin/sh\necho "$@" > {started}\nuntil [ -e {started}.end ]; do sleep 0.1; done\n')
    site.command.chmod(0o755)
    return started


@pytest.mark.parametrize("written", [None, "", "999999999 5\n", "1 5\n", "rubbish\n"])
def test_without_an_agent_a_recorder_is_started_and_not_waited_for(site: Site, written: str | None) -> None:
    if written is not None:
        (site.spool / "agent.pid").write_text(written)
    started = started_file(site)
    check_silent(call(site, "start"))
    until(lambda: started.exists() and started.read_text())
    words = ["slurm", "node", "--until-idle", "--node", "n1", "--spool", *str(site.spool).split()]
    assert started.read_text().split() == [*words, "--store", "/srv/jobs", "--period", "2s"]
    started.unlink()
    check_silent(call(site, "end"))
    assert not started.exists()


def test_what_is_started_outlives_the_end_of_the_hooks_group(site: Site) -> None:
    """Slurm kills the process group of a hook when the hook ends."""
    site.command.write_text("#!/bin/sh\nsleep 0.2\necho $$ >> " + str(site.spool.parent / "alive") + "\n")
    site.command.chmod(0o755)
    path = site.spool.parent / "start.sh"
    path.write_text(hook("start", site).replace(" && ! alive starting", ""))
    for _ in range(20):
        started = subprocess.Popen(["/bin/sh", str(path)], env=JOB, process_group=0)
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    alive = site.spool.parent / "alive"
    until(lambda: alive.exists() and len(alive.read_text().split()) == 20, "twenty recorders")


def test_an_agent_that_died_and_was_not_waited_for_is_dead(site: Site) -> None:
    agent = subprocess.Popen(["sleep", "60"])
    began = Path(f"/proc/{agent.pid}/stat").read_text().rsplit(") ", 1)[1].split()[19]
    (site.spool / "node.pid").write_text(f"{agent.pid} {began}\n")
    assert holder(site.spool) == agent.pid
    agent.kill()
    os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
    assert holder(site.spool) is None
    started = started_file(site)
    check_silent(call(site, "start"))
    until(started.exists)
    agent.wait()


@pytest.fixture
def open_site(site: Site) -> Iterator[Site]:
    """With a spool that any user may enter. Not in a folder of pytest's: every pytest that starts shuts those."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        made = replace(site, spool=Path(folder) / "spo ol")
        make_spool(made.spool)
        yield made


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be another user")
def test_a_user_drops_a_task_and_sees_no_others(open_site: Site) -> None:
    site = open_site
    script = site.spool.parent / "task.sh"
    script.write_text(hook("task", site))
    as_nobody = {"user": 65534, "group": 65534, "extra_groups": ()}
    check_silent(call(site, "start", SLURM_JOB_UID="65534"))
    done = subprocess.run(["/bin/sh", str(script)], env=JOB, capture_output=True, timeout=240, **as_nobody)
    check_silent(done)
    (event,) = (event for event in read_events(site.spool) if event.kind == "task")
    assert event.uid == 65534
    listing = subprocess.run(["ls", str(site.spool / "tasks")], capture_output=True, **as_nobody)
    assert listing.returncode != 0


def test_what_is_no_event_is_put_aside(site: Site) -> None:
    folder = site.spool / "events"
    (folder / "torn.event").write_text("event=start\njob_id=1\n")
    (folder / "big.event").write_bytes(b"x" * 100_000)
    (folder / "wrong.event").write_text("event=start\njob_id=../../etc\nwhole=yes\n")
    (folder / "task.event").write_text("event=task\njob_id=1\nwhole=yes\n")
    (folder / "link.event").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe.event")
    assert read_events(site.spool) == []
    names = {"torn.event", "big.event", "wrong.event", "task.event", "link.event", "pipe.event"}
    assert {path.name for path in (site.spool / "quarantine").iterdir()} == names


def test_lines_of_slurm_conf(site: Site) -> None:
    fresh = slurm_conf_lines(site)
    assert fresh == [
        f"Prolog={site.folder}/prolog.sh",
        f"Epilog={site.folder}/epilog.sh",
        f"TaskProlog={site.folder}/task-prolog.sh",
        "PrologFlags=Alloc",
    ]
    assert slurm_conf_lines(site, "\n".join(fresh)) == []
    there = slurm_conf_lines(site, "Prolog=/etc/old.sh\nPrologFlags=X11\n")
    assert there[0].startswith("# Prolog is /etc/old.sh now.")
    assert there[-1] == "PrologFlags=X11,Alloc"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("event", EVENTS)
def test_hooks_are_clean_shell(site: Site, event: str) -> None:
    done = subprocess.run(["shellcheck", "-"], input=hook(event, site), text=True, capture_output=True)
    assert done.stdout == ""


def test_bad_settings_are_refused(site: Site) -> None:
    with pytest.raises(UsageError, match="event"):
        hook("begin", site)
    with pytest.raises(UsageError, match="period"):
        hook("start", Site(period="2s; reboot"))


def install(folder: Path, *more: str, made: bool = True) -> dict[str, list[str]]:
    """`everywatt slurm install` into a folder, with another everywatt first in PATH if `made`; gives its JSON."""
    program = folder / "bin" / "everywatt"
    program.parent.mkdir(exist_ok=True)
    if made:
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    places = [f"--{name}={folder}/{name}" for name in ("folder", "units", "spool", "store")]
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=x\nPrologFlags=X11\n")
    words = [sys.executable, "-m", "everywatt", "slurm", "install", *places, f"--slurm-conf={conf}", "--json", *more]
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "EVERYWATT_HOME": str(folder / "home")}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert conf.read_text() == "ClusterName=x\nPrologFlags=X11\n", "slurm.conf is the site's"
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_installing_twice_changes_nothing_the_second_time(tmp_path: Path) -> None:
    first = install(tmp_path)
    written = {path: path.stat().st_mtime_ns for name in ("folder", "units") for path in (tmp_path / name).iterdir()}
    assert len(first["changed"]) == 5 == len(written)
    assert first["slurm_conf"][-1] == "PrologFlags=X11,Alloc"
    assert install(tmp_path)["changed"] == []
    assert {path: path.stat().st_mtime_ns for path in written} == written
    hooks = [path for path in written if path.suffix == ".sh"]
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in hooks)
    assert (tmp_path / "spool" / "events").stat().st_mode & 0o777 == 0o700
    (tmp_path / "folder" / "prolog.sh").write_text("changed by hand\n")
    assert install(tmp_path)["changed"] == [str(tmp_path / "folder" / "prolog.sh")]


def test_the_agent_of_a_node_may_have_a_configuration(tmp_path: Path) -> None:
    unit = "everywatt-agent.service"
    install(tmp_path)
    assert "--config" not in (tmp_path / "units" / unit).read_text()
    install(tmp_path, f"--config={tmp_path}/agent.toml")
    assert f"agent --config {tmp_path}/agent.toml --state" in (tmp_path / "units" / unit).read_text()


def test_installing_may_print_and_write_nothing(tmp_path: Path) -> None:
    files = install(tmp_path, "--print")["files"]
    assert len(files) == 5
    assert not (tmp_path / "folder").exists()
    assert not (tmp_path / "spool").exists()


def test_files_of_an_image_name_the_paths_inside_it(tmp_path: Path) -> None:
    """The folder into which an image is made is not there when the image runs."""
    image = tmp_path / "image"
    words = [sys.executable, "-m", "everywatt", "slurm", "install", f"--root={image}", "--json"]
    conf = [f"--slurm-conf={tmp_path}/slurm.conf", "--store=/srv/everywatt"]
    done = subprocess.run([*words, *conf], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Prolog=/etc/everywatt/slurm/prolog.sh" in json.loads(done.stdout)["slurm_conf"]
    written = [path for path in image.rglob("*") if path.is_file()]
    assert image / "etc/systemd/system/everywatt-slurm.service" in written and len(written) == 5
    for path in written:
        text = path.read_text()
        assert str(tmp_path) not in text and str(Path(sys.executable).parent) not in text
    assert (image / "var/spool/everywatt/slurm/events").is_dir()


def test_hooks_call_the_program_that_wrote_them(tmp_path: Path) -> None:
    """Not another installation that comes first in PATH."""
    own = Path(sys.executable).with_name("everywatt")
    install(tmp_path)
    text = (tmp_path / "folder" / "prolog.sh").read_text()
    assert str(tmp_path / "bin") not in text and str(own) in text
    (tmp_path / "bin" / "everywatt").unlink()
    (tmp_path / "bin" / "everywatt").symlink_to(own)
    linked = install(tmp_path, made=False)
    assert str(tmp_path / "folder" / "prolog.sh") in linked["changed"], "a link to this program survives its updates"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    install(tmp_path)
    units = sorted((tmp_path / "units").iterdir())
    done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")
def test_a_disk_that_is_really_full_harms_nobody(site: Site) -> None:
    place = site.spool / "events"
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "everywatt-test", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        with contextlib.suppress(OSError):
            (place / "much").write_bytes(b"x" * 65536)
        check_silent(call(site, "start"))
        assert read_events(site.spool) == []
        assert [path.name for path in place.iterdir()] == ["much"]
        (place / "much").unlink()
        check_silent(call(site, "start"))
        assert len(read_events(site.spool)) == 1
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(not can_mount_fuse(), reason="FUSE cannot be mounted here")
def test_a_program_on_a_mount_that_never_answers_holds_nobody_up(site: Site, tmp_path: Path) -> None:
    with hung_mount(tmp_path / "hung") as hung:
        there = Site(site.spool, site.folder, site.store, hung / "venv/bin/everywatt")
        for _ in range(3):
            check_silent(call(there, "start", timeout=60))
        assert len(read_events(site.spool)) == 3
        assert len(waiting_on(hung)) == 1, "one process waits, however many jobs start"


def waiting_on(path: Path) -> list[int]:
    """Processes with this path among their words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(path) in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
    return found


def test_what_the_prolog_starts_writes_files_that_others_may_read(site: Site) -> None:
    started = site.spool.parent / "started"
    site.command.write_text(f"#!/bin/sh\numask > {started}.part && mv {started}.part {started}\n")
    site.command.chmod(0o755)
    check_silent(call(site, "start"))
    until(started.exists)
    assert started.read_text() == "0022\n"


@pytest.mark.skipif(os.getuid() != 0, reason="for another user the folder below /run/user is used")
@pytest.mark.parametrize("given", ["", "/srv/runtime"])
def test_what_the_prolog_starts_keeps_its_socket_where_no_other_user_can_be_first(site: Site, given: str) -> None:
    started = site.spool.parent / "started"
    site.command.write_text(
        f'#!/bin/sh\necho "$EVERYWATT_RUNTIME_DIR" > {started}.part && mv {started}.part {started}\n'
    )
    site.command.chmod(0o755)
    check_silent(call(site, "start", **({"EVERYWATT_RUNTIME_DIR": given} if given else {})))
    until(started.exists)
    assert started.read_text().strip() == (given or str(RUNTIME))
    assert RUNTIME.parent == Path("/run") and f"EVERYWATT_RUNTIME_DIR={RUNTIME}\n" in unit(
        "everywatt-slurm.service", site
    )


def planted(site: Site, name: str) -> Path:
    """A link that another user has put where a task writes; gives what it points to."""
    folder = next(iter((site.spool / "tasks").glob("[0-9]*")), site.spool / "tasks")
    victim = site.spool.parent / "victim"
    victim.write_text("precious")
    (folder / name).symlink_to(victim)
    return victim


@pytest.mark.parametrize("name", [".task-3-77", "task-3-0-77.event"])
def test_a_task_writes_through_no_link(site: Site, name: str) -> None:
    call(site, "start")
    victim = planted(site, name)
    script = site.spool.parent / "task.sh"
    script.write_text(hook("task", site).replace("$$", "77"))
    check_silent(subprocess.run(["/bin/sh", str(script)], env=JOB, capture_output=True, timeout=20))
    assert victim.read_text() == "precious"
    assert (victim.parent / "spo ol" / "tasks").stat().st_mode & 0o777 == 0o711
    assert not [event for event in read_events(site.spool) if event.kind == "task"]


def test_a_user_with_many_files_starves_nobody(site: Site) -> None:
    tasks = site.spool / "tasks"
    for uid, count in (("1000", 3000), ("2000", 1)):
        (tasks / uid).mkdir()
        for number in range(count):
            (tasks / uid / f"!{number:05}.event").write_text("event=task\njob_id=7\nwhole=yes\n")
    seen: dict[str, int] = {}
    for event in read_events(site.spool):
        seen[event.path.parent.name] = seen.get(event.path.parent.name, 0) + 1
    assert seen["2000"] == 1 and 0 < seen["1000"] <= 500


def test_what_users_leave_that_is_no_event_is_removed(site: Site) -> None:
    own = site.spool / "tasks" / "1000"
    own.mkdir()
    (own / "!big.event").write_bytes(b"x" * 100_000)
    (own / "!link.event").symlink_to("/etc/passwd")
    os.mkfifo(own / "!pipe.event")
    assert read_events(site.spool) == []
    assert list(own.iterdir()) == []
