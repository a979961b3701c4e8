"""measure() and Meter against a counter of exactly 20 W: every form, nesting, threads, tasks, forks, exceptions."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from steady import WATTS
from truths import holds
from virtual_world import VirtualWorld

import everywatt
from everywatt.api import meter as meter_module
from everywatt.core.errors import MeasurementRefused, RunNotFound, UsageError


def measured_by_the_steady_counter(monkeypatch) -> None:
    monkeypatch.setenv("EVERYWATT_PLUGINS", "steady=steady:Steady")
    monkeypatch.setenv("EVERYWATT_SENSORS", "steady")
    monkeypatch.setenv("EVERYWATT_RECORDER_IDLE_S", "0.3")


@pytest.fixture
def real(own_home, monkeypatch):
    """Threads, event loops and processes of the program's own, in real time."""
    measured_by_the_steady_counter(monkeypatch)
    yield own_home
    assert meter_module._open == [], "no meter is left open"


class Here(NamedTuple):
    """A folder of the test's own, in virtual time."""

    folder: Path
    sleep: Callable[[float], None]

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture
def here(own_home, monkeypatch):
    """Runs of this test are measured by the steady counter alone, in virtual time."""
    with VirtualWorld(own_home) as world:
        measured_by_the_steady_counter(monkeypatch)
        monkeypatch.delenv("EVERYWATT_HOME")
        yield Here(own_home, world.sleep)
        world.wait_gone()
    assert meter_module._open == [], "no meter is left open"


def exactly(energy, seconds: float) -> None:
    """20 W for that long, with the truth inside the interval."""
    assert energy.joules == pytest.approx(WATTS * seconds, rel=0.03), energy
    honestly(energy, seconds)


def honestly(energy, seconds: float) -> None:
    """The same in real time, in which a program may be held up between reading a counter and the clock."""
    assert holds(energy, WATTS * seconds)
    assert energy.pedigree == "counter" and energy.coverage == pytest.approx(1.0)


def test_a_block(here) -> None:
    with everywatt.measure("train") as m:
        here.sleep(0.2)
    exactly(m.energy, m.run.duration_s)
    assert 0.2 <= m.duration_s < 0.6 and m.run.name.endswith("-train")
    assert str(m).startswith("train: ") and "95 %" in str(m) and m.to_dict()["energy"]["joules"] == m.energy.joules
    assert "<b>train</b> in " in m._repr_html_() and m.run.name in m.run._repr_html_()
    assert m.run.path.parent.name == "everywatt-runs"


def test_start_and_stop(here) -> None:
    m = everywatt.measure("x")
    with pytest.raises(UsageError):
        m.stop()
    assert m.energy.joules is None
    m.start()
    with pytest.raises(UsageError):
        m.start()
    here.sleep(0.1)
    energy = m.stop()
    lasted = m.duration_s
    assert m.stop() == energy and m.duration_s == lasted, "a second stop changes nothing"
    exactly(energy, m.run.duration_s)
    with m:  # and it may be used again
        pass
    assert m.run.duration_s < lasted


def test_a_run_that_goes_on_has_a_provisional_figure(here) -> None:
    meter = everywatt.Meter("x")
    assert "not been started" in str(meter.energy.refused)
    with meter:
        here.sleep(5.0)
        so_far = meter.energy
        assert so_far.joules is not None and 0 < so_far.joules <= 5.2 * WATTS
        assert "provisional: the run goes on" in so_far.notes
        here.sleep(5.0)
        assert meter.energy.joules > so_far.joules
    exactly(meter.energy, meter.run.duration_s)
    assert not any("provisional" in note for note in meter.energy.notes)


def test_functions(here) -> None:
    @everywatt.measure
    def plain(n):
        """Doubles."""
        return 2 * n

    @everywatt.measure("named", tags={"k": "v"})
    def named():
        return plain(4)

    assert plain(3) == 6 and plain.__doc__ == "Doubles." and plain.__name__ == "plain"
    exactly(plain.measurement.energy, plain.measurement.run.duration_s)
    assert named() == 8
    assert named.measurement.run.meta["tags"] == {"k": "v"}
    assert [span.name for span in named.measurement.run.spans] == ["named", "plain"]
    assert plain.measurement.run is named.measurement.run


