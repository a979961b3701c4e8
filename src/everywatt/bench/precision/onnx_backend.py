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

from everywatt.bench.precision.backend import Unsupported, build
from everywatt.bench.precision.computed import INT8_OPERATORS, cpu_flags, int8_note
from everywatt.bench.precision.data import Arrays
from everywatt.bench.precision.models import load_model
from everywatt.bench.precision.plan import Job
from everywatt.core.errors import MissingExtra

OUTPUT = "output"
OPSET = 17


class OnnxBackend:
    """A session of ONNX Runtime on the CPU."""

    def __init__(self, job: Job, precision: str, calibration: Sequence[Arrays]) -> None:
        try:
            import onnx  # noqa: F401 - ONNX Runtime's quantiser needs it
            import onnxruntime
        except ImportError:
            raise MissingExtra("onnxruntime", "onnx") from None
        if precision not in ("fp32", "int8"):
            raise Unsupported(f"{precision} is not made for ONNX Runtime here; fp32 and int8 are")
        self.task = job.task
        self._folder = tempfile.TemporaryDirectory(prefix="everywatt-")
        self._file = _export(job, precision, calibration[0], Path(self._folder.name))
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

    def facts(self, prepared: Any) -> dict[str, Any]:
        import onnx

        weights: Counter[str] = Counter()
        count = 0
        for tensor in onnx.load(str(self._file)).graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.size > 1:
                weights[str(array.dtype)] += array.nbytes
                count += array.size
        size = self._file.stat().st_size
        operators = self._operators(prepared)
        compute: Counter[str] = Counter()
        for name, calls in operators.items():
            if any(mark in name for mark in INT8_OPERATORS):
                compute["int8"] += calls
            elif name in ("MatMul", "Gemm", "FusedMatMul"):
                compute["float32"] += calls
        return {
            "weights": dict(weights),
            "operators": operators,
            "compute": dict(compute),
            "disk_bytes": size,
            "memory_bytes": sum(weights.values()),
            "parameters": count,
        }

    def hooks(self) -> int:
        return 0

    def layers(self, prepared: Any, passes: int) -> tuple[list[dict[str, Any]], float]:
        raise Unsupported("energy by layer is for the torch runtime")

    def sensitivity(self, prepared: Sequence[Any]) -> dict[str, list[dict[str, npt.NDArray[Any]]]]:
        raise Unsupported("sensitivity by layer is for the torch runtime")

    def _operators(self, prepared: Any) -> dict[str, int]:
        """Names of the operators that ran, the most expensive first, from a session of its own with the profiler."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name) / "profile")
        session = onnxruntime.InferenceSession(str(self._file), options, providers=["CPUExecutionProvider"])
        session.run([OUTPUT], prepared)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        spent: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for event in events:
            name = event.get("args", {}).get("op_name")
            if name and event["name"].endswith("_kernel_time"):
                spent[name] += int(event["dur"])
                calls[name] += 1
        return {name: calls[name] for name, _ in spent.most_common()}


def _export(job: Job, precision: str, example: Arrays, folder: Path) -> Path:
    """The model as an .onnx file, quantised where that is asked for."""
    import torch

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
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = folder / "int8.onnx"
    # Without dot-product instructions pairs of products are added in 16 bits, which 8 full bits would overflow.
    narrow = int8_note(cpu_flags()) is not None
    quantize_dynamic(str(file), str(small), weight_type=QuantType.QInt8, reduce_range=narrow)
    return small


def plain_module(model: Any, task: str, names: Sequence[str]) -> Any:
    """The model as a module that takes tensors in a row and gives one."""
    import torch

    class Plain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            told = dict(zip(names, tensors, strict=True))
            out = self.model(**told) if names != ["inputs"] else self.model(*tensors)
            hidden = getattr(out, "last_hidden_state", None)
            if task == "encode" and hidden is not None:
                mask = told["attention_mask"].unsqueeze(-1).to(hidden.dtype)
                return (hidden * mask).sum(1) / mask.sum(1)
            return getattr(out, "logits", out)

    return Plain()
