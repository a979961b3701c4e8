"""The figures of a language-model run, each with its formula and its boundary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np

from everywatt.bench.llm.compute import Facts, compute_figures
from everywatt.bench.llm.energy import FEWEST_TICKS, Bill
from everywatt.bench.llm.figure import (
    Figure,
    Share,
    over_energy,
    per_joule,
    percentiles,
    regression,
    times,
    trimmed_mean,
)
from everywatt.bench.llm.records import OK, Answer, Record, scored
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import ToDict, as_data, declared
from everywatt.core.stats import bootstrap_ratio
from everywatt.core.units import parse_duration_s

FORMULAS: Mapping[str, str] = {
    "ttft_s": "first piece of text (reasoning too) − request sent",
    "ttfa_s": "first piece of the answer itself (no reasoning) − request sent",
    "tpot_s": "(last piece − first piece) / (output tokens − 1), for each query",
    "itl_s": "every gap between two pieces, pooled over the queries; a piece may hold several tokens",
    "e2e_s": "whole answer received − request sent",
}
# Of a query, in this order: what came of it, what it cost, what was asked and answered.
OUTCOME = (
    "id group status=answer.status error=answer.error verdict=score.verdict input_tokens=answer.input_tokens "
    "output_tokens=answer.output_tokens ttft_s=answer.ttft_s e2e_s=answer.e2e_s"
)
COST = "joules=energy.joules low=energy.low high=energy.high net_joules=net_j"
TEXTS = "attempts=answer.attempts finish=answer.finish prompt=asked.prompt reference=asked.answer answer=answer.text"
BOUNDS = ("ttft", "tpot", "e2e")


class Statistics(TypedDict):
    """What was read of a quantity while a query was open, in its unit."""

    min: float
    mean: float
    max: float
    median: float
    samples: int


Conditions = Mapping[str, Mapping[str, Statistics]]
"""By device and quantity, such as `gpu.0` and `power_w`."""
Latencies = Mapping[str, Mapping[str, float] | None]


def latencies(records: Sequence[Record]) -> Latencies:
    """Percentiles of every time (client side, from when the last attempt was sent) over the queries that were answered;
    None for a time that no answer has."""
    answers = [record.answer for record in records if record.ok]
    gaps = [np.diff(answer.piece_ns) / NS for answer in answers if len(answer.piece_ns) > 1]

    def of(name: str) -> dict[str, float] | None:
        if name == "itl_s":
            return percentiles(np.concatenate(gaps)) if gaps else None
        return percentiles([t for answer in answers if (t := getattr(answer, name)) is not None])

    return {name: of(name) for name in FORMULAS}


def parse_bounds(text: str) -> dict[str, float]:
    """`ttft=500ms,tpot=50ms,e2e=5s`."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() not in BOUNDS or not value:
            raise UsageError(
                f"'{part}' is not a latency objective such as ttft=500ms; objectives are: {', '.join(BOUNDS)}."
            )
        found[name.strip()] = parse_duration_s(value)
    return found


def within(answer: Answer, bounds: Mapping[str, float]) -> bool:
    """Whether an answer kept every bound; a time that is not known did not."""
    times = {"ttft": answer.ttft_s, "tpot": answer.tpot_s, "e2e": answer.e2e_s}
    if answer.output_tokens == 1:
        times["tpot"] = 0.0
    return all((value := times[name]) is not None and value <= most for name, most in bounds.items())


@dataclass(frozen=True, slots=True)
class Failure(ToDict):
    """Why some queries failed, and how many."""

    status: str
    reason: str
    queries: int


