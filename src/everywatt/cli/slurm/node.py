"""`everywatt slurm node`: record the jobs of this node."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from everywatt.api.meter import Meter, SpanHandle
from everywatt.cli.common.metering import meter_of, recording_of, start
from everywatt.cli.common.options import DURATION, FOLDER, Verb, output_options, settings_options
from everywatt.cli.common.output import Output
from everywatt.cli.slurm.common import short_name, spool_of, spool_option, store_of, store_option
from everywatt.core.clocks import NS, Clock, SystemClock
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError
from everywatt.core.format import format_count
from everywatt.slurm.node.hooks import make_spool
from everywatt.slurm.node.job_line import JobLines
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.node.recorder import Node
from everywatt.slurm.node.spool import AGENT, NODE, alone, holder, leave, take_place
from everywatt.slurm.node.state import STATE, State
from everywatt.slurm.node.tapes import not_booked, tapes_in
from everywatt.slurm.site.store import Store

IDLE_S = 10.0
MEMORY_BYTES = 1 << 30  # beyond what it has when it starts; resident memory of the unit is limited to half of it

FACTS: Final = (
    "job_id", "restart", "user", "account", "partition", "job_name", "array_job_id", "array_task_id", "het_job_id",
    "het_offset", "cpus", "memory_bytes", "gpus", "nodes", "state", "exit_code",
)  # fmt: skip


@click.command(cls=Verb)
@click.option("--node", "name", help="Name of the node in Slurm; by default the host name without the domain.")
@spool_option
@store_option
@click.option("--tape", type=FOLDER, help="Read the tape of an agent (STATE/tape) instead of recording.")
@click.option("--every", type=DURATION, default=10.0, help="Time between two passes over jobs that have ended.")
@click.option(
    "--once",
    is_flag=True,
    help="Process the pending events, record the jobs that have ended, and exit. Requires --tape.",
)
@click.option("--job-line", is_flag=True, help="Add a line with its energy to the output of each batch job.")
@click.option("--until-idle", is_flag=True, help="Exit when no job has run for 10 s.")
@settings_options
@output_options
def command(
    name: str | None,
    spool: Path | None,
    store: Path | None,
    tape: Path | None,
    every: float,
    once: bool,
    job_line: bool,
    until_idle: bool,
    settings: Settings,
    output: Output,
) -> int:
    """Record the jobs of this node: which jobs ran according to Slurm's hooks, and their energy according to the tape.

    With --tape the tape is the agent's; without it this command records by itself, which is what a hook starts on nodes
    without an agent. Records go to the store. SIGTERM stops it without loss: jobs that have not been recorded yet are
    recorded after the next start.
    """
    if once and tape is None:
        raise UsageError("--once requires a tape to read.", cure="--tape STATE/tape of the agent")
    _limit_memory()
    folder = spool_of(spool)
    make_spool(folder)
    with alone(folder) as mine:
        if not mine or not take_place(folder):
            output.text("Another process already records the jobs of this node.")
            return 0
        return _record(name, folder, store_of(store), tape, every, (once, until_idle, job_line), settings, output)


def _record(
    name: str | None,
    folder: Path,
    store: Store,
    tape: Path | None,
    every_s: float,
    how: tuple[bool, bool, bool],
    settings: Settings,
    output: Output,
) -> int:
    """All of it, once the place is ours."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    meter = None if tape else meter_of(settings, "slurm", pids=(), everything=True)
    spans = None
    try:
        known = State.read(folder / STATE)
        if meter is not None:
            take_place(folder, AGENT)
            start(meter, output, root=True)
            tape, spans = recording_of(meter).path.parent, JobSpans(meter)
        assert tape is not None
        folders = list(dict.fromkeys([*not_booked(known.folders, known.booked_s), str(tape.resolve())]))
        tapes = tapes_in(*map(Path, folders))
        node = Node(
            name or short_name(socket.gethostname()),
            folder,
            store,
            tapes,
            watch=spans,
            announce=JobLines().append if how[2] else None,
        )
        node.state.folders = folders
        places = (NODE, AGENT) if meter is not None else (NODE,)
        recorded = _loop(node, stop, every_s, places, output, once=how[0], until_idle=how[1])
        if meter is not None:
            meter.stop()
            recorded += node.settle(all_of_it=not node.running)
    finally:
        if meter is not None:
            meter.stop()
            leave(folder, AGENT)
        leave(folder)
    facts = {"node": node.name, "recorded": recorded, "running": node.running}
    output.facts("slurm-node", facts, f"{node.name}: {format_count(recorded, 'job')} recorded, {node.running} running.")
    return 0


def _limit_memory() -> None:
    """Fail by MemoryError long before the node does: what a Prolog starts is under no limit of systemd's."""
    used_bytes = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = used_bytes + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _loop(
    node: Node,
    stop: threading.Event,
    every_s: float,
    places: Sequence[str],
    output: Output,
    *,
    once: bool,
    until_idle: bool,
) -> int:
    """Listen each second, book where a job has ended or it is time; gives how many jobs were recorded.

    Another program may have removed the spool: it is made again, and our `places` in it with it.
    """
    recorded, quiet_s, since_s, reported = 0, 0.0, 0.0, ""
    while True:
        _keep_places(node.spool, places)
        event = node.listen()
        if once or since_s >= every_s:
            recorded += node.settle()
            since_s = 0.0
        if node.trouble != reported and (reported := node.trouble):
            output.error(f"{reported}. Retrying; nothing is lost meanwhile.")
        if once:
            return recorded
        quiet_s = 0.0 if event or node.running or node.waiting else quiet_s + 1.0
        if stop.is_set() or (until_idle and quiet_s >= IDLE_S):
            return recorded
        stop.wait(1.0)
        since_s += 1.0


def _keep_places(spool: Path, places: Sequence[str]) -> None:
    try:
        if any(holder(spool, name) != os.getpid() for name in places):
            make_spool(spool)
            for name in places:
                take_place(spool, name)
    except OSError:
        pass  # a full disk: what is known is in memory, and the next round tries again


class JobSpans:
    """Jobs as spans of the tape that this command records, so that show and report list them.

    Opens a span for each job that starts and closes it with what is known of the job at its end.
    """

    def __init__(self, meter: Meter, clock: Clock | None = None) -> None:
        self._meter = meter
        self._clock: Clock = clock or SystemClock()
        self._since_ns = self._clock.monotonic_ns()
        self._open: dict[str, SpanHandle] = {}

    def started(self, job: NodeJob) -> None:
        """Open the job's span where it is not open, from its start on or from when this recording began."""
        if job.key not in self._open:
            at_ns = max(self._monotonic_ns(job.start_s), self._since_ns)
            self._open[job.key] = self._meter.open_span(job.shown_id, at_ns=at_ns, **_about(job))

    def ended(self, job: NodeJob) -> None:
        """Close it where the job ended."""
        self.started(job)
        span = self._open.pop(job.key)
        if self._meter.recording is not None and span.id is not None:
            at_ns = max(self._monotonic_ns(job.end_s or job.start_s), self._since_ns)
            self._meter.recording.span_close(span.id, attributes=_about(job), at_ns=at_ns)

    def _monotonic_ns(self, at_s: float) -> int:
        return self._clock.monotonic_ns() - (self._clock.utc_ns() - round(at_s * NS))


def _about(job: NodeJob) -> dict[str, Any]:
    """What is known of a job, as attributes of a span; what is not known is left out."""
    facts = {key: getattr(job, key.removeprefix("job_") if key == "job_name" else key) for key in FACTS}
    return {"role": "job"} | {key: value for key, value in facts.items() if value not in (None, "", [])}
