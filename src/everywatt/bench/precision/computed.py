"""What was really computed: types of weights and of compute, operators, sizes; and whether the label is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everywatt.core.jsonio import ToDict
from everywatt.sensors.procfs import file_text, parse_cpuinfo

INT8_DTYPES = ("qint8", "quint8", "int8", "uint8")
INT8_OPERATORS = (
    "quantized::",
    "onednn::qlinear",
    "onednn::qconv",
    "_int_mm",
    "MatMulInteger",
    "QLinear",
    "ConvInteger",
    "DynamicQuantizeMatMul",
    "QGemm",
    "QAttention",
)
FLOATS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
LEAST_SHARE = 0.9
"""Share of the bytes of a float precision's weights that must have its type."""
X86 = {"bf16": ("avx512_bf16", "amx_bf16"), "fp16": ("avx512_fp16", "amx_fp16")}
X86_INT8 = ("avx512_vnni", "avx_vnni", "amx_int8")
ARM = {"bf16": ("bf16",), "fp16": ("asimdhp", "fphp")}


@dataclass(frozen=True, slots=True)
class Computed(ToDict):
    """What a worker saw of the model that it ran.

    weights     bytes of parameters by type
    compute     types that matrix products got their inputs in, with how often
    operators   names from the profiler with their calls, the most expensive first
    visible     False: the model is a black box, and the label is the caller's word
    capability  of a CUDA device; None for the CPU
    """

    JSON = "weights_bytes=weights compute operators disk_bytes memory_bytes parameters device"

    weights: Mapping[str, int] = field(default_factory=dict)
    compute: Mapping[str, int] = field(default_factory=dict)
    operators: Mapping[str, int] = field(default_factory=dict)
    disk_bytes: int | None = None
    memory_bytes: int | None = None
    parameters: int | None = None
    device: str = "cpu"
    visible: bool = True
    capability: tuple[int, int] | None = None

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Computed:
        """From its fields as JSON has them; a journal of an older version has fewer."""
        known = {name: report[name] for name in cls.__dataclass_fields__ if name in report}
        if known.get("capability") is not None:
            known["capability"] = (int(known["capability"][0]), int(known["capability"][1]))
        return cls(**known)

    @property
    def int8_operators(self) -> list[str]:
        return [name for name in self.operators if any(mark in name for mark in INT8_OPERATORS)]

    @property
    def int8_bytes(self) -> int:
        """Bytes of weights that are stored in eight bits."""
        return sum(count for dtype, count in self.weights.items() if dtype in INT8_DTYPES)


def refusal(label: str, seen: Computed) -> str | None:
    """Why the label is not true of what was computed; None where it is, or where it promises no type."""
    if label.startswith(("int8", "mixed")):
        return _not_int8(label, seen)
    wanted = FLOATS.get(label)
    if wanted is None or not seen.visible or not seen.weights:
        return None
    whole = sum(seen.weights.values())
    share = seen.weights.get(wanted, 0) / whole if whole else 0.0
    if share < LEAST_SHARE:
        most = max(seen.weights, key=lambda dtype: seen.weights[dtype])
        return f"not {label}: its weights are {most} ({100 * (1 - share):.0f} % are not {wanted})"
    return None


def _not_int8(label: str, seen: Computed) -> str | None:
    if not seen.visible:
        return (
            f"not labelled {label}: what this model computes is not visible, so integer arithmetic cannot be confirmed"
        )
    if not seen.int8_bytes:
        kinds = ", ".join(seen.weights) or "no"
        return f"not {label}: its weights are {kinds}, none of them stored in 8 bits"
    if not seen.int8_operators:
        return f"not {label}: no integer operator ran; products are computed in floating point"
    if seen.disk_bytes is not None and seen.parameters:
        floating = 4 * seen.parameters
        saved = 3 * seen.int8_bytes  # an 8-bit weight saves three of four bytes
        if seen.disk_bytes > floating - saved * 0.8 + 1e6:
            return f"not {label}: its file of {seen.disk_bytes / 1e6:.0f} MB is as large as a floating-point one"
    return None


def emulated(label: str, *, flags: Sequence[str] = (), capability: tuple[int, int] | None = None) -> str | None:
    """Why the device has to emulate the precision; None where it has instructions for it.

    flags are those of /proc/cpuinfo; capability is a CUDA card's compute capability, and then flags do not count.
    """
    if capability is not None:
        least = {"fp16": (5, 3), "bf16": (8, 0), "int8": (6, 1)}.get(label.split("-")[0])
        if least is not None and capability < least:
            found, wanted = (".".join(map(str, pair)) for pair in (capability, least))
            return f"emulated: the card has compute capability {found}, and {label} needs {wanted}"
        return None
    if not flags or label not in X86:
        return None
    wanted_flags = ARM[label] if "asimd" in flags else X86[label]
    if any(flag in flags for flag in wanted_flags):
        return None
    return f"emulated: this CPU has no {label} instructions ({', '.join(wanted_flags)})"


def widened(label: str, seen: Computed) -> str | None:
    """Why a float precision is one of storage only: the runtime widens its weights before every product."""
    wanted = FLOATS.get(label)
    if wanted is None or not seen.compute or wanted in seen.compute:
        return None
    return f"emulated: weights are {wanted}, but products are computed in {', '.join(seen.compute)}"


def int8_note(flags: Sequence[str]) -> str | None:
    """What to know of int8 on this CPU; None where it has dot-product instructions for it."""
    if not flags or "asimd" in flags or any(flag in flags for flag in X86_INT8):
        return None
    return "integer arithmetic without dot-product instructions (VNNI): slower than int8 on newer CPUs"


def cpu_flags(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """The instruction sets that the CPU says it has; none where it does not say."""
    first = next(iter(parse_cpuinfo(file_text(proc / "cpuinfo"))), {})
    return tuple((first.get("flags") or first.get("Features") or "").split())
