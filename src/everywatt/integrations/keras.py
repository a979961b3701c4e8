"""`EverywattCallback` for Keras 3: fit, evaluate and predict as runs, epochs and validations as spans.

>>> from everywatt.integrations.keras import EverywattCallback             # doctest: +SKIP
>>> history = model.fit(x, y, epochs=3, callbacks=[EverywattCallback()])   # doctest: +SKIP
>>> history.history["energy_joules"]                                       # doctest: +SKIP
[41.2, 38.9, 39.0]
"""

from __future__ import annotations

from functools import cache
from typing import Any

from everywatt.core.plugins import library
from everywatt.integrations import callback_of
from everywatt.integrations._phases import Measured


@cache
def _callback_class() -> type:
    base = library("keras", "keras").callbacks.Callback

    class EverywattCallback(Measured, base):  # type: ignore[misc, valid-type] # the base is known when Keras is
        """Measures each fit, evaluate or predict; the joules of each epoch go into the history of `fit`.

        name     name of the runs (`fit`, `evaluate` or `predict`, if empty); steps=True makes a span of each training
                 batch too; other options are those of Meter
        run      the last finished run, `energy` its joules with their interval
        """

        _training = False

        def on_train_begin(self, logs: Any = None) -> None:
            self._training = True
            self._phases.start(self._name or "fit")

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._phases.begin("epoch", number=epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._phases.log(logs or {})
            self._phases.end("epoch")

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self._steps:
                self._phases.begin("step", number=batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._phases.end("step")

        def on_train_end(self, logs: Any = None) -> None:
            self._training = False
            self._phases.stop()
            history = getattr(self.model, "history", None)
            joules = self._phases.energies("epoch")
            if history is not None and joules:
                history.history["energy_joules"] = joules

        def on_test_begin(self, logs: Any = None) -> None:
            self._inner("test", "evaluate")

        def on_test_end(self, logs: Any = None) -> None:
            if not self._training:
                self._phases.log(logs or {})
            self._finish("test")

        def on_predict_begin(self, logs: Any = None) -> None:
            self._inner("predict", "predict")

        def on_predict_end(self, logs: Any = None) -> None:
            self._finish("predict")

        def _inner(self, phase: str, verb: str) -> None:
            """A validation is part of the training; an evaluation by itself is a run."""
            if not self._training:
                self._phases.start(self._name or verb)
            self._phases.begin(phase)

        def _finish(self, phase: str) -> None:
            self._phases.end(phase)
            if not self._training:
                self._phases.stop()

    return EverywattCallback


__getattr__ = callback_of(__name__, _callback_class)
