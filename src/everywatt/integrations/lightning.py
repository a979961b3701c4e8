"""`EverywattCallback` for Lightning 2: fit, validate, test and predict as runs, their epochs and loops as spans.

>>> from everywatt.integrations.lightning import EverywattCallback     # doctest: +SKIP
>>> trainer = Trainer(callbacks=[EverywattCallback()])                 # doctest: +SKIP

Works with `lightning` and with `pytorch_lightning`, whichever the program has imported.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from typing import Any

from everywatt.core.plugins import library
from everywatt.integrations import callback_of
from everywatt.integrations._phases import Measured


def _base() -> Any:
    """The Callback of the package that the program uses; the two are different classes of the same name."""
    if "lightning.pytorch" not in sys.modules and "pytorch_lightning" in sys.modules:
        return sys.modules["pytorch_lightning"].Callback
    return library("lightning.pytorch", "lightning").Callback


@cache
def _callback_class() -> type:
    class EverywattCallback(Measured, _base()):  # type: ignore[misc] # the base is known when Lightning is
        """Measures each fit, validate, test or predict. The figures go to the trainer's loggers at the end.

        name     name of the runs (the trainer's verb, if empty); steps=True makes a span of each training batch too;
                 other options are those of Meter
        run      the last finished run, `energy` its joules with their interval
        """

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if trainer.local_rank == 0:  # ranks of one host share its sensors: one of them measures
                self._phases.start(self._name or stage)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if not self._phases.active:
                return
            self._phases.stop()
            found = self._phases.figures()
            if found and trainer.is_global_zero:
                for logger in trainer.loggers:
                    self._phases.guarded(partial(logger.log_metrics, found, step=trainer.global_step))

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._phases.stop()

        def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
            self._phases.begin("sanity-check")

        def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
            self._phases.end("sanity-check")

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            self._phases.begin("epoch", number=trainer.current_epoch)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self._phases.log(trainer.callback_metrics)
            self._phases.end("epoch")

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if self._steps:
                self._phases.begin("step", number=batch_idx)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self._phases.end("step")

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._phases.end("epoch")

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                self._phases.begin("validation")

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                self._phases.log(trainer.callback_metrics)
                self._phases.end("validation")

        def on_test_start(self, trainer: Any, pl_module: Any) -> None:
            self._phases.begin("test")

        def on_test_end(self, trainer: Any, pl_module: Any) -> None:
            self._phases.log(trainer.callback_metrics)
            self._phases.end("test")

        def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
            self._phases.begin("predict")

        def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
            self._phases.end("predict")

    return EverywattCallback


__getattr__ = callback_of(__name__, _callback_class)