@dataclass(frozen=True)
class Metrics(ToDict):
    """Everything about the queries of one load."""

    JSON = (
        "level queries answered statuses failures verdicts accuracy accuracy_by_group=subjects input_tokens "
        "output_tokens tokens_counted_by=counted duration_s=bill.seconds energy=bill.gross energy_net=bill.net "
        "energy_others=bill.others"
    )

    level: str
    queries: int
    statuses: Mapping[str, int]
    verdicts: Mapping[str, int]
    accuracy: Share | None
    input_tokens: int | None
    output_tokens: int | None
    counted: str | None
    bill: Bill
    figures: Mapping[str, Figure]
    latency: Latencies
    regressions: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    items: tuple[Mapping[str, Any], ...] = ()
    failures: tuple[Failure, ...] = ()
    subjects: Mapping[str, Share] = field(default_factory=dict)  # accuracy by the items' group, where they have one

    @property
    def cpu_s(self) -> float | None:
        """CPU time, where it leads because energy is modelled from it; else None."""
        return self.figures["cpu_time"].value if "cpu_time" in self.figures else None

    @property
    def answered(self) -> int:
        return self.statuses.get(OK, 0)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of one load; its queries, one by one, are in `items`."""
        return {
            **super().to_dict(),
            "boundary": {"name": self.bill.boundary, "about": self.bill.about},
            **as_data(self.figures),
            "latency": {name: {"formula": FORMULAS[name], "seconds": value} for name, value in self.latency.items()},
            "regression": dict(self.regressions),
            "notes": list(self.notes),
            "items": [dict(item) for item in self.items],
        }


def metrics(
    level: str,
    records: Sequence[Record],
    bill: Bill,
    *,
    bounds: Mapping[str, float] | None = None,
    facts: Facts | None = None,
    during: Mapping[str, Conditions] | None = None,
    phases: Mapping[str, tuple[float, float]] | None = None,
) -> Metrics:
    """The figures of these queries (of one load) with their energy; `during` is what the machine did, by span, and
    `phases` how many seconds and requests the server itself counted in each phase."""
    answered = [record for record in records if record.ok]
    judged = scored(records)
    inputs, outputs = _sum(answered, "input_tokens"), _sum(answered, "output_tokens")
    accuracy = Share.of(sum(bool(record.right) for record in judged), len(judged))
    notes: list[str] = list(bill.gross.notes)
    if outputs is None and answered:
        unknown = sum(record.answer.output_tokens is None for record in answered)
        of = "" if unknown == len(answered) else f"; {unknown} of {len(answered)} answers have none"
        notes.append(f"token counts are unknown: the server reported no usage, and no tokenizer was named{of}")
    pooled = {record.answer.counted for record in answered}
    # What has no energy of its own must not be counted in what the others' joules are divided by.
    billed = [record for record in answered if record.span in bill.queries]
    if bill.gross.joules is not None and len(billed) < len(answered):
        notes.append(f"{len(answered) - len(billed)} of {len(answered)} answered queries have no energy")
    if bill.gross.joules is None:
        billed = answered
    if attempts := sum(len(record.earlier) for record in records):
        which = "attempts that failed before a resume are" if attempts > 1 else "attempt that failed before a resume is"
        notes.append(f"{attempts} {which} charged")
    ins, outs = _sum(billed, "input_tokens"), _sum(billed, "output_tokens")
    found = _cpu_figures(bill, billed, outs)
    found |= _energy_figures(bill, billed, len(answered))
    found |= _answer_figures(bill, judged)
    found |= _speed_figures(bill, billed, outs, bounds)
    found |= _phase_figures(bill, billed)
    found |= _server_times(phases or {})
    found |= compute_figures(facts or Facts(), ins, outs, bill.seconds, bill.gross)
    found |= _perplexity(answered)
    return Metrics(
        level,
        len(records),
        dict(Counter(record.answer.status for record in records)),
        dict(Counter(record.score.verdict for record in answered if record.score is not None)),
        accuracy,
        inputs,
        outputs,
        " and ".join(sorted(str(one) for one in pooled)) if pooled != {None} and pooled else None,
        bill,
        found,
        latencies(records),
        _regressions(bill, answered),
        tuple(dict.fromkeys(notes)),
        tuple(_item(record, bill, (during or {}).get(record.span or "", {})) for record in records),
        tuple(_failures(records)),
        _subjects(judged),
    )


def _subjects(judged: Sequence[Record]) -> dict[str, Share]:
    """Accuracy of each group of items, by name; empty where they have none."""
    groups: dict[str, list[bool]] = {}
    for record in judged:
        if record.group:
            groups.setdefault(record.group, []).append(bool(record.right))
    shares = {name: Share.of(sum(right), len(right)) for name, right in sorted(groups.items())}
    return {name: share for name, share in shares.items() if share is not None}


def _failures(records: Sequence[Record]) -> list[Failure]:
    """Why queries failed, the most frequent reason first."""
    counted = Counter(
        (record.answer.status, record.answer.error or "no reason was given") for record in records if not record.ok
    )
    return [Failure(*which, count) for which, count in counted.most_common()]


def _item(record: Record, bill: Bill, during: Conditions) -> dict[str, Any]:
    """One query as plain data: what was asked, what came back, what it cost and what the machine did meanwhile. The raw
    times of its pieces are in the record."""
    owed = bill.queries.get(record.span or "")
    joules = {} if owed is None else owed.devices
    # Of a phase that the sensor saw too little of, the joules are not known.
    phases = {} if owed is None else {name: owed.phase(name) for name in PHASE_FORMULAS}
    devices = {name: {"joules": joules.get(name), **during.get(name, {})} for name in dict.fromkeys((*joules, *during))}
    return {
        **declared(record, OUTCOME),
        **declared(owed, COST),
        **declared(record, TEXTS),
        "columns": {} if record.asked is None else dict(record.asked.meta),
        "phases": {f"{name}_j": found if seen else None for name, (found, seen) in phases.items()},
        "devices": devices,
        "server": dict(record.answer.server),
    }


def _sum(records: Sequence[Record], name: str) -> int | None:
    """The sum over all queries; None where one of them does not know."""
    values = [getattr(record.answer, name) for record in records]
    return None if not values or any(value is None for value in values) else sum(values)


def _per(energy: Energy, count: float | None, unit: str, formula: str, why: str) -> Figure:
    if energy.joules is None:
        return Figure.none(unit, formula, energy.refused)
    if not count:
        return Figure.none(unit, formula, why)
    low, high = energy.low or 0.0, energy.high or 0.0
    # An interval that is wider than the figure ends at nothing: none of these can be less.
    return Figure(energy.joules / count, max(low, min(energy.joules, 0.0)) / count, high / count, unit, formula)


def _cpu_figures(bill: Bill, billed: Sequence[Record], outputs: int | None) -> dict[str, Figure]:
    """The CPU time within the boundary, which the kernel counts: where energy is modelled from it, it is what is
    certain."""
    if bill.cpu_s is None or bill.gross.pedigree != "modelled":
        return {}
    counts = {"cpu_time_per_request": (len(billed), "answered queries")}
    if outputs:
        counts["cpu_time_per_output_token"] = (outputs, "output tokens")
    return {
        "cpu_time": Figure.bare(bill.cpu_s, "s", "CPU time within the boundary, as the kernel counts it"),
        **{
            name: Figure.bare(bill.cpu_s / count, "s", f"CPU time of all queries / {what}")
            for name, (count, what) in counts.items()
            if count
        },
    }


def _energy_figures(bill: Bill, billed: Sequence[Record], answered: int) -> dict[str, Figure]:
    """Joules for each query and token that was answered; failed queries' joules are in them."""
    known = [record for record in billed if record.answer.output_tokens is not None]
    gross, net = _joules_of(known, billed, bill)
    inputs, outputs = _sum(known, "input_tokens"), _sum(known, "output_tokens")
    total = None if inputs is None or outputs is None else inputs + outputs
    no_tokens = "output tokens are unknown" if outputs is None else "there are no tokens"
    whole, some = _of(len(billed), answered, "answered queries"), _of(len(known), answered, "answered queries")
    per = "gross J of all queries"
    return {
        "energy_per_request": _per(
            bill.gross, len(billed), "J", f"{per} / answered queries{whole}", "no query was answered"
        ),
        "energy_per_output_token": _per(gross, outputs, "J", f"{per} / output tokens{some}", no_tokens),
        "energy_net_per_output_token": _per(
            net, outputs, "J", f"net J (above idle) of all queries / output tokens{some}", no_tokens
        ),
        "energy_per_total_token": _per(gross, total, "J", f"{per} / (input + output tokens){some}", no_tokens),
    }


