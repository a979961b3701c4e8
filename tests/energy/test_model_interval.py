"""Joules of a model's watts are as sure as the model was of each row."""

from dataclasses import replace

import pytest
from tapes import at, write_tape

from everywatt.api.run import load
from everywatt.core.channels import Cadence, Channel, Domain, Facts, GroupInfo, Kind, Pedigree, fresh


def model_group(*sides):
    watts = Channel(
        "cpu.0.package.power",
        "W",
        Kind.GAUGE,
        "cpu.0",
        Domain.PACKAGE,
        pedigree=Pedigree.MODELLED,
        facts=Facts(gain_pct=8.0),
    )
    beside = [Channel(f"model.{side}", "W", Kind.GAUGE, "cpu.0", pedigree=Pedigree.MODELLED) for side in sides]
    return GroupInfo("model.power", "model", "cpu.0", (watts, *beside), Cadence.SLOW)


def run_of(path, values, group=None):
    """100 W for 20 s, each second with what the model told beside it."""
    group = group or model_group("low", "high", "outside")
    ticks = [fresh(at(t), values(t)[: len(group.channels)]) for t in range(22)]
    return load(write_tape(path, [(group, 1.0, ticks)]))


def test_inside_of_what_was_learnt_the_usual_width_counts(tmp_path):
    energy = run_of(tmp_path / "a.tape", lambda t: (100.0, 97.0, 103.0, 0.0)).energy(between=(1, 21))
    assert energy.joules == pytest.approx(2000)
    assert energy.budget.by_source()["model"] == pytest.approx(160)
    assert not [note for note in energy.notes if "training range" in note]


def test_outside_the_wider_interval_is_carried_and_told(tmp_path):
    """Half of the rows are 40 % low to 90 % high, the rest ± 3 %: 21.5 % below and 46.5 % above, at 90 %."""
    energy = run_of(
        tmp_path / "a.tape", lambda t: (100.0, 60.0, 190.0, 1.0) if t > 11 else (100.0, 97.0, 103.0, 0.0)
    ).energy(between=(1, 21))
    to_95 = 1.96 / 1.645
    assert energy.joules - energy.low == pytest.approx(2000 * 0.215 * to_95, rel=0.02)
    assert energy.high - energy.joules == pytest.approx(2000 * 0.465 * to_95, rel=0.02)
    assert any("outside the training range of the model for 50.0 % of the time" in note for note in energy.notes)


def test_a_model_that_tells_no_interval_has_its_facts(tmp_path):
    energy = run_of(tmp_path / "a.tape", lambda t: (100.0,), model_group()).energy(between=(1, 21))
    assert energy.budget.by_source()["model"] == pytest.approx(160)


def test_columns_outside_are_named_the_most_frequent_first(tmp_path):
    """Of 20 rows one has nothing outside; of 5 names that are outside in the others, two make way."""
    group = model_group("low", "high", "outside", "farthest")
    group = replace(group, names=("a", "cycles / time", "cpu_time", "b", "c"))
    turn = [0, *[2] * 9, *[3] * 6, 1, 1, 4, 5]
    energy = run_of(
        tmp_path / "a.tape", lambda t: (100.0, 60.0, 190.0, float(turn[t % 20] > 0), float(turn[t % 20])), group
    ).energy(between=(1, 21))
    said = "for 95.0 % of the time, farthest in cycles / time, cpu_time, a and 2 more"
    assert any(note.endswith(said) for note in energy.notes)
