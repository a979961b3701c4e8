"""Models of PyTorch, converted from floats to a precision. Only a worker imports this: torch is loaded here."""

from __future__ import annotations

import copy
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from everywatt.bench.precision.backend import Backend, Unsupported, build, converts, load_model, pooled
from everywatt.bench.precision.computed import Computed
from everywatt.bench.precision.data import Arrays
from everywatt.bench.precision.plan import Job, LayerTime
from everywatt.core.stats import median

HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def module_times(
    model: Any, run: Callable[[], Any], passes: int, synchronise: Callable[[], None]
) -> tuple[list[LayerTime], float]:
    """For each module that ran, the seconds a pass spends in it and not in modules inside it; and those of a pass.

    So a leaf of any class has a row, and what an attention module does itself between its projections has one too.
    Both are medians over the passes.
    """
    inside: list[str] = []  # the modules that run now, each in the one before it
    own_ns: list[Counter[str]] = []
    wholes_ns: list[int] = []
    calls: Counter[str] = Counter()
    last_ns = 0

    def now_ns() -> int:
        synchronise()
        return time.perf_counter_ns()

    def hook(name: str, *, entered: bool) -> Callable[..., None]:
        def called(*_: Any) -> None:
            nonlocal last_ns
            if inside:
                own_ns[-1][inside[-1]] += now_ns() - last_ns
            if entered:
                inside.append(name)
                calls[name] += 1
            elif inside and inside[-1] == name:
                inside.pop()
            last_ns = now_ns()

        return called

    modules = {name: module for name, module in model.named_modules() if module is not model}
    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_pre_hook(hook(name, entered=True)))
            handles.append(module.register_forward_hook(hook(name, entered=False), always_call=True))
        for _ in range(passes):
            inside.clear()
            own_ns.append(Counter())
            began_ns = last_ns = now_ns()
            run()
            wholes_ns.append(now_ns() - began_ns)
    finally:
        for handle in handles:
            handle.remove()
    found: list[LayerTime] = [
        {
            "layer": name,
            "type": type(modules[name]).__name__,
            "seconds": median([one[name] for one in own_ns]) / 1e9,
            "calls": count / passes,
        }
        for name, count in calls.items()
    ]
    return found, median(wholes_ns) / 1e9


PRODUCTS = ("addmm", "mm", "bmm", "linear", "matmul", "baddbmm", "conv", "scaled_dot_product")


