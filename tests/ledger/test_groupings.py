"""Ledgers by container, job, user and span, on tapes whose truth is known."""

import pytest
from machines import Process, write_machine

from everywatt.api.run import load
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.ledger.owners import OwnerKind
from everywatt.ledger.use.usage import ProcessUse

SECONDS = 12
ID = "4f1c0de5" * 8
DOCKER = f"/system.slice/docker-{ID}.scope"
JOB = "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0"


def flat(value, seconds=SECONDS):
    return [value] * seconds


def adds_up(ledger):
    assert ledger.checks.hold, ledger.checks
    assert sum(entry.microjoules for entry in ledger.entries) == round(ledger.total.joules * 1e6)


@pytest.fixture
def run(tmp_path):
    """60 W, of which 20 are idle and 40 belong to four processes that use one CPU each."""
    working = [
        Process(101, flat(1.0), extra={"uid": 1000, "user": "ada", "cgroup": DOCKER}),
        Process(102, flat(1.0), extra={"uid": 1000, "user": "ada", "cgroup": f"{DOCKER}/inner"}),
        Process(103, flat(1.0), extra={"uid": 54321, "cgroup": JOB}),
        Process(104, flat(1.0), extra={"uid": 1000, "user": "ada", "cgroup": "/"}),
    ]
    names = [
        {"cgroup": DOCKER, "name": {"name": "web", "image": "nginx:1.27"}},
        {"cgroup": f"{DOCKER}/inner", "name": {"name": "web", "image": "nginx:1.27"}},
        {"cgroup": JOB, "name": {"job_id": 4711}},
    ]
    path = write_machine(
        tmp_path / "x.tape", {"cpu.0": flat(60.0)}, working, seconds=SECONDS, cgroup_rows={0: names}, everything=True
    )
    return load(path)


@pytest.mark.parametrize(
    ("by", "owed"),
    [
        ("container", {"web": 20.0, "job 4711": 10.0, "(no container)": 10.0}),
        ("job", {"job 4711": 10.0, "(no job)": 30.0}),
        ("user", {"ada": 30.0, "54321": 10.0}),
    ],
)
def test_groups_of_processes(run, by, owed):
    ledger = run.ledger(by, baseline=20.0)
    adds_up(ledger)
    found = {e.owner.label: e.energy.joules / SECONDS for e in ledger.entries if e.owner.kind == by}
    assert found == pytest.approx(owed, rel=1e-3)
    assert ledger.entry("idle").energy.joules / SECONDS == pytest.approx(20.0, rel=1e-3)


def test_owners_are_told_with_what_is_known_of_them(run):
    container = run.ledger("container").entry("web")
    assert container.owner.id == f"container:{ID}"
    assert container.details == {
        "runtime": "docker",
        "container_id": ID,
        "name": "web",
        "image": "nginx:1.27",
        "processes": 2,
    }
    assert container.use["cpu_s"] == pytest.approx(2 * SECONDS, rel=1e-3)
    job = run.ledger("job").entry("job 4711")
    assert (job.details["job_id"], job.details["sluid"]) == (4711, "s5K1KKYAYG5D00")


def test_a_process_that_is_moved_is_charged_where_it_was():
    use = ProcessUse(1.0, None)
    row = {"pid": 7, "start": 1, "ppid": 1, "name": "x", "rss_bytes": 1 << 20, "threads": 1, "children_cpu_s": 0.0}
    for second, cgroup in enumerate(["/a", None, "/b", None, "/b"]):
        more = {} if cgroup is None else {"cgroup": cgroup}
        use.feed(second * NS + NS, [{**row, "cpu_s": float(second), **more}])
    assert [(facts.id, facts.cgroup, facts.moved) for facts in use.processes] == [
        ("7:1", "/a", True),
        ("7:1", "/b", False),
    ]
    used = {number: float(use.records.cpu_s[use.records.number == number].sum()) for number in (0, 1)}
    assert used == {0: 1.0, 1: 3.0}, "it was in /b when it was read for the third time"


def test_spans_share_by_what_their_processes_used(tmp_path):
    """Two spans at once: one of a process that uses three times as much as the other's."""
    spans = [
        ("run", 0.0, 12.0, {"role": "run"}),
        ("busy", 2.0, 10.0, {"pid": 101}),
        ("lazy", 2.0, 10.0, {"pid": 102}),
        ("later", 10.0, 11.0, {}),
    ]
    path = write_machine(
        tmp_path / "x.tape",
        {"cpu.0": flat(60.0)},
        [Process(101, flat(0.75)), Process(102, flat(0.25))],
        seconds=SECONDS,
        spans=spans,
    )
    run = load(path)
    ledger = run.ledger("span", baseline=20.0)
    adds_up(ledger)
    owed = {entry.owner.label: entry.energy.joules for entry in ledger.entries}
    assert owed == pytest.approx(
        {"busy": 8 * (10 + 30), "lazy": 8 * (10 + 10), "later": 60.0, "outside the spans": 180.0}, rel=1e-3
    )
    assert ledger.entry("busy").owner.kind is OwnerKind.SPAN
    assert ledger.entry("busy").method == "overlap and use"
    assert ledger.idle["cpu.0"]["watts"] == 20.0
    with pytest.raises(UsageError, match="by overlap"):
        run.ledger("span", idle_policy="by-use")


def test_spans_share_a_card_by_sm_use(tmp_path):
    spans = [("a", 0.0, 12.0, {"pid": 101, "devices": ["gpu.0"]}), ("b", 0.0, 12.0, {"pid": 102, "devices": ["gpu"]})]
    rows = [
        {"gpu": 0, "uuid": "u", "pid": pid, "type": "C", "memory_bytes": 1, "sm": sm}
        for pid, sm in ((101, 60), (102, 20))
    ]
    path = write_machine(
        tmp_path / "x.tape",
        {"cpu.0": flat(30.0), "gpu.0": flat(200.0)},
        [],
        seconds=SECONDS,
        spans=spans,
        gpu_rows=dict.fromkeys(range(1, SECONDS + 1), rows),
    )
    ledger = load(path).ledger("span", baseline={"gpu.0": 40.0})
    adds_up(ledger)
    assert ledger.entry("a").energy.joules == pytest.approx(12 * (20 + 120), rel=1e-3)
    assert ledger.entry("b").energy.joules == pytest.approx(12 * (20 + 40), rel=1e-3)
    assert ledger.entry("outside the spans").energy.joules == pytest.approx(12 * 30, rel=1e-3)
