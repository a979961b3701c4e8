"""A finished benchmark as figures: for each load, and as the JSON object of `bench llm`.

A server on another host is measured by its own tape: queries are placed on it by the wall clock. The two clocks are
never quite the same. How far apart they may be has to be said (an NTP client tells), and goes into the interval: the
windows are moved by that much to either side, and what the energy changes is not excluded.

Conditions are what the machine did while a query was open: power, utilisation, memory and temperature of each device,
and the memory of the host. Readings are of whole devices, which other queries used too; a query's joules are in its
bill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everywatt.api.power import PowerLine, held_line, power_line
from everywatt.api.run import Run, load
from everywatt.bench.experiment import folder_of
from everywatt.bench.figures import Mean, mean_of
from everywatt.bench.llm.compute import Facts, peak_of
from everywatt.bench.llm.energy import SERVER, Asked, Bill, about, asked_of, bill, refused, settle
from everywatt.bench.llm.figure import Figure, Share
from everywatt.bench.llm.loads import kind_of
from everywatt.bench.llm.metrics import Metrics, Statistics, metrics
from everywatt.bench.llm.phases import PREFILL_OF_LOAD, reported_prefill_s
from everywatt.bench.llm.plan import LlmPlan, ServerTape
from everywatt.bench.llm.records import SERVER_PHASES, Answer, Record, read_records
from everywatt.bench.llm.scorers import plain_words
from everywatt.core.budget import Bound, Budget
from everywatt.core.channels import Kind
from everywatt.core.clocks import NS, length_s, union
from everywatt.core.device import is_gpu
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError
from everywatt.core.jsonio import ToDict, declared
from everywatt.core.stats import mean
from everywatt.energy.sources import addable, sources
from everywatt.energy.window import windows_energy
from everywatt.tape.columns import load_columns
from everywatt.tape.reader import Tape

SKEW = "clock skew"


def bill_elsewhere(run: Run, records: Sequence[Record], server_tape: ServerTape) -> Bill:
    """The energy of queries from the tape of the server's host. Refused where the tape cannot be read, or does not
    cover the queries."""
    try:
        server = load(server_tape.path)
    except EverywattError as error:
        return refused(f"the server's tape cannot be read: {error.message}", SERVER)
    asked = _placed(run, records, server)
    placed = {record.span for one in asked for record in one.records}
    missing = sum(record.span not in placed for record in records if record.span)
    if missing or not asked:
        return refused(f"the server's tape {server.name} does not cover {missing} of {len(records)} queries", SERVER)
    owed = settle(asked, SERVER, [*run.trouble, *server.trouble], server.how_to_idle())
    return owed if owed.gross.joules is None else _with_skew(owed, asked, server_tape.skew_s)


def _placed(run: Run, records: Sequence[Record], server: Run) -> list[Asked]:
    asked = [_moved(one, tape) for one in asked_of(run, records) for tape in server.tapes]
    return [one for one in asked if one.records]


def _moved(asked: Asked, tape: Tape) -> Asked:
    """The queries on the other host's clock; those that its tape does not cover are left out."""
    first, last = tape.extent_ns()

    def there(at_ns: int) -> int:
        return tape.from_utc_ns(asked.tape.to_utc_ns(at_ns))

    edges = {span: (there(start), there(end)) for span, (start, end) in asked.edges.items()}
    edges = {span: (start, end) for span, (start, end) in edges.items() if first <= start < end <= last}
    records = tuple(replace(r, answer=_translated(r.answer, there)) for r in asked.records if r.span in edges)
    return Asked(tape, records, edges)


def _translated(answer: Answer, there: Callable[[int], int]) -> Answer:
    """An answer whose times are on another clock; the rate of both is taken as the same within one answer."""
    shift = there(answer.sent_ns) - answer.sent_ns
    return replace(
        answer,
        sent_ns=answer.sent_ns + shift,
        ended_ns=answer.ended_ns + shift,
        piece_ns=tuple(at_ns + shift for at_ns in answer.piece_ns),
    )


