"""Training in virtual time on a machine whose joules are known: epochs add up to the whole, trials take turns."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import stdev

import pytest
from truths import holds
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.bench.precision.training import TrainJob, TrainLab
from everywatt.bench.precision.variants import WorkerFailed
from everywatt.core.errors import UsageError

STEPS = 20
STEP_S = {"fp32": 0.05, "bf16": 0.03}
CPU_S = {"fp32": 1.0, "bf16": 0.75}  # of half an epoch


class VirtualTrainer:
    """In the place of the worker process: steps take their time, and nothing else happens."""

    def __init__(self, world: VirtualWorld, fails: str | None = None) -> None:
        self._world, self._fails = world, fails
        self._precision = ""
        self._mark_ns = 0

    def ask(self, do: str, **told):
        if do == "setup":
            self._precision = told["precision"]
            self._world.sleep(1.5)
            if self._precision == self._fails:
                raise WorkerFailed("out of memory")
            if self._fails == "request":
                raise WorkerFailed(f"'tiny:nothing' cannot be imported at {self._precision}", usage=True)
            return {"held_out": 100}
        start_ns = self._mark_ns or self._world.now_ns
        steps = []
        for number in range(STEPS):
            began_ns = self._world.now_ns
            self._world.sleep(STEP_S[self._precision])
            steps.append({"start_ns": began_ns, "end_ns": self._world.now_ns, "loss": 1 / (1 + number)})
        trained_ns = self._world.now_ns
        self._world.sleep(0.2)
        self._mark_ns = self._world.now_ns
        ends = {"start_ns": start_ns, "trained_ns": trained_ns, "end_ns": self._mark_ns, "steps": steps}
        return {**ends, "cpu_s": 2 * CPU_S[self._precision], "train_loss": 0.2, "val_loss": 0.3, "val_accuracy": 0.9}

    def close(self) -> None: ...


@pytest.fixture
def world(tmp_path):
    with VirtualWorld(tmp_path, cpu="square:30W,90W,0.7s") as made:
        yield made


def trained(world, fails=None, **job):
    meter = Meter("train", sensors=["virtual"])
    meter.start()
    lab = TrainLab(TrainJob(device="cpu", **job), meter, cool=False, worker=lambda: VirtualTrainer(world, fails))
    lab.work()
    run = meter.stop()
    return run, lab.result(run).trained


def test_epochs_add_up_to_the_training_and_to_the_truth(world):
    run, found = trained(world, epochs=3)
    spans = {span.id: span for span in run.spans}
    for one in found:
        whole = spans[one.span]
        truth_j = world.machine.energy_j("cpu", whole.start_ns, whole.end_ns)
        assert one.energy.joules == pytest.approx(truth_j, rel=0.002)
        assert one.energy.low <= truth_j <= one.energy.high
        assert run.energy(span=one.span).joules == pytest.approx(one.energy.joules, rel=1e-6)
        for epoch in one.epochs:
            assert epoch.seconds == pytest.approx(STEPS * STEP_S[one.precision] + 0.2, abs=1e-3)
            assert len(epoch.step_joules) == STEPS
            assert holds(epoch.training, sum(epoch.step_joules))
    fp32, bf16 = found
    assert bf16.ratio.value == pytest.approx(bf16.energy.joules / fp32.energy.joules)


def test_trials_take_turns(world):
    run, found = trained(world, trials=3, epochs=1)
    assert [(one.precision, one.trial) for one in found] == [
        ("fp32", 1), ("bf16", 1), ("bf16", 2), ("fp32", 2), ("fp32", 3), ("bf16", 3)
    ]  # fmt: skip
    whole = [span for span in run.spans if span.name == "training"]
    assert all(before.end_ns <= after.start_ns for before, after in pairwise(whole))
    (idle,) = [span for span in run.spans if span.name == "idle"]
    assert idle.duration_s == pytest.approx(2.0, abs=1e-3)


def test_a_precision_that_fails_is_a_row_and_not_trained_again(world):
    _, found = trained(world, fails="bf16", trials=2, epochs=1)
    assert [(one.precision, one.trial, one.failure) for one in found] == [
        ("fp32", 1, None), ("bf16", 1, "out of memory"), ("fp32", 2, None)
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [{"data": "nothing"}, {"data": "random-tokens"}, {"model": "nowhere"}])
def test_wrong_data_and_models_are_found_out_before_anything_is_recorded(wrong):
    with pytest.raises(UsageError, match=r"neither|labels|no folder"):
        TrainLab(TrainJob(**wrong), Meter("train", sensors=["virtual"]))


def test_a_wrong_request_is_found_out_once(world):
    _, found = trained(world, fails="request")
    assert [one.failure for one in found] == ["'tiny:nothing' cannot be imported at fp32"] * 2


def test_the_ratio_of_three_trainings_has_the_interval_of_three(world):
    """Student's with two degrees of freedom: 4.30 standard errors of the logarithms of the three ratios."""
    meter = Meter("train", sensors=["virtual"])
    meter.start()
    lab = TrainLab(
        TrainJob(device="cpu", epochs=1, trials=3), meter, cool=False, worker=lambda: VirtualTrainer(world, None)
    )
    lab.work()
    result = lab.result(meter.stop())
    joules = {name: [one.energy.value for one in result.trained if one.precision == name] for name in STEP_S}
    logs = [math.log(b / a) for a, b in zip(joules["fp32"], joules["bf16"], strict=True)]
    found = result.beside[1].gross
    assert found.trials == 3 and stdev(logs) > 0
    assert math.log(found.high / found.ratio) >= 4.302 * stdev(logs) / math.sqrt(3)
    assert math.log(found.high / found.ratio) == pytest.approx(math.log(found.ratio / found.low))


