"""Whatever is killed, stopped, lost or full: figures hold the truth or say what is missing, and programs go on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fault_plans
import pytest
from costs import IN_CI
from faulty_io import Fault
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.api.run import load
from everywatt.core.errors import RecorderError
from everywatt.recorder import channel
from everywatt.recorder.channel import Patience

SEEDS = 200 if IN_CI else 50
AT_ONCE = 10
MANY_SEEDS = 10_000


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_any_plan_of_faults(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        hold(seed)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(200, MANY_SEEDS, 500))
def test_thousands_of_plans(first: int) -> None:
    for seed in range(first, min(first + 500, MANY_SEEDS)):
        hold(seed)
        gc.collect()  # sockets of programs that were killed


def test_a_gauge_that_misses_just_under_three_periods_has_no_gap() -> None:
    """What the tape took for observed, by the times as they were recorded, stays observed at better times."""
    hold(1205)


def test_two_reads_close_together_do_not_set_the_power_beyond_the_last() -> None:
    hold(1347)


def test_a_card_that_was_never_read_may_have_drawn_anything() -> None:
    hold(1858)


def test_the_end_of_a_span_is_known_when_its_recorder_died_before_it_wrote_it() -> None:
    hold(701)


def test_a_counter_that_fails_at_the_end_without_a_recorder_leaves_a_gap() -> None:
    """No recorder notes the outage: the program itself has to, or 1.9 s of a ramp are taken for observed."""
    hold(1110)


def test_a_run_shorter_than_the_period_before_the_first_read_of_a_second_recorder() -> None:
    """A counter's first read speaks for its own period; before that the device may have drawn all that it can."""
    hold(1263)


def hold(seed: int) -> None:
    wrong = fault_plans.check(seed)
    if wrong:
        replay = f"replay: python tests/support/fault_plans.py {seed}"
        pytest.fail("\n".join([str(fault_plans.make_plan(seed)), *wrong, replay]), pytrace=False)


def test_a_plan_repeats_exactly(tmp_path: Path) -> None:
    """To the order of system calls and the joules: what a seed found is found again."""

    def carried_out(name: str) -> tuple[list[tuple[str, str]], list[object], int]:
        folder = tmp_path / name
        folder.mkdir()
        plan = fault_plans.make_plan(14)
        world = fault_plans.Outcome(plan, folder).world
        figures = [(p.began_ns, p.ended_ns, p.energy and p.energy.joules) for p in plan.programs]
        return world.io.calls, figures, world.now_ns

    assert carried_out("a") == carried_out("b")


@pytest.mark.parametrize("nth", [8, 12, 30])
def test_a_disk_that_is_full_until_the_end_costs_coverage(tmp_path: Path, nth: int) -> None:
    """The program knows how long it ran: what the tape lacks is not observed."""
    import errno

    with VirtualWorld(tmp_path, cpu="constant:100W") as world:
        world.io.faults.append(Fault("recorder", nth, errno.ENOSPC, "write", 10**9))
        with Meter("work", sensors=["virtual"], estimate=False) as meter:
            began_ns = world.now_ns
            world.sleep(12)
            ended_ns = world.now_ns
        found, truth = meter.energy, world.machine.total_j(began_ns, ended_ns)
        assert found.joules is None or found.high + (1 - found.coverage) * 1200 * 1.01 >= truth
        assert found.joules is None or found.coverage < 0.9 or found.low <= truth <= found.high
        assert found.joules is None or meter.run.duration_s == pytest.approx(12, abs=0.01)


class Blocked:
    """Calls into everywatt, and how long a program has waited for them in all."""

    def __init__(self, world: VirtualWorld) -> None:
        self.world, self.seconds = world, 0.0

    def __call__(self, call: Callable[[], Any]) -> Any:
        began_ns = self.world.now_ns
        found = call()
        self.seconds += (self.world.now_ns - began_ns) / 1e9
        return found


