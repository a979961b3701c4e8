"""CUDA edges against a fake GPU whose delays, drift and stalls are known to the nanosecond."""

import sys
from types import SimpleNamespace

import pytest
from fake_clock import FakeClock

from everywatt.api.cuda_edges import REFERENCE_EVERY_NS, CudaClock, CudaSpans, unavailable
from everywatt.api.meter import Meter, span
from everywatt.core.clocks import NS

MS = NS // 1000
US = NS // 1_000_000


class Gpu:
    """A GPU with streams that are busy until some time, and a clock of its own that drifts against the host's."""

    def __init__(self, clock: FakeClock, *, drift=0.0, events_that_fail=()):
        self.clock = clock
        self.drift = drift
        self.busy_until = {"main": 0}
        self.streams = 0
        self.synchronised = 0
        self.made = 0
        self.capturing = False
        self.events_that_fail = set(events_that_fail)
        self.cuda = SimpleNamespace(
            Event=lambda enable_timing: Event(self, enable_timing),
            Stream=self.stream,
            current_device=lambda: 0,
            is_available=lambda: True,
            is_current_stream_capturing=lambda: self.capturing,
        )

    def stream(self):
        self.streams += 1
        name = f"side {self.streams}"
        self.busy_until[name] = 0
        return name

    def launch(self, seconds: float, stream="main"):
        """Queue work: Python goes on at once."""
        self.busy_until[stream] = max(self.busy_until[stream], self.clock.now_ns) + round(seconds * NS)


class Event:
    def __init__(self, gpu: Gpu, enable_timing: bool):
        assert enable_timing
        gpu.made += 1
        if gpu.made in gpu.events_that_fail:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.gpu = gpu
        self.happened_ns: int | None = None

    def record(self, stream="main"):
        self.gpu.clock.now_ns += 5 * US
        self.happened_ns = max(self.gpu.busy_until[stream], self.gpu.clock.now_ns)

    def query(self):
        self.gpu.clock.now_ns += US
        return self.gpu.clock.now_ns >= self.happened_ns

    def synchronize(self):
        self.gpu.synchronised += 1
        self.gpu.clock.now_ns = max(self.gpu.clock.now_ns + US, self.happened_ns)

    def elapsed_time(self, other):
        assert self.query() and other.query(), "CUDA refuses the elapsed time of events that are not complete"
        return (other.happened_ns - self.happened_ns) * (1 + self.gpu.drift) / 1e6


class Sink:
    def __init__(self):
        self.spans, self.notes, self.count = {}, [], 0

    def span_id(self):
        self.count += 1
        return f"s{self.count}"

    def span_open(self, name, *, parent=None, attributes=None, at_ns=None, uid=None):
        uid = uid or self.span_id()
        assert uid not in self.spans
        self.spans[uid] = {"name": name, "parent": parent, "attributes": dict(attributes or {}), "start": at_ns}
        return uid

    def span_close(self, uid, *, attributes=None, at_ns=None):
        self.spans[uid]["end"] = at_ns
        self.spans[uid]["attributes"].update(attributes or {})
        return at_ns or 0

    def note(self, kind, text):
        self.notes.append((kind, text))


@pytest.fixture
def clock():
    return FakeClock()


def spans_on(clock, gpu):
    sink = Sink()
    return CudaSpans(sink, gpu, now_ns=clock.monotonic_ns), sink


def test_edges_are_where_the_gpu_is_not_where_python_is(clock):
    gpu = Gpu(clock)
    spans, sink = spans_on(clock, gpu)
    warm_up = spans.span_open("first use takes the reference")
    spans.span_close(warm_up)
    waits = gpu.synchronised
    gpu.launch(2.0)  # work from before keeps the card busy
    begins = gpu.busy_until["main"]
    uid = spans.span_open("step", attributes={"number": 1})
    gpu.launch(0.75)
    spans.span_close(uid, attributes={"loss": 2.0})
    ends = gpu.busy_until["main"]
    assert gpu.synchronised == waits, "no synchronise during the run"
    assert uid not in sink.spans, "not known yet"
    spans.finish()
    step = sink.spans[uid]
    assert step["start"] == pytest.approx(begins, abs=10 * US)
    assert step["end"] == pytest.approx(ends, abs=10 * US)
    assert step["end"] - step["start"] == pytest.approx(0.75 * NS, abs=US)
    assert step["attributes"] == {"number": 1, "loss": 2.0, "edges": "cuda"}
    assert clock.now_ns >= ends, "finish waited for the card"