def _with_skew(owed: Bill, asked: Sequence[Asked], skew_s: float) -> Bill:
    """The bill with what the clocks leave open."""
    whole = sum(_change(one.tape, one.windows, skew_s) for one in asked)
    each = {
        span: _change(one.tape, [one.edges[span]], skew_s)
        for one in asked
        for span in (record.span or "" for record in one.records)
    }
    queries = {
        span: replace(query, energy=_wider(query.energy, each[span], f"{SKEW}:{span}"))
        for span, query in owed.queries.items()
    }
    note = (
        "measured on the server's own tape, assuming that its clock and this host's differ by at most "
        f"{skew_s * 1000:g} ms"
    )
    gross = _wider(owed.gross, whole, SKEW)
    return replace(
        owed,
        gross=replace(gross, notes=(*gross.notes, note)),
        net=_wider(owed.net, whole, SKEW),
        about=f"{owed.about}; on the server's host, from its own tape",
        queries=queries,
    )


def _change(tape: Tape, windows: Sequence[tuple[int, int]], skew_s: float) -> float:
    """By how many joules the energy of windows changes where they are moved by the skew to either side."""
    if not skew_s > 0:
        return 0.0
    first, last = tape.extent_ns()
    found = []
    for shift in (0, -round(skew_s * NS), round(skew_s * NS)):
        moved = [(max(start + shift, first), min(end + shift, last)) for start, end in windows]
        energy = windows_energy(sources(tape), [(start, end) for start, end in moved if end > start])
        found.append(energy.joules if energy.joules is not None else np.nan)
    return float(np.nanmax(np.abs(np.array(found[1:]) - found[0])))


def _wider(energy: Energy, joules: float, key: str) -> Energy:
    if energy.joules is None:
        return energy
    bound = Bound(SKEW, key, joules, joules)
    return replace(energy, budget=Budget(energy.budget.terms, (*energy.budget.bounds, bound)))


def evaluate(
    run: Run | None,
    records: Sequence[Record],
    plan: LlmPlan,
    *,
    bounds: Mapping[str, float] | None = None,
    reference: Sequence[Record] | None = None,
    detail: bool = False,
) -> list[Metrics]:
    """The figures of every load, in the order in which they were asked. `reference` are answers to agree with; `detail`
    adds to each query what the machine did meanwhile."""
    facts = known_facts(run, plan)
    during = conditions(placed(run, records, plan)) if detail and run is not None else None
    levels = list(dict.fromkeys([*plan.levels, *(record.level for record in records)]))
    found = []
    for level in levels:
        own = [record for record in records if record.level == level]
        if not own:
            continue
        phases = {} if run is None else counted_phases(run, level)
        own = [with_prefill(record, own, phases) for record in own]
        owed = refused("nothing was recorded", seconds=open_s(own)) if run is None else owed_by(run, own, plan)
        one = metrics(level, own, owed, bounds=bounds, facts=facts, during=during, phases=phases)
        one = replace(one, notes=(*plan.warnings, *one.notes))
        if reference is not None:
            one = replace(one, figures={**one.figures, "agreement": agreement(own, reference)})
        found.append(one)
    return found


def counted_phases(run: Run, level: str) -> dict[str, tuple[float, float]]:
    """Seconds and requests of each phase, as the server counted them during a load."""
    found: dict[str, tuple[float, float]] = {}
    for span in run.spans:
        if span.name == "load" and span.attributes.get("level") == level:
            for name, (seconds, requests) in (span.attributes.get(SERVER_PHASES) or {}).items():
                before = found.get(name, (0.0, 0.0))
                found[name] = before[0] + seconds, before[1] + requests
    return found


def with_prefill(record: Record, own: Sequence[Record], phases: Mapping[str, tuple[float, float]]) -> Record:
    """The record with the time for which the server read its prompt: the mean of the load, by input tokens.

    As it is where the server said nothing, or said it of this very query.
    """
    if "prefill" not in phases or reported_prefill_s(record.answer.server) is not None:
        return record
    seconds, requests = phases["prefill"]
    tokens = [one.answer.input_tokens for one in own if one.answer.input_tokens]
    share = (record.answer.input_tokens or 0.0) / mean(tokens) if len(tokens) == len(own) else 1.0
    server = {**record.answer.server, PREFILL_OF_LOAD: seconds / requests * share}
    return replace(record, answer=replace(record.answer, server=server))


