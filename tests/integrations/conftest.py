"""A machine with one exact 100 W card: any window costs 100 W times its length, whatever the test machine does."""

import pytest


@pytest.fixture
def card(sim_machine, monkeypatch, tmp_path):
    lab = sim_machine(gpus=["constant:100W"], sensor=["period=20ms"])
    for name, value in lab.environment().items():
        # The program itself reads no NVML, so that only the recorder, a process of its own, has to load the library.
        if name != "LD_PRELOAD":
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("EVERYWATT_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    monkeypatch.chdir(tmp_path)
    return lab


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Every attempt to record raises something that nobody expected."""

    def fail(*_, **__):
        raise RuntimeError("the sensor is on fire")

    monkeypatch.setenv("EVERYWATT_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("everywatt.api.meter.record", fail)


def holds(run, span, lab):
    """A single figure against the truth. One interval in twenty may miss, so three times its width is asked.

    Windows of a few milliseconds are the business of the tests of the energy room.
    """
    if span.duration_s >= 0.25:
        figure, truth_j = run.energy(span=span), lab.truth("gpu.0", span.start_ns, span.end_ns)
        assert abs(figure.value - truth_j) <= 3 * figure.half_width, f"{figure} for {truth_j:.3f} J"


@pytest.fixture
def against_truth():
    """Check a run: its figures hold the truth, and what its top spans leave out makes up the whole."""

    def check(run, lab, kinds):
        root = next(span for span in run.spans if span.parent is None)
        whole = run.energy()
        holds(run, root, lab)
        inner = sorted((s for s in run.spans if s.parent == root.id), key=lambda s: s.start_ns)
        assert {span.name for span in inner} == set(kinds)
        edges = [root.start_ns, *(t for s in inner for t in (s.start_ns, s.end_ns)), root.end_ns]
        assert edges == sorted(edges), "the phases of a training follow one another"
        origin = run.tapes[0].extent_ns()[0]
        seconds = [(t - origin) / 1e9 for t in edges]
        rest = run.energies(seconds[0::2], seconds[1::2])
        covered = sum(run.energy(span=span).value for span in inner)
        assert covered + rest.sum() == pytest.approx(whole.value, rel=1e-6)
        for span in inner:
            holds(run, span, lab)
        return inner

    return check