@pytest.mark.parametrize("drift", [0.0, 5e-5, -2e-4])
def test_a_drifting_clock_is_anchored_again(clock, drift):
    gpu = Gpu(clock, drift=drift)
    spans, sink = spans_on(clock, gpu)
    truth = {}
    for _ in range(300):
        uid = spans.span_open("step")
        begins = max(gpu.busy_until["main"], clock.now_ns)
        gpu.launch(0.9)
        clock.advance(1.0)
        spans.span_close(uid)
        truth[uid] = (begins, begins + round(0.9 * NS))
    assert gpu.synchronised == 3, "only the first reference waits"
    assert len(sink.spans) > 280, "spans reach the tape while the program runs"
    spans.finish()
    # 300 s at 200 ppm would be 60 ms off; between two anchors 10 s apart nothing of it is left.
    for uid, (begins, _) in truth.items():
        assert sink.spans[uid]["start"] == pytest.approx(begins, abs=50 * US)
        assert sink.spans[uid]["end"] >= sink.spans[uid]["start"]


def test_a_busy_card_is_not_waited_for(clock):
    gpu = Gpu(clock)
    edges = CudaClock(gpu, now_ns=clock.monotonic_ns)
    edges.mark()
    gpu.busy_until["side 1"] = clock.now_ns + 100 * NS  # even our own stream is held up
    clock.advance(REFERENCE_EVERY_NS / NS)
    before = clock.now_ns
    for _ in range(100):
        edges.mark()
    assert clock.now_ns - before < 2 * MS, "one try in a tenth of a second, a fraction of a millisecond long"
    assert edges.rounds == 0


def test_a_graph_capture_takes_host_times(clock):
    gpu = Gpu(clock)
    spans, sink = spans_on(clock, gpu)
    gpu.capturing = True
    start = clock.now_ns
    uid = spans.span_open("captured")
    clock.advance(0.5)
    spans.span_close(uid)
    assert gpu.made == 0
    spans.finish()
    assert (sink.spans[uid]["start"], sink.spans[uid]["end"]) == (start, start + NS // 2)
    assert sink.spans[uid]["attributes"]["edges"] == "host"


def test_a_driver_that_fails_costs_the_edges_and_not_the_program(clock):
    gpu = Gpu(clock, events_that_fail={5})
    spans, sink = spans_on(clock, gpu)
    first = spans.span_open("first")  # three references and an event
    opened = clock.now_ns
    clock.advance(1.0)
    spans.span_close(first)
    after = spans.span_open("after")
    spans.span_close(after)
    spans.finish()
    assert sink.notes == [
        ("cuda", "CUDA edges are not available: RuntimeError: CUDA error: an illegal memory access was encountered")
    ]
    assert sink.spans[first]["start"] == pytest.approx(opened, abs=20 * US)
    assert sink.spans[first]["end"] == opened + NS
    assert sink.spans[first]["attributes"]["edges"] == "host"
    assert sink.spans[after]["start"] is None, "a plain span: the recording takes its times itself"


def test_a_span_that_was_never_closed_is_on_the_tape_open(clock):
    spans, sink = spans_on(clock, Gpu(clock))
    uid = spans.span_open("forgotten")
    spans.finish()
    assert "end" not in sink.spans[uid] and sink.spans[uid]["start"] is not None


def test_without_torch_or_a_card_there_is_a_reason():
    broken = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: 1 / 0))
    assert unavailable(None) == "torch is not imported"
    assert (
        unavailable(SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))) == "torch finds no CUDA device"
    )
    assert unavailable(broken) == "torch.cuda does not respond (division by zero)"


def test_a_meter_without_cuda_records_plain_spans_and_says_why_once(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERYWATT_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with Meter("m", home=tmp_path) as meter:
        for _ in range(2):
            with meter.span("step", cuda=True), span("inside"):
                pass
    steps = [s for s in meter.run.spans if s.name == "step"]
    assert len(steps) == 2 and all(s.end_ns is not None for s in steps)
    notes = [note.text for tape in meter.run.tapes for note in tape.notes() if note.kind == "cuda"]
    assert notes == ["CUDA edges are not available: torch is not imported"]


def test_a_meter_with_cuda_puts_resolved_edges_and_their_children_on_the_tape(monkeypatch, tmp_path):
    """A fake card on the real clock: work of 0.4 s is queued in no time; the span must be 0.4 s long."""
    import time

    class RealClock:
        now_ns = property(lambda self: time.monotonic_ns(), lambda self, value: None)

    gpu = Gpu(RealClock())
    monkeypatch.setenv("EVERYWATT_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setitem(sys.modules, "torch", gpu)
    with Meter("m", home=tmp_path) as meter:
        with meter.span("step", cuda=True, number=3), span("inside"):
            gpu.launch(0.4)
        time.sleep(0.45)  # the fake's synchronize cannot sleep
    step = next(s for s in meter.run.spans if s.name == "step")
    inside = next(s for s in meter.run.spans if s.name == "inside")
    root = next(s for s in meter.run.spans if s.parent is None)
    assert step.duration_s >= 0.3999 and step.end_ns <= root.end_ns
    assert inside.duration_s < step.duration_s and inside.parent == step.id and step.parent == root.id
    assert step.attributes == {"number": 3, "edges": "cuda"}
