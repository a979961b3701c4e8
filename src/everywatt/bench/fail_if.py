"""`--fail-if 'energy > baseline * 1.05'`: a condition on figures, for continuous integration.

It is true only where the interval says so: a comparison that is undecided does not fail a build. Where the figure that
it is about does not exist, it is neither true nor false, and `unjudged` says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from everywatt.bench.figures import Figures, Mean
from everywatt.core.errors import UsageError
from everywatt.core.units import parse_duration_s, parse_energy_j, parse_power_w

_RULE = re.compile(
    r"\s*(?P<metric>energy|net|time|power|memory)\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?:(?P<baseline>baseline)(?:\s*\*\s*(?P<factor>[\d.]+(?:e[-+]?\d+)?))?|(?P<amount>.+?))\s*$"
)
_UNITS = {"energy": parse_energy_j, "net": parse_energy_j, "time": parse_duration_s, "power": parse_power_w}


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
    value = _memory(amount) if metric == "memory" else _UNITS[metric](amount)
    return Rule(text, metric, found["sign"], None, value)


def failing(rule: Rule, found: Sequence[Figures]) -> list[str]:
    """Sentences about the candidates for which the condition holds; empty if it holds for none of them, or is open.

    A limit that is a multiple of the baseline is about all but the first candidate.
    """
    about = found[1:] if rule.factor is not None else found
    return [sentence for one in about if (sentence := _fails(rule, one, found[0]))]


def unjudged(rule: Rule, found: Sequence[Figures]) -> list[str]:
    """Sentences about the candidates for which the condition cannot be judged, as they lack the figure."""
    about = found[1:] if rule.factor is not None else found
    lacking = [(one, _lacking(rule, one, found[0])) for one in about]
    return [
        f"{one.candidate.label}: {rule.text} cannot be decided: no {what} for {rule.metric}"
        for one, what in lacking
        if what
    ]


def _lacking(rule: Rule, one: Figures, first: Figures) -> str:
    if _point(rule.metric, one) is None or (rule.factor is not None and _point(rule.metric, first) is None):
        return "figure"
    return "ratio" if rule.factor is not None and _ratio(rule.metric, one, first) is None else ""


def _ratio(metric: str, one: Figures, first: Figures) -> tuple[float, float] | None:
    """The ends of the ratio to the first candidate: of paired trials, or of two numbers that have no interval."""
    if metric in ("energy", "net", "time"):
        found = {"energy": one.gross, "net": one.above_idle, "time": one.time}[metric]
        return None if found is None else (found.low, found.high)
    mine, base = _point(metric, one), _point(metric, first)
    return None if mine is None or not base else (mine / base, mine / base)


def _fails(rule: Rule, one: Figures, first: Figures) -> str | None:
    if rule.factor is not None:
        ends = _ratio(rule.metric, one, first)
        if ends is None:
            return None
        low, high = ends
        limit, shown = rule.factor, f"{low:.3f} … {high:.3f} times the first"
    else:
        assert rule.amount is not None
        mean = {"energy": one.energy, "net": one.net, "time": one.seconds}.get(rule.metric)
        point = _point(rule.metric, one)
        if isinstance(mean, Mean):
            low, high = mean.low, mean.high
        elif point is not None:
            low = high = point
        else:
            return None
        limit, shown = rule.amount, f"{low:g} … {high:g}"
    over = (
        (low > limit if rule.sign == ">" else low >= limit)
        if rule.upper
        else (high < limit if rule.sign == "<" else high <= limit)
    )
    return f"{one.candidate.label}: {rule.text} ({shown})" if over else None


def _point(metric: str, one: Figures) -> float | None:
    if metric == "power":
        return one.power_w
    if metric == "memory":
        return None if one.max_rss_bytes is None else float(one.max_rss_bytes)
    mean = {"energy": one.energy, "net": one.net, "time": one.seconds}[metric]
    return None if mean is None else mean.value


def _memory(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)\s*([kMGT]?)(i?)B?", text.strip())
    if found is None:
        raise UsageError(f"'{text}' is not an amount of memory such as 500 MB or 2 GiB.")
    base = 1024 if found[3] else 1000
    return float(found[1]) * float(base ** " kMGT".index(found[2] or " "))