def _of(some: int, of: int, what: str) -> str:
    """`; 21 of 24 queries` where a figure is over some only."""
    return "" if some in (0, of) else f"; {some} of {of} {what}"


def _joules_of(known: Sequence[Record], billed: Sequence[Record], bill: Bill) -> tuple[Energy, Energy]:
    """Gross and net energy of some answered queries, with their part of what the failed ones cost."""
    if len(known) == len(billed) or not known or bill.gross.joules is None:
        return bill.gross, bill.net
    joules = [[bill.queries[record.span or ""].energy.value for record in some] for some in (known, billed)]
    share = math.fsum(joules[0]) / whole if (whole := math.fsum(joules[1])) else 0.0
    return bill.gross * share, bill.net if bill.net.joules is None else bill.net * share


def _answer_figures(bill: Bill, judged: Sequence[Record]) -> dict[str, Figure]:
    names = {
        "energy_per_correct_answer": ("J", "gross J of the scored queries / correct answers"),
        "accuracy_per_joule_mean": ("1/J", "accuracy / mean gross J of a scored query (independent of their number)"),
        "accuracy_per_joule_total": ("1/J", "accuracy / total gross J of the scored queries (falls with their number)"),
        "accuracy_per_watt": ("1/W", "accuracy / (gross J / seconds with a query open)"),
    }
    covered = [record for record in judged if record.span in bill.queries]
    right, n = sum(bool(record.right) for record in covered), len(covered)
    accuracy = Share.of(right, n)
    joules = [bill.queries[record.span or ""].energy.value for record in covered]
    total = math.fsum(joules)
    if not bill.gross.joules or accuracy is None or not total > 0:
        why = bill.gross.refused or ("no query has energy" if judged else "no answer was scored")
        return {name: Figure.none(unit, formula, why) for name, (unit, formula) in names.items()}
    some = _of(n, len(judged), "queries")
    names = {name: (unit, formula + some) for name, (unit, formula) in names.items()}
    value, mean_j, unsure = right / total, total / n, 0 < right < n
    spread = accuracy.low / mean_j, value, accuracy.high / mean_j
    drawn = bootstrap_ratio([bool(r.right) if unsure else 1.0 for r in covered], joules, [r.group for r in covered])
    if drawn is not None and unsure:  # few right answers are drawn too seldom, so never surer than Wilson's interval
        spread = min(spread[0], drawn[0]), value, max(spread[2], drawn[1])
    elif drawn is not None:  # the same verdict again and again says nothing of the others, but joules still differ
        low, high = times(spread, drawn[0] * mean_j, drawn[1] * mean_j)
        spread = low, value, max(high or 0.0, spread[2])
    off = per_joule(bill.gross)
    low, high = times(spread, *off)
    correct = Figure(
        1 / value if right else None,
        1 / high if right and high else 0.0 if right else None,
        1 / low if right and low else None,
        *names["energy_per_correct_answer"],
        None if right else "no answer is correct",
    )
    watts = bill.gross.joules / bill.seconds
    of_watts = accuracy.low / watts, accuracy.value / watts, accuracy.high / watts
    return {
        "energy_per_correct_answer": correct,
        "accuracy_per_joule_mean": Figure(value, low, high, *names["accuracy_per_joule_mean"]),
        "accuracy_per_joule_total": Figure(
            value / n, low / n, None if high is None else high / n, *names["accuracy_per_joule_total"]
        ),
        "accuracy_per_watt": Figure(of_watts[1], *times(of_watts, *off), *names["accuracy_per_watt"]),
    }


