"""Samples of a time-series engine (Prometheus, VictoriaMetrics, Mimir), back again.

Without a step, series come as they were stored, sample by sample with their own times, so that nothing is rounded. With
a step, PromQL is evaluated at every step of a grid, in pieces below the 11,000 points that Prometheus allows. Questions
go out in parallel, are tried again where a server is busy, and cut in halves where it says that they are too large.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import lt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from everywatt.core import foreign
from everywatt.core.clocks import NS
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.fleet.metrics import escape
from everywatt.net.api import ApiClient, NotTaken, api_answer, refusal

if TYPE_CHECKING:
    import pandas as pd

_SELECTOR: Final = re.compile(r"(?:[A-Za-z_:][\w:]*)?\s*(?:\{.*\})?", re.DOTALL)
_LABEL: Final = re.compile(r"[A-Za-z_]\w*")
FORM: Final = '[["metric", {"label": "text"}], …], or one PromQL selector per line'
MOST_POINTS: Final = 10_000  # Prometheus allows 11,000 a series
PIECE_S: Final = 10_000
PIECE_SAMPLES: Final = 500_000
LEAST_MS: Final = 1000
WORKERS: Final = 4
_TOO_MUCH: Final = re.compile(
    r"exceed|too many|too large|maximum|limit|timed out|timeout|more than|memory", re.IGNORECASE
)
Tell = Callable[[float, str], None]


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
    # The dot is to match newlines too; ends of lines are no ends of a label.
    terms = [f"{name}=~{quoted(f'(?s).*{re.escape(text)}.*')}" for name, text in pairs if text]
    return Wanted("{" + ",".join(terms) + "}")


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
        pair = isinstance(entry, list) and 1 <= len(entry) <= 2
        metric, labels = [*entry, {}][:2] if pair else (entry, {})
        sound = isinstance(labels, dict) and all(
            isinstance(value, str) and _LABEL.fullmatch(name) for name, value in labels.items()
        )
        if not isinstance(metric, str) or not metric or not sound:
            raise UsageError(f"{path}: entry {number} is not a metric with labels.", cure=FORM)
        found.append(selector(metric, labels))
    return found


@dataclass(slots=True)
class Series:
    """One series: its metric's name, its labels, and its samples in order (UTC milliseconds, values)."""

    name: str
    labels: dict[str, str]
    at_ms: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at_ms: int, value: float) -> None:
        """A sample; one that is not after the last is known already."""
        if not self.at_ms or at_ms > self.at_ms[-1]:
            self.at_ms.append(at_ms)
            self.values.append(value)

    def take(self, at_ms: array[int], values: array[float], piece: Piece) -> None:
        """Add the new samples within a piece. NaN marks the end of a series and is not a sample."""
        if not at_ms:
            return
        in_order = all(map(lt, at_ms, at_ms[1:])) and (not self.at_ms or at_ms[0] > self.at_ms[-1])
        if in_order and piece.after_ms < at_ms[0] and at_ms[-1] <= piece.end_ms and not math.isnan(sum(values)):
            self.at_ms.extend(at_ms)  # all of them, as it is nearly always
            self.values.extend(values)
            return
        for at, value in zip(at_ms, values, strict=True):
            if piece.after_ms < at <= piece.end_ms and not math.isnan(value):
                self.add(at, value)

    def extend(self, later: Series) -> None:
        """Samples of the same series, all of them after the last."""
        self.at_ms.extend(later.at_ms)
        self.values.extend(later.values)


Found = dict[tuple[str, tuple[tuple[str, str], ...]], Series]


@dataclass(slots=True)
class Answer:
    """What was found, and what the server had to say about it."""

    series: list[Series]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Piece:
    """One question: PromQL over (after_ms, end_ms]; on a grid where `step_ms` is given."""

    wanted: Wanted
    after_ms: int
    end_ms: int
    step_ms: int | None = None

    def halves(self) -> tuple[Piece, Piece] | None:
        """Two smaller questions; None where it is as small as can be."""
        unit = self.step_ms or LEAST_MS
        steps = (self.end_ms - self.after_ms) // unit
        if steps < 2:
            return None
        middle = self.after_ms + steps // 2 * unit
        return (
            Piece(self.wanted, self.after_ms, middle, self.step_ms),
            Piece(self.wanted, middle, self.end_ms, self.step_ms),
        )

    def question(self) -> tuple[str, list[tuple[str, str]]]:
        if self.step_ms is None:
            # From a millisecond earlier: engines disagree on whether a range has its left end.
            span = f"{self.wanted.promql}[{self.end_ms - self.after_ms + 1}ms]"
            return "/api/v1/query", [("query", span), ("time", _seconds(self.end_ms))]
        times = [("start", _seconds(self.after_ms + self.step_ms)), ("end", _seconds(self.end_ms))]
        return "/api/v1/query_range", [("query", self.wanted.promql), *times, ("step", _seconds(self.step_ms))]


def _seconds(ms: int) -> str:
    return f"{ms // 1000}.{ms % 1000:03d}"


