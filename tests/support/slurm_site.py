"""A Slurm cluster whose nodes are simulated machines that everywatt records: hooks, `slurm node`, a store.

Each node's `slurmd` runs in `everywatt sim`, with a package that draws 40 W for its CPUs on top of 10 W, and cards. A
job's true energy follows from the CPU time that it says it used.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_cluster import Options, SlurmCluster
from waiting import LIMIT_S

import everywatt
from everywatt.slurm.node.hooks import EVENTS, NAMES, Site, hook, make_spool
from everywatt.slurm.node.spool import AGENT, NODE, holder
from everywatt.slurm.schema import JobOnNode, NodeHour
from everywatt.slurm.site.store import Store

SOURCE = Path(everywatt.__file__).parents[1]
IDLE_W, MAX_W = 10.0, 50.0
CARD_W = (20.0, 220.0)
FREEZER = Path("/sys/fs/cgroup/freezer")  # where Slurm has the processes of jobs with cgroups of version 1
PER_CPU_S = (MAX_W - IDLE_W) / (os.cpu_count() or 1)

# Uses CPUs to some share for some seconds, and says in a file what it used.
BURN = """
import json, os, resource, sys, time
name, duty, seconds, go_on = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
began = time.monotonic()
while (now := time.monotonic() - began) < seconds or (go_on and not os.path.exists(name + ".end")):
    ahead = time.process_time() - duty * now
    if ahead > 0:
        time.sleep(min(ahead / duty, 0.05))
    else:
        end = time.process_time() + 0.002
        while time.process_time() < end:
            pass
used = resource.getrusage(resource.RUSAGE_SELF)
with open(name + ".new", "w") as file:  # a job may wait for the file and end as soon as it is there
    json.dump(used.ru_utime + used.ru_stime, file)
os.replace(name + ".new", name)
"""
# Keeps a card busy to some share for some seconds, and says in a file how long that was: at least, and at most.
ON_GPU = """
import json, os, sys, time
from everywatt.sim.loads import use_gpu
name, share, gpu, seconds = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
before = time.monotonic()
with use_gpu(share, memory_bytes=2**30, gpu=gpu):
    began = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
after = time.monotonic()
with open(name + ".new", "w") as file:
    json.dump([ended - began, after - before], file)
os.replace(name + ".new", name)
"""


def cgroups_are_ours(tree: Path) -> bool:
    """Whether cgroups can be made here: they are the kernel's to give, and a container may have none to write to."""
    return os.geteuid() == 0 and (tree / "cgroup.procs").exists() and os.access(tree, os.W_OK)


def remove_cgroups(tree: Path) -> None:
    """What Slurm or a test leaves behind."""
    for path, _, _ in os.walk(tree, topdown=False):
        try:
            os.rmdir(path)
        except OSError:
            pass