def test_a_training_that_was_interrupted_is_in_no_mean(world):
    """Half a training has half the joules."""

    class Interrupted(VirtualTrainer):
        def ask(self, do, **told):
            if do == "epoch" and self._mark_ns and len(lab._done) == 6:  # why private: the sixth and last training
                raise KeyboardInterrupt
            return super().ask(do, **told)

    meter = Meter("train", sensors=["virtual"])
    meter.start()
    job = TrainJob(device="cpu", epochs=2, trials=3)
    lab = TrainLab(job, meter, cool=False, worker=lambda: Interrupted(world))
    with pytest.raises(KeyboardInterrupt):
        lab.work()
    result = lab.result(meter.stop())
    assert [len(one.epochs) for one in result.trained] == [2, 2, 2, 2, 2, 1]
    last = result.trained[-1].precision
    found = {one.candidate.label: one for one in result.beside}
    assert {name: len(one.trials) for name, one in found.items()} == {"fp32": 3, "bf16": 3} | {last: 2}
    whole = [one.seconds for one in result.trained if one.precision == last][:2]
    assert found[last].seconds.value == pytest.approx(sum(whole) / 2)


def test_a_ratio_of_modelled_energies_says_so(world):
    meter = Meter("train", sensors=["virtual"])
    meter.start()
    lab = TrainLab(TrainJob(device="cpu", epochs=1), meter, cool=False, worker=lambda: VirtualTrainer(world, None))
    lab.work()
    result = lab.result(meter.stop())
    assert result.remarks()[0].endswith("of the energy of fp32")
    epochs = tuple(replace(one, energy=replace(one.energy, pedigree="modelled")) for one in result.trained[1].epochs)
    modelled = replace(result, trained=(result.trained[0], replace(result.trained[1], epochs=epochs)))
    assert modelled.remarks()[-1].endswith("of the energy of fp32 (modelled)")


def modelled(result):
    """The same with modelled energies."""
    found = []
    for one in result.trained:
        epochs = tuple(replace(epoch, energy=replace(epoch.energy, pedigree="modelled")) for epoch in one.epochs)
        found.append(replace(one, epochs=epochs))
    return replace(result, trained=tuple(found))


def test_cpu_time_leads_where_energy_is_modelled(world):
    meter = Meter("train", sensors=["virtual"])
    meter.start()
    job = TrainJob(device="cpu", epochs=1, trials=3)
    lab = TrainLab(job, meter, cool=False, worker=lambda: VirtualTrainer(world))
    lab.work()
    result = lab.result(meter.stop())
    assert [one["cpu_s"]["value"] for one in result.to_dict()["compared"]] == [2.0, 1.5]
    assert [one["cpu_s"] for one in result.to_dict()["trained"][:2]] == [2.0, 1.5]
    assert all("CPU time" not in table.headers for table in result.tables())
    result = modelled(result)
    assert [table.headers[2] for table in result.tables()] == ["CPU time"] * 2
    assert result.verdicts()[0].startswith("bf16 uses 25") and "less CPU time" in result.verdicts()[0]


def test_one_training_each_has_its_cpu_time_first_where_energy_is_modelled(world):
    meter = Meter("train", sensors=["virtual"])
    meter.start()
    lab = TrainLab(TrainJob(device="cpu", epochs=1), meter, cool=False, worker=lambda: VirtualTrainer(world))
    lab.work()
    result = modelled(lab.result(meter.stop()))
    assert result.remarks()[0] == "bf16: 0.7500 of the CPU time of fp32"
    assert [row[2] for row in result.tables()[0].cells()] == ["2.00 s", "2.00 s", "1.50 s", "1.50 s"]
