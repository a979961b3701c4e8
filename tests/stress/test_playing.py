"""Programs on this machine: asked and reached, on time, as spans, and nothing left behind."""

import os
import threading
import time
from itertools import pairwise

import pytest
from loads import alive, fair, gone, workers_below

import everywatt
from everywatt.core.errors import UsageError
from everywatt.stress import Cpu, Load, Program, Step, latin_hypercube, parse_shape, play, shaped


def cpu(text, time_s, **more):
    return shaped(Load(cpu_cores=2), {"": parse_shape(text)}, time_s=time_s, **more)


def test_two_cores_at_half_load():
    (result,) = play(cpu("50", 2.0))
    assert fair(result), result
    assert result.complete and result.duration_s == pytest.approx(2.0, abs=1e-6)
    assert result.reached["operations"] > 0
    if abs(result.reached["cpu_percent"] - 50) > 5:
        assert "the machine was busy" in result.notes[0]
    assert workers_below(os.getpid()) == []


def test_a_ramp_is_told_step_by_step_and_on_time():
    told = []
    results = play(cpu("ramp:0..60:20", 2.0), on_step=told.append)
    assert told == results
    assert [result.asked["cpu_percent"] for result in results] == [0, 20, 40, 60]
    assert all(fair(result) for result in results), results
    assert results[-1].end_ns - results[0].start_ns == pytest.approx(2.0e9, abs=1e3)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(results))


def test_steps_of_a_fifth_of_a_second_end():
    began = time.monotonic()
    results = play(cpu("steps:50,0,50,0,50", 1.0))
    assert time.monotonic() - began < 120.0, "starting workers included"
    assert [result.duration_s for result in results] == pytest.approx([0.2] * 5)
    assert all("cpu_percent" in result.reached for result in results)


def test_a_step_with_fewer_cores_leaves_the_others_idle():
    program = Program((Step(0.6, Cpu(2, 40.0)), Step(0.6, Cpu(1, 40.0)), Step(0.4)))
    both, one, none = play(program)
    assert fair(both) and fair(one)
    assert one.reached["cpu_s"] <= 0.6 * 0.45 + 0.05
    assert none.asked == {} and set(none.reached) == {"cpu_s"}


def test_memory_disk_and_network_together(tmp_path):
    load = Load(ram_bytes=48 * 2**20, disk_bytes_per_s=2e6, network_bytes_per_s=8e6)
    results = play(shaped(load, {"": parse_shape("steps:100,25")}, time_s=3.0), disk_folder=tmp_path)
    for result in results:
        assert result.reached["memory_bytes"] == pytest.approx(result.asked["memory_bytes"], abs=2**20)
        for key in ("disk_bytes_per_s", "network_bytes_per_s"):
            assert result.reached[key] <= result.asked[key] * 1.05
            # A disk that others use may be slow; then the note says so.
            short = result.reached[key] < result.asked[key] * 0.95
            assert not short or any(note.startswith(key.split("_")[0]) for note in result.notes), result
    assert list(tmp_path.iterdir()) == [], "the file has no name"


def test_stop_ends_the_step_and_still_tells_what_was_reached():
    began = time.monotonic()
    seen = []

    def stop():
        seen.append(time.monotonic())
        return "enough" if len(seen) > 3 else None

    (result,) = play(cpu("30", 60.0), stop=stop)
    assert time.monotonic() - began < 55.0
    assert not result.complete and result.notes[-1] == "enough"
    assert 0.5 < result.duration_s < 20.0
    assert "cpu_percent" in result.reached
    assert workers_below(os.getpid()) == []


def test_an_interrupt_leaves_no_worker():
    found = []

    def interrupt(_result):
        found.extend(workers_below(os.getpid()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(cpu("steps:10,10", 3.0), on_step=interrupt)
    assert len(found) == 2 and gone(found, 0.0)


def test_a_worker_that_dies_ends_the_program_with_its_reason():
    def kill():
        time.sleep(0.5)  # in the middle of a step of a minute
        os.kill(workers_below(os.getpid())[0], 9)

    thread = threading.Thread(target=kill)
    results = play(cpu("10", 60.0), on_start=lambda _about: thread.start())
    thread.join()
    assert not results[-1].complete
    assert "a cpu worker ended: killed by SIGKILL" in results[-1].notes[-1]
    assert workers_below(os.getpid()) == []


def test_steps_are_spans_with_asked_and_reached(own_home):
    program = cpu("steps:10,40", 1.2)
    with everywatt.Meter("load", sensors=["use", "modelled"]) as meter:
        results = play(program)
    spans = [span for span in meter.run.spans if span.name == "step"]
    assert [span.attributes["index"] for span in spans] == [0, 1]
    for span, result in zip(spans, results, strict=True):
        assert span.attributes["asked"] == result.asked
        assert span.attributes["reached"]["cpu_percent"] == pytest.approx(result.reached["cpu_percent"])
        assert span.attributes["complete"] is True
        assert (span.attributes["start_ns"], span.attributes["end_ns"]) == (result.start_ns, result.end_ns)
        assert 0 <= span.start_ns - result.start_ns < 5e9 and 0 <= span.end_ns - result.end_ns < 5e9
        assert span.parent is not None


def test_an_interrupt_closes_the_spans(own_home):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), everywatt.Meter("load", sensors=["use", "modelled"]) as meter:
        play(cpu("10", 60.0), stop=interrupt)
    (step,) = (span for span in meter.run.spans if span.name == "step")
    assert step.end_ns is not None
    assert (step.attributes["complete"], step.attributes["error"]) == (False, "KeyboardInterrupt")


def test_a_mix_of_kinds_over_a_hypercube():
    load = Load(cpu_cores=1, cpu_kinds=("integer", "float", "branchy"))
    results = play(latin_hypercube(load, time_s=1.5, steps=6, seed=2))
    assert sorted(result.asked["cpu_kind"] for result in results) == ["branchy"] * 2 + ["float"] * 2 + ["integer"] * 2
    assert all("cpu_percent" in result.reached for result in results)


def test_what_cannot_be_made_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UsageError, match="TiB of memory"):
        play(shaped(Load(ram_bytes=2**50), {}, time_s=1.0))
    with pytest.raises(UsageError, match="no engine 'magic'"):
        play(cpu("10", 1.0), engine="magic")
    with pytest.raises(UsageError, match="not a writable folder"):
        play(shaped(Load(disk_bytes_per_s=1e6), {}, time_s=1.0), disk_folder=tmp_path / "none")
    assert workers_below(os.getpid()) == [] and alive(os.getpid())
