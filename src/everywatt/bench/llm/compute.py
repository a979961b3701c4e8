"""What a model had to compute: FLOPs, and how much of the hardware's peak that is; what its tokens cost to buy.

A count of parameters comes from the user or from the server itself; the peak from the user, or from the one GPU whose
name is known. Neither is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everywatt.bench.llm.figure import Figure, over_energy
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict

# Dense 16-bit floating-point peak in TFLOP/s, from the makers' data sheets.
PEAK_TFLOPS: Sequence[tuple[str, float]] = (
    ("A100", 312.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("H200", 989.0),
    ("L40S", 362.0),
    ("L4", 121.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("A40", 149.7),
    ("V100", 125.0),
    ("Tesla T4", 65.0),
    ("MI300X", 1307.0),
    ("MI250X", 383.0),
)
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}
PER_MILLION = 1e6  # tokens that a price is for


@dataclass(frozen=True, slots=True)
class Facts(ToDict):
    """What is known of model and hardware. `parameters` are those that a token uses: the active ones of a mixture.

    `token_price` is for a million input and a million output tokens. `peak_from` and `parameters_from` say who said so.
    """

    parameters: float | None = None
    parameters_from: str = ""
    peak_flops: float | None = None
    peak_from: str = ""
    token_price: tuple[float, float] | None = None
    currency: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Facts:
        """The inverse of `to_dict`; an older record knows less."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if data.get(name) is not None}
        if "token_price" in known:
            known["token_price"] = (float(known["token_price"][0]), float(known["token_price"][1]))
        return cls(**known)

    def given(self, parameters: str | None, peak_flops: str | None, token_price: str | None) -> Facts:
        """With what a user gave in words: `7B`, `312T`, `0.15,0.60 USD`."""
        facts = self
        if parameters is not None:
            facts = replace(facts, parameters=parse_count(parameters), parameters_from="given")
        if peak_flops is not None:
            facts = replace(facts, peak_flops=parse_count(peak_flops), peak_from="given")
        if token_price is not None:
            first, second, currency = parse_prices(token_price)
            facts = replace(facts, token_price=(first, second), currency=currency)
        return facts


def parse_count(text: str) -> float:
    """`135M`, `7B`, `1.5T`: a count with its letter.

    >>> parse_count("135M"), parse_count("7.6B")
    (135000000.0, 7600000000.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kMGBTP]?)\s*", text)
    if not found or not float(found.group(1)) > 0:
        raise UsageError(f"'{text}' is not a count such as 135M or 7B.")
    return float(found.group(1)) * _SCALES[found.group(2)]


def parse_prices(text: str) -> tuple[float, float, str]:
    """`0.15,0.60 USD`: for a million input tokens, for a million output tokens, and the currency."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*,\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not found:
        raise UsageError(f"'{text}' is not a pair of prices per million tokens such as '0.15,0.60 USD'.")
    return float(found.group(1)), float(found.group(2)), found.group(3)


def peak_of(names: Sequence[str]) -> tuple[float, str] | None:
    """FLOP/s of the one GPU of a machine by its name, and where that is from; None for several, or an unknown one."""
    if len(names) != 1:
        return None
    for known, tflops in PEAK_TFLOPS:
        words = "[ -]".join(re.escape(word) for word in known.split())
        if re.search(rf"(?<![A-Za-z0-9]){words}(?![A-Za-z0-9])", names[0]):
            return tflops * 1e12, f"data sheet of {known}, dense, 16 bits"
    return None


def compute_figures(
    facts: Facts, inputs: int | None, outputs: int | None, seconds: float, energy: Energy
) -> dict[str, Figure]:
    """FLOPs, FLOPs for a joule, MFU and the price of the tokens; only what was asked for, or can be known."""
    found: dict[str, Figure] = {}
    tokens = None if inputs is None or outputs is None else inputs + outputs
    if facts.parameters is not None:
        formula = (
            f"2 × {facts.parameters:.4g} parameters ({facts.parameters_from}) × (input + output tokens); without "
            "attention; cached input counts"
        )
        if tokens is None:
            found["flops"] = Figure.none("FLOP", formula, "token counts are unknown")
        else:
            flops = 2.0 * facts.parameters * tokens
            found["flops"] = Figure.bare(flops, "FLOP", formula)
            found["flops_per_joule"] = over_energy(flops, energy, "FLOP/J", "FLOPs / gross J")
        found["mfu"] = _mfu(facts, found["flops"], seconds)
    if facts.token_price is not None:
        found["token_cost"] = _token_cost(facts, inputs, outputs)
    return found


def _mfu(facts: Facts, flops: Figure, seconds: float) -> Figure:
    formula = "FLOPs / seconds with a query open / peak FLOP/s"
    if facts.peak_flops is None:
        return Figure.none("", formula, "the peak FLOP/s of the hardware is unknown: --peak-flops")
    formula = f"{formula} ({facts.peak_flops:.4g}, {facts.peak_from})"
    if flops.value is None or not seconds:
        return Figure.none("", formula, flops.refused or "no query took measurable time")
    return Figure.bare(flops.value / seconds / facts.peak_flops, "", formula)


def _token_cost(facts: Facts, inputs: int | None, outputs: int | None) -> Figure:
    assert facts.token_price is not None
    unit = facts.currency or "(price units)"
    formula = f"input tokens × {facts.token_price[0]:g} + output tokens × {facts.token_price[1]:g}, per million"
    if inputs is None or outputs is None:
        return Figure.none(unit, formula, "token counts are unknown")
    cost = (inputs * facts.token_price[0] + outputs * facts.token_price[1]) / PER_MILLION
    return Figure.bare(cost, unit, formula)
