"""Process trees, with real processes and with trees of files that stand in for /proc."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from everywatt.sensors import procfs
from everywatt.sensors.usage import member
from everywatt.sensors.usage.processes import Trees

BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
PROC = Path("/proc")


def wait_for(trees, wanted):
    """Read until `wanted(rows)` is true; all rows by then."""
    rows = []

    def look():
        rows.extend(trees.read())
        return wanted(rows)

    until(look)
    return rows


@pytest.fixture
def shell():
    """A shell that runs what it is told, line by line."""
    process = subprocess.Popen(["sh"], stdin=subprocess.PIPE, text=True)
    # Popen returns as soon as the program is being loaded, and its arguments are there a little later.
    until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "arguments of the shell")
    yield process
    process.stdin.close()
    process.wait(timeout=240)


def tell(shell, line):
    shell.stdin.write(line + "\n")
    shell.stdin.flush()


def test_a_child_joins_and_its_seconds_outlive_it(shell):
    trees = Trees(PROC, [shell.pid])
    first = trees.read()
    assert [row["pid"] for row in first] == [shell.pid]
    assert first[0]["cmdline"] == "sh" and first[0]["uid"] == os.getuid() and first[0]["cgroup"].startswith("/")
    tell(shell, f"{sys.executable} -c '{BURN.format(seconds=0.3)}'")
    rows = wait_for(trees, lambda rows: any(row.get("children_cpu_s", 0) >= 0.27 for row in rows))
    assert any(row["pid"] != shell.pid and not row.get("gone") for row in rows)
    rows += wait_for(trees, lambda rows: len(trees) == 1)
    young = {(row["pid"], row["start"]) for row in rows if row["pid"] != shell.pid}
    ended = {(row["pid"], row["start"]) for row in rows if row.get("gone")}
    assert ended == young
    last = [row for row in rows if row["pid"] == shell.pid][-1]
    assert last["cpu_s"] + last["children_cpu_s"] >= 0.27


def test_a_child_that_lived_between_two_reads_is_charged(shell):
    trees = Trees(PROC, [shell.pid])
    trees.read()
    tell(shell, f"{sys.executable} -c '{BURN.format(seconds=0.2)}'")
    until(lambda: procfs.parse_process_stat(procfs.slurp(f"/proc/{shell.pid}/stat")).children_cpu_s >= 0.18)
    rows = trees.read()  # only now: the child was born, worked and ended unseen
    assert next(row for row in rows if row["pid"] == shell.pid)["children_cpu_s"] >= 0.18


def test_grandchildren_are_found_at_once(shell):
    tell(shell, "sh -c 'sh -c \"sleep 30; true\"; true'")
    trees = Trees(PROC, [shell.pid])
    rows = wait_for(trees, lambda rows: any(row.get("name") == "sleep" for row in rows))
    names = {row["pid"]: row["ppid"] for row in rows if not row.get("gone")}
    assert len(names) == 4 and shell.pid in names
    sleeper = next(row["pid"] for row in rows if row.get("name") == "sleep")
    os.kill(sleeper, 9)


def test_a_child_of_a_thread_is_found():
    code = (
        "import subprocess, threading\n"
        "work = threading.Thread(target=lambda: subprocess.run(['sleep', '30']))\n"
        "work.start()\nwork.join()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        rows = wait_for(Trees(PROC, [parent.pid]), lambda rows: any(row.get("name") == "sleep" for row in rows))
        sleeper = next(row for row in rows if row.get("name") == "sleep")
        assert sleeper["ppid"] == parent.pid
        os.kill(sleeper["pid"], 9)
    finally:
        parent.wait(timeout=240)


def test_nothing_changed_means_no_rows():
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        trees = Trees(PROC, [sleeper.pid])
        wait_for(trees, lambda rows: rows and rows[-1]["name"] == "sleep")
        time.sleep(0.05)  # until the kernel has charged what it ran, and it sleeps
        trees.read()
        assert trees.read() == []
        trees.follow([sleeper.pid])  # somebody new listens: everything again
        assert trees.read()[0]["cmdline"] == "sleep 30"
    finally:
        sleeper.kill()
        sleeper.wait()
    assert [row["gone"] for row in trees.read()] == [True]
    assert len(trees) == 0


def test_a_zombie_keeps_its_seconds_until_it_is_waited_for():
    child = subprocess.Popen([sys.executable, "-c", BURN.format(seconds=0.1)])
    trees = Trees(PROC, [child.pid])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    row = trees.read()[-1]
    assert row["zombie"] is True and row["cpu_s"] >= 0.08
    child.wait()
    assert trees.read() == [{"pid": child.pid, "start": row["start"], "gone": True}]


def test_the_meter_is_flagged_with_its_children_unless_it_is_asked_for():
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        trees = Trees(PROC, meter=os.getpid())
        rows = {row["pid"]: row for row in trees.read()}
        assert rows[os.getpid()]["meter"] is True and rows[sleeper.pid]["meter"] is True
        trees.follow([sleeper.pid])
        rows = {row["pid"]: row for row in trees.read()}
        assert rows[os.getpid()]["meter"] is True and "meter" not in rows[sleeper.pid]
        trees.follow([os.getpid()])
        assert not any(row.get("meter") for row in trees.read())
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_pid_that_never_was():
    trees = Trees(PROC, [2**22 + 5])
    assert trees.read() == [{"pid": 2**22 + 5, "start": None, "gone": True}]
    assert trees.read() == []


class Tree:
    """Files in the form of /proc."""

    def __init__(self, root: Path, lists: bool = True) -> None:
        self.root, self.lists = root, lists

    def put(self, pid, ppid=1, ticks=0, start=100, name="x", children=(), cgroup="0::/a", threads=1):
        folder = self.root / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        line = f"{pid} ({name}) S {ppid} 0 0 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 {threads} 0 {start} 0 10 0 0 0\n"
        (folder / "stat").write_text(line)
        (folder / "status").write_text("Uid:\t1000\t0\t0\t0\n")
        (folder / "cmdline").write_text(f"{name}\0--flag\0")
        (folder / "cgroup").write_text(cgroup + "\n")
        if self.lists:
            (folder / "task" / str(pid) / "children").write_text(" ".join(map(str, children)))

    def remove(self, pid):
        folder = self.root / str(pid)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


def test_a_reused_pid_is_another_process(tmp_path):
    tree = Tree(tmp_path)
    tree.put(10, children=[11])
    tree.put(11, ppid=10, ticks=50, start=200, name="old")
    trees = Trees(tmp_path, [10])
    assert [(row["pid"], row["name"]) for row in trees.read()] == [(10, "x"), (11, "old")]
    tree.put(11, ppid=10, ticks=3, start=900, name="new")
    rows = trees.read()
    assert {"pid": 11, "start": 200, "gone": True} in rows
    new = next(row for row in rows if row.get("start") == 900)
    assert (new["name"], new["cpu_s"], new["cmdline"]) == ("new", 3 / procfs.TICKS_PER_S, "new --flag")


def test_a_reused_pid_of_somebody_else_is_not_followed(tmp_path):
    tree = Tree(tmp_path)
    tree.put(10)
    trees = Trees(tmp_path, [10])
    trees.read()
    tree.put(10, start=999)
    assert trees.read() == [{"pid": 10, "start": 100, "gone": True}]
    assert trees.read() == []


def test_kernels_without_lists_of_children_are_scanned_once_for_each_process(tmp_path, monkeypatch):
    tree = Tree(tmp_path, lists=False)
    tree.put(10)
    for pid in range(1000, 1040):
        tree.put(pid, ppid=1)
    trees = Trees(tmp_path, [10])
    assert [row["pid"] for row in trees.read()] == [10]
    tree.put(20, ppid=10)
    tree.put(21, ppid=20)
    asked = []
    real = procfs.slurp
    monkeypatch.setattr(procfs, "slurp", lambda path, limit=None: asked.append(str(path)) or real(path, limit))
    assert sorted(row["pid"] for row in trees.read()) == [20, 21]
    assert not any("/10" in path.removeprefix(str(tmp_path)) and path.endswith("/stat") for path in asked)
    tree.put(50, ppid=1000)
    trees.follow([1000])  # its child was a stranger until now
    assert sorted(row["pid"] for row in trees.read()) == [10, 20, 21, 50, 1000]


def test_only_a_fork_makes_it_look_for_children(tmp_path, monkeypatch):
    tree = Tree(tmp_path)
    tree.put(10)
    (tmp_path / "loadavg").write_text("0.0 0.0 0.0 1/100 500\n")
    trees = Trees(tmp_path, [10])
    trees.read()
    tree.put(10, children=[11])
    tree.put(11, ppid=10)
    assert trees.read() == []
    (tmp_path / "loadavg").write_text("0.0 0.0 0.0 1/100 501\n")
    assert [row["pid"] for row in trees.read()] == [11]


@pytest.mark.parametrize("victim", ["status", "cmdline", "cgroup", "children"])
@pytest.mark.parametrize("error", [FileNotFoundError, ProcessLookupError, PermissionError])
def test_any_file_may_vanish_in_the_middle_of_a_read(tmp_path, monkeypatch, victim, error):
    tree = Tree(tmp_path)
    tree.put(10, children=[11], ticks=7)
    tree.put(11, ppid=10)
    real = procfs.slurp

    def vanishing(path, limit=None):
        if str(path).endswith(victim):
            raise error(str(path))
        return real(path, limit)

    monkeypatch.setattr(procfs, "slurp", vanishing)
    rows = Trees(tmp_path, [10]).read()
    assert rows[0]["pid"] == 10 and rows[0]["cpu_s"] == 7 / procfs.TICKS_PER_S


def test_a_child_that_vanishes_before_its_first_read_leaves_no_row(tmp_path):
    tree = Tree(tmp_path)
    tree.put(10, children=[11])
    trees = Trees(tmp_path, [10])
    assert [row["pid"] for row in trees.read()] == [10]
    assert len(trees) == 1


def test_a_hidden_process_is_said_once(tmp_path, monkeypatch):
    Tree(tmp_path).put(10)

    def refuse(path):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(procfs, "KeptFile", refuse)
    trees = Trees(tmp_path, [10])
    (row,) = trees.read()
    assert row["hidden"] is True and row["start"] is None and "hidepid" in row["why"]
    assert trees.read() == []


def test_a_large_tree_keeps_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(member, "KEEP_OPEN", 5)
    tree = Tree(tmp_path)
    tree.put(10, children=range(100, 130))
    for pid in range(100, 130):
        tree.put(pid, ppid=10)
    before = len(os.listdir("/proc/self/fd"))
    trees = Trees(tmp_path, [10])
    assert len(trees.read()) == 31
    assert len(os.listdir("/proc/self/fd")) == before + 5
    for pid in range(100, 130):
        tree.put(pid, ppid=10, start=777)  # all reused, open or not
    assert sum(row.get("gone", False) for row in trees.read()) == 30
    trees.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_move_to_another_cgroup_is_told(tmp_path):
    tree = Tree(tmp_path)
    tree.put(10)
    trees = Trees(tmp_path, [10])
    assert trees.read()[0]["cgroup"] == "/a"
    tree.put(10, cgroup="0::/b")
    assert trees.read()[0]["cgroup"] == "/b"
    assert {place.path for place in trees.places} == {"/b"}


def test_seconds_come_from_the_clock_to_the_nanosecond():
    child = subprocess.Popen([sys.executable, "-S", "-c", BURN.format(seconds=0.05) + "time.sleep(30)"])
    try:
        trees = Trees(PROC, [child.pid])
        rows = wait_for(trees, lambda rows: rows and rows[-1].get("cpu_s", 0) >= 0.05)
        assert rows[-1]["cpu_s"] == time.clock_gettime_ns(procfs.cpu_clock(child.pid)) / 1e9
        assert rows[-1]["cpu"] in range(os.cpu_count())
    finally:
        child.kill()
        child.wait()


def test_files_of_a_process_that_did_not_run_are_not_read(monkeypatch):
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        trees = Trees(PROC, [sleeper.pid])
        wait_for(trees, lambda rows: rows and rows[-1]["name"] == "sleep")
        time.sleep(0.05)  # until the kernel has charged what it ran, and it sleeps
        trees.read()
        asked = []
        monkeypatch.setattr(procfs, "slurp", lambda path, limit=None: asked.append(str(path)) or b"0 0 0 1/1 7")
        trees._reader._stat_bytes = lambda member: asked.append(member.pid)
        trees._last_pid, trees._looked_s = 7, time.monotonic()
        assert trees.read() == []
        assert asked == ["/proc/loadavg"]
    finally:
        sleeper.kill()
        sleeper.wait()


def test_everything_is_all_that_proc_lists():
    trees = Trees(PROC, everything=True)
    rows = trees.read()
    assert rows[0] == {"pid": 0, "start": 0, "name": "host", "everything": True, "exits": False}
    told = {row["pid"] for row in rows}
    listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    assert os.getpid() in told and 1 in told
    assert len(listed - told) <= 0.2 * len(listed) + 10  # some came and went meanwhile
    child = subprocess.Popen(["sleep", "30"])
    try:
        young = wait_for(trees, lambda rows: any(row.get("name") == "sleep" for row in rows))
        assert any(row["pid"] == child.pid and row["ppid"] == os.getpid() for row in young)
    finally:
        child.kill()
        child.wait()
    wait_for(trees, lambda rows: {"pid": child.pid} == {"pid": r["pid"] for r in rows if r["pid"] == child.pid})


def test_a_reused_pid_in_everything(tmp_path):
    tree = Tree(tmp_path)
    tree.put(11, ticks=50, start=200, name="old")
    trees = Trees(tmp_path, everything=True)
    trees.read()
    tree.put(11, ticks=3, start=900, name="new")
    rows = trees.read()
    assert {"pid": 11, "start": 200, "gone": True} in rows
    assert [row["cpu_s"] for row in rows if row.get("start") == 900] == [3 / procfs.TICKS_PER_S]


def test_cpu_time_never_goes_back(tmp_path):
    tree = Tree(tmp_path)
    tree.put(10, ticks=50)
    trees = Trees(tmp_path, [10])
    trees.read()
    tree.put(10, ticks=20, name="y")
    assert trees.read()[0]["cpu_s"] == 50 / procfs.TICKS_PER_S


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_processes_of_two_users():
    def become(uid):
        return lambda: os.setuid(uid)

    children = [subprocess.Popen(["sleep", "30"], preexec_fn=become(uid)) for uid in (1234, 4321)]
    try:
        trees = Trees(PROC, [child.pid for child in children])
        rows = wait_for(trees, lambda rows: sum(row.get("name") == "sleep" for row in rows) >= 2)
        uids = {row["pid"]: row["uid"] for row in rows if "uid" in row}
        assert [uids[child.pid] for child in children] == [1234, 4321]
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_process_that_proc_hides_is_told_by_its_clock(monkeypatch):
    child = subprocess.Popen([sys.executable, "-S", "-c", BURN.format(seconds=0.1) + "time.sleep(30)"])
    real = procfs.slurp

    def hide(path, limit=None):
        if f"/{child.pid}/" in str(path):
            raise FileNotFoundError(2, "No such file or directory")  # hidepid=2
        return real(path, limit)

    monkeypatch.setattr(procfs, "slurp", hide)
    try:
        trees = Trees(PROC, [child.pid])
        rows = wait_for(trees, lambda rows: rows and rows[-1].get("cpu_s", 0) >= 0.1)
        assert rows[0]["hidden"] is True and "hidepid" in rows[0]["why"] and rows[-1]["start"] is None
    finally:
        child.kill()
        child.wait()
    assert trees.read() == [{"pid": child.pid, "start": None, "gone": True}]


def test_the_reaper_is_the_meter_and_its_children_are_not():
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        rows = {row["pid"]: row for row in Trees(PROC, reaper=os.getpid()).read()}
        assert rows[os.getpid()]["reaper"] is True and rows[os.getpid()]["meter"] is True
        assert "meter" not in rows[sleeper.pid] and "reaper" not in rows[sleeper.pid]
    finally:
        sleeper.kill()
        sleeper.wait()


def test_pss_where_it_is_asked_for(monkeypatch):
    (row,) = [row for row in Trees(PROC, [os.getpid()], memory="pss").read() if row["pid"] == os.getpid()]
    assert 0 < row["uss_bytes"] <= row["pss_bytes"] <= 1.2 * row["rss_bytes"]
    assert "pss_bytes" not in Trees(PROC, [os.getpid()]).read()[0]
    real = procfs.slurp

    def refuse(path, limit=None):
        if str(path).endswith("smaps_rollup"):
            raise PermissionError(13, "Permission denied")
        return real(path, limit)

    monkeypatch.setattr(procfs, "slurp", refuse)
    row = Trees(PROC, [os.getpid()], memory="pss").read()[0]
    assert row["pss_bytes"] is None and "CAP_SYS_PTRACE" in row["memory_why"] and row["rss_bytes"] > 0


def test_who_makes_a_simulated_machines_power_is_not_in_it():
    root = subprocess.Popen(["sh", "-c", "sleep 31 & echo $!; exec sleep 32"], stdout=subprocess.PIPE, text=True)
    beside = int(root.stdout.readline())
    try:
        trees = Trees(PROC, everything=True, below=root.pid, beside=beside)
        rows = wait_for(trees, lambda rows: any(row["pid"] == root.pid for row in rows))
        for _ in range(3):
            rows += trees.read()
        assert beside not in {row["pid"] for row in rows}
    finally:
        for pid in (beside, root.pid):
            os.kill(pid, 9)
        root.wait(timeout=240)
        root.stdout.close()


def test_everything_of_a_simulated_machine_is_below_one_process():
    root = subprocess.Popen(["sh", "-c", "sleep 30; true"], start_new_session=True)
    try:
        trees = Trees(PROC, everything=True, below=root.pid, reaper=os.getpid())
        rows = wait_for(trees, lambda rows: any(row.get("name") == "sleep" for row in rows))
        assert rows[0]["everything"] is True
        assert {row["pid"] for row in rows} >= {0, root.pid, os.getpid()} and 1 not in {row["pid"] for row in rows}
    finally:
        os.killpg(
            root.pid, signal.SIGKILL
        )  # not any process of that name: another test may have one below this process
        root.wait(timeout=240)