def _speed_figures(
    bill: Bill, answered: Sequence[Record], outputs: int | None, bounds: Mapping[str, float] | None
) -> dict[str, Figure]:
    seconds, energy = bill.seconds, bill.gross
    no_time = None if seconds else "no query took measurable time"
    unknown = "output tokens are unknown" if outputs is None else None
    rate = outputs / seconds if outputs is not None and seconds else None
    answers_s = sum(record.answer.e2e_s for record in answered)
    per_joule = "output tokens / s / W = output tokens / gross J"
    found = {
        "output_tokens_per_second": Figure.bare(
            rate, "1/s", "output tokens / seconds with a query open", no_time or unknown
        ),
        "requests_per_second": Figure.bare(
            len(answered) / seconds if seconds else None, "1/s", "answered queries / seconds with a query open", no_time
        ),
        "tokens_per_second_per_watt": Figure.none("1/J", per_joule, energy.refused or unknown)
        if outputs is None
        else over_energy(outputs, energy, "1/J", per_joule),
        "energy_delay_product": _per(
            energy,
            len(answered) ** 2 / answers_s if answers_s else None,
            "J s",
            "gross J / answered queries × mean seconds of an answer",
            "no query was answered",
        ),
    }
    if bounds:
        kept = sum(within(record.answer, bounds) for record in answered)
        text = ", ".join(f"{name} ≤ {most:g} s" for name, most in bounds.items())
        rate = kept / seconds if seconds else None
        found["goodput"] = Figure.bare(rate, "1/s", f"queries with {text} / seconds", no_time)
        shares = Share.of(kept, len(answered)), f"queries with {text} / answered queries"
        found["goodput_share"] = Figure.share(*shares, "no query was answered")
    return found


PHASE_FORMULAS = {
    "queue": "gross J before the server reads the prompt (queue, failed attempts)",
    "prefill": "gross J while the server reads the prompt, until the first token",
    "decode": "gross J from the first token",
}


def _server_times(phases: Mapping[str, tuple[float, float]]) -> dict[str, Figure]:
    """Mean seconds of a request in each phase, by the server's own count; none where it counts none."""
    return {
        f"server_{name}_time": Figure.bare(
            seconds / requests, "s", f"mean of {requests:g} requests, by the server's own count (/metrics)"
        )
        for name, (seconds, requests) in phases.items()
    }


