"""The ledger against the truth: real processes in a simulated machine whose power follows their CPU time.

A package of `load:10W,50W` on a machine with N CPUs draws 40/N joules for each CPU-second on top of its 10 W, so what
a process owes follows from its own rusage, which each worker leaves in a file.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import everywatt
from everywatt.ledger.owners import OwnerKind

# What a process used is known up to its last look: beside other tests it lives longer, and its end is seen later.
pytestmark = pytest.mark.serial

SOURCE = Path(everywatt.__file__).parents[1]
IDLE_W, MAX_W = 10.0, 50.0
GPU_W = 200.0
PER_CPU_S = (MAX_W - IDLE_W) / (os.cpu_count() or 1)
LAST = (os.cpu_count() or 1) - 1

# Every script ends by leaving its rusage, children included where it waited for some, in a file named like itself.
COMMON = """
import json, os, resource, sys, time
def burn(cpu_s):
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass
def done(name):
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    with open(name, "w") as file:
        json.dump(sum(one.ru_utime + one.ru_stime for one in used), file)
"""
SPINNER = """
name, duty, seconds, cpu = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
os.sched_setaffinity(0, {cpu})
began = time.monotonic()
while (now := time.monotonic() - began) < seconds:
    ahead = time.process_time() - duty * now
    if ahead > 0:
        time.sleep(min(ahead / duty, 0.05))
    else:
        burn(0.002)
done(name)
"""
# Children that come and go all the time: some within one interval, some over two.
CHURN = """
name, seconds = sys.argv[1], float(sys.argv[2])
began = time.monotonic()
turn = 0
while time.monotonic() - began < seconds:
    turn += 1
    if os.fork() == 0:
        burn(0.1 if turn % 3 else 0.25)
        os._exit(0)
    os.wait()
    time.sleep(0.3)
done(name)
"""
DAEMON = """
name = sys.argv[1]
time.sleep(1.2)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        burn(0.5)
        done(name + ".daemon")
    os._exit(0)
os.wait()
time.sleep(3.0)
"""
ON_GPU = """
from everywatt.sim.loads import use_gpu
name, share, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
began = time.monotonic()
with use_gpu(share):
    time.sleep(seconds)
with open(name, "w") as file:
    json.dump(share * (time.monotonic() - began), file)
"""
AS_USER = """
name, uid = sys.argv[1], int(sys.argv[2])
file = os.open(name, os.O_WRONLY | os.O_CREAT)
os.setuid(uid)
burn(1.5)
os.write(file, json.dumps(time.process_time()).encode())
"""


class Machine:
    """A simulated machine in a folder; workers are scripts in it."""

    def __init__(self, folder):
        self.folder = folder
        for name, text in (
            ("spinner", SPINNER), ("churn", CHURN), ("daemon", DAEMON), ("on_gpu", ON_GPU), ("as_user", AS_USER)
        ):  # fmt: skip
            (folder / f"{name}.py").write_text(COMMON + text)

    def run(self, command, *, hardware, options=(), timeout=240):
        """Run a shell command in `everywatt run --json`, inside `everywatt sim`; gives the run and the JSON."""
        env = dict(os.environ, PYTHONPATH=str(SOURCE), EVERYWATT_HOME=str(self.folder / "runs"), PYTHON=sys.executable)
        mine = [sys.executable, "-m", "everywatt"]
        done = subprocess.run(
            [*mine, "sim", *hardware, "--", *mine, "run", "--json", *options, "--", "sh", "-c", command],
            cwd=self.folder, env=env, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        return everywatt.load(document["path"]), document

    def rusage(self, name):
        """CPU seconds (SM seconds on a card) that a worker says it used."""
        return json.loads((self.folder / name).read_text())


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def package(factor=1.0):
    return ["--package", f"load:{IDLE_W * factor:g}W,{MAX_W * factor:g}W"]


def active_j(entries, device="cpu.0"):
    """Joules of a device that some entries owe; nothing of these is idle's."""
    parts = [dict(entry.energy.parts).get(device) for entry in entries]
    return sum(part.joules for part in parts if part is not None)


