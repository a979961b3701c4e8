"""A profile of Intelligence per Watt becomes a run of `bench llm`: its queries one after the other, with its joules.

That tool keeps no times of day for its queries, so they are laid end to end before the time at which its summary was
written. Every field that it filled in is kept, as an attribute of the query's span. Its early versions kept the last
30 s of readings only: the energy of a longer query is then too small, and that is said.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everywatt.bench.experiment import JsonLines
from everywatt.bench.llm.datasets import rows
from everywatt.bench.llm.energy import MACHINE, SERVER
from everywatt.bench.llm.loads import Level
from everywatt.bench.llm.plan import LlmPlan, Questions
from everywatt.bench.llm.records import OK, QUERIES, RIGHT, WRONG, Answer, Item, Record, Score
from everywatt.core import foreign
from everywatt.core.channels import Channel, Domain, Facts, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_percent
from everywatt.meters.series import Part, Table, group, number, write_part
from everywatt.tape.importing import parse_utc_ns

KIND: Final = "ipw"
OLD_BUFFER_S: Final = 30.0  # of readings that early versions kept
PAUSE_NS: Final = 1_000_000  # between two queries, so that no reading is at the edge of both
WHOLE: Final = ("soc_per_query_joules", "soc.all.energy", "soc.all", Domain.SOC)
PARTS: Final = (
    ("per_query_joules", "gpu.all.energy", "gpu.all", Domain.GPU),
    ("cpu_per_query_joules", "cpu.all.package.energy", "cpu.all", Domain.PACKAGE),
    ("ane_per_query_joules", "rail.ane.energy", "rail.ane", Domain.RAIL),
)


def import_ipw(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A tape, and beside it what `bench llm` keeps. options: model (where the profile has several)."""
    if len(paths) != 1 or not paths[0].is_dir():
        raise UsageError("Only one profile folder can be imported at a time.", cure="everywatt import ipw profile_…/")
    folder = paths[0]
    summary = _summary(folder)
    chosen = options.get("model") or summary.get("model")
    queries = list(_queries(folder, str(chosen) if chosen else None))
    if not queries:
        raise UsageError(f"{folder} contains no queries.")
    columns = _columns(queries, summary)
    part, places = _laid_out(queries, columns, _written(summary), *certainty(summary))
    warnings = [*_truncated(queries, summary), *_without_energy(queries, columns)]
    tape = write_part(out, part, paths, options)
    journal = JsonLines(tape.parent / QUERIES)
    for query, place in zip(queries, places, strict=True):
        journal.write(_record(query, place, columns).to_dict())
    if why := journal.close():
        raise EverywattError(f"{why}.")
    _plan(summary, queries, warnings).write(tape.parent)
    return tape


@dataclass(frozen=True, slots=True)
class Query:
    """One row of a profile, of one model."""

    number: int
    model: str
    row: Mapping[str, Any]
    metrics: Mapping[str, Any]

    def value(self, block: str, name: str) -> float | None:
        """A number of the metrics; that tool's −1 is not available."""
        found = number((self.metrics.get(block) or {}).get(name))
        return None if found is None or found < 0 else found

    @property
    def seconds(self) -> float | None:
        return self.value("latency_metrics", "total_query_seconds") or None


def _summary(folder: Path) -> dict[str, Any]:
    if not (folder / "summary.json").exists():
        return {}
    data = foreign.read_json(folder / "summary.json")
    if not isinstance(data, dict):
        raise UsageError(f"{folder / 'summary.json'} is not an object.")
    return data


def _queries(folder: Path, model: str | None) -> Iterator[Query]:
    for place, row in enumerate(rows(folder)):
        found = row.get("model_metrics")
        if not isinstance(found, Mapping):
            raise UsageError(f"{folder}, row {place + 1}, has no model_metrics, so it is not a profile.")
        known = {name: one for name, one in found.items() if isinstance(one, Mapping)}
        if model is not None and model in known:
            yield Query(place, model, row, known[model])
        elif len(known) == 1:
            ((name, metrics),) = known.items()
            yield Query(place, name, row, metrics)
        elif known:
            names = ", ".join(sorted(known))
            raise UsageError(f"{folder} has several models: {names}.", cure="--set model=NAME")