def fetch(
    client: ApiClient,
    wanted: Sequence[Wanted],
    start_ns: int,
    end_ns: int,
    *,
    step_s: float | None = None,
    workers: int = WORKERS,
    tell: Tell = lambda share, text: None,
) -> Answer:
    """All samples of what is wanted between two instants (UTC), both included. MeasurementRefused where it fails."""
    pieces = list(plan(client, wanted, start_ns, end_ns, step_s))
    found: Found = {}
    warnings: dict[str, None] = {}
    with ThreadPoolExecutor(workers, thread_name_prefix="query") as pool:
        done = pool.map(lambda piece: _answered(client, piece), pieces)
        try:
            for number, (part, said) in enumerate(done, 1):
                warnings |= said
                for key, one in part.items():
                    mine = found.setdefault(key, one)
                    if mine is not one:
                        mine.extend(one)
                tell(number / len(pieces), f"{number} of {len(pieces)} queries")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    series = [one for one in found.values() if one.at_ms]
    return Answer(sorted(series, key=lambda one: (one.name, sorted(one.labels.items()))), list(warnings))


def _answered(client: ApiClient, piece: Piece) -> tuple[Found, dict[str, None]]:
    """The series of a piece, and warnings. It is done where the question is asked, since JSON takes much memory."""
    found: Found = {}
    warnings: dict[str, None] = {}
    for answer in _answers(client, piece):
        warnings |= dict.fromkeys(map(str, answer.get("warnings") or ()))
        _take(answer, piece, found)
    return found, warnings


def plan(
    client: ApiClient, wanted: Sequence[Wanted], start_ns: int, end_ns: int, step_s: float | None
) -> Iterator[Piece]:
    """The questions to ask, each of a size that servers answer."""
    start_ms, end_ms = start_ns // 1_000_000, end_ns // 1_000_000
    if end_ms <= start_ms:
        raise UsageError("The end must be after the start.", cure="--start -1h --end now")
    if step_s is not None and not 0.001 <= step_s <= 86_400:
        raise UsageError(f"A step of {step_s:g} s is not valid.", cure="--step 15s")
    for one in wanted:
        if step_s is not None:
            step_ms = round(step_s * 1000)
            after_ms = start_ms - step_ms
            end_ms -= (end_ms - start_ms) % step_ms
            length_ms = MOST_POINTS * step_ms
        elif one.plain:
            count = _count(client, one, start_ms, end_ms)
            if not count:
                continue
            step_ms, after_ms = None, start_ms - 1
            length_ms = min(PIECE_S, max(10, PIECE_SAMPLES // count)) * 1000
        else:
            raise UsageError(f"'{one.promql}' is an expression, which requires --step.", cure="--step 15s")
        while after_ms < end_ms:
            last_ms = min(after_ms + length_ms, end_ms)
            yield Piece(one, after_ms, last_ms, step_ms)
            after_ms = last_ms


def _count(client: ApiClient, wanted: Wanted, start_ms: int, end_ms: int) -> int:
    times = [("start", _seconds(start_ms)), ("end", _seconds(end_ms))]
    try:
        data = api_answer(client, "/api/v1/series", [("match[]", wanted.promql), *times])
    except NotTaken as error:
        raise refusal(client, wanted.promql, error) from None
    return len(data.get("data") or ())


def _answers(client: ApiClient, piece: Piece) -> Iterator[dict[str, Any]]:
    """The answer to a piece, or those to its parts, in order of time."""
    try:
        yield api_answer(client, *piece.question())
    except NotTaken as error:
        halves = piece.halves() if _TOO_MUCH.search(str(error)) else None
        if halves is None:
            raise refusal(client, piece.wanted.promql, error) from None
        for half in halves:
            yield from _answers(client, half)


def _take(answer: Mapping[str, Any], piece: Piece, found: Found) -> None:
    data = answer.get("data")
    for entry in (data or {}).get("result") or () if isinstance(data, dict) else ():
        labels = {str(key): str(value) for key, value in entry["metric"].items()}
        name = labels.pop("__name__", "") or piece.wanted.promql
        key = (name, tuple(sorted(labels.items())))
        series = found.get(key) or found.setdefault(key, Series(name, labels))
        samples = entry.get("values") or ()
        series.take(
            array("q", [round(float(at_s) * 1000) for at_s, _ in samples]),
            array("d", [float(text) for _, text in samples]),
            piece,
        )


def range_frame(
    url: str,
    wanted: Sequence[str] | Path = (),
    *,
    start_ns: int,
    end_ns: int,
    step_s: float | None = None,
    rates: bool = True,
    token: str | None = None,
    ca: Path | None = None,
) -> pd.DataFrame:
    """Series of an engine as a pandas frame: one row a time (UTC), one column a series.

    `wanted` is PromQL selectors or the path of a filter file; without it, everything of everywatt. Counters become
    rates (joules: watts) unless `rates` is False. Series are joined by time: on the grid of `step_s`, else on the grid
    of the series with the shortest period.
    """
    from everywatt.fleet.tables import frame, join

    client = ApiClient(url, token=token, ca=ca)
    asked = read_filter(wanted) if isinstance(wanted, Path) else [Wanted(one) for one in wanted] or [EVERYWATT]
    answer = fetch(client, asked, start_ns, end_ns, step_s=step_s)
    if not answer.series:
        raise nothing(client, asked, start_ns, end_ns)
    return frame(join(answer.series, step_s=step_s, rates=rates))


def nothing(client: ApiClient, wanted: Sequence[Wanted], start_ns: int, end_ns: int) -> MeasurementRefused:
    """The error for an answer without samples."""
    from everywatt.tape.exporting import iso

    asked = ", ".join(one.promql for one in wanted[:3]) + (", …" if len(wanted) > 3 else "")
    first, last = (iso(at // NS * NS)[:19] + "Z" for at in (start_ns, end_ns))
    return MeasurementRefused(
        f"{client.shown} has no samples of {asked} from {first} to {last}.", cure="another --start, --end or --filter"
    )