@pytest.mark.parametrize("when", ["start", "open", "middle", "close"])
def test_a_stopped_recorder_delays_a_program_by_two_seconds_in_all(tmp_path: Path, when: str) -> None:
    with VirtualWorld(tmp_path, cpu="constant:100W") as world:
        blocked = Blocked(world)

        def stop() -> None:
            assert world.recorder is not None
            world.time.stop(world.recorder, 300)

        if when == "start":
            world.patch.setattr(channel, "start", never_ready)
        if when == "open":
            Meter("other", sensors=["virtual"], estimate=False).start()
            stop()
        meter = Meter("work", sensors=["virtual"], estimate=False)
        blocked(meter.start)
        began_ns = world.now_ns
        for number in range(20):
            if when == "middle" and number == 10:
                stop()
            span = blocked(lambda number=number: meter.open_span("step", number=number))
            world.sleep(0.5)
            blocked(span.close)
            blocked(meter.recording.look)
        if when == "middle":
            blocked(meter.recording.status)
        if when == "close":
            stop()
        ended_ns = world.now_ns
        blocked(meter.stop)
        assert blocked.seconds <= 2.1
        truth = world.machine.total_j(began_ns, ended_ns)
        for energy in (meter.energy, load(meter.run.path).energy()):  # also as another process sees it
            assert energy.low <= truth * 1.001 and energy.high + (1 - energy.coverage) * truth >= truth * 0.999
            assert energy.coverage >= 0.999


def never_ready(patience: Patience) -> None:
    since_ns = patience.clock.monotonic_ns()
    patience.clock.sleep_until(patience.deadline_ns())
    patience.spend(since_ns)
    raise RecorderError("The recorder did not start: no answer in time.")


@pytest.mark.parametrize("when", ["open", "middle"])
def test_a_recorder_that_answers_again_records_the_rest(tmp_path: Path, when: str) -> None:
    with VirtualWorld(tmp_path, cpu="constant:100W", gpu="constant:200W") as world:
        if when == "open":
            Meter("other", sensors=["virtual"], estimate=False).start()
            world.time.stop(world.recorder, 10)
        with Meter("work", sensors=["virtual"], estimate=False) as meter:
            for number in range(240):
                if when == "middle" and number == 20:
                    world.time.stop(world.recorder, 20)
                world.sleep(0.5)
                meter.recording.look()
        for run in (meter.run, load(meter.run.path)):
            assert run.energy(device="cpu.0").joules == pytest.approx(12_000, rel=0.03)
            assert run.energy(device="gpu.0").joules > 0.8 * 24_000


def test_a_span_that_finds_the_recorder_answering_again_is_there_once(tmp_path: Path) -> None:
    with VirtualWorld(tmp_path, cpu="constant:100W") as world:
        Meter("other", sensors=["virtual"], estimate=False).start()
        world.time.stop(world.recorder, 5)
        with Meter("work", sensors=["virtual"], estimate=False) as meter:
            for number in range(20):
                with meter.span("step", number=number):
                    world.sleep(0.5)
        tapes = load(meter.run.path).tapes
        assert len(tapes) == 2
        for tape in tapes:
            steps = [span.attributes["number"] for span in tape.spans() if span.name == "step"]
            assert len(steps) == len(set(steps)) > 1


def test_a_tape_that_its_recorder_opened_too_late_is_no_part_of_the_figure(tmp_path: Path) -> None:
    """The program gave up waiting and wrote its own; what the recorder had until then is not the program's."""
    with VirtualWorld(tmp_path, cpu="constant:100W") as world:
        world.io.faults.append(Fault("recorder", 1, -2, "send"))  # the answer is lost
        with Meter("work", sensors=["virtual"], estimate=False) as meter:
            world.sleep(3)
        for run in (meter.run, load(meter.run.path)):
            assert run.energy().joules == pytest.approx(300, rel=0.01)


def test_programs_that_append_to_a_run_at_once_each_get_a_segment(tmp_path: Path) -> None:
    with VirtualWorld(tmp_path, seed=3, cpu="constant:100W") as world:
        with Meter("work", sensors=["virtual"], estimate=False) as meter:
            world.sleep(1)
        folder = meter.run.path
        meters = [Meter("more", append=folder, sensors=["virtual"], estimate=False) for _ in range(6)]

        def work(meter: Meter) -> None:
            with meter:
                world.sleep(2)

        tasks = [world.program("program", lambda meter=meter: work(meter)) for meter in meters]
        for task in tasks:
            task.join(60)
        run = load(folder)
        assert len(run.tapes) == 7 and len(run.spans) == 7
        # Time that several of them share counts once.
        assert run.duration_s == pytest.approx(3, abs=0.5)
        assert run.energy().joules == pytest.approx(100 * run.duration_s, rel=0.01)
        for span in run.spans:
            assert run.energy(span=span).joules == pytest.approx(100 * span.duration_s, rel=0.01)
