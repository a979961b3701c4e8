"""A real Slurm cluster on this host, for tests and to try things by hand: several node daemons, pretend GPUs, sacct.

In a test:

    from slurm_cluster import SlurmCluster, Options

    with SlurmCluster(tmp_path / "slurm", Options(nodes=2, gpus=2, accounting=True)) as cluster:
        job = cluster.sbatch("#!/bin/sh\nhostname\n")
        assert cluster.wait(job) == {str(job): "COMPLETED"}
        cluster.sacct(job)              # rows, as dictionaries
        cluster.run("squeue", "-l")     # any command of Slurm, with the right environment

`tests/real/conftest.py` has a session fixture `slurm` with two nodes of two pretend GPUs and accounting: one start for
all tests that use it; tests/support/scheduling.py keeps them on one worker.

By hand (it stays in the foreground; Ctrl-C stops everything):

    python tests/support/slurm_cluster.py DIR --nodes 2 --gpus 2 --accounting
    export SLURM_CONF=DIR/slurm.conf        # in another shell; then sinfo, sbatch, squeue, sacct …

Everything lives in DIR: munge's key and socket, state, spool, logs (DIR/log), the database. Daemons are children of
this process, listen on ports of the kernel's choice on 127.0.0.1, and end with it. All nodes are this host:
`kill_node` is a power loss of one of them (its daemon and its steps are killed), which the controller notices after
half a minute, or at once where it is told.
"""

from __future__ import annotations

import argparse
import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ports import free_port
from waiting import LIMIT_S

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "setpriv")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct", "sacctmgr")
MANY = 50
SOCKET_BYTES = 108  # of the name of a Unix socket, the last one for its end
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENDED = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
}


@dataclass(frozen=True)
class Options:
    """What the cluster is like.

    gpus            pretend GPUs of each node (gres; CUDA_VISIBLE_DEVICES is set as Slurm does it)
    accounting      with slurmdbd and MariaDB, so that sacct works; takes some ten seconds more to start
    cred_expire_s   a requeued job waits at least so long; Slurm's own value is 120, and 5 the least that it takes
    prolog, …       programs, as in slurm.conf
    wrap            words before a node's `slurmd`, by the node's name: a simulated machine that it runs in
    extra           further lines of slurm.conf
    """

    nodes: int = 2
    cpus: int = 2
    memory_mb: int = 2000
    gpus: int = 0
    accounting: bool = False
    cred_expire_s: int = 5
    kill_wait_s: int = 5
    prolog: Path | None = None
    epilog: Path | None = None
    prolog_slurmctld: Path | None = None
    epilog_slurmctld: Path | None = None
    task_prolog: Path | None = None
    task_epilog: Path | None = None
    prolog_flags: str = "Alloc"
    wrap: Mapping[str, Sequence[object]] = field(default_factory=dict)
    extra: Sequence[str] = field(default_factory=tuple)


def missing(accounting: bool = False) -> list[str]:
    """The programs that are not installed."""
    wanted = (*PROGRAMS, *(ACCOUNTING_PROGRAMS if accounting else ()))
    return [name for name in wanted if shutil.which(name, path=PATH) is None]


