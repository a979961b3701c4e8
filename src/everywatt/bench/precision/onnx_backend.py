"""Models of ONNX Runtime: exported from torch, converted by ONNX Runtime's own tools. Only a worker imports this."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.bench.precision.backend import Backend, Unsupported, build, load_model, pooled
from everywatt.bench.precision.computed import INT8_OPERATORS, Computed, cpu_flags, int8_note
from everywatt.bench.precision.data import Arrays
from everywatt.bench.precision.plan import Job
from everywatt.core.plugins import library

OUTPUT = "output"
OPSET = 17  # the first with LayerNormalization as one operator
PRECISIONS = ("fp32", "fp16", "int8", "int8-static")
PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "Attention", "MultiHeadAttention", "Conv")


class OnnxBackend(Backend):
    """A session of ONNX Runtime on the CPU."""

    def __init__(self, job: Job, precision: str, calibration: Sequence[Arrays]) -> None:
        library("onnx", "onnx")  # ONNX Runtime's quantiser needs it
        onnxruntime = library("onnxruntime", "onnx")
        if precision not in PRECISIONS:
            raise Unsupported(
                f"ONNX Runtime's CPU provider has no {precision} kernels; available: {', '.join(PRECISIONS)}"
            )
        self.task = job.task
        self._folder = tempfile.TemporaryDirectory(prefix="everywatt-")
        self._file = _export(job, precision, calibration, Path(self._folder.name))
        self._session = onnxruntime.InferenceSession(str(self._file), providers=["CPUExecutionProvider"])
        self._names = [one.name for one in self._session.get_inputs()]

    def prepare(self, batch: Arrays) -> Any:
        return {name: np.ascontiguousarray(batch[name]) for name in self._names}

    def run(self, prepared: Any) -> Any:
        return self._session.run([OUTPUT], prepared)[0]

    def answers(self, prepared: Any) -> dict[str, npt.NDArray[Any]]:
        out = self.run(prepared)
        if self.task != "causal-lm":
            return {"outputs": np.asarray(out, dtype=np.float32)}
        import torch

        from everywatt.bench.precision.torch_backend import language_loss

        ids, mask = (torch.from_numpy(prepared[name]) for name in ("input_ids", "attention_mask"))
        return language_loss(torch.from_numpy(np.asarray(out)), ids, mask)

    def facts(self, prepared: Any) -> Computed:
        import onnx

        weights: Counter[str] = Counter()
        count = 0
        for tensor in onnx.load(str(self._file)).graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.size > 1:
                weights[str(array.dtype)] += array.nbytes
                count += array.size
        operators, compute = self._profile(prepared)
        size, memory = self._file.stat().st_size, sum(weights.values())
        return Computed(dict(weights), compute, operators, disk_bytes=size, memory_bytes=memory, parameters=count)

    def _profile(self, prepared: Any) -> tuple[dict[str, int], dict[str, int]]:
        """Operators that ran, the most expensive first, and the types that products got, from a session of its own."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name) / "profile")
        session = onnxruntime.InferenceSession(str(self._file), options, providers=["CPUExecutionProvider"])
        session.run([OUTPUT], prepared)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        spent: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        compute: Counter[str] = Counter()
        for event in events:
            arguments = event.get("args", {})
            name = arguments.get("op_name")
            if name and event["name"].endswith("_kernel_time"):
                spent[name] += int(event["dur"])
                calls[name] += 1
                if (kind := product_type(name, arguments.get("input_type_shape", []))) is not None:
                    compute[kind] += 1
        return {name: calls[name] for name, _ in spent.most_common()}, dict(compute)


def product_type(operator: str, inputs: Sequence[dict[str, Any]]) -> str | None:
    """The type in which an operator multiplies matrices; None where it does not.

    >>> product_type("MatMul", [{"float": [8, 384]}, {"float": [384, 384]}])
    'float32'
    """
    if any(mark in operator for mark in INT8_OPERATORS):
        return "int8" if any(mark in operator for mark in ("MatMul", "Gemm", "Conv", "Attention")) else None
    if operator not in PRODUCTS:
        return None
    kind = next(iter(inputs[0]), "float") if inputs else "float"
    return {"float": "float32"}.get(kind, kind)


def _export(job: Job, precision: str, calibration: Sequence[Arrays], folder: Path) -> Path:
    """The model as an .onnx file, converted where that is asked for."""
    import torch

    example = calibration[0]
    model = build(job.entry, "fp32") if job.entry is not None else load_model(job.model, job.task)
    names = list(example)
    tensors = tuple(torch.from_numpy(np.ascontiguousarray(example[name])) for name in names)
    file = folder / "fp32.onnx"
    axes: dict[str, dict[int, str]] = {
        name: {axis: f"{'batch' if axis == 0 else 'tokens'}" for axis in range(min(2, array.ndim))}
        for name, array in example.items()
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            plain_module(model.eval(), job.task, names),
            tensors,
            str(file),
            input_names=names,
            output_names=[OUTPUT],
            dynamic_axes={**axes, OUTPUT: {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )
    if precision == "fp32":
        return file
    made = folder / f"{precision}.onnx"
    if precision == "fp16":
        _to_fp16(file, made)
    elif precision == "int8":
        _to_int8(file, made)
    else:
        _to_static_int8(file, made, calibration)
    file.unlink()
    return made


def _to_fp16(file: Path, made: Path) -> None:
    """Weights and operators in half precision; inputs and outputs stay as they were."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers too small for fp16 become its smallest
        onnx.save(convert_float_to_float16(onnx.load(str(file)), keep_io_types=True), str(made))


def _narrow() -> bool:
    """Without dot-product instructions pairs of products are added in 16 bits, which 8 full bits would overflow."""
    return int8_note(cpu_flags()) is not None


def _to_int8(file: Path, made: Path) -> None:
    """Weights in 8 bits, activations quantised on the fly."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(file), str(made), weight_type=QuantType.QInt8, per_channel=True, reduce_range=_narrow())


def _to_static_int8(file: Path, made: Path, calibration: Sequence[Arrays]) -> None:
    """Weights and activations in 8 bits, the activations' ranges found on calibration data."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    names = [one.name for one in onnx.load(str(file)).graph.input]  # the export leaves out what the model does not use

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(calibration)

        def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
            batch = next(self._left, None)
            return None if batch is None else {name: np.ascontiguousarray(batch[name]) for name in names}

    quantize_static(
        str(file),
        str(made),
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
        nodes_to_exclude=_without_weight(file),
        per_channel=True,
        reduce_range=_narrow(),
    )


def _without_weight(file: Path) -> list[str]:
    """Products of two activations, as in attention: eight bits of both lose most and gain little."""
    import onnx

    graph = onnx.load(str(file)).graph
    weights = {tensor.name for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type == "MatMul" and not weights & set(node.input)]


def plain_module(model: Any, task: str, names: Sequence[str]) -> Any:
    """The model as a module that takes tensors in a row and gives one."""
    import torch

    class Plain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            named = dict(zip(names, tensors, strict=True))
            out = self.model(**named) if names != ["inputs"] else self.model(*tensors)
            hidden = getattr(out, "last_hidden_state", None)
            if task == "encode" and hidden is not None:
                return pooled(hidden, named["attention_mask"])
            return getattr(out, "logits", out)

    return Plain()
