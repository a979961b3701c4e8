"""Meter: an open recording in this program, with spans that nest, overlap and cross threads and tasks."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from everywatt.api.provenance import provenance
from everywatt.core.clocks import SystemClock
from everywatt.core.config import resolve
from everywatt.core.errors import EverywattError, MeasurementRefused, RunExists, RunNotFound, UsageError
from everywatt.core.jsonio import text
from everywatt.core.platforms import require_linux
from everywatt.core.units import parse_duration_s
from everywatt.recorder.client import Recording, record
from everywatt.recorder.request import RecordRequest, model_file
from everywatt.sensors.base import State
from everywatt.sensors.registry import BEHIND, odd_tables
from everywatt.tape.run_store import existing_home, find_run, new_run, next_segment
from everywatt.tape.run_store import home as runs_home

if TYPE_CHECKING:
    from everywatt.api.cuda_edges import CudaSpans
    from everywatt.api.run import Run
    from everywatt.core.energy import Energy

_current: ContextVar[tuple[Meter, str | None] | None] = ContextVar("everywatt_current", default=None)
_open: list[Meter] = []
_MASK = "CUDA_VISIBLE_DEVICES"  # hides cards from a program


class Meter:
    """Records this machine from `start()` to `stop()`; spans mark what the program was doing.

    >>> with everywatt.Meter("train") as meter:              # doctest: +SKIP
    ...     with meter.span("epoch", number=1):
    ...         train_one_epoch()
    >>> meter.run.energy(span="epoch")                       # doctest: +SKIP

    No sensor problem raises an exception here: without a figure, `energy` is refused and has the reason.

    name      part of the run's name, and the name of its span
    tags      labels of the run; `note` is a sentence stored with it
    period    how often to read power (`"100ms"` or seconds)
    sensors   names of sensors to use (all that work, if None)
    devices   GPUs in the manner of CUDA_VISIBLE_DEVICES (that variable, if None)
    estimate  whether watts may be modelled where nothing measures them
    home      where runs are kept
    save      False: nothing stays on disk after `stop()`
    append    an earlier run (its name, its path, `last`) that this recording is added to; a `Path` may be empty yet
    options   settings of sensors, by their names: {"replay": {"tape": "old.tape"}}
    pids      the processes that the run is about, with their children (this one, if None)
    everything  whether all processes of the machine are recorded, not only those
    memory    metric of process memory: "rss", or "pss" (adds proportional and unique set size)
    request   all parameters of the recording in one value, instead of the settings; the arguments above take precedence
    """

    def __init__(
        self,
        name: str = "",
        *,
        tags: Mapping[str, str] | None = None,
        note: str = "",
        period: str | float | None = None,
        sensors: Sequence[str] | None = None,
        devices: str | None = None,
        estimate: bool | None = None,
        home: str | Path | None = None,
        save: bool = True,
        append: str | Path | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        pids: Sequence[int] | None = None,
        everything: bool = False,
        memory: str | None = None,
        request: RecordRequest | None = None,
    ) -> None:
        chosen = resolve()
        self.name = text(name)
        self._tags = dict(tags or {})
        self._note = text(note)
        self._profile = chosen.profile
        self._mask = chosen.mask_secrets
        self._home = chosen.home if home is None else Path(home)
        self._save = save
        self._append = append
        self._odd = chosen.warnings
        self._pids = None if pids is None else tuple(pids)
        asked = request or RecordRequest.of_settings(chosen)
        given = {
            "period_s": None if period is None else _seconds(period),
            "sensors": sensors,
            "devices": asked.devices or os.environ.get("CUDA_VISIBLE_DEVICES") if devices is None else devices,
            "estimate": estimate,
            "everything": everything or None,
            "memory": memory,
        }
        self._asked = replace(
            asked,
            options={**asked.options, **(options or {})},
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )
        self._recording: Recording | None = None
        self._cuda: CudaSpans | None = None
        self._folder: Path | None = None
        self._scratch: Path | None = None
        self._root: str | None = None
        self._token: Token[tuple[Meter, str | None] | None] | None = None
        self._run: Run | None = None
        self._refused: str | None = None
        self._pid = os.getpid()
        self.elsewhere: str | None = None

    @property
    def recording(self) -> Recording | None:
        """The open recording; None before `start()`, after `stop()`, or if none could be started."""
        return self._recording

    def start(self, *, command: Sequence[str] | None = None, root: bool = True, reaper: int | None = None) -> Meter:
        """Start recording. `root` opens a span over everything, named like the meter.

        `reaper` is the process of an everywatt command: it measures others and is not measured itself.
        """
        if self._recording is not None:
            raise UsageError("This meter is already running.")
        self._run, self._refused, self._pid = None, None, os.getpid()
        try:
            require_linux()
            path = self._segment()
            pids = (os.getpid(),) if self._pids is None else self._pids
            meta = provenance(
                command,
                tags=self._tags,
                note=self._note,
                run=path.parent.name,
                period_s=self._asked.period_s,
                profile=self._profile,
                mask=self._mask,
            )
            if file := model_file(self._asked.options):
                meta["model_file"] = file
            while self._recording is None:
                try:
                    self._recording = record(path, replace(self._asked, pids=pids, reaper=reaper), meta=meta)
                except RunExists:  # another program that appends was faster: the next number
                    path = next_segment(path.parent, socket.gethostname())
        except (UsageError, RunNotFound):
            self._remove_scratch()
            raise  # a mistake of the caller, not of a sensor
        except (EverywattError, OSError) as error:
            self._remove_scratch()
            self._refused = str(error)
            return self
        # A command has already reported what is odd about the settings.
        odd = (*self._odd, *odd_tables(self._asked.options)) if reaper is None else ()
        for sentence in (*odd, *missed(self._recording.reports, self._asked.sensors)):
            self._recording.note("warning", sentence)
        if root:
            self._root = self._recording.span_open(self.name or "run", attributes={"role": "run"})
        self._token = _current.set((self, self._root))
        _open.append(self)
        return self

    def stop(self) -> Run | None:
        """End the recording, seal the tape and open it. None (and a refused energy) if nothing could be recorded.

        Where it has been stopped already, it gives the same run again.
        """
        recording, self._recording = self._recording, None
        self._leave()
        if recording is None:
            return self._run
        if self._pid != os.getpid():
            self._refused = "the recording belongs to the parent process"
            return None
        cuda, self._cuda = self._cuda, None
        try:
            if cuda is not None:
                cuda.finish()
            if self._root is not None:
                recording.span_close(self._root)
            closed = recording.close()
            from everywatt.api.run import load  # it needs numpy, which takes longer to load than recording to start

            run = load(closed.path.parent)
            run.know_spans(list(recording.top_spans.values()), recording.paths)
            if self._scratch is not None:
                for tape in run.tapes:
                    tape.into_memory()
            self._run = run
        except (EverywattError, OSError) as error:
            self._refused = "; ".join([str(error), *recording.notes])
        finally:
            self._remove_scratch()
        return self._run

    def discard(self) -> None:
        """Stop the recording and delete it."""
        recording, self._recording = self._recording, None
        self._leave()
        if recording is None:
            return
        path = recording.close(linger=False).path
        self._refused = "the recording was abandoned"
        if self._append is None:
            _remove(path.parent)
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        """save=False: nothing stays on disk."""
        if self._scratch is not None:
            _remove(self._scratch)
            self._scratch = None

    def _leave(self) -> None:
        if self in _open:
            _open.remove(self)
        if self._token is None:
            return
        _reset(self._token)
        self._token = None

    def _segment(self) -> Path:
        if self._append is not None:
            # The folder of a batch may have no tape yet: nothing of it was recorded so far.
            here = isinstance(self._append, Path) and self._append.is_dir()
            folder = Path(self._append) if here else find_run(self._append, existing_home(self._home))
            return next_segment(folder, socket.gethostname())
        if not self._save:
            import tempfile

            self._scratch = Path(tempfile.mkdtemp(prefix="everywatt-"))
            where = self._scratch
        else:
            where, self.elsewhere = runs_home(self._home)
        self._folder = new_run(where, self.name, SystemClock().utc_ns())
        return next_segment(self._folder, socket.gethostname())

    @property
    def run(self) -> Run:
        """The finished run; raises MeasurementRefused if there is none."""
        if self._run is None:
            raise MeasurementRefused(self._refused or "The meter has not been stopped yet.")
        return self._run

    @property
    def energy(self) -> Energy:
        """Energy of the whole run; refused with the reason if there is none.

        While it is still running, the energy of what has been written so far: provisional, because what is learnt later
        (when a value was published) may change it.
        """
        from everywatt.core.energy import Energy

        if self._run is not None:
            return self._run.energy()
        if self._recording is None or self._pid != os.getpid():
            return Energy.refuse(self._refused or "the meter has not been started")
        from everywatt.api.run import load

        try:
            so_far = load(self._recording.path.parent).energy()
        except EverywattError as error:
            return Energy.refuse(f"nothing has been written yet: {error}")
        return replace(so_far, notes=(*so_far.notes, "provisional: the run goes on"))

    @contextmanager
    def span(
        self, name: str, *, cuda: bool = False, at_ns: int | None = None, **attributes: Any
    ) -> Iterator[SpanHandle]:
        """A named window inside the recording; its parent is the span that is open in this task or thread.

        With `cuda` its edges are where the GPU reaches them (torch's current stream), not where Python does. `at_ns` is
        a start that has passed already (CLOCK_MONOTONIC).
        """
        handle = self.open_span(name, cuda=cuda, at_ns=at_ns, **attributes)
        token = _current.set((self, handle.id))
        try:
            yield handle
        except BaseException as error:
            handle.attributes["error"] = type(error).__name__
            raise
        finally:
            _reset(token)
            handle.close()

    def open_span(self, name: str, *, cuda: bool = False, at_ns: int | None = None, **attributes: Any) -> SpanHandle:
        """A span that the caller closes, from any thread, in any order; `cuda` and `at_ns` as for `span`."""
        here = _current.get()
        parent = here[1] if here is not None and here[0] is self else self._root
        if self._recording is None:
            return SpanHandle(None, None, name)
        if cuda:
            from everywatt.api.cuda_edges import CudaSpans

            self._cuda = self._cuda or CudaSpans(self._recording)
            return SpanHandle(self._cuda, self._cuda.span_open(name, parent=parent, attributes=attributes), name)
        uid = self._recording.span_open(name, parent=parent, attributes=attributes, at_ns=at_ns)
        return SpanHandle(self._recording, uid, name)

    def log(self, **values: float | str) -> None:
        """Store values (loss, accuracy) with the present time in the recording."""
        here = _current.get()
        span = here[1] if here is not None and here[0] is self else self._root
        if self._recording is not None:
            self._recording.log(values, span=span)

    def __enter__(self) -> Meter:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._recording is not None and kind is not None:
            self._recording.note("error", f"the measured block raised {kind.__name__}")
        self.stop()


class SpanHandle:
    """An open span. `close()` ends it; attributes set before that are stored with it."""

    def __init__(self, recording: Recording | CudaSpans | None, uid: str | None, name: str) -> None:
        self._recording = recording
        self.id = uid
        self.name = name
        self.attributes: dict[str, Any] = {}
        self._closed = False

    def close(self) -> None:
        """End the span; a second call does nothing."""
        if not self._closed and self._recording is not None and self.id is not None:
            self._recording.span_close(self.id, attributes=self.attributes)
        self._closed = True


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _reset(token: Token[tuple[Meter, str | None] | None]) -> None:
    try:
        _current.reset(token)
    except ValueError:
        _current.set(None)  # ended in another task or thread than it was started in


def current() -> tuple[Meter, str | None] | None:
    """The meter and span that are open in this task or thread.

    A thread that a measured program starts has no context of its own: there it is the newest meter that is open. In a
    forked child it is None, since the recording is the parent's.
    """
    here = _current.get()
    if here is None and _open:
        here = (_open[-1], None)
    if here is None or here[0]._pid != os.getpid():
        return None
    return here if here[1] is not None else (here[0], here[0]._root)


@contextmanager
def span(name: str, *, cuda: bool = False, **attributes: Any) -> Iterator[SpanHandle]:
    """A span in the open recording, if there is one; otherwise it does nothing, so libraries may use it freely.

    With `cuda` its edges are where the GPU reaches them (torch's current stream), not where Python does.
    """
    here = current()
    if here is None:
        yield SpanHandle(None, None, name)
        return
    with here[0].span(name, cuda=cuda, **attributes) as handle:
        yield handle


def log(**values: float | str) -> None:
    """Store values with the present time in the open recording; without one it does nothing."""
    here = current()
    if here is not None:
        here[0].log(**values)


def _seconds(period: str | float) -> float:
    seconds = parse_duration_s(period) if isinstance(period, str) else float(period)
    if not 0.001 <= seconds <= 3600:
        raise UsageError(f"A period of {seconds:g} s is outside 1 ms … 1 h.")
    return seconds


def missed(reports: Sequence[Mapping[str, Any]], asked: Sequence[str] | None = None) -> list[str]:
    """One sentence for each broken sensor, with the cure; none for one whose stand-in works.

    A sensor that is absent is reported only if it was `asked` for by name. A device that works may have a note that
    says what its figure does not cover. A device mask that names a missing card is reported too.
    """
    states = {report["sensor"]: report["state"] for report in reports}
    found = []
    for report in reports:
        sensor = report["sensor"]
        replaced = any(states.get(other) == State.USABLE for other, behind in BEHIND.items() if sensor in behind)
        reported_elsewhere = any(states.get(better) == State.UNUSABLE for better in BEHIND.get(sensor, ()))
        broken = report["state"] == State.UNUSABLE and not replaced and not reported_elsewhere
        if broken or (report["state"] == State.ABSENT and sensor in (asked or ())):
            why, cure = report["why"], report.get("cure")
            found.append(
                f"{sensor} is not measured: {_closed(why)} Try: {cure}" if cure else f"{sensor} is not measured: {why}"
            )
        elif report["state"] == State.USABLE:
            lost = [device for device in report.get("devices", ()) if device.get("error")]
            found += [f"{device.get('device', sensor)} is not measured: {device['error']}" for device in lost]
            noted = [device for device in report.get("devices", ()) if device.get("note")]
            found += [f"{device.get('device', sensor)}: {device['note']}" for device in noted]
        if _MASK in report.get("missing", {}):
            found.append(report["missing"][_MASK])
    return list(dict.fromkeys(found))


def _closed(text: str) -> str:
    """A sentence with its full stop: reasons come from sensors of all kinds."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