def _columns(queries: Sequence[Query], summary: Mapping[str, Any]) -> tuple[tuple[str, str, str, Domain], ...]:
    """What was measured: the whole chip where that is there, since its parts are in it, else its parts.

    Where `export --to ipw` wrote the profile of a machine without a GPU, or an older version did, its joules are of
    everything that was measured.
    """
    ours = "everywatt" in (summary.get("versions") or {})
    if ours and not (summary.get("energy_by_device") and (summary.get("gpu_info") or {}).get("device_type") == "gpu"):
        energy = summary.get("energy")
        if isinstance(energy, Mapping) and energy.get("scope") == "cpu":
            return ((PARTS[0][0], *PARTS[1][1:]),)
        return ((PARTS[0][0], "node.all.energy", "node.all", Domain.NODE),)
    if any(query.value("energy_metrics", WHOLE[0]) is not None for query in queries):
        return (WHOLE,)
    return tuple(c for c in PARTS if any(query.value("energy_metrics", c[0]) is not None for query in queries))


def _joules(query: Query, columns: Sequence[tuple[str, str, str, Domain]]) -> list[float] | None:
    """The joules of a query by channel; None where one of them is missing: a part of an energy is not one."""
    found = [query.value("energy_metrics", column[0]) for column in columns]
    return None if not found or any(value is None for value in found) else [value or 0.0 for value in found]


def _written(summary: Mapping[str, Any]) -> int:
    """UTC nanoseconds at which the summary was made; now where it does not say."""
    at = summary.get("generated_at")
    if isinstance(at, int | float) and 0 < at < 1e11:
        return int(at) * NS
    try:
        return parse_utc_ns(str(at), "iso", "generated_at") // NS * NS
    except UsageError:
        return time.time_ns() // NS * NS


def certainty(summary: Mapping[str, Any]) -> tuple[Pedigree, Facts]:
    """What `export --to ipw` wrote down of how sure its joules are; of that tool's own profiles nothing is known."""
    found = summary.get("energy")
    if not isinstance(found, Mapping):
        return Pedigree.COUNTER, Facts()
    words = str(found.get("pedigree") or "")
    pedigree = next((one for one in (Pedigree.MODELLED, Pedigree.INTEGRATED) if one in words), Pedigree.COUNTER)
    joules, low, high = (number(found.get(name)) for name in ("joules", "low", "high"))
    if not joules or low is None or high is None:
        return pedigree, Facts()
    return pedigree, Facts(gain_pct=100 * max(high - joules, joules - low) / joules, offset_w=0.0)


def _laid_out(
    queries: Sequence[Query],
    columns: Sequence[tuple[str, str, str, Domain]],
    end_ns: int,
    pedigree: Pedigree,
    facts: Facts,
) -> tuple[Part, list[tuple[int, int]]]:
    """The tape, and where on its clock each query lies."""
    lengths = [round((query.seconds or 0.0) * NS) for query in queries]
    start_ns = end_ns - sum(lengths) - PAUSE_NS * len(queries)
    channels = [Channel(c[1], "J", Kind.COUNTER, c[2], c[3], pedigree=pedigree, facts=facts) for c in columns]
    if not channels:
        # A tape needs at least one series: how many queries were done by when.
        channels = [Channel("queries.done", "", Kind.COUNTER, "queries")]
    table = Table(group("ipw", "ipw", channels))
    sums = [0.0] * len(channels)
    table.add(start_ns, sums)
    spans: list[tuple[str, int, int, Mapping[str, Any]]] = []
    places, at_ns = [], start_ns
    for done, (query, length) in enumerate(zip(queries, lengths, strict=True), start=1):
        owed = _joules(query, columns)
        sums = [a + b for a, b in zip(sums, owed, strict=True)] if owed else ([float(done)] if not columns else sums)
        places.append((at_ns - start_ns + NS, at_ns + length - start_ns + NS))
        # Everything that the tool filled in, under its own names: `latency_metrics.median_itl_ms`.
        attributes = {"item": _id(query), "status": OK, **dict(_flat(query.metrics))}
        spans.append(("query", at_ns, at_ns + length, attributes))
        at_ns += length
        table.add(at_ns, sums)
        at_ns += PAUSE_NS
        table.add(at_ns, sums)
    table.period_s = max(max(lengths, default=NS) / NS, 0.05)
    return Part([table], spans=spans, meta={KIND: {"model": queries[0].model}}), places