@pytest.mark.realtime
def test_coroutines_and_generators(real) -> None:
    @everywatt.measure
    async def coroutine(n):
        await asyncio.sleep(0.05)
        return n + 1

    @everywatt.measure
    def generator(n):
        got = yield n
        yield got
        return "end"

    @everywatt.measure
    async def agenerator(n):
        for number in range(n):
            await asyncio.sleep(0.01)
            yield number

    async def collect():
        return [item async for item in agenerator(3)]

    assert asyncio.run(coroutine(1)) == 2
    running = generator(5)
    assert next(running) == 5 and running.send("sent") == "sent"
    with pytest.raises(StopIteration, match="end"):
        next(running)
    assert asyncio.run(collect()) == [0, 1, 2]
    for function in (coroutine, generator, agenerator):
        honestly(function.measurement.energy, function.measurement.run.duration_s)


def test_a_generator_that_is_dropped_is_measured_to_there(here) -> None:
    @everywatt.measure
    def endless():
        while True:
            yield

    running = endless()
    next(running)
    del running
    gc.collect()
    exactly(endless.measurement.energy, endless.measurement.run.duration_s)


def test_an_exception_is_raised_on_and_the_record_kept(here) -> None:
    with pytest.raises(ZeroDivisionError), everywatt.measure("bad") as m:
        here.sleep(0.05)
        _ = 1 / 0
    exactly(m.energy, m.run.duration_s)
    assert isinstance(m.error, ZeroDivisionError)
    assert any("ZeroDivisionError" in note.text for note in m.run.tapes[0].notes())
    with pytest.raises(KeyboardInterrupt), everywatt.Meter("worse") as meter, meter.span("step"):
        raise KeyboardInterrupt
    (step,) = [span for span in meter.run.spans if span.name == "step"]
    assert step.attributes["error"] == "KeyboardInterrupt" and step.end_ns is not None


def test_inside_another_it_is_a_span(here) -> None:
    with everywatt.measure("outer") as outer:
        with everywatt.measure("inner") as inner:
            here.sleep(0.1)
        assert inner.energy.joules is None and "enclosing" in inner.energy.refused
        here.sleep(0.1)
    assert len(list((here / "everywatt-runs").glob("2*"))) == 1
    (span,) = [span for span in outer.run.spans if span.name == "inner"]
    exactly(inner.energy, span.duration_s)
    assert span.parent == outer.run.spans[0].id
    assert outer.energy.joules > 1.5 * inner.energy.joules


@pytest.mark.realtime
def test_threads_find_the_meter_that_is_open(real) -> None:
    def work(number):
        with everywatt.span("work", number=number):
            everywatt.log(loss=1.0 / (1 + number))
            time.sleep(0.1)  # the work of a thread

    with everywatt.Meter("pool") as meter, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    spans = [span for span in meter.run.spans if span.name == "work"]
    assert sorted(span.attributes["number"] for span in spans) == [0, 1, 2, 3]
    root = next(span for span in meter.run.spans if span.name == "pool")
    assert {span.parent for span in spans} == {root.id}
    assert sorted(point.value for point in meter.run.points) == [0.25, pytest.approx(1 / 3), 0.5, 1.0]
    total = meter.run.energy(span="work")
    covered = (max(s.end_ns for s in spans) - min(s.start_ns for s in spans)) / 1e9
    assert total.joules <= WATTS * covered * 1.02, "overlapping spans of one name count once"


@pytest.mark.realtime
def test_tasks_keep_their_own_parents(real) -> None:
    async def task(number):
        with everywatt.span(f"task {number}"):
            await asyncio.sleep(0.02)
            with everywatt.span(f"step {number}"):
                await asyncio.sleep(0.02 * number)

    async def all_tasks():
        async with everywatt.measure("tasks") as m:
            await asyncio.gather(*(task(number) for number in range(3)))
        return m

    m = asyncio.run(all_tasks())
    spans = {span.name: span for span in m.run.spans}
    for number in range(3):
        assert spans[f"step {number}"].parent == spans[f"task {number}"].id
        assert spans[f"task {number}"].parent == spans["tasks"].id
        honestly(m.run.energy(span=f"task {number}"), spans[f"task {number}"].duration_s)


