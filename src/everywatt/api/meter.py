"""Meter: an open recording in this program, with spans that nest, overlap and cross threads and tasks."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Any

from everywatt.api.provenance import provenance
from everywatt.api.run import Run, load
from everywatt.core.clocks import SystemClock
from everywatt.core.config import resolve
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError, MeasurementRefused, UsageError
from everywatt.core.units import parse_duration_s
from everywatt.recorder.client import Recording, record
from everywatt.tape.run_store import existing_home, find_run, new_run, next_segment
from everywatt.tape.run_store import home as runs_home

_current: ContextVar[tuple[Meter, str | None] | None] = ContextVar("everywatt_current", default=None)


class Meter:
    """Records this machine from `start()` to `stop()`; spans mark what the program was doing.

    >>> with everywatt.Meter("train") as meter:              # doctest: +SKIP
    ...     with meter.span("epoch", number=1):
    ...         train_one_epoch()
    >>> meter.run.energy(span="epoch")                       # doctest: +SKIP

    Nothing here raises because of a sensor: where there is no figure, `energy` is refused and says why.

    name      tag of the run's name; tags and note are kept with it
    period    how often to read power (`"100ms"` or seconds)
    sensors   names of sensors to use (all that work, if None)
    devices   GPUs in the manner of CUDA_VISIBLE_DEVICES (that variable, if None)
    estimate  whether watts may be modelled where nothing measures them
    home      where runs are kept; save=False keeps nothing on disk after `stop()`
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
    ) -> None:
        chosen = resolve()
        self.name = name
        self._tags = dict(tags or {})
        self._note = note
        self._period_s = chosen.period_s if period is None else _seconds(period)
        self._sensors = list(chosen.sensors) if sensors is None and chosen.sensors else sensors
        self._devices = devices
        self._profile = chosen.profile
        self._estimate = chosen.estimate if estimate is None else estimate
        self._home = chosen.home if home is None else Path(home)
        self._save = save
        self._append = append
        self._recording: Recording | None = None
        self._folder: Path | None = None
        self._scratch: Path | None = None
        self._root: str | None = None
        self._token: Token[tuple[Meter, str | None] | None] | None = None
        self._run: Run | None = None
        self._refused: str | None = None

    @property
    def recording(self) -> Recording | None:
        """The open recording, None before `start()`, after `stop()`, or where none could be made."""
        return self._recording

    def start(self, *, command: Sequence[str] | None = None, root: bool = True) -> Meter:
        """Begin to record. `root` opens a span over everything, named like the meter."""
        if self._recording is not None:
            raise UsageError("This meter is already running.")
        self._run, self._refused = None, None
        try:
            path = self._segment()
            self._recording = record(
                path,
                meta=provenance(
                    command,
                    tags=self._tags,
                    note=self._note,
                    run=path.parent.name,
                    period_s=self._period_s,
                    profile=self._profile,
                ),
                period_s=self._period_s,
                sensors=self._sensors,
                devices=self._devices,
                estimate=self._estimate,
            )
        except (EverywattError, OSError) as error:
            self._refused = str(error)
            return self
        if root:
            self._root = self._recording.span_open(self.name or "run", attributes={"role": "run"})
        self._token = _current.set((self, self._root))
        return self

    def stop(self) -> Run | None:
        """End the recording, seal the tape and open it. None (and a refused energy) where nothing could be recorded."""
        recording, self._recording = self._recording, None
        self._leave()
        if recording is None:
            return None
        try:
            if self._root is not None:
                recording.span_close(self._root)
            closed = recording.close()
            run = load(closed.path.parent)
        except (EverywattError, OSError) as error:
            self._refused = str(error)
            return None
        self._run = run
        if self._scratch is not None:
            self._energy_before_removal(run)
        return run

    def _energy_before_removal(self, run: Run) -> None:
        """save=False: open tapes stay readable while their files go."""
        for tape in run.tapes:
            tape.into_memory()
        shutil.rmtree(self._scratch or "", ignore_errors=True)

    def _leave(self) -> None:
        if self._token is None:
            return
        try:
            _current.reset(self._token)
        except ValueError:
            _current.set(None)  # stopped in another task or thread than it was started in
        self._token = None

    def _segment(self) -> Path:
        if self._append is not None:
            return next_segment(find_run(self._append, existing_home(self._home)), socket.gethostname())
        if not self._save:
            self._scratch = Path(tempfile.mkdtemp(prefix="everywatt-"))
            where = self._scratch
        else:
            where = runs_home(self._home).path
        self._folder = new_run(where, self.name, SystemClock().utc_ns())
        return next_segment(self._folder, socket.gethostname())

    @property
    def run(self) -> Run:
        """The finished run; MeasurementRefused where there is none."""
        if self._run is None:
            raise MeasurementRefused(self._refused or "The meter has not been stopped yet.")
        return self._run

    @property
    def energy(self) -> Energy:
        """Joules of the whole run; refused with the reason where there is none."""
        if self._run is None:
            return Energy.refuse(self._refused or "the meter has not been stopped yet")
        return self._run.energy()

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[SpanHandle]:
        """A named window inside the recording; its parent is the span that is open in this task or thread."""
        handle = self.open_span(name, **attributes)
        token = _current.set((self, handle.id))
        try:
            yield handle
        except BaseException as error:
            handle.attributes["error"] = type(error).__name__
            raise
        finally:
            _current.reset(token)
            handle.close()

    def open_span(self, name: str, **attributes: Any) -> SpanHandle:
        """A span that the caller closes, from any thread, in any order."""
        current = _current.get()
        parent = current[1] if current is not None and current[0] is self else self._root
        if self._recording is None:
            return SpanHandle(None, None, name)
        uid = self._recording.span_open(name, parent=parent, attributes=attributes)
        return SpanHandle(self._recording, uid, name)

    def log(self, **values: float | str) -> None:
        """Store values (loss, accuracy) at this instant, beside the energy."""
        current = _current.get()
        span = current[1] if current is not None and current[0] is self else self._root
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

    def __init__(self, recording: Recording | None, uid: str | None, name: str) -> None:
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


def current() -> tuple[Meter, str | None] | None:
    """The meter and span that are open in this task or thread."""
    return _current.get()


@contextmanager
def span(name: str, **attributes: Any) -> Iterator[SpanHandle]:
    """A span in whatever recording is open here; without one it does nothing, so libraries may use it freely."""
    here = _current.get()
    if here is None:
        yield SpanHandle(None, None, name)
        return
    with here[0].span(name, **attributes) as handle:
        yield handle


def log(**values: float | str) -> None:
    """Store values at this instant in whatever recording is open here; without one it does nothing."""
    here = _current.get()
    if here is not None:
        here[0].log(**values)


def _seconds(period: str | float) -> float:
    seconds = parse_duration_s(period) if isinstance(period, str) else float(period)
    if not 0.001 <= seconds <= 3600:
        raise UsageError(f"A period of {seconds:g} s is outside 1 ms … 1 h.")
    return seconds
