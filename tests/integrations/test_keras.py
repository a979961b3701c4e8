"""Keras 3 on the torch backend, for real, on a tiny model."""

import warnings

import pytest

pytestmark = pytest.mark.ml
EPOCHS, BATCHES = 3, 6


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras
    import numpy as np

    x = np.arange(96, dtype="float32").reshape(24, 4) / 96
    y = x.sum(axis=1, keepdims=True)

    def model():
        keras.utils.set_random_seed(5)
        made = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        made.compile(optimizer="sgd", loss="mse")
        return made

    return model, x, y


@pytest.fixture
def callback_class(parts):
    from everywatt.integrations.keras import EverywattCallback

    return EverywattCallback


def test_a_fit_is_a_run_with_epochs_and_validations(card, against_truth, callback_class, parts):
    model, x, y = parts
    callback = callback_class()
    history = model().fit(x, y, epochs=EPOCHS, batch_size=4, validation_data=(x, y), verbose=0, callbacks=[callback])
    epochs = against_truth(callback.run, card, {"epoch"})
    assert [s.attributes["number"] for s in epochs] == [0, 1, 2]
    tests = [s for s in callback.run.spans if s.name == "test"]
    assert [s.parent for s in tests] == [s.id for s in epochs]
    assert history.history["energy_joules"] == [callback.run.energy(span=s).joules for s in epochs]
    losses = [p.value for p in callback.run.points if p.name == "loss"]
    assert losses == pytest.approx(history.history["loss"])
    assert callback.run.name.endswith("-fit")


@pytest.mark.parametrize(("verb", "phase"), [("evaluate", "test"), ("predict", "predict")])
def test_other_verbs_are_runs_too(card, against_truth, callback_class, parts, verb, phase):
    model, x, y = parts
    callback = callback_class()
    getattr(model(), verb)(*((x, y) if verb == "evaluate" else (x,)), verbose=0, callbacks=[callback])
    against_truth(callback.run, card, {phase})
    assert callback.run.name.endswith(f"-{verb}")


def test_steps_are_spans_where_asked_for(card, callback_class, parts):
    model, x, y = parts
    callback = callback_class(steps=True)
    model().fit(x, y, epochs=1, batch_size=4, verbose=0, callbacks=[callback])
    steps = [s for s in callback.run.spans if s.name == "step"]
    assert [s.attributes["number"] for s in steps] == list(range(BATCHES))


def test_the_training_is_the_same_with_and_without_and_with_a_broken_meter(card, monkeypatch, callback_class, parts):
    model, x, y = parts
    results = []
    for callbacks, fails in (([], False), ([callback_class()], False), ([callback_class()], True)):
        if fails:
            monkeypatch.setattr("everywatt.api.meter.record", lambda *_, **__: 1 / 0)
        made = model()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            history = made.fit(
                x, y, epochs=2, batch_size=4, validation_data=(x, y), verbose=0, shuffle=False, callbacks=callbacks
            )
        assert len([w for w in seen if "everywatt" in str(w.message)]) == (1 if fails else 0)
        assert ("energy_joules" in history.history) == (bool(callbacks) and not fails)
        results.append(made.get_weights())
    for other in results[1:]:
        assert all((one == two).all() for one, two in zip(results[0], other, strict=True))