class TorchBackend(Backend):
    """A torch module in inference mode."""

    def __init__(
        self, job: Job, precision: str, calibration: Sequence[Arrays], int8_layers: Sequence[str] | None
    ) -> None:
        self.task = job.task
        self.device = device_of(job.device)
        torch.manual_seed(job.seed)
        if job.entry is not None and converts(job.entry):
            model = build(job.entry, precision)
        else:
            model = build(job.entry, precision) if job.entry is not None else load_model(job.model, job.task)
            batches = [self.prepare(batch) for batch in calibration]
            model = converted(model.eval(), precision, self.device, batches, self._call, int8_layers)
        self.model: Any = model.eval()

    def prepare(self, batch: Arrays) -> Any:
        return tensors_on(self.device, batch)

    def run(self, prepared: Any) -> Any:
        with torch.inference_mode():
            out = self._output(self._call(self.model, prepared), prepared)
        self._synchronise()
        return out

    def answers(self, prepared: Any) -> dict[str, npt.NDArray[Any]]:
        out = self.run(prepared)
        if self.task != "causal-lm":
            return {"outputs": out.float().cpu().numpy()}
        return language_loss(out, prepared["input_ids"], prepared["attention_mask"])

    def facts(self, prepared: Any) -> Computed:
        weights, memory = weights_of(self.model)
        operators, compute = self._watched(prepared)
        cuda = self.device.type == "cuda"
        return Computed(
            weights,
            compute,
            operators,
            disk_bytes=_disk_bytes(self.model),
            memory_bytes=memory,
            parameters=sum(tensor.numel() for tensor in tensors_of(self.model) if tensor.numel() > 1),
            device=str(torch.cuda.get_device_name(self.device)) if cuda else "cpu",
            capability=torch.cuda.get_device_capability(self.device) if cuda else None,
        )

    def hooks(self) -> int:
        return sum(len(getattr(module, table, ())) for module in self.model.modules() for table in HOOK_TABLES)

    def layers(self, prepared: Any, passes: int) -> tuple[list[LayerTime], float]:
        return module_times(self.model, lambda: self.run(prepared), passes, self._synchronise)

    def sensitivity(self, prepared: Sequence[Any]) -> dict[str, list[dict[str, npt.NDArray[Any]]]]:
        whole = self.model
        found = {}
        try:
            for name in linear_names(whole):
                self.model = dynamic_int8(copy.deepcopy(whole), [name]).eval()
                found[name] = [self.answers(batch) for batch in prepared]
        finally:
            self.model = whole
        return found

    def _call(self, model: Any, prepared: Any) -> Any:
        if set(prepared) == {"inputs"}:
            inputs = prepared["inputs"]
            # The floating type of the model's own parameters; float32 where it has none, as all are quantised.
            own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
            return model(inputs.to(own) if inputs.is_floating_point() else inputs)
        return model(**prepared)

    def _output(self, out: Any, prepared: Any) -> Any:
        """Logits, or for an encoder the mean vector of each sentence."""
        hidden = getattr(out, "last_hidden_state", None)
        if self.task == "encode" and hidden is not None:
            return pooled(hidden, prepared["attention_mask"])
        logits = getattr(out, "logits", out)
        return logits[0] if isinstance(logits, tuple) else logits

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _watched(self, prepared: Any) -> tuple[dict[str, int], dict[str, int]]:
        """Operators from the profiler, the most expensive first; and the types that products got."""
        # torch.profiler, which is built on this one, loads the compiler of torch first: 1.4 s of CPU time.
        with torch.autograd.profiler.profile(use_device="cuda" if self.device.type == "cuda" else None) as seen:
            self.run(prepared)
        events = sorted(seen.key_averages(), key=lambda event: -event.self_cpu_time_total)
        operators = {event.key: int(event.count) for event in events if "::" in event.key}
        compute = dict(_product_types(lambda: self._call(self.model, prepared)))
        for name, count in operators.items():
            if name.startswith("quantized::"):
                compute["int8"] = compute.get("int8", 0) + count
        return operators, compute


