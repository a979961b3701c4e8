"""The agent: a recorder that never stops, with its books, its series and who gets them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import Row
from everywatt.core.clocks import NS, Clock, SystemClock, Task
from everywatt.core.config import nearest
from everywatt.core.errors import EverywattError, NoSensor, UsageError
from everywatt.core.machine import Machine
from everywatt.core.plugins import METRIC_NAMES, load_plugin
from everywatt.fleet import jobs as job_providers
from everywatt.fleet import segments, state
from everywatt.fleet.exporting import Exporter, MetricSource
from everywatt.fleet.jobs import Places
from everywatt.fleet.loop import Loop
from everywatt.fleet.metrics import Series
from everywatt.fleet.options import RELOADABLE, AgentOptions
from everywatt.fleet.service import Notifier
from everywatt.fleet.watch import Watcher
from everywatt.ledger.counters import Counters
from everywatt.recorder.session import EARLY_NS
from everywatt.recorder.source import Source
from everywatt.sensors import registry
from everywatt.sensors.base import Request
from everywatt.sensors.procfs import parse_meminfo, slurp
from everywatt.sensors.sysfs import packages_of, threads_per_core

if TYPE_CHECKING:
    from everywatt.recorder.wire import Use

STATE_NS = 10 * NS
SMALL_STATE_NS = 60 * NS
SMALL_FLUSH_NS = 10 * NS
PRUNE_NS = 60 * NS
SHARED_NS = NS // 2  # what is read less often than this is flushed as soon as it is read
Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Agent:
    """One agent. `start`, then `run` until `stop` (from a signal or another thread), then `finish`.

    `providers` find jobs, instead of those that the options name.
    """

    def __init__(
        self,
        options: AgentOptions,
        *,
        clock: Clock | None = None,
        machine: Machine | None = None,
        providers: list[job_providers.JobProvider] | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self.options = options
        self.machine = machine or Machine.here()
        self.clock = clock or self.machine.clock or SystemClock()
        self.say = say
        self.folder = Path(options.state or Path())
        self.tape_folder = self.folder / "tape"
        self.host = socket.gethostname()
        self._providers = providers if providers is not None else job_providers.make(options.jobs)
        self.places = Places(self._providers, by_program=options.programs)
        self.counters = Counters(options.owners)
        self.notifier = Notifier()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.loop = Loop(self.clock, self._wake_read, self._round)
        self.watcher = Watcher(self.clock, round(options.period_s * NS), self.places, self.counters)
        self.exporter: Exporter | None = None
        self.session: segments.SegmentSession | None = None
        self.sender: Any = None
        self.snapshots = 0
        self.disk_bytes = 0
        self.reload: Callable[[], AgentOptions] | None = None  # reads the configuration again
        self._asked_reload = False
        self._state_ns = self._rotate_ns = self._prune_ns = 0
        self._sealing: Task | None = None
        self._lock: Any = None
        self._said = 0
        self._durable: list[tuple[Series, float | None, int | None]] = []
        self._written = True

    # The beginning.

    def start(self) -> None:
        """Open sensors and the tape, and continue from the saved state. NoSensor without a power source."""
        if self.options.llm:
            self._watch_llm()
        self._take_folder()
        found = state.recover(state.read(self.folder), self.tape_folder)
        if found.trouble:
            self.say(found.trouble)
        sources = self._open_sensors()
        self.watcher.listen(sources, state.levels(found))
        resumed = state.resume(found, self.watcher, state.boot_id(self.machine.proc))
        state.restore(found, self.watcher, state.boot_id(self.machine.proc))
        self.watcher.memory_totals = self._memory_totals()
        self.watcher.cpu.packages = packages_of(self.machine.sys) or []
        self.watcher.threads_per_core = threads_per_core(self.machine.sys)
        self.exporter = Exporter(self.watcher, self._reports)
        self.session = self._new_session(found.segment + 1, resumed=resumed)
        self.loop.begin(self.session, sources)
        now_ns = self.clock.monotonic_ns()
        self._rotate_ns = now_ns + round(self.options.rotate_s * NS)
        self._start_sender()
        if self.watcher.llm is not None:
            self.watcher.llm.scraper.start(self.say)

    def _watch_llm(self) -> None:
        from everywatt.fleet.llm_energy import LlmBook
        from everywatt.fleet.llm_servers import check_targets
        from everywatt.net.tls import read_token

        token = read_token(None, self.options.llm_token_file)
        targets = check_targets(self.options.llm)
        self.watcher.llm = LlmBook(targets, self.clock, self.machine.proc, token)

    def _take_folder(self) -> None:
        try:
            self.tape_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"Another agent is using {self.folder}.", cure="--state FOLDER") from None
        except OSError as error:
            raise UsageError(
                f"{self.folder} cannot be used: {error.strerror or error}.", cure="--state FOLDER"
            ) from None

    def _open_sensors(self) -> list[Source]:
        options = self.options
        request = Request(self.machine, estimate=options.estimate, options=options.sensor_options, everything=True)
        known = registry.known(self.machine.environ)
        for name in options.sensor_options:
            if name not in known:
                self.say(f"[sensor.{name}] matches no installed sensor{nearest(name, list(known)) or '.'}")
        sources, self._reports = self.loop.pool.choose(known, request, options.sensors)
        if not any(channel.carries_energy for source in sources for channel in source.info.channels):
            self.loop.pool.entries.clear()
            for source in sources:
                source.close()
            reasons = "; ".join(
                f"{r.sensor}: {r.why.rstrip('.')}" for r in self._reports if r.state.value == "unusable" and r.why
            )
            raise NoSensor(
                f"No sensor here measures power{': ' + reasons if reasons else ''}.", cure="everywatt doctor"
            )
        return sources

    def _memory_totals(self) -> dict[str, float]:
        totals = {
            str(device["device"]): float(device["memory_bytes"])
            for report in self._reports
            for device in report.devices
            if device.get("device") and device.get("memory_bytes")
        }
        with contextlib.suppress(OSError, ValueError):
            found = parse_meminfo(slurp(self.machine.proc / "meminfo", 512)).get("MemTotal")
            if found:
                totals["host"] = float(found)
        return totals

    def _new_session(
        self, at_least: int, cut_ns: int | None = None, resumed: Mapping[str, Row] | None = None
    ) -> segments.SegmentSession:
        options = self.options
        path = segments.new_path(self.tape_folder, self.host, at_least)
        owners = self.counters.to_list()
        agent = {"devices": self.watcher.lines.to_dict(), "owners": owners, "instance": options.instance}
        agent |= {"boot": state.boot_id(self.machine.proc), "bounds": state.bounds(self.watcher)}
        meta = {**self._about(), "profile": options.profile, "agent": agent}
        if cut_ns is not None:
            meta["bounds_ns"] = (cut_ns, None)
        if self.exporter is not None:
            self.exporter.new_segment()
        return segments.SegmentSession(
            path,
            meta,
            round(options.period_s * NS),
            self.clock,
            self.machine.proc,
            before=self._before_flush,
            after=self._after_flush,
            flush_every_ns=SMALL_FLUSH_NS if options.small else round(options.period_s * NS),
            resumed=resumed,
        )

    def _about(self) -> dict[str, Any]:
        """What a tape records of its origin; the small profile omits what takes 3 MB to find."""
        if not self.options.small:
            from everywatt.api.provenance import provenance

            return provenance(["everywatt", "agent"], cwd=self.folder)
        from everywatt import __version__

        system = os.uname()
        host = {"name": self.host, "system": system.sysname, "kernel": system.release, "machine": system.machine}
        host["boot"] = state.boot_id(self.machine.proc)
        return {"everywatt": __version__, "host": {**host, "cpus": os.cpu_count()}, "command": ["everywatt", "agent"]}

    def _start_sender(self) -> None:
        if self.options.remote_write is None:
            return
        from everywatt.fleet.sender import Sender

        assert self.session is not None
        self.sender = Sender(
            self.options, self.folder, self.tape_folder, self.session.writer.path, say=self.say, clock=self.clock
        )
        self.sender.start()

    # Going on.

    def run(self) -> None:
        self.notifier.tell("READY=1", f"STATUS=recording {len(self.watcher.lines.all)} counters")
        self.loop.run()

    def stop(self, *_: Any) -> None:
        """End soon. Safe in a signal handler."""
        self.loop.stop = True
        self._wake()

    def ask_reload(self, *_: Any) -> None:
        """Read the configuration again soon. Safe in a signal handler."""
        self._asked_reload = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _before_flush(self, now_ns: int) -> bool:
        """Settle, and write the samples to publish to the tape. False if it is too early to do so."""
        assert self.exporter is not None and self.session is not None
        for text in self.watcher.charge_unwatched(now_ns):
            self.say(text)
        if not self.watcher.settle(now_ns, anyway=self.loop.stop):
            return False
        self.exporter.registry.lock.acquire()  # until it is flushed
        self._durable = self.exporter.registry.counters()
        self.exporter.more = self._more()
        steps = self.exporter.utc.steps
        self.exporter.update(now_ns)
        if self.options.remote_write is not None:
            self.exporter.registry.take_text(self._others())
        if self.exporter.utc.steps != steps:
            self.say(
                f"The clock was set back by {self.exporter.utc.back_s:.0f} s. A receiver that requires ordered samples "
                "rejects them until the clock has caught up."
            )
        self.session.tell(now_ns, self.exporter.news(now_ns))
        return True

    def _more(self) -> dict[str, Mapping[tuple[tuple[str, str], ...], float | None]]:
        more: dict[str, Mapping[tuple[tuple[str, str], ...], float | None]] = {
            "everywatt_agent_disk_bytes": {(): float(self.disk_bytes)}
        }
        if self.watcher.llm is not None:
            more |= self.watcher.llm.series()
        return more if self.sender is None else more | dict(self.sender.figures())

    def _after_flush(self, now_ns: int, written: bool) -> None:
        assert self.exporter is not None
        self._publish(written)
        self.exporter.registry.lock.release()
        self.snapshots += 1
        self._flush_with_reads(now_ns)
        if self.sender is not None:
            self.sender.wake()
        if now_ns >= self._state_ns:
            self._state_ns = now_ns + (SMALL_STATE_NS if self.options.small else STATE_NS)
            self._save()

    def _publish(self, written: bool) -> None:
        """Show counters as they are now, or as they were while the tape does not take what they are now."""
        assert self.exporter is not None
        self._written = written
        if not written:
            self.exporter.registry.restore(self._durable)

    def _flush_with_reads(self, now_ns: int) -> None:
        """Let the next flush share the wake-up in which everything is read."""
        assert self.session is not None
        period_ns = round(self.options.period_s * NS)
        if period_ns >= SHARED_NS:
            stop_ns = self.loop.stop_after(now_ns + self.session.flush_every_ns - period_ns // 2)
            if stop_ns is not None:
                self.session.flush_ns = stop_ns + EARLY_NS // 2

    def _round(self, now_ns: int) -> None:
        self.notifier.alive(now_ns / NS)
        if self.watcher.remark_count > self._said:
            for text in self.watcher.remarks[self._said - self.watcher.remark_count :]:
                self.say(text)
            self._said = self.watcher.remark_count
        if self._asked_reload:
            self._asked_reload = False
            self._reload_now()
        if self.session is None or self.loop.stop:
            return
        if now_ns >= self._rotate_ns:
            self._rotate_ns = now_ns + round(self.options.rotate_s * NS)
            self.rotate(now_ns)
        if now_ns >= self._prune_ns:
            self._prune_ns = now_ns + PRUNE_NS
            self._prune()

    def _save(self, *, sync: bool = False) -> None:
        assert self.session is not None
        segment = segments.number_of(self.session.writer.path)
        saved = state.current(self.watcher, segment, state.boot_id(self.machine.proc))
        try:
            state.write_json(self.folder / state.FILE, saved.to_dict(), sync=sync)
        except OSError as error:
            self.say(f"{self.folder / state.FILE} cannot be written: {error.strerror}.")

    def rotate(self, now_ns: int) -> None:
        """Close the segment and go on in the next one; the old one is sealed meanwhile."""
        old = self.session
        assert old is not None
        self._finish_sealing()
        self.watcher.settle(now_ns, anyway=True)
        assert self.exporter is not None
        with self.exporter.registry.lock:
            self._durable = self.exporter.registry.counters()
            self.exporter.update(now_ns)
            old.tell(now_ns, self.exporter.news(now_ns))
            old.write(now_ns)
            self._publish(old.written)
        cut_ns = old.cut_ns(now_ns)
        try:
            session = self._new_session(segments.number_of(old.writer.path) + 1, cut_ns)
        except EverywattError as error:
            self.say(f"No new segment can be started, so the current one continues: {error}")
            return
        self.session = session
        old.end(cut_ns)
        for source in self.watcher.sources:
            session.prime(source, old, cut_ns)
            source.leave(old, now_ns)
        meter = self.loop.cost_of_session()
        self.loop.replace(session)
        if self.sender is not None:
            self.sender.live = session.writer.path
        self._save()
        self._sealing = self.clock.spawn(lambda: self._seal(old, meter), "sealing")

    def _seal(self, session: segments.SegmentSession, meter: Use) -> None:
        session.writer.set_meta("samples", session.sample_count)
        why, live = session.finish(meter), None if self.session is None else self.session.writer.path
        if why and session.writer.path not in state.seal_left(self.tape_folder, live):
            self.say(why)

    def _finish_sealing(self) -> None:
        if self._sealing is not None:
            self._sealing.join()
            self._sealing = None

    def _prune(self) -> None:
        assert self.session is not None
        self.disk_bytes = segments.prune(
            self.tape_folder,
            live=self.session.writer.path,
            most_bytes=self.options.disk_bytes,
            oldest_utc_s=self.clock.utc_ns() / NS - self.options.retention_s,
            sent=None if self.sender is None else self.sender.needs(),
            drop=self._dropped,
        )

    def _dropped(self, path: Path) -> None:
        lost = self.sender.drop(path)
        self.say(f"{path.name} was removed before {lost} of its samples were sent: the disk limit is reached.")

    def _reload_now(self) -> None:
        self.notifier.reloading(self.clock.monotonic_ns())
        try:
            fresh = self.reload() if self.reload is not None else self.options
        except EverywattError as error:
            self.say(f"The configuration is unchanged: {error}")
            self.notifier.tell("READY=1")
            return
        kept = [
            name
            for name in AgentOptions.__dataclass_fields__
            if name not in RELOADABLE and getattr(fresh, name) != getattr(self.options, name)
        ]
        if kept:
            self.say(f"Restart the agent to change {', '.join(kept)}.")
        changed = {name: getattr(fresh, name) for name in RELOADABLE}
        sending = any(changed[name] != getattr(self.options, name) for name in RELOADABLE if name.startswith("remote"))
        self.options = replace(self.options, **changed)
        self.counters.most, self.places.by_program = self.options.owners, self.options.programs
        if sending:
            if self.sender is not None:
                self.sender.close()
                self.sender = None
            self._start_sender()
        self._prune_ns = 0
        self.say("The configuration was reloaded.")
        self.notifier.tell("READY=1")

    # Published series.

    def text(self, *, open_metrics: bool = False) -> str:
        """All series as text, with the further names that were asked for."""
        if self.exporter is None:
            return ""
        self.watcher.scraped()
        if not self.options.compat or not self._written:  # the others' counters would go back after a restart
            return self.exporter.registry.text(open_metrics=open_metrics)
        ours = self.exporter.registry.text(open_metrics=open_metrics)
        return ours.removesuffix("# EOF\n") + self._others(open_metrics) + ("# EOF\n" if open_metrics else "")

    def _others(self, open_metrics: bool = False) -> str:
        """The same figures under the names of other exporters, where they were asked for."""
        if not self.options.compat:
            return ""
        assert self.exporter is not None
        source = MetricSource(self.watcher, self._reports, self.exporter.utc, self.watcher.clock.monotonic_ns())
        return "".join(
            load_plugin(METRIC_NAMES, name)(source, open_metrics=open_metrics) for name in self.options.compat
        )

    def trouble(self, silent_s: float) -> str | None:
        """Why this agent is not well; None where it is."""
        now_ns = self.clock.monotonic_ns()
        if not self.snapshots:
            return "nothing has been recorded yet"
        if self.watcher.lines.all and all(line.stale(now_ns) for line in self.watcher.lines.all):
            return "no sensor delivers power any more"
        quiet_s = (now_ns - self.watcher.settled_ns) / NS
        return f"nothing has been recorded for {quiet_s:.0f} s" if quiet_s > silent_s else None

    # The end.

    def finish(self) -> None:
        """Flush, send what goes quickly, seal, save; every step whatever the one before did."""
        self.notifier.tell("STOPPING=1")
        if self.watcher.llm is not None:
            self.watcher.llm.scraper.close()
        session = self.session
        if session is not None:
            self.watcher.lines.patient = False  # nothing better comes
            for source in self.watcher.sources:
                if source.outage is None:
                    source.read()
            session.flush_now(self.clock.monotonic_ns())
        self._finish_sealing()  # first: the sender passes a segment only once that is sealed
        if self.sender is not None:
            self.sender.close(drain_s=5.0)
        if session is not None:
            meter = self.loop.cost_of_session()
            for source in self.watcher.sources:
                source.leave(self.watcher, self.clock.monotonic_ns())
            self._save(sync=True)
            self._seal(session, meter)
        self.loop.close()
        for provider in self._providers:
            provider.close()
        if self._lock is not None:
            self._lock.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
