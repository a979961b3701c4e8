"""Which series to ask for: a filter file, old or new, and selectors of PromQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.fleet.metrics import escape

_SELECTOR: Final = re.compile(r"(?:[A-Za-z_:][\w:]*)?\s*(?:\{.*\})?", re.DOTALL)
_LABEL: Final = re.compile(r"[A-Za-z_]\w*")
FORM: Final = '[["metric", {"label": "text"}], …], or one PromQL selector per line'


@dataclass(frozen=True, slots=True)
class Wanted:
    """One thing to ask for: PromQL. `plain`: it is a selector of series, so that their own samples can be had."""

    promql: str

    @property
    def plain(self) -> bool:
        """Whether this selects series, rather than computes something."""
        return _SELECTOR.fullmatch(self.promql) is not None


EVERYWATT: Final = Wanted('{__name__=~"everywatt_.+"}')


def quoted(value: str) -> str:
    """A text of PromQL, with quotes, backslashes and newlines as they must be."""
    return f'"{escape(value)}"'


def selector(metric: str, labels: Mapping[str, str]) -> Wanted:
    """Series whose name and labels contain these texts, wherever."""
    pairs = [("__name__", metric), *labels.items()]
    return Wanted("{" + ",".join(f"{name}=~{quoted(_containing(text))}" for name, text in pairs if text) + "}")


def _containing(text: str) -> str:
    # The dot is to match newlines too; ends of lines are no ends of a label.
    return f"(?s).*{re.escape(text)}.*"


def read_filter(path: Path) -> list[Wanted]:
    """What a filter file asks for: a JSON list of [metric, {label: text}], or lines of PromQL (# starts a comment)."""
    text = foreign.read_text(path)
    if text.lstrip().startswith("["):
        found = _old(path, text)
    else:
        lines = (line.strip() for line in text.split("\n"))
        found = [Wanted(line) for line in lines if line and not line.startswith("#")]
    if not found:
        raise UsageError(f"{path} selects nothing.", cure=FORM)
    return found


def _old(path: Path, text: str) -> list[Wanted]:
    try:
        entries = foreign.parse_json(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}.", cure=FORM) from None
    found = []
    for number, entry in enumerate(entries, 1):
        metric, labels = [*entry, {}][:2] if _pair(entry) else (entry, {})
        if not isinstance(metric, str) or not metric or not _sound(labels):
            raise UsageError(f"{path}: entry {number} is not a metric with labels.", cure=FORM)
        found.append(selector(metric, labels))
    return found


def _pair(entry: object) -> bool:
    return isinstance(entry, list) and 1 <= len(entry) <= 2


def _sound(labels: object) -> bool:
    return isinstance(labels, dict) and all(
        isinstance(value, str) and _LABEL.fullmatch(name) for name, value in labels.items()
    )