@pytest.mark.realtime
def test_spans_may_end_in_any_order_from_any_thread(real) -> None:
    with everywatt.Meter("order") as meter:
        first, second = meter.open_span("first"), meter.open_span("second")
        first.attributes["note"] = "set before the end"
        ender = threading.Thread(target=first.close)
        ender.start()
        ender.join()
        time.sleep(0.05)  # so that the ends of the two spans differ
        second.close()
        second.close()
        meter.open_span("never closed")
    spans = {span.name: span for span in meter.run.spans}
    assert spans["first"].end_ns < spans["second"].end_ns and spans["first"].attributes["note"]
    assert spans["never closed"].end_ns is None
    assert meter.run.energy(span="never closed").joules is not None
    honestly(meter.run.energy(span="second"), spans["second"].duration_s)


def test_without_a_meter_spans_and_logs_do_nothing(here) -> None:
    with everywatt.span("nothing") as span:
        everywatt.log(loss=1.0)
    assert span.id is None and not (here / "everywatt-runs").exists()


def test_points_lie_beside_the_energy(here) -> None:
    with everywatt.Meter() as meter, meter.span("epoch"):
        meter.log(loss=0.5, phase="warm-up")
    points = {point.name: point for point in meter.run.points}
    (epoch,) = [span for span in meter.run.spans if span.name == "epoch"]
    assert points["loss"].value == 0.5 and points["phase"].value == "warm-up" and points["loss"].span == epoch.id


def test_nothing_is_left_behind_without_saving(here, monkeypatch) -> None:
    scratch = here / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with everywatt.measure("gone", save=False) as m, everywatt.span("part"):
        here.sleep(0.1)
    assert list(scratch.iterdir()) == [] and not (here / "everywatt-runs").exists()
    exactly(m.energy, m.run.duration_s)
    assert m.run.to_dict()["spans"][1]["name"] == "part", "the run can still be asked"
    assert m.run.energy(span="part").joules is not None
    m = everywatt.Meter("bad", save=False, sensors=["nope"])
    with pytest.raises(UsageError):
        m.start()
    assert list(scratch.iterdir()) == []


def test_arguments_that_make_no_sense_are_told_at_once(here) -> None:
    for options in ({"period": 0.0}, {"period": "soon"}):
        with pytest.raises(UsageError):
            everywatt.Meter(**options)
    with pytest.raises(RunNotFound):
        everywatt.Meter(append="no-such-run").start()
    meter = everywatt.Meter()
    with pytest.raises(MeasurementRefused):
        _ = meter.run
    with meter, pytest.raises(UsageError):
        meter.start()
    assert meter.stop() is meter.run


def test_a_place_that_cannot_be_written_is_said_and_the_block_runs(here, monkeypatch) -> None:
    (here / "file").write_text("")
    with everywatt.Meter("kept", home=here / "file" / "runs") as meter:
        pass
    assert "state" in str(meter.run.path) and "Runs are kept in" in meter.elsewhere
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "file"))
    ran = False
    with everywatt.measure("lost", home=here / "file" / "runs") as m:
        ran = True
    assert ran and m.energy.joules is None and "cannot be written" in m.energy.refused
    assert "no energy" in m._repr_html_()


@pytest.mark.parametrize(
    "words", [["python"], ["/opt/python3", "-m", "ipykernel_launcher", "-f", "/run/kernel-7.json"]]
)
def test_a_session_without_a_program_is_advised_what_can_be_done_in_it(here, words) -> None:
    refused = everywatt.Meter("cell").start(command=words).stop().energy_net().refused
    assert "everywatt run" not in refused and "everywatt.Meter" in refused, refused


# Processes.


@pytest.mark.realtime
def test_a_forked_child_leaves_the_parents_recording_alone(real) -> None:
    with everywatt.measure("parent", save=False) as m:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with everywatt.span("in the child"):
                    everywatt.log(x=1.0)
                m.stop()  # as if it fell out of the block
                code = 0 if m.energy.joules is None else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        time.sleep(0.05)  # of measured time in the parent
    honestly(m.energy, m.run.duration_s)
    assert [span.name for span in m.run.spans] == ["parent"]