def of(ledger, word):
    """Entries of processes with a word in their command line."""
    found = [e for e in ledger.entries if e.owner.kind is OwnerKind.PROCESS and word in f" {e.owner.label} "]
    assert found, [entry.owner.label for entry in ledger.entries]
    return found


def conserved(ledger):
    assert ledger.checks.hold, ledger.checks
    assert sum(entry.microjoules for entry in ledger.entries) == round(ledger.total.joules * 1e6)


def test_spinners_owe_what_their_rusage_says_while_others_come_and_go(machine):
    """Fourteen seconds; two packages of which one draws twice as much, so each owner owes twice as much of it."""
    run, document = machine.run(
        f"$PYTHON spinner.py full 1.0 14 0 & $PYTHON spinner.py half 0.5 14 {LAST} & "
        f"$PYTHON spinner.py quarter 0.25 14 {LAST} & $PYTHON churn.py churn 13 & "
        "$PYTHON on_gpu.py much 0.5 13 & $PYTHON on_gpu.py little 0.25 13 & wait",
        hardware=[*package(), *package(2.0), "--gpu", f"load:20W,{20 + GPU_W:g}W"],
        options=["--idle", "4s"],
    )
    ledger = run.ledger()
    conserved(ledger)
    assert ledger.unattributed_share <= 0.02
    for name in ("full", "half", "quarter", "churn"):
        mine = of(ledger, f" {name} ") if name != "churn" else _churned(ledger)
        owed = machine.rusage(name) * PER_CPU_S
        assert sum(entry.use["cpu_s"] for entry in mine) == pytest.approx(machine.rusage(name), rel=0.03)
        assert active_j(mine) == pytest.approx(owed, rel=0.03), name
        assert active_j(mine, "cpu.1") == pytest.approx(2 * active_j(mine), rel=0.02), name
    for name in ("much", "little"):
        sm_s = machine.rusage(name)
        assert active_j(of(ledger, f" {name} "), "gpu.0") == pytest.approx(GPU_W * sm_s, rel=0.03), name
    by_user = run.ledger("user")
    conserved(by_user)
    mine = by_user.entry(str(os.getuid()))
    users = sum(entry.use["cpu_s"] for entry in by_user.entries if entry.owner.kind is OwnerKind.USER)
    assert mine.use["cpu_s"] >= 0.98 * users, "what came and went unseen has no user"
    assert document["ledger"]["checks"]["hold"] is True


def _churned(ledger):
    return [e for e in ledger.entries if "churn.py" in e.owner.label or "children of" in e.owner.label]


def test_short_turns_on_a_gpu_are_owed_by_who_had_them(machine):
    """A few seconds in all: who came and went is read often enough that no second is charged to the wrong one."""
    run, _ = machine.run(
        "$PYTHON on_gpu.py first 0.6 2.5 & (sleep 1.7; $PYTHON on_gpu.py second 0.3 2.2); wait",
        hardware=["--gpu", f"load:20W,{20 + GPU_W:g}W"],
        options=["--idle", "2s"],
    )
    ledger = run.ledger()
    conserved(ledger)
    for name in ("first", "second"):
        owed = active_j(of(ledger, f" {name} "), "gpu.0")
        assert owed == pytest.approx(GPU_W * machine.rusage(name), rel=0.1), name


