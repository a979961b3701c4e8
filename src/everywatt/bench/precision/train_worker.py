"""A training at one precision in a process of its own: `python -m everywatt.bench.precision.train_worker`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from everywatt.bench.precision.backend import build, load_model, pooled
from everywatt.bench.precision.data import Dataset, halves, load_data
from everywatt.bench.precision.plan import EpochReport, StepReport
from everywatt.bench.precision.torch_backend import device_of, tensors_on
from everywatt.bench.precision.worker import answer_channel, serve

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Pooled(torch.nn.Module):  # type: ignore[misc]
    """A sentence encoder with a linear head, trained together."""

    def __init__(self, encoder: Any, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = torch.nn.Linear(encoder.config.hidden_size, classes)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.head(pooled(hidden, attention_mask))


class Training:
    """The model and its optimiser; each epoch begins where the one before ended, so that epochs fill the run."""

    def __init__(self) -> None:
        self._mark_ns, self._used_s = 0, 0.0

    def setup(self, request: Mapping[str, Any]) -> dict[str, int]:
        start = int(request["seed"]) + int(request.get("trial", 1)) - 1
        torch.manual_seed(start)
        self._rng = np.random.default_rng(start)
        self._data: Dataset = load_data(request["data"])
        assert self._data.labels is not None, "the lab has looked at the data"
        train, held = halves(len(self._data), request["seed"])
        limit = request.get("limit")
        self._train, self._held = train[:limit], held[:limit]
        self._size = int(request["batch_size"])
        self._device = device_of(request["device"])
        self._precision = request["precision"]
        self._model = _model(request, int(self._data.labels.max()) + 1).to(self._device)
        self._optimiser = torch.optim.AdamW(self._model.parameters(), lr=float(request["lr"]))
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=self._precision == "fp16")
        self._warm_up()
        return {"held_out": len(self._held)}

    def _warm_up(self) -> None:
        """What the first step would else pay for: libraries that torch loads late, memory, threads."""
        spare = torch.nn.Linear(2, 2)
        with self._cast():
            self._loss(self._train[: self._size])[0].backward()
        spare(torch.zeros(1, 2)).sum().backward()
        torch.optim.AdamW(spare.parameters()).step()
        self._optimiser.zero_grad(set_to_none=True)

    def epoch(self, request: Mapping[str, Any]) -> EpochReport:
        """One pass over the training half and one over the held-out one, with when each step began and ended."""
        start_ns = self._mark_ns or time.monotonic_ns()
        used_s = self._used_s or time.process_time()
        order = self._rng.permutation(self._train)
        self._model.train()
        steps = [self._step(order[first : first + self._size]) for first in range(0, len(order), self._size)]
        trained_ns = time.monotonic_ns()
        loss, accuracy = self._validate()
        self._mark_ns, self._used_s = time.monotonic_ns(), time.process_time()
        return {
            "start_ns": start_ns,
            "trained_ns": trained_ns,
            "end_ns": self._mark_ns,
            "cpu_s": self._used_s - used_s,
            "steps": steps,
            "train_loss": float(np.mean([step["loss"] for step in steps])),
            "val_loss": loss,
            "val_accuracy": accuracy,
        }

    def _step(self, items: Any) -> StepReport:
        start_ns = time.monotonic_ns()
        self._optimiser.zero_grad(set_to_none=True)
        with self._cast():
            loss = self._loss(items)[0]
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimiser)
        self._scaler.update()
        value = float(loss.detach())  # waits for the device
        return {"start_ns": start_ns, "end_ns": time.monotonic_ns(), "loss": value}

    def _validate(self) -> tuple[float, float]:
        self._model.eval()
        losses, right = 0.0, 0
        with torch.inference_mode(), self._cast():
            for first in range(0, len(self._held), self._size):
                items = self._held[first : first + self._size]
                loss, logits, labels = self._loss(items)
                losses += float(loss) * len(items)
                right += int((logits.argmax(1) == labels).sum())
        return losses / len(self._held), right / len(self._held)

    def _loss(self, items: Any) -> tuple[Any, Any, Any]:
        assert self._data.labels is not None
        batch = tensors_on(self._device, self._data.batch(items))
        out = self._model(batch["inputs"].float()) if set(batch) == {"inputs"} else self._model(**batch)
        logits = getattr(out, "logits", out).float()
        labels = torch.from_numpy(self._data.labels[items]).to(self._device)
        return torch.nn.functional.cross_entropy(logits, labels), logits, labels

    def _cast(self) -> Any:
        wanted = AUTOCAST.get(self._precision)
        return nullcontext() if wanted is None else torch.autocast(self._device.type, dtype=wanted)


def _model(request: Mapping[str, Any], classes: int) -> Any:
    if request.get("entry"):
        return build(request["entry"], "fp32")
    if request["model"] == "minilm":
        return Pooled(load_model("minilm", "encode"), classes)
    return load_model(request["model"], "classify")


if __name__ == "__main__":
    serve(sys.stdin, answer_channel(), Training())