def placed(run: Run, records: Sequence[Record], plan: LlmPlan) -> list[Asked]:
    """The queries on the tapes that measured them: the server's own, where it has one."""
    if plan.server_tape is not None:
        try:
            return _placed(run, records, load(plan.server_tape.path))
        except EverywattError:
            return []
    return asked_of(run, records)


def owed_by(run: Run, records: Sequence[Record], plan: LlmPlan) -> Bill:
    """The energy of queries, wherever the server is; refused if nothing measured it."""
    if plan.server_tape is not None:
        return bill_elsewhere(run, records, plan.server_tape)
    if plan.no_energy:
        return refused(plan.no_energy, plan.boundary, open_s(records))
    found, covered = bill(run, records, plan.boundary), plan.covered
    # Of an imported profile all joules are of what its own plan charged.
    return found if covered is None else replace(found, boundary=covered, about=about(covered))


def open_s(records: Sequence[Record]) -> float:
    """Seconds in which at least one query was open, by the client's clock."""
    times = [(record.answer.sent_ns, record.answer.ended_ns) for record in records]
    return length_s(union([one for one in times if one[1] > one[0]]))


def known_facts(run: Run | None, plan: LlmPlan) -> Facts:
    """What the plan knows of the model and its hardware; the peak also from the name of the only GPU on the tape."""
    facts = plan.facts
    if facts.parameters is None or facts.peak_flops is not None or run is None:
        return facts
    groups = [group.info for tape in run.tapes for group in tape.groups]
    cards = {info.device: info.label for info in groups if is_gpu(info.device) and info.label}
    found = peak_of(list(cards.values()))
    return facts if found is None else replace(facts, peak_flops=found[0], peak_from=found[1])


def agreement(records: Sequence[Record], reference: Sequence[Record]) -> Figure:
    """The share of items that were answered as a reference run answered them, whether right or wrong."""
    formula = "same answers as the reference run / items that both answered; Wilson"
    theirs = {record.id: record for record in reference if record.ok}
    pairs = [(record, theirs[record.id]) for record in records if record.ok and record.id in theirs]
    share = Share.of(sum(_agree(a, b) for a, b in pairs), len(pairs))
    return Figure.share(share, formula, "the two runs have no item in common")


def _agree(one: Record, other: Record) -> bool:
    """Whether two answers come down to the same: what their scorers read out of them, else their words."""
    found = [
        None if record.score is None or record.score.how in ("constraints", "JSON schema") else record.score.found
        for record in (one, other)
    ]
    if None in found:
        return plain_words(one.answer.text) == plain_words(other.answer.text)
    return str(found[0]) == str(found[1])


def evaluate_folder(run: Run) -> tuple[LlmPlan, list[Metrics]]:
    """The plan and the figures of a run that `bench llm` made."""
    folder = folder_of(run)
    plan = LlmPlan.read(folder)
    return plan, evaluate(run, read_records(folder), plan)


@dataclass(frozen=True, slots=True)
class Knee(ToDict):
    """The load beyond which more throughput hardly saves energy; energies are joules."""

    level: str
    output_tokens_per_second: float
    energy_per_output_token: float


LEAST_DEPTH = 0.1  # of both ranges: the same load twice differs by some percent of them


