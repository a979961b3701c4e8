"""Old telemetry logs of a batch: counted right, followed, and quick to open however long."""

import json
import time

import pytest

from everywatt.report.live.faces import heading
from everywatt.report.live.snapshot import BatchNow
from everywatt.report.live.telemetry import TelemetrySource


def event(status, chunk="rec1_0", gpu=0, **more):
    """One line as the old scheduler wrote it."""
    details = more.pop("details", {"attempt": 1, "runner": "stub"})
    return {
        "chunk_id": chunk,
        "gpu_index": gpu,
        "gpu_name": "Quadro" if gpu is not None else None,
        "status": status,
        "timestamp": "2026-01-02T03:04:05+00:00",
        "finished_at": None if status == "start" else "2026-01-02T03:04:09+00:00",
        "runtime_s": None if status == "start" else 4.0,
        "details": details,
        **more,
    }


def metrics(before, after):
    keys = ("index", "utilization", "memory_used_mb", "memory_total_mb")
    return {
        "attempt": 1,
        "gpu_metrics": {"before": dict(zip(keys, before, strict=True)), "after": dict(zip(keys, after, strict=True))},
    }


def lines(*events) -> str:
    return "".join(json.dumps(one) + "\n" for one in events)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "rec1_20260102T030405Z.jsonl"


def test_events_are_counted_by_card(log):
    log.write_text(
        lines(
            event("start"),
            event("success", details=metrics((0, 3, 500, 8192), (0, 9, 1500, 8192))),
            event("start", "rec1_1", 1),
            event("failure", "rec1_1", 1, details={"attempt": 1, "returncode": 1, "stderr": "boom", "backoff_s": 2}),
            event("start", "rec1_1", 1, details={"attempt": 2}),
            event("failure", "rec1_1", 1, details={"attempt": 2, "returncode": 1}),
            event("start", "rec1_2", None),
        )
    )
    shown = TelemetrySource(log).poll()
    cpu, first, second = shown.work
    assert (first.worker, first.events, first.success, first.failure, first.retries) == ("gpu.0", 2, 1, 0, 0)
    assert first.runtime_s == 4.0 and first.utilisation_pct == (3.0, 6.0, 9.0)
    assert first.memory_max_bytes == 1500 * 2**20
    # Two failed attempts are two, not the sum of their numbers.
    assert (second.events, second.success, second.failure, second.retries) == (4, 0, 2, 1)
    assert cpu.worker == "cpu" and cpu.status == "start"
    assert [(d.name, d.label, d.power_w, d.utilisation_pct) for d in shown.devices] == [
        ("gpu.0", "Quadro", None, 9.0),
        ("gpu.1", "Quadro", None, None),
    ]
    assert shown.total.refused == "the log has no power"
    assert shown.tail[-1].split() == ["03:04:05", "start", "cpu", "rec1_2"]


def test_a_torn_line_waits_until_it_is_whole(log):
    whole = lines(event("start"), event("success"))
    log.write_text(whole[:-20])
    source = TelemetrySource(log)
    assert source.poll().work[0].events == 1
    with log.open("a") as file:
        file.write(whole[-20:])
    shown = source.poll()
    assert shown.work[0].events == 2 and shown.notes == ()


def test_only_what_was_appended_is_read(log, monkeypatch):
    log.write_text(lines(*(event("success") for _ in range(1000))))
    source = TelemetrySource(log)
    assert source.poll().work[0].success == 1000
    parsed = []
    loads = json.loads
    monkeypatch.setattr("everywatt.report.live.telemetry.json.loads", lambda text: parsed.append(1) or loads(text))
    assert source.poll().work[0].success == 1000 and parsed == []
    with log.open("a") as file:
        file.write(lines(event("success")))
    assert source.poll().work[0].success == 1001 and len(parsed) == 1


