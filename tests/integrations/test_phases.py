"""Begin and end become spans, whatever order a framework sends them in; failures become one warning."""

import copy
import pickle
import warnings

import pytest

from everywatt.api import meter
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError, UsageError
from everywatt.integrations import _phases
from everywatt.integrations._phases import Phases, figures, numbers


class FakeRecording:
    def __init__(self):
        self.events = []
        self.count = 0
        self.fails_at = None
        self.notes = []
        self.reports = []

    def _see(self, *event):
        self.events.append(event)
        if self.fails_at == event[0]:
            raise OSError(f"{event[0]} is broken")

    def span_open(self, name, *, parent=None, attributes=None, at_ns=None, uid=None):
        self.count += 1
        self._see("open", name, parent, dict(attributes or {}), at_ns)
        return f"s{self.count}"

    def span_close(self, uid, *, attributes=None, at_ns=None):
        self._see("close", uid, dict(attributes or {}))
        return 0

    def log(self, values, *, span=None, at_ns=None):
        self._see("log", dict(values), span)

    def note(self, kind, text):
        self._see("note", kind, text)

    def close(self):
        raise EverywattError("a fake has no tape")


@pytest.fixture
def recording(monkeypatch, tmp_path):
    fake = FakeRecording()
    monkeypatch.setenv("EVERYWATT_HOME", str(tmp_path))
    monkeypatch.setattr("everywatt.api.meter.record", lambda *_, **__: fake)
    yield fake
    meter._current.set(None)  # tests that do not stop would be the enclosing run of those that follow
    meter._open.clear()


def opened(fake):
    return [(event[1], event[2]) for event in fake.events if event[0] == "open"]


def closed(fake):
    return [event[1] for event in fake.events if event[0] == "close"]


def test_phases_nest_and_points_belong_to_the_innermost(recording):
    phases = Phases()
    phases.start("train")
    phases.begin("epoch", number=0)
    phases.begin("step")
    phases.log({"loss": 1.5, "note": "words are no numbers"})
    phases.end("step")
    phases.end("epoch", batches=7)
    phases.begin("epoch", number=1)
    assert opened(recording) == [("train", None), ("epoch", "s1"), ("step", "s2"), ("epoch", "s1")]
    assert ("log", {"loss": 1.5}, "s3") in recording.events
    assert ("close", "s2", {"batches": 7}) in recording.events
    assert closed(recording) == ["s3", "s2"]


def test_an_end_closes_what_is_open_inside(recording):
    phases = Phases()
    phases.start("train")
    phases.begin("epoch")
    phases.begin("step")
    phases.end("epoch")
    assert closed(recording) == ["s3", "s2"] and not phases.inside("step")


def test_a_second_begin_ends_the_first_and_an_end_without_begin_is_nothing(recording):
    phases = Phases()
    phases.start("train")
    phases.end("epoch")
    phases.begin("epoch")
    phases.begin("epoch")
    assert closed(recording) == ["s2"] and phases.inside("epoch")


def test_a_phase_may_have_begun_before(recording):
    phases = Phases()
    phases.start("train")
    phases.begin("evaluation", at_ns=123)
    assert recording.events[-1] == ("open", "evaluation", "s1", {}, 123)


def test_stop_ends_what_is_open_and_says_once_that_nothing_was_kept(recording):
    phases = Phases()
    phases.start("train")
    phases.begin("epoch")
    with pytest.warns(RuntimeWarning, match="a fake has no tape"):
        assert phases.stop() is None
    assert closed(recording) == ["s2", "s1"]
    assert phases.energy.refused == "a fake has no tape" and phases.figures() == {} and phases.energies("epoch") == []


@pytest.mark.parametrize("what", ["open", "close", "log"])
def test_a_failure_is_one_warning_and_then_silence(recording, what):
    phases = Phases()
    if what != "open":
        phases.start("train")
    recording.fails_at = what
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        phases.start("train") if what == "open" else None
        for number in range(3):
            phases.begin("epoch", number=number)
            phases.log({"loss": 1.0})
            phases.end("epoch")
        phases.stop()
    assert [w.category for w in seen] == [RuntimeWarning]
    assert f"{what} is broken" in str(seen[0].message) and "continues without it" in str(seen[0].message)
    assert phases.energy.refused == f"{what} is broken"


def test_what_cannot_be_recorded_is_a_warning(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise EverywattError("no disk")

    monkeypatch.setenv("EVERYWATT_HOME", str(tmp_path))
    monkeypatch.setattr("everywatt.api.meter.record", refuse)
    phases = Phases()
    with pytest.warns(RuntimeWarning, match="no disk"):
        phases.start("train")
    assert not phases.active and "no disk" in phases.energy.refused


def test_after_a_failure_the_next_training_is_measured_again(recording):
    phases = Phases()
    recording.fails_at = "open"
    with pytest.warns(RuntimeWarning):
        phases.start("train")
    recording.fails_at = None
    phases.start("train")
    assert phases.active


def test_a_wrong_option_is_an_error_where_the_callback_is_made():
    with pytest.raises(TypeError):
        Phases(colour="blue")
    with pytest.raises(UsageError):
        Phases(period=1e9)


def test_a_copy_has_nothing_open(recording):
    phases = Phases(save=False)
    phases.start("train")
    for twin in (copy.deepcopy(phases), pickle.loads(pickle.dumps(phases))):
        assert not twin.active and twin._options == {"save": False}


def test_numbers_are_finite_numbers():
    numpy = pytest.importorskip("numpy")
    values = {"a": 1, "b": numpy.float32(0.5), "c": "3", "d": float("nan"), "e": None, "f": numpy.ones(3), "g": True}
    assert numbers(values) == {"a": 1.0, "b": 0.5, "g": 1.0}


def test_figures_of_a_refused_energy_are_none_at_all():
    assert figures(Energy.refuse("why")) == {}
    assert figures(Energy(5.0)) == {"energy_joules": 5.0, "energy_low": 5.0, "energy_high": 5.0}


def test_a_real_run_has_its_phases(card, against_truth):
    import time

    phases = Phases()
    phases.start("train")
    for number in range(3):
        phases.begin("epoch", number=number)
        time.sleep(0.3)  # the work that is measured
        phases.log({"loss": 1.0 / (number + 1)})
        phases.end("epoch")
    run = phases.stop()
    epochs = against_truth(run, card, {"epoch"})
    assert [span.attributes["number"] for span in epochs] == [0, 1, 2]
    assert phases.energies("epoch") == [run.energy(span=span).joules for span in epochs]
    assert phases.figures()["energy_joules"] == run.energy().joules
    assert [point.value for point in run.points] == [1.0, 0.5, pytest.approx(1 / 3)]
    assert [point.span for point in run.points] == [span.id for span in epochs]


def test_the_module_needs_no_framework():
    assert _phases.__doc__
