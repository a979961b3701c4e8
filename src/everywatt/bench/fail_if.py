"""`--fail-if 'energy > baseline * 1.05'`: a condition on figures, for continuous integration.

It is true only where the interval says so: a comparison that is undecided does not fail a build. Where the figure that
it is about does not exist, it is neither true nor false, and `unjudged` says so.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everywatt.bench.figures import Figures, Mean
from everywatt.bench.verdict import Comparison
from everywatt.core.errors import UsageError
from everywatt.core.units import parse_duration_s, parse_energy_j, parse_power_w

_RULE = re.compile(
    r"\s*(?P<metric>energy|net|time|power|memory)\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?:(?P<baseline>baseline)(?:\s*\*\s*(?P<factor>[\d.]+(?:e[-+]?\d+)?))?|(?P<amount>.+?))\s*$"
)
_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Rule:
    """`metric sign limit`, the limit being an amount or a multiple of the first candidate's figure."""

    text: str
    metric: str
    sign: str
    factor: float | None
    amount: float | None

    @property
    def upper(self) -> bool:
        """Whether it is about too much (and not too little)."""
        return self.sign.startswith(">")


def parse_rule(text: str) -> Rule:
    """Read a condition. UsageError with an example if it is not valid."""
    found = _RULE.match(text)
    if found is None:
        raise UsageError(
            f"'{text}' is not a condition.", cure="--fail-if 'energy > baseline * 1.05' or --fail-if 'energy > 5 J'"
        )
    metric = found["metric"]
    if found["baseline"]:
        return Rule(text, metric, found["sign"], float(found["factor"] or 1), None)
    amount = found["amount"]
    return Rule(text, metric, found["sign"], None, _METRICS[metric][0](amount))


def failing(rule: Rule, found: Sequence[Figures]) -> list[str]:
    """Sentences about the candidates for which the condition holds; empty if it holds for none of them, or is open.

    A limit that is a multiple of the baseline is about all but the first candidate.
    """
    limit = (rule.amount if rule.factor is None else rule.factor) or 0.0
    said = []
    for one, ends in _judged(rule, found):
        if not isinstance(ends, str) and _SIGNS[rule.sign](ends[0 if rule.upper else 1], limit):
            form, times = ("g", "") if rule.factor is None else (".3f", " times the first")
            said.append(f"{one.candidate.label}: {rule.text} ({ends[0]:{form}} … {ends[1]:{form}}{times})")
    return said


def unjudged(rule: Rule, found: Sequence[Figures]) -> list[str]:
    """Sentences about the candidates for which the condition cannot be judged, as they lack the figure."""
    return [
        f"{one.candidate.label}: {rule.text} cannot be decided: no {ends} for {rule.metric}"
        for one, ends in _judged(rule, found)
        if isinstance(ends, str)
    ]


def _judged(rule: Rule, found: Sequence[Figures]) -> Iterator[tuple[Figures, tuple[float, float] | str]]:
    """What the limit is compared with for each candidate that it is about: the ends of its figure, or of its ratio to
    the first candidate, of paired trials or of two numbers that have no interval; else what is missing for that."""
    _, name, paired = _METRICS[rule.metric]
    base = _ends(getattr(found[0], name))
    for one in found if rule.factor is None else found[1:]:
        mine = _ends(getattr(one, name))
        if mine is None or (rule.factor is not None and base is None):
            yield one, "figure"
        elif rule.factor is None or base is None:
            yield one, mine
        elif paired:
            yield one, _ends(getattr(one, paired)) or "ratio"
        else:
            yield one, (mine[0] / base[0], mine[1] / base[0]) if base[0] else "ratio"


def _ends(value: Mean | Comparison | float | None) -> tuple[float, float] | None:
    if value is None or isinstance(value, int | float):
        return None if value is None else (value, value)
    return value.low, value.high


def _memory(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)\s*([kMGT]?)(i?)B?", text.strip())
    if found is None:
        raise UsageError(f"'{text}' is not an amount of memory such as 500 MB or 2 GiB.")
    base = 1024 if found[3] else 1000
    return float(found[1]) * float(base ** " kMGT".index(found[2] or " "))


# What is said of each metric: how its amounts are read, where a candidate has it, and where its ratio to the first.
_METRICS = {
    "energy": (parse_energy_j, "energy", "gross"),
    "net": (parse_energy_j, "net", "above_idle"),
    "time": (parse_duration_s, "seconds", "time"),
    "power": (parse_power_w, "power_w", ""),
    "memory": (_memory, "max_rss_bytes", ""),
}
