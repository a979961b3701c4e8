"""`EverywattCallback` for the Hugging Face Trainer: a run for each training, its epochs and evaluations as spans.

>>> from everywatt.integrations.transformers import EverywattCallback      # doctest: +SKIP
>>> trainer = Trainer(model, args, ..., callbacks=[EverywattCallback()])   # doctest: +SKIP
>>> trainer.train().metrics["energy_joules"]                               # doctest: +SKIP
412.3

`trainer.evaluate()` outside of a training has no event at its start: measure that with `everywatt.measure()`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from everywatt.core.clocks import SystemClock
from everywatt.core.plugins import library
from everywatt.integrations import callback_of
from everywatt.integrations._phases import Measured


@cache
def _callback_class() -> type:
    base = library("transformers", "hf").TrainerCallback

    class EverywattCallback(Measured, base):  # type: ignore[misc, valid-type] # the base is known when transformers is
        """Measures each training. The figures are in `state.log_history` and in what `train()` returns.

        name     name of the run; steps=True makes a span of each optimiser step too; other options are those of Meter
        run      the finished run, `energy` its joules with their interval
        """

        _due_ns: int | None = None
        _last_logs: dict[str, Any] | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._due_ns = self._last_logs = None
            if state.is_local_process_zero:  # ranks of one host share its sensors: one of them measures
                self._phases.start(self._name or "train")

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._phases.begin("epoch", number=int(state.epoch or 0))

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._phases.end("epoch")
            self._expect_evaluation(control)

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._due_ns = None
            if self._steps:
                self._phases.begin("step", number=state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._phases.end("step")
            self._expect_evaluation(control)

        def _expect_evaluation(self, control: Any) -> None:
            """The Trainer has no event where an evaluation begins: it comes after this one, if it was asked for."""
            self._due_ns = SystemClock.monotonic_ns() if control.should_evaluate else None

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            self._phases.log(logs or {})
            self._last_logs = logs
            # The training loss is logged before the evaluation and waits for the GPU: only now does the other begin.
            if self._due_ns is not None and control.should_evaluate:
                self._due_ns = None
                self._phases.begin("evaluation", step=state.global_step)

        def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self._due_ns is not None:
                self._phases.begin("evaluation", at_ns=self._due_ns, step=state.global_step)
                self._due_ns = None

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._due_ns = None
            self._phases.end("evaluation")

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._phases.stop()
            found = self._phases.figures()
            if not found:
                return
            state.log_history.append({**found, "epoch": state.epoch, "step": state.global_step})
            if self._last_logs is not None and "train_runtime" in self._last_logs:
                self._last_logs.update(found)  # the same dictionary becomes the metrics that train() returns

    return EverywattCallback


__getattr__ = callback_of(__name__, _callback_class)