class SlurmCluster:
    """Starts on `start` or `with`, ends on `stop`. `environ` is what Slurm's commands need."""

    def __init__(self, folder: Path, options: Options = Options()) -> None:
        self.folder, self.options = folder.resolve(), options
        self.conf = self.folder / "slurm.conf"
        self.nodes = [f"node{number}" for number in range(1, options.nodes + 1)]
        socket = self.folder / "spool" / self.nodes[-1] / f"{self.nodes[-1]}_999.4294967291"
        if len(os.fsencode(socket)) >= SOCKET_BYTES:
            raise ValueError(f"{folder} is too long: steps of jobs could not make {socket}, and jobs would be held")
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = [free_port() for _ in range(options.nodes + 3)]
        self._ctld_port, self._dbd_port, self._sql_port, *self._node_ports = ports

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a user of this cluster."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
        return {**kept, "SLURM_CONF": str(self.conf)}

    # Life.

    def __enter__(self) -> SlurmCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Write the configuration and start every daemon; returns when all nodes are idle."""
        for name in ("run", "log", "state", "spool", "dev", "munge"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self._write_configuration()
        self._start_munge()
        if self.options.accounting:
            self._start_accounting()
        self._spawn("slurmctld", "slurmctld", "-D", "-i", "-f", self.conf)
        for node in self.nodes:
            self.restart_node(node, wait=False)
        self.until(lambda: all(self.node_state(node) == "IDLE" for node in self.nodes), "the nodes are idle")

    def stop(self) -> None:
        """End everything that belongs to the cluster, by process id."""
        if "slurmctld" in self._daemons and self._daemons["slurmctld"].poll() is None:
            self.run("scancel", "--full", "--state=RUNNING", "--signal=KILL", check=False)
        order = [*self.nodes, "slurmctld", "slurmdbd", "mariadbd", "munged"]
        for name in (name for name in order if name in self._daemons):
            self._end(name)
        for pid in self._left_behind():
            kill(pid)

    def _end(self, name: str, number: int = signal.SIGTERM) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        daemon.send_signal(number)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _spawn(self, name: str, *words: object) -> None:
        """A daemon in the foreground that is told to end when this process does."""
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *map(str, words)],
                env={**self.environ, "PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for `stop`, which knows the order
            )

    # Configuration.

    def _write_configuration(self) -> None:
        o, d, me = self.options, self.folder, getpass.getuser()
        hooks = {
            "Prolog": o.prolog,
            "Epilog": o.epilog,
            "PrologSlurmctld": o.prolog_slurmctld,
            "EpilogSlurmctld": o.epilog_slurmctld,
            "TaskProlog": o.task_prolog,
            "TaskEpilog": o.task_epilog,
        }
        accounting = [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={self._dbd_port}",
            f"AccountingStoragePass={d}/munge/socket",
            "AccountingStorageTRES=gres/gpu" if o.gpus else "",
        ]
        lines = [
            "ClusterName=test",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmUser={me}",
            f"SlurmdUser={me}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={d}/munge/socket,cred_expire={o.cred_expire_s}",
            f"SlurmctldPort={self._ctld_port}",
            f"StateSaveLocation={d}/state",
            f"SlurmdSpoolDir={d}/spool/%n",
            f"SlurmctldPidFile={d}/run/slurmctld.pid",
            f"SlurmdPidFile={d}/run/slurmd.%n.pid",
            f"SlurmctldLogFile={d}/log/slurmctld.log",
            f"SlurmdLogFile={d}/log/slurmd.%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/linux",
            "JobAcctGatherFrequency=1",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            # With a counter of energy nodes are news every second, and backfill gives up on what waits.
            "SchedulerParameters=sched_min_interval=0,sched_interval=3,batch_sched_delay=0,bf_interval=2",
            "MpiDefault=none",
            "MailProg=/bin/true",
            "MinJobAge=3600",  # what has ended is known until the cluster is stopped, also of a long array
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",
            "SlurmdTimeout=5",
            f"KillWait={o.kill_wait_s}",
            "JobRequeue=1",
            f"PrologFlags={o.prolog_flags}" if o.prolog_flags else "",
            *(accounting if o.accounting else ["AccountingStorageType=accounting_storage/none"]),
            *(f"{name}={path}" for name, path in hooks.items() if path is not None),
            *(["GresTypes=gpu"] if o.gpus else []),
            *o.extra,
            *(self._node_line(node, port) for node, port in zip(self.nodes, self._node_ports, strict=True)),
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP",
        ]
        self.conf.write_text("\n".join(line for line in lines if line) + "\n")
        (d / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        if o.gpus:
            for number in range(o.gpus):
                pretend_device(d / "dev" / f"nvidia{number}")
            files = f"{d}/dev/nvidia[0-{o.gpus - 1}]" if o.gpus > 1 else f"{d}/dev/nvidia0"
            (d / "gres.conf").write_text(f"NodeName=node[1-{o.nodes}] Name=gpu File={files}\n")

    def _node_line(self, node: str, port: int) -> str:
        o = self.options
        gres = f" Gres=gpu:{o.gpus}" if o.gpus else ""
        return (
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={o.cpus} "
            f"RealMemory={o.memory_mb}{gres} State=UNKNOWN"
        )

    def _start_munge(self) -> None:
        place = self.folder / "munge"
        key = place / "key"
        if not key.exists():
            key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        for name in ("socket", "socket.lock"):
            (place / name).unlink(missing_ok=True)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        words = [f"--{option}={place / name}" for option, name in files.items()]
        self._spawn("munged", "munged", "--foreground", "--force", *words)  # --force: the folder may be anybody's
        self.until(lambda: (place / "socket").exists(), "munge listens")

    def _start_accounting(self) -> None:
        d, me = self.folder, getpass.getuser()
        data, word = d / "sql", secrets.token_hex(16)
        if not data.exists():
            make = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={me}", "--skip-test-db"]
            done = subprocess.run(
                [*make, "--auth-root-authentication-method=socket"],
                env={**os.environ, "PATH": PATH},
                capture_output=True,
            )
            assert done.returncode == 0, done.stderr.decode()
        first = d / "first.sql"
        first.touch(0o600)
        first.write_text(
            "CREATE DATABASE IF NOT EXISTS slurm;\n"
            f"CREATE OR REPLACE USER slurm@'127.0.0.1' IDENTIFIED BY '{word}';\n"
            "GRANT ALL ON slurm.* TO slurm@'127.0.0.1';\n"
        )
        self._spawn(
            "mariadbd", "mariadbd", "--no-defaults", f"--datadir={data}", f"--user={me}", f"--init-file={first}",
            f"--socket={d}/sql.sock", f"--port={self._sql_port}", "--bind-address=127.0.0.1", "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900", f"--pid-file={d}/run/mariadbd.pid",
            "--innodb-buffer-pool-size=64M", "--performance-schema=OFF",
        )  # fmt: skip
        self.until(lambda: listens(self._sql_port), "the database listens")
        conf = d / "slurmdbd.conf"
        conf.touch(0o600)
        conf.write_text(
            f"DbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={self._dbd_port}\nSlurmUser={me}\n"
            f"AuthType=auth/munge\nAuthInfo={d}/munge/socket\n"
            f"LogFile={d}/log/slurmdbd.log\nPidFile={d}/run/slurmdbd.pid\n"
            f"StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={self._sql_port}\n"
            f"StorageUser=slurm\nStoragePass={word}\nStorageLoc=slurm\n"
        )
        self._spawn("slurmdbd", "slurmdbd", "-D")
        self.until(lambda: listens(self._dbd_port), "slurmdbd listens")
        self.run("sacctmgr", "-i", "add", "cluster", "test", check=False)  # it may be there from an earlier start

    # Commands.

    def run(self, *words: object, check: bool = True, user: str | int | None = None, **settings: object) -> str:
        """What a command of Slurm prints, as `user` where one is given; AssertionError where it fails and `check`."""
        settings.setdefault("timeout", LIMIT_S)
        given = {"env": self.environ, "user": user, "stdin": subprocess.DEVNULL, **settings}
        if "input" in settings:
            del given["stdin"]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, **given)
        assert done.returncode == 0 or not check, f"{words}: {done.stderr}{done.stdout}"
        return done.stdout

    def sbatch(self, script: str | Path, *options: object, user: str | int | None = None, **settings: object) -> int:
        """Submit a script (text, or a file); gives the job's id. Output goes to DIR/out-JOB, unless told otherwise."""
        words = ["sbatch", "--parsable"]
        if not any(str(option).startswith(("-o", "--output")) for option in options):
            words.append(f"--output={self.folder}/out-%A_%a" if "--array" in " ".join(map(str, options)) else
                         f"--output={self.folder}/out-%j")  # fmt: skip
        if isinstance(script, Path):
            said = self.run(*words, *options, script, user=user, **settings)
        else:
            said = self.run(*words, *options, input=script, user=user, **settings)
        return int(said.split(";")[0])

    def jobs(self, job: int | str) -> list[dict[str, str]]:
        """What `scontrol show job` knows of a job, or of each task of an array."""
        said = self.run("scontrol", "--oneliner", "show", "job", job, check=False)
        return [dict(re.findall(r"(\w+(?:[:/]\w+)*)=(\S*)", line)) for line in said.splitlines() if line.strip()]

    def states(self, job: int | str) -> dict[str, str]:
        """The state of the job, or of each task (`12_3`) of an array."""
        found = {}
        for one in self.jobs(job):
            task = one.get("ArrayTaskId")
            found[one["JobId"] if task is None else f"{one['ArrayJobId']}_{task}"] = one["JobState"]
        return found

    def wait(self, job: int | str, timeout_s: float = LIMIT_S) -> dict[str, str]:
        """Until the job and all its tasks have ended; their states."""
        deadline = time.monotonic() + timeout_s
        while len(found := self.states(job)) > MANY and not set(found.values()) <= ENDED:
            assert time.monotonic() < deadline, f"never came: {job} has ended\n{self.logs()}"
            time.sleep(2)  # to ask for hundreds of tasks ten times a second would be most of what the machine does
        left_s = max(deadline - time.monotonic(), 1.0)
        self.until(lambda: (found := self.states(job)) and set(found.values()) <= ENDED, f"{job} has ended", left_s)
        return self.states(job)

    def wait_for(self, job: int | str, state: str = "RUNNING", timeout_s: float = LIMIT_S) -> None:
        """Until the job, or one task of it, is in this state."""
        self.until(lambda: state in self.states(job).values(), f"{job} is {state}", timeout_s)

    def sacct(self, *jobs: object, columns: str = "ALL", user: str | int | None = None) -> list[dict[str, str]]:
        """Rows of sacct (jobs and steps) once all of these jobs have ended there too."""
        only = [f"--jobs={','.join(map(str, jobs))}"] if jobs else []

        def rows() -> list[dict[str, str]]:
            said = self.run("sacct", "--parsable2", "--allusers", f"--format={columns}", *only, user=user)
            head, *lines = (line.split("|") for line in said.splitlines())
            return [dict(zip(head, line, strict=False)) for line in lines]

        if columns == "ALL":
            columns = ",".join(self.run("sacct", "--helpformat").split())
        if {"JobID", "State"} <= {*columns.split(",")}:
            wanted = {name for job in jobs for name in self.states(str(job).partition(".")[0])}
            self.until(lambda: _all_ended(rows(), wanted), "sacct knows the end")
        return rows()

    def cancel(self, job: int | str) -> None:
        """scancel."""
        self.run("scancel", job)

    def requeue(self, job: int | str) -> None:
        """Send the job back to the queue: what runs of it gets SIGTERM, and SIGKILL after KillWait."""
        self.run("scontrol", "requeue", job)

    # Nodes.

    def node_state(self, node: str) -> str:
        """IDLE, MIXED, ALLOCATED, DOWN …, without flags; "" where the controller does not answer."""
        said = self.run("scontrol", "--oneliner", "show", "node", node, check=False)
        found = re.search(r"\bState=([A-Z]+\*?)", said)
        return found[1] if found else ""

    def kill_node(self, node: str, *, told: bool = False) -> None:
        """A power loss: the node's daemon and its steps are killed, with all that they run. `told`: it is set DOWN."""
        daemon = self._daemons.get(node)
        inside = [] if daemon is None else descendants(daemon.pid)  # of a simulated machine the node's daemon too
        self._end(node, signal.SIGKILL)
        for pid in inside:
            kill(pid)
        for pid in self._left_behind(f"slurmd.{node}.log"):
            inside = descendants(pid)
            kill(pid)  # before what it runs, whose end it would report as the job's failure
            for child in inside:
                kill(child)
        if told:
            self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=power")

    def restart_node(self, node: str, *, wait: bool = True) -> None:
        """Start the node's daemon (again)."""
        self._end(node)
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        self._spawn(node, *self.options.wrap.get(node, ()), "slurmd", "-D", "-N", node, "-f", self.conf)
        if wait:
            self.until(lambda: self.node_state(node) in ("IDLE", "MIXED", "ALLOCATED"), f"{node} is back")

    def until(self, true: object, what: str, timeout_s: float = LIMIT_S) -> None:
        """Wait until `true()`; an AssertionError with the logs' ends where it does not come to that."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if true():
                return
            for name, daemon in list(self._daemons.items()):  # another thread may stop one of them
                assert daemon.poll() is None, f"{name} has ended with {daemon.returncode}:\n{self.logs()}"
            time.sleep(0.1)
        raise AssertionError(f"never came: {what}\n{self.logs()}")

    def logs(self, lines: int = 15) -> str:
        """The ends of all logs."""
        files = sorted((self.folder / "log").glob("*"))
        return "\n".join(
            f"== {f.name}\n" + "\n".join(f.read_text(errors="replace").splitlines()[-lines:]) for f in files
        )

    def _left_behind(self, log: str = "") -> list[int]:
        """Steps and what jobs have left: processes that were given our slurm.conf, or that write to our logs."""
        found = []
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            if pid == os.getpid():
                continue
            try:
                command = Path(f"/proc/{pid}/comm").read_text().strip()
                # A step overwrites its environment with its title.
                ours = not log and f"SLURM_CONF={self.conf}".encode() in Path(
                    f"/proc/{pid}/environ"
                ).read_bytes().split(b"\0")
                if not ours and command == "slurmstepd":
                    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
                    ours = any(link.startswith(f"{self.folder}/log/{log}") for link in links)
            except OSError:
                continue
            if ours:
                found.append(pid)
        return found


def _all_ended(rows: Sequence[Mapping[str, str]], wanted: set[str]) -> bool:
    """Whether every wanted job is among the rows, and all of these have ended."""
    known = {row["JobID"] for row in rows}
    return wanted <= known and bool(rows) and all(row["State"].split()[0] in ENDED for row in rows)


def pretend_device(path: Path) -> None:
    """A device file that is /dev/null; a plain file, which Slurm takes with a complaint, where that is not allowed."""
    if path.exists():
        return
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        path.touch()


def listens(port: int) -> bool:
    """Whether something answers on 127.0.0.1."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def descendants(pid: int) -> list[int]:
    """The processes below one, deepest first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [one for child in map(int, children) for one in (*descendants(child), child)]


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a cluster in the foreground until Ctrl-C."""
    parser = argparse.ArgumentParser(description="A Slurm cluster on this host, until Ctrl-C.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--accounting", action="store_true")
    given: Mapping[str, object] = vars(parser.parse_args(arguments))
    options = {key: value for key, value in given.items() if key != "folder"}
    with SlurmCluster(Path(str(given["folder"])), Options(**options)) as cluster:
        print(f"export SLURM_CONF={cluster.conf}", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