def _product_types(run: Callable[[], Any]) -> Counter[str]:
    """The types of what matrix products get."""
    found: Counter[str] = Counter()

    class Products(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # Only a model that is compiled needs it: else torch would load its compiler for this, 1.4 s of CPU time.
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.__name__.split(".")[0]
            if any(product in name for product in PRODUCTS) and not str(func).startswith("quantized"):
                found.update({str(a.dtype).removeprefix("torch.") for a in args if isinstance(a, torch.Tensor)})
            return func(*args, **(kwargs or {}))

    with Products(), torch.no_grad():
        run()
    return found


def language_loss(logits: Any, ids: Any, mask: Any) -> dict[str, npt.NDArray[Any]]:
    """For each item the summed loss of its next tokens, and how many they are."""
    wanted, counts = ids[:, 1:], mask[:, 1:].to(torch.float32)
    shares = torch.log_softmax(logits[:, :-1].float(), dim=-1)
    loss = -shares.gather(-1, wanted.unsqueeze(-1)).squeeze(-1) * counts
    return {
        "loss": loss.sum(1).double().cpu().numpy(),
        "tokens": counts.sum(1).long().cpu().numpy(),
    }


def device_of(name: str) -> torch.device:
    """The device of that name; `auto` is a CUDA card where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def tensors_on(device: torch.device, batch: Arrays) -> dict[str, torch.Tensor]:
    """The arrays of a batch as tensors on a device."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in batch.items()}


def _disk_bytes(model: Any) -> int:
    """How large the weights are as a file."""
    with tempfile.TemporaryDirectory(prefix="everywatt-") as folder:
        file = Path(folder) / "weights.pt"
        torch.save(model.state_dict(), file)
        return file.stat().st_size


CASTS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Call = Callable[[Any, Any], Any]


def converted(
    model: Any,
    precision: str,
    device: torch.device,
    calibration: Sequence[Any],
    call: Call,
    int8_layers: Sequence[str] | None = None,
) -> Any:
    """The model at that precision, on its device. Unsupported says why it cannot be."""
    if precision in CASTS:
        return model.to(CASTS[precision]).to(device)
    if device.type != "cpu":
        raise Unsupported(f"{precision} in torch runs on the CPU only (--device cpu)")
    if torch.backends.quantized.engine == "none":
        raise Unsupported("this build of torch has no engine for quantised operators")
    model = model.to(torch.float32)
    if int8_layers is not None:
        return dynamic_int8(model, int8_layers)
    if not linear_names(model):
        raise Unsupported(f"{precision}: the model has no linear layer that torch can quantise")
    if precision == "int8":
        return dynamic_int8(model, None)
    if precision == "int8-static":
        return _static_int8(model, calibration, call)
    raise Unsupported(f"torch cannot convert to {precision}")


def linear_names(model: Any) -> list[str]:
    """Layers that multiply by a matrix: linear ones, and the Conv1D of GPT-2, which is one with its matrix turned."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) or _is_conv1d(module)]


def _is_conv1d(module: Any) -> bool:
    """The class of Hugging Face, known by its looks so that transformers need not be there."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and weight is not None and weight.dim() == 2


def dynamic_int8(model: Any, names: Sequence[str] | None) -> Any:
    """Weights in 8 bits, activations quantised on the fly: all linear layers, or only those named."""
    _straighten(model, names)
    chosen = set(linear_names(model) if names is None else names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = torch.ao.quantization.default_dynamic_qconfig
        return torch.ao.quantization.quantize_dynamic(model, dict.fromkeys(chosen, config), dtype=torch.qint8)


def _straighten(model: Any, names: Sequence[str] | None) -> None:
    """Replace each Conv1D by the linear layer that computes the same, which torch knows how to quantise."""
    for name, module in list(model.named_modules()):
        if _is_conv1d(module) and (names is None or name in names):
            width_in, width_out = module.weight.shape
            linear = nn.Linear(width_in, width_out)
            with torch.no_grad():
                linear.weight.copy_(module.weight.t())
                linear.bias.copy_(module.bias)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, linear)


def _static_int8(model: Any, calibration: Sequence[Any], call: Call) -> Any:
    """Weights and activations in 8 bits, the activations' ranges found on calibration data."""
    if not calibration:
        raise Unsupported("int8-static requires data to calibrate the ranges of activations")
    _straighten(model, None)
    quantization = torch.ao.quantization
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        config = quantization.get_default_qconfig(torch.backends.quantized.engine)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.qconfig = config
        quantization.add_quant_dequant(model)
        quantization.prepare(model, inplace=True)
        for batch in calibration:
            call(model, batch)
        return quantization.convert(model, inplace=True)


def tensors_of(model: Any) -> Iterator[torch.Tensor]:
    """Every tensor of the model's state, packed quantised weights unpacked; shared ones once."""
    seen: set[int] = set()
    for value in _flat(list(model.state_dict().values())):
        if value.data_ptr() not in seen or value.numel() == 0:
            seen.add(value.data_ptr())
            yield value


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _flat(one)


def weights_of(model: Any) -> tuple[dict[str, int], int]:
    """Bytes by type, and their sum."""
    found: dict[str, int] = {}
    for tensor in tensors_of(model):
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.numel() > 1:  # scales and counters are not weights
            found[name] = found.get(name, 0) + tensor.numel() * tensor.element_size()
    return found, sum(found.values())