def test_the_rows_add_up_to_the_last_digit_printed(machine):
    run, document = machine.run(
        "$PYTHON spinner.py A 0.4 3 0 & $PYTHON spinner.py B 0.2 3 0 & wait",
        hardware=package(),
        options=["--idle", "2s"],
    )
    owners = document["ledger"]["owners"]
    labels = [owner["owner"]["label"] for owner in owners]
    for word in (" A ", " B "):
        assert any(word in label for label in labels), labels
    kinds = {owner["owner"]["kind"] for owner in owners}
    assert kinds >= {"process", "idle", "meter", "unattributed"}
    assert round(sum(owner["energy"]["joules"] for owner in owners), 6) == document["ledger"]["total"]["joules"]
    env = dict(os.environ, PYTHONPATH=str(SOURCE), EVERYWATT_HOME=str(machine.folder / "runs"), COLUMNS="200")
    text = subprocess.run(
        [sys.executable, "-m", "everywatt", "ledger", str(run.path)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    amounts = re.findall(r"^(.+?)  +([\d.]+) (m?J) ", text.partition("OWNER")[2], re.MULTILINE)
    *rows, (last, whole, unit) = amounts
    assert last.strip() == "total" and unit == "J" and len(rows) == len(owners)
    sum_j = sum(float(amount) / (1000 if unit == "mJ" else 1) for _, amount, unit in rows)
    # Where a small owner has a unit of its own, what it has more digits than the others do not show.
    digit_j = 10.0 ** -len(whole.partition(".")[2])
    apart_j = digit_j if any(unit == "mJ" for _, _, unit in rows) else 0.0
    assert abs(sum_j - float(whole)) <= apart_j + 1e-9, text


def test_a_daemon_that_was_forked_twice_is_charged(machine):
    """It burns half a second between two reads of the processes, with nobody left to wait for it."""
    run, _ = machine.run("$PYTHON daemon.py d", hardware=package(), options=["--idle", "2s"])
    ledger = run.ledger()
    conserved(ledger)
    mine = [entry for entry in ledger.entries if entry.owner.kind is OwnerKind.PROCESS]
    used = sum(entry.use.get("cpu_s", 0.0) for entry in mine)
    assert used >= 0.95 * machine.rusage("d.daemon")


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_two_users(machine):
    machine.folder.chmod(0o755)
    run, _ = machine.run(
        "$PYTHON as_user.py one 65534 & $PYTHON as_user.py two 54321 & wait",
        hardware=package(),
        options=["--idle", "2s"],
    )
    ledger = run.ledger("user")
    conserved(ledger)
    for name, uid in (("one", "65534"), ("two", "54321")):
        entry = ledger.entry(uid)
        assert entry.owner.kind is OwnerKind.USER
        assert entry.use["cpu_s"] == pytest.approx(machine.rusage(name), rel=0.05)
    assert ledger.entry("65534").owner.label == "nobody"
    assert ledger.entry("54321").owner.label == "54321", "nobody has that number"


GROUPS = next((p for p in map(Path, ("/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup")) if os.access(p, os.W_OK)), None)


@pytest.mark.skipif(GROUPS is None, reason="cgroups cannot be made here")
def test_a_container_is_an_owner(machine):
    """A real cgroup, named as Docker names them; one worker goes into it, the other stays outside."""
    number = f"{os.getpid():064x}"
    group = GROUPS / f"docker-{number}.scope"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    try:
        run, _ = machine.run(
            f"sh -c 'echo $$ > {group}/cgroup.procs && exec $PYTHON spinner.py inside 0.5 4 0' & "
            f"$PYTHON spinner.py outside 0.25 4 {LAST} & wait",
            hardware=package(),
            options=["--idle", "2s"],
        )
    finally:
        group.rmdir()
    ledger = run.ledger("container")
    conserved(ledger)
    inside = ledger.entry(f"container:{number}")
    assert inside.owner.label == number[:12]
    assert inside.use["cpu_s"] == pytest.approx(machine.rusage("inside"), rel=0.05)
    assert inside.details["runtime"] == "docker"
    others = [entry for entry in ledger.entries if entry.owner.kind is OwnerKind.CONTAINER and entry is not inside]
    assert sum(entry.use["cpu_s"] for entry in others) >= machine.rusage("outside")