def knee(found: Sequence[Metrics]) -> Knee | None:
    """The load beyond which more throughput hardly saves energy: the point furthest below the line between the
    slowest and the fastest, in output tokens a second and joules a token, each scaled to 0 … 1. Repeats of a load are
    one point, their mean. None where no load lies a tenth below it, the lowest load is not the slowest, or there are
    fewer than three."""
    loads: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        rate, cost = one.figures["output_tokens_per_second"].value, one.figures["energy_per_output_token"].value
        if rate is not None and cost is not None:
            loads.setdefault(kind_of(one.level), []).append((rate, cost))
    points = sorted((mean([r for r, _ in same]), mean([c for _, c in same]), kind) for kind, same in loads.items())
    if len(points) < 3 or points[0][2] != min(loads, key=_concurrency):
        return None
    rates, costs = [rate for rate, _, _ in points], [cost for _, cost, _ in points]
    wide, high = max(rates) - min(rates), max(costs) - min(costs)
    if not wide or not high:
        return None
    scaled = [((r - min(rates)) / wide, (c - min(costs)) / high) for r, c in zip(rates, costs, strict=True)]
    (x0, y0), (x1, y1) = scaled[0], scaled[-1]
    below = [y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y for x, y in scaled]
    best = max(range(len(points)), key=lambda index: below[index])
    if below[best] < LEAST_DEPTH:
        return None
    rate, cost, level = points[best]
    return Knee(level, rate, cost)


def _concurrency(kind: str) -> int:
    """That of a load by its label, `concurrency 4`; 0 where it says none."""
    number = kind.rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0


def over_all_repeats(found: Sequence[Metrics]) -> dict[str, dict[str, Mean]]:
    """For each load that was repeated, its figures over the repetitions: how much they vary from run to run."""
    values: dict[str, dict[str, list[float]]] = {}
    for one in found:
        same = values.setdefault(kind_of(one.level), {})
        if one.accuracy is not None:
            same.setdefault("accuracy", []).append(one.accuracy.value)
        for name, figure in one.figures.items():
            if figure.value is not None:
                same.setdefault(name, []).append(figure.value)
    repeats = Counter(kind_of(one.level) for one in found)
    return {
        kind: {name: mean_of(several, anytime=False) for name, several in same.items() if len(several) > 1}
        for kind, same in values.items()
        if repeats[kind] > 1
    }


def repeats_data(found: Sequence[Metrics]) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        kind: {name: declared(one, "mean=value sd low high n") for name, one in same.items()}
        for kind, same in over_all_repeats(found).items()
    }


# The last part of a channel's name, and what it is called in a record. Utilisation is in percent.
STATES: Mapping[str, str] = {
    "utilisation": "utilisation_pct",
    "memory_utilisation": "memory_utilisation_pct",
    "memory": "memory_bytes",
    "temperature": "temperature_c",
}


def conditions(asked: Sequence[Asked]) -> dict[str, dict[str, dict[str, Statistics]]]:
    """The conditions of each query by its span. What was not recorded is absent."""
    found: dict[str, dict[str, dict[str, Statistics]]] = {}
    for one in asked:
        lines = _state_lines(one.tape)
        for record in one.records:
            span = record.span or ""
            mine = found.setdefault(span, {})
            for device, name, line in lines:
                values = line.inside([one.edges[span]])
                if len(values):
                    mine.setdefault(device, {})[name] = {
                        "min": float(values.min()),
                        "mean": float(values.mean()),
                        "max": float(values.max()),
                        "median": float(np.median(values)),
                        "samples": len(values),
                    }
    return found


def _state_lines(tape: Tape) -> list[tuple[str, str, PowerLine]]:
    """Everything that is reported of a query: the device, the quantity, and its values over time."""
    found = [(one.label, "power_w", line) for one in addable(sources(tape)) if (line := power_line(one)) is not None]
    for group in tape.groups:
        chosen = [
            channel
            for channel in group.info.channels
            if channel.kind is Kind.GAUGE and channel.name.rpartition(".")[2] in STATES
        ]
        if not chosen:
            continue
        columns = load_columns(tape, group.id, [channel.name for channel in chosen])
        for channel in chosen:
            values = columns.values[channel.name] * channel.scale
            known = np.isfinite(values)
            if known.sum() > 1:
                line = held_line(columns.published[known], values[known], group.expected_period_s)
                found.append((channel.device, STATES[channel.name.rpartition(".")[2]], line))
    return found
