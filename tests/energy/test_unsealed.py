"""Windows of a tape that is not sealed yet: those that touch add up, and sealing changes no figure.

A busy machine may be asked for the epochs of a training before the recorder has sealed the tape.
"""

import random

import pytest
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.api.run import load


def train(world, meter, rng):
    """Three epochs that touch, with reads of the program's own just beside their edges, by a recorder that is held up.

    Gives the spans of the whole and of its epochs.
    """
    recording = meter.recording
    if rng.random() < 0.5:
        world.time.stop(world.recorder, rng.uniform(0.05, 0.5))
    with meter.span("set-up"):
        world.sleep(rng.uniform(0.0001, 0.1))
    world.sleep(rng.choice([0, 0.0001, 0.0004, 0.0012]))
    edges_ns, epochs, whole = [world.now_ns], [], None
    for _ in range(3):
        for _ in range(rng.randint(2, 10)):
            if rng.random() < 0.3:
                world.time.stop(world.recorder, rng.choice([0.02, 0.05, 0.2, 0.6]))
            world.sleep(rng.uniform(0.01, 0.2))
        edges_ns.append(world.now_ns)
        if rng.random() < 0.7:
            world.sleep(rng.choice([0, 0.0001, 0.0004, 0.0012]))
            with meter.span("validation"):
                world.sleep(rng.choice([0, 0.0002, 0.001]))
        whole = whole or recording.span_open("training", at_ns=edges_ns[0])
        epochs.append(recording.span_open("epoch", parent=whole, at_ns=edges_ns[-2]))
        recording.span_close(epochs[-1], at_ns=edges_ns[-1])
    recording.span_close(whole, at_ns=edges_ns[-1])
    world.sleep(2.0)
    return whole, epochs


@pytest.mark.parametrize("seed", [0, 6, 11, 16, 17, 20, 28, 41, 56])
def test_epochs_add_up_before_and_after_sealing(tmp_path, seed):
    with VirtualWorld(tmp_path, cpu="constant:50W", seed=seed) as world:
        meter = Meter("training", sensors=["virtual"])
        meter.start()
        world.sleep(0.3)
        whole, epochs = train(world, meter, random.Random(seed))
        found = []
        for run in (load(next((tmp_path / "runs").iterdir())), meter.stop()):
            assert run.tapes[0].sealed == bool(found)
            found.append(run.energy(span=whole).joules)
            parts = [run.energy(span=epoch).joules for epoch in epochs]
            assert sum(parts) == pytest.approx(found[-1], rel=1e-6)
        assert found[0] == pytest.approx(found[1], rel=1e-6)
