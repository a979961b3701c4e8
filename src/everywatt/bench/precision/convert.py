"""From a float model to another precision, and what its weights then are. Only a worker imports this."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from everywatt.bench.precision.backend import Unsupported

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


def parameter_count(model: Any) -> int:
    """How many weights there are, in whatever type."""
    return sum(tensor.numel() for tensor in tensors_of(model) if tensor.numel() > 1)