@pytest.mark.realtime
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_measured_program_measure_for_themselves(real, method) -> None:
    script = real / "program.py"
    script.write_text(
        "import everywatt, json, multiprocessing, sys, time\n"
        "def work(n):\n"
        "    with everywatt.measure(f'worker {n}') as m:\n"
        "        time.sleep(0.05)\n"
        "    return m.energy.low, m.energy.high, m.run.duration_s\n"
        "if __name__ == '__main__':\n"
        "    with everywatt.measure('main') as m:\n"
        f"        with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
        "            found = pool.map(work, range(2))\n"
        "    print(json.dumps([*found, (m.energy.low, m.energy.high, m.run.duration_s)]))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 3 and all(low <= WATTS * seconds <= high for low, high, seconds in found), found
    assert len(list((real / "everywatt-runs").glob("2*"))) == 3


def test_many_spans_add_up(here) -> None:
    with everywatt.Meter("many") as meter, meter.span("all"):
        for number in range(2000):
            with meter.span("step", number=number):
                pass
    run = meter.run
    assert len(run.spans) == 2002
    steps, whole = run.energy(span="step"), run.energy(span="all")
    assert 0 < steps.joules <= whole.joules * 1.001
    assert len(run.to_dict()["spans"]) == 2002


# The finished run.


def test_frames_of_every_library(here) -> None:
    with everywatt.measure() as m:
        here.sleep(0.25)
    table = m.run.frame()
    assert {"time_utc", "channel", "value", "unit"} <= set(table.column_names)
    assert set(table.column("channel").to_pylist()) == {"cpu.0.package.energy"}
    joules = table.column("value").to_pylist()
    seconds = [stamp / 1e9 for stamp in table.column("monotonic_ns").to_pylist()]
    assert (joules[-1] - joules[0]) / (seconds[-1] - seconds[0]) == pytest.approx(WATTS, rel=1e-6)
    assert len(m.run.frame(library="pandas")) == len(m.run.frame(library="polars")) == len(table)
    assert len(m.run.frame(["no.such.channel"])) == 0
    with pytest.raises(UsageError):
        m.run.frame(library="spreadsheet")


def test_a_replay_gives_the_same_total(here) -> None:
    from everywatt.recorder.client import record

    with everywatt.Meter("first") as meter:
        here.sleep(0.6)
    (tape,) = meter.run.tapes
    rows = [row for group in tape.groups for frame in tape.frames(group.id) for row in frame.rows()]
    truth = (rows[-1].values[0] - rows[0].values[0]) * 1e-9
    assert truth == pytest.approx(WATTS * (rows[-1].late_ns - rows[0].late_ns) / 1e9, rel=1e-9)
    # From the folder of this program, which is not the recorder's.
    options = {"replay": {"tape": os.path.relpath(tape.path)}}
    recording = record(here / "again" / "host-0001.tape", meta={}, sensors=["replay"], options=options)
    here.sleep((rows[-1].read_ns - rows[0].read_ns) / 1e9 + 0.4)
    again = everywatt.load(recording.close().path).energy()
    assert again.joules == pytest.approx(truth, rel=1e-6) and again.pedigree == "counter"


def test_a_stepped_clock_moves_no_joule(here) -> None:
    """The wall clock is set forward by an hour in the middle: anchors say so, spans and energies stay as they are."""
    from tapes import ORIGIN_NS, UTC_NS, at, counter_group, rows

    from everywatt.core.clocks import NS, Anchor
    from everywatt.core.spans import Span
    from everywatt.tape.writer import TapeWriter

    path = here / "stepped" / "box-0001.tape"
    path.parent.mkdir()
    writer = TapeWriter(path, {"host": {"name": "box"}, "period_s": 0.1})
    writer.anchor(Anchor(ORIGIN_NS, UTC_NS, ORIGIN_NS, 0))
    info = counter_group(gain_pct=0.0, offset_w=0.0, max_w=100.0)
    number = writer.add_group(info, 0.1)
    writer.append(number, rows(lambda t: 20.0 * t, 0.0, 10.0, 0.1))
    writer.span_open(Span("s", "work", at(2.0)))
    writer.span_close("s", at(7.0))
    writer.anchor(Anchor(at(5.0), UTC_NS + 5 * NS + 3600 * NS, at(5.0), 0))
    writer.anchor(Anchor(at(10.0), UTC_NS + 10 * NS + 3600 * NS, at(10.0), 0))
    writer.seal()
    run = everywatt.load(path)
    assert run.duration_s == pytest.approx(5.0)
    assert run.energy(span="work").joules == pytest.approx(100.0, rel=1e-6)
    assert run.energy().joules == pytest.approx(100.0, rel=1e-6)