def test_a_log_that_starts_again_is_read_from_its_start(log):
    log.write_text(lines(*(event("success") for _ in range(5))))
    source = TelemetrySource(log)
    source.poll()
    log.write_text(lines(event("failure")))
    assert source.poll().work[0].failure == 1


def test_nonsense_is_counted_and_said(log):
    log.write_text("not json\n[1, 2]\n" + lines(event("start")) + '{"status": "start", "gpu_index": "x"}\n')
    shown = TelemetrySource(log).poll()
    assert shown.notes == ("2 lines of the log are not events",)
    assert sum(worker.events for worker in shown.work) == 2


def test_an_empty_log_says_so(log):
    log.write_text("")
    shown = TelemetrySource(log).poll()
    assert shown.notes == ("the log has no events yet",)
    assert heading(shown).endswith(": the log has no power")


def test_a_gigabyte_opens_at_once(log):
    """The file is sparse: its size is what a reader that starts at the front would have to read."""
    with log.open("wb") as file:
        file.write(lines(event("start")).encode())
        file.seek(1 << 30)
        file.write(b"\n" + lines(*(event("success") for _ in range(200))).encode())
    began = time.process_time()
    shown = TelemetrySource(log).poll()
    assert time.process_time() - began < 1.0
    assert shown.work[0].success == 200
    assert any("MiB of the log are not counted yet" in note for note in shown.notes)


def test_the_rest_of_a_long_log_is_counted_behind_and_only_once(log):
    log.write_text(lines(*(event("success", f"c{n}") for n in range(900)), *(event("failure") for _ in range(100))))
    source = TelemetrySource(log, first_bytes=2000, tail=3)
    first = source.poll()
    while source.poll().notes:
        pass
    shown = source.poll()
    (worker,) = shown.work
    assert (worker.events, worker.success, worker.failure) == (1000, 900, 100)
    assert (worker.status, worker.item) == ("failure", "rec1_0"), "what lies behind is not the last that happened"
    assert first.tail == shown.tail and len(shown.tail) == 3


def test_our_own_journal_is_read_too(log):
    def line(kind, **more):
        return json.dumps({"kind": kind, "at": "2026-01-02T03:04:05.000+00:00", **more}) + "\n"

    log.write_text(
        line("batch", command=["x"], devices=[])
        + line("item", id="a", index=0)
        + line("start", id="a", attempt=1, device="gpu.1", lane=0)
        + line("end", id="a", attempt=1, device="gpu.1", status="failed", final=False, ended={"runtime_s": 2.0})
        + line("start", id="a", attempt=2, device="gpu.1", lane=0)
        + line("end", id="a", attempt=2, device="gpu.1", status="done", final=True, ended={"runtime_s": 4.0})
        + line("start", id="b", attempt=1, device="cpu", lane=1)
    )
    shown = TelemetrySource(log).poll()
    cpu, card = shown.work
    assert (card.worker, card.events, card.success, card.failure, card.retries) == ("gpu.1", 4, 1, 1, 1)
    assert (card.runtime_s, card.item, card.status, card.retry_trend) == (3.0, "a", "success", (0.0, 1.0))
    assert (cpu.worker, cpu.item, shown.notes) == ("cpu", "b", ())


def test_the_progress_of_a_batch_is_counted_by_items(log):
    def line(kind, **more):
        return json.dumps({"kind": kind, "at": "2026-01-02T03:04:05.000+00:00", "device": "gpu.0", **more}) + "\n"

    ended = {"ended": {"runtime_s": 2.0}, "final": True}
    log.write_text(
        "".join(line("item", id=name, index=n) for n, name in enumerate("abcd"))
        + line("start", id="a", attempt=1)
        + line("end", id="a", attempt=1, status="done", **ended)
        + line("start", id="b", attempt=1)
        + line("end", id="b", attempt=1, status="failed", **ended)
        + line("start", id="c", attempt=1)
    )
    source = TelemetrySource(log)
    source.read()
    assert source.batch(10.0) == BatchNow(4, 1, 1, 1, 4.0, 10.0)