def _phase_figures(bill: Bill, answered: Sequence[Record]) -> dict[str, Figure]:
    """Queue, prefill and decode of the queries in which the sensor saw the phase at least three times."""
    owed = [(record, bill.queries[record.span or ""]) for record in answered if record.span in bill.queries]
    gross = bill.gross
    ends = (1 - (gross.low or 0.0) / gross.value, (gross.high or 0.0) / gross.value - 1) if gross.joules else (0.0, 0.0)
    found = {}
    for name, formula in PHASE_FORMULAS.items():
        covered = [(record, joules) for record, one in owed for joules, seen in [one.phase(name)] if seen]
        why = bill.gross.refused or ("no query was answered" if not owed else None)
        joules, unseen = math.fsum(one for _, one in covered), len(owed) - len(covered)
        if why is None and unseen and not joules:
            every = "" if bill.tick_s is None else f", which is read every {bill.tick_s * 1000:g} ms"
            why = (
                f"{unseen} of {len(owed)} {name}s are covered by fewer than {FEWEST_TICKS} readings of the "
                f"sensor{every}: energy cannot be resolved between two readings"
            )
        if why is not None:
            found[f"{name}_energy"] = Figure.none("J", f"{formula}, of all queries", why)
            continue
        formula += f", of {len(covered)} of {len(owed)} queries" if unseen else ", of all queries"
        below, above = bill.phase_sides(name, [bill.queries[record.span or ""] for record, _ in covered])
        low, high = joules - math.hypot(joules * ends[0], below), joules + math.hypot(joules * ends[1], above)
        energy = Figure(joules, max(low, 0.0), high, "J", formula)
        found[f"{name}_energy"] = energy
        kind = {"prefill": "input", "decode": "output"}.get(name)
        if kind and (tokens := _sum([record for record, _ in covered], f"{kind}_tokens")):
            found[f"{name}_energy_per_token"] = replace(
                energy,
                value=joules / tokens,
                low=(energy.low or 0.0) / tokens,
                high=(energy.high or 0.0) / tokens,
                formula=f"{formula} / {kind} tokens",
            )
    return found


def _perplexity(answered: Sequence[Record]) -> dict[str, Figure]:
    """How sure the model was of its tokens, where the server reports log-probabilities; else no figure."""
    known = [record for record in answered if record.answer.logprob_sum is not None and record.answer.logprob_tokens]
    if not known:
        return {}
    nats = [-(record.answer.logprob_sum or 0.0) for record in known]
    tokens = [float(record.answer.logprob_tokens) for record in known]
    of = "" if len(known) == len(answered) else f"; {len(known)} of {len(answered)} answers have them"
    formula = f"exp(−Σ log-probability / tokens that have one{of}); bootstrap over items, 2,000 draws"
    spread = bootstrap_ratio(nats, tokens, [record.group for record in known])
    low, high = (None, None) if spread is None else (math.exp(spread[0]), math.exp(spread[1]))
    return {"perplexity": Figure(math.exp(sum(nats) / sum(tokens)), low, high, "", formula)}


def _regressions(bill: Bill, answered: Sequence[Record]) -> dict[str, Any]:
    """Energy and latency on input and output tokens, with standard errors; and the plain and trimmed means beside."""
    known = [
        (record, bill.queries[record.span or ""])
        for record in answered
        if record.span in bill.queries and record.answer.input_tokens is not None
    ]
    known = [(record, owed) for record, owed in known if record.answer.output_tokens is not None]
    columns: dict[str, Sequence[float]] = {
        "input_tokens": [float(record.answer.input_tokens or 0) for record, _ in known],
        "output_tokens": [float(record.answer.output_tokens or 0) for record, _ in known],
    }
    joules = [owed.energy.value for _, owed in known]
    seconds = [record.answer.e2e_s for record, _ in known]
    total = {"total_tokens": [a + b for a, b in zip(*columns.values(), strict=True)]}
    watts = [j / s if s > 0 else math.nan for j, s in zip(joules, seconds, strict=True)]
    first = [(record, ttft) for record, _ in known if (ttft := record.answer.ttft_s) is not None]
    tokens_read = {"input_tokens": [float(record.answer.input_tokens or 0) for record, _ in first]}
    return {
        "energy_j": regression(columns, joules),
        "latency_s": regression(columns, seconds),
        "power_w": regression(total, watts) if all(map(math.isfinite, watts)) else None,
        "ttft_s": regression(tokens_read, [ttft for _, ttft in first]),
        "mean_energy_j": sum(joules) / len(joules) if joules else None,
        "trimmed_mean_energy_j": trimmed_mean(joules),
    }