def _flat(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif value is not None and name != "lm_response":
            yield f"{above}{name}", value


def _id(query: Query) -> str:
    meta = query.row.get("dataset_metadata")
    if isinstance(meta, str):
        try:
            meta = json.loads(meta)
        except ValueError:
            meta = None
    known = meta.get("id") if isinstance(meta, Mapping) else None
    return str(known) if known is not None else f"ipw-{query.number:04d}"


def _record(query: Query, place: tuple[int, int], columns: Sequence[tuple[str, str, str, Domain]]) -> Record:
    start, end = place
    first = query.value("latency_metrics", "time_to_first_token_seconds")
    tokens = [query.value("token_metrics", name) for name in ("input", "output")]
    counts = [None if count is None else round(count) for count in tokens]
    text = query.metrics.get("lm_response") or (query.row.get("model_answers") or {}).get(query.model) or ""
    answer = Answer(
        OK,
        str(text),
        began_ns=start,
        sent_ns=start,
        ended_ns=end,
        # The one time of a piece that is known.
        piece_ns=() if first is None else (min(start + round(first * NS), end),),
        input_tokens=counts[0],
        output_tokens=counts[1],
        counted=None if counts[1] is None else "usage",
    )
    span = f"{query.number + 1:08x}" if end > start and _joules(query, columns) is not None else None
    return Record(
        _id(query), Level().label, span, answer, _score(query), str(query.row.get("subject") or ""), asked=_asked(query)
    )


def _asked(query: Query) -> Item:
    """What was asked, as a record keeps it; that tool's own scorers are not here."""
    meta, reference = query.row.get("dataset_metadata"), query.row.get("answer")
    return Item(
        _id(query),
        str(query.row.get("problem") or ""),
        None if reference is None else str(reference),
        None if _score(query) is None else "exact",
        str(query.row.get("subject") or ""),
        meta=dict(meta) if isinstance(meta, Mapping) else {},
    )


def _score(query: Query) -> Score | None:
    right = (query.metrics.get("evaluation") or {}).get("is_correct", query.metrics.get("lm_correctness"))
    if not isinstance(right, bool):
        return None
    return Score(RIGHT if right else WRONG, None, "Intelligence per Watt")


def _truncated(queries: Sequence[Query], summary: Mapping[str, Any]) -> list[str]:
    """Whether the buffer of readings was shorter than queries were."""
    config = summary.get("profiler_config") or {}
    kept_s = number(config.get("telemetry_buffer_seconds"))
    if "everywatt" in (summary.get("versions") or {}):
        return []
    buffer_s = OLD_BUFFER_S if kept_s is None or kept_s <= 0 else kept_s
    longer = [query for query in queries if (query.seconds or 0.0) > buffer_s]
    if not longer:
        return []
    worst = max(query.seconds or 0.0 for query in longer)
    return [
        f"{len(longer)} of {len(queries)} queries lasted up to {worst:.0f} s, longer than the {buffer_s:g} s of "
        "readings that this profile kept: their energy was truncated, down to "
        f"{format_percent(buffer_s / worst)} of the true value"
    ]


def _without_energy(queries: Sequence[Query], columns: Sequence[tuple[str, str, str, Domain]]) -> list[str]:
    none = sum(_joules(query, columns) is None or not query.seconds for query in queries)
    zero = sum(_joules(query, columns) == [0.0] * len(columns) for query in queries) if columns else 0
    found = [f"{none} of {len(queries)} queries have no energy or no duration"] if none else []
    if zero:
        found.append(f"{zero} of {len(queries)} queries have exactly 0 J: no reading fell into them")
    return found


def _plan(summary: Mapping[str, Any], queries: Sequence[Query], warnings: Sequence[str]) -> LlmPlan:
    config = summary.get("profiler_config") or {}
    digest = hashlib.sha256("\n".join(str(query.row.get("problem")) for query in queries).encode()).hexdigest()
    # What `export --to ipw` wrote knows which items they were.
    ours = config["dataset"] if isinstance(config.get("dataset"), Mapping) else {}
    covered = summary.get("energy_boundary")
    name = str(summary.get("dataset_name") or summary.get("dataset") or config.get("dataset_id") or "unknown")
    return LlmPlan(
        model=queries[0].model,
        base_url=str(config.get("client_base_url") or ""),
        client={"client": str(config.get("client_id") or "unknown")},
        dataset=Questions(name, {}, len(queries), ours.get("sha256") or digest),
        max_queries=config.get("max_queries") if ours else None,
        loads=(Level(),),
        boundary=MACHINE,
        imported_from="Intelligence per Watt",
        covered=covered if covered in (SERVER, MACHINE) else None,
        warnings=tuple(warnings),
    )