class SlurmSite:
    """The cluster with everything that everywatt adds to it. Use as a context manager."""

    def __init__(
        self, folder: Path, *, nodes: int = 2, gpus: int = 0, agent: bool = False, every_s: float = 2, **options: object
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.store = Store(folder / "store")
        self.names = [f"node{number}" for number in range(1, nodes + 1)]
        self.command = self._script("everywatt", f'exec {sys.executable} -m everywatt "$@"')
        for name, text in (("burn.py", BURN), ("on_gpu.py", ON_GPU)):
            (folder / name).write_text(text)
        # Slurm's hooks and jobs have an environment of their own: what makes a machine a simulated one is in a file.
        self.started = self._script(
            "started-by-prolog",
            f". {folder}/$SLURMD_NODENAME.env\n"
            f'exec {self.command} "$@" --every {every_s:g}s >>{folder}/$SLURMD_NODENAME.log 2>&1',
        )
        hooks = {}
        for event in EVENTS:
            text = hook(event, Site(spool=Path("SPOOL"), store=folder / "store", command=self.started))
            # All nodes are this host, so the spool goes by the node's name.
            hooks[event] = self._write(NAMES[event], text.replace("spool=SPOOL", f"spool={folder}/$SLURMD_NODENAME"))
        cards = ["--gpu", f"load:{CARD_W[0]:g}W,{CARD_W[1]:g}W"] * gpus
        wrap = {}
        for name in self.names:
            make_spool(folder / name)
            inside = self._inside(name, agent, every_s)
            sim = [self.command, "sim", "--package", f"load:{IDLE_W:g}W,{MAX_W:g}W", *cards]
            wrap[name] = [*sim, "--truth", folder / f"{name}.truth", "--", inside]
        self.cluster = SlurmCluster(
            folder / "slurm",
            Options(
                nodes=nodes, cpus=2, gpus=gpus, wrap=wrap, prolog=hooks["start"], epilog=hooks["end"],
                task_prolog=hooks["task"], **options,
            ),
        )  # fmt: skip

    def __enter__(self) -> SlurmSite:
        self.cluster.__enter__()
        try:
            self.until(lambda: all(self.recorder(name) for name in self.names), "the nodes are recorded")
        except BaseException:
            self.cluster.stop()
            raise
        time.sleep(4)  # an idle machine, for its idle power
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.stop()
        for name in self.names:
            for place in (AGENT, NODE):
                pid = holder(self.folder / name, place)
                if pid is not None:
                    os.kill(pid, signal.SIGTERM)

    def _inside(self, name: str, agent: bool, every_s: float) -> Path:
        """What a simulated machine runs before slurmd: the recorder of its jobs."""
        spool = self.folder / name
        base = f"--node {name} --spool {spool} --store {self.folder}/store --every {every_s:g}s"
        lines = [f"export EVERYWATT_HOME={self.folder}/home-{name} EVERYWATT_SLURM_SPOOL={spool}"]
        if agent:
            state = self.folder / f"state-{name}"
            lines.append(
                f"{self.command} agent --listen 127.0.0.1:0 --state {state} --jobs slurm,cgroup >{spool}.agent 2>&1 &"
            )
            lines.append(f"mkdir -p {state}/tape")
            base += f" --tape {state}/tape"
        lines += [f"export -p | grep -E ' (EVERYWATT_|LD_|PYTHONPATH)' >{spool}.env"]
        lines += [f"{self.command} slurm node {base} >>{spool}.log 2>&1 &", 'exec "$@"']
        return self._script(f"inside-{name}.sh", "\n".join(lines))

    def _script(self, name: str, text: str) -> Path:
        return self._write(name, f"#!/bin/sh\nexport PYTHONPATH={SOURCE}\n{text}\n")

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    # Jobs.

    def burn(self, name: str, duty: float, seconds: float, go_on: bool = False) -> str:
        """Words of a command that uses one CPU to this share; `$` in the name is the shell's.

        With `go_on` it goes on after these seconds, until `end_of` was called.
        """
        return f"{sys.executable} {self.folder}/burn.py {self.folder}/{name} {duty} {seconds} {go_on:d}"

    def end_of(self, name: str) -> None:
        """Let a command that goes on come to its end."""
        (self.folder / f"{name}.end").touch()

    def on_gpu(self, name: str, share: float, gpu: int, seconds: float) -> str:
        """Words of a command that keeps a simulated card busy to this share."""
        words = f"{sys.executable} {self.folder}/on_gpu.py {self.folder}/{name} {share} {gpu} {seconds}"
        return f". {self.folder}/$SLURMD_NODENAME.env; exec {words}"

    def sbatch(self, *lines: str, options: Sequence[object] = ()) -> int:
        """Submit a script of these lines."""
        return self.cluster.sbatch("#!/bin/sh\n" + "\n".join(lines) + "\n", *options)

    def true_j(self, name: str) -> float:
        """What a command that `burn` gave has cost."""
        return PER_CPU_S * float(json.loads((self.folder / name).read_text()))

    def records(self, job: int, count: int = 1, timeout_s: float = LIMIT_S) -> list[JobOnNode]:
        """All records of a job, or of the tasks of an array, once there are so many."""
        self.until(lambda: self._are_there(job, count), f"{count} records of {job}", timeout_s)
        return self._records(job)

    def _are_there(self, job: int, count: int) -> bool:
        if len(self._records(job)) >= count:
            return True
        time.sleep(min(count / 100, 2))  # to read a store takes longer the more there is
        return False

    def settled(self, name: str) -> None:
        """Wait until all jobs of a node are in the store: its hours have also what those drew that are not yet."""

        def done() -> bool:
            return not self.state(name)["jobs"] and not self.spool(name)

        self.until(done, f"all jobs of {name} are recorded")

    def _records(self, job: int) -> list[JobOnNode]:
        return [row for row in self.everything() if job in (row.job_id, row.array_job_id, row.het_job_id)]

    def everything(self) -> list[JobOnNode]:
        """All records that there are, in the order of jobs, runs and nodes."""
        rows = self.store.jobs(0, time.time() + 86400).to_pylist() if (self.folder / "store/jobs").exists() else []
        found = [JobOnNode.of_row(row) for row in rows]
        return sorted(found, key=lambda row: (row.job_id, row.restart, row.node))

    def hours(self, node: str) -> list[NodeHour]:
        """The hours of a node."""
        rows = self.store.query("select * from nodes", [], 0, time.time() + 86400).to_pylist()
        return [NodeHour(**row) for row in rows if row["node"] == node]

    # Nodes.

    def idle_w(self, name: str, device: str = "cpu.0") -> float:
        """What a node takes for the idle power of a device."""
        return float(self.state(name)["idle"][device]["watts"])

    def recorder(self, name: str, place: str = NODE) -> int | None:
        """The process that records the jobs of a node."""
        return holder(self.folder / name, place)

    def state(self, name: str) -> dict[str, Any]:
        """What the recorder of a node keeps."""
        return dict(json.loads((self.folder / name / "node.json").read_text()))

    def reboot(self, name: str) -> float:
        """A power loss, and a start some seconds later: as far as everywatt can tell the machine has booted again.

        Gives when its recorder was last at work before.
        """
        self.cluster.kill_node(name, told=True)
        before = self.state(name)
        (self.folder / name / "node.json").write_text(json.dumps({**before, "boot": "the one before"}))
        self.cluster.restart_node(name)
        self.until(lambda: self.recorder(name) is not None, f"{name} is recorded again")
        return float(before["seen_s"])

    def spool(self, name: str) -> list[Path]:
        """Events that nobody has taken yet."""
        return [path for folder in ("events", "tasks") for path in (self.folder / name / folder).rglob("*.event")]

    def until(self, true: object, what: str, timeout_s: float = LIMIT_S) -> None:
        """Wait for something, as the cluster does; with the recorders' logs where it does not come."""
        try:
            self.cluster.until(true, what, timeout_s)
        except AssertionError as error:
            logs = "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))
            raise AssertionError(f"{error}\n{logs}") from None
