"""Spans for a page: bands behind the power chart, and phases, which are spans of one name taken together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from everywatt.api.run import IDLE_ROLE, Run
from everywatt.core.clocks import NS
from everywatt.core.energy import Energy, sum_energies
from everywatt.core.errors import EverywattError
from everywatt.core.format import format_duration, format_energy, format_quantity, format_watts
from everywatt.core.spans import Span
from everywatt.ledger.owners import Ledger
from everywatt.ledger.text import shown_name
from everywatt.report.html.figures import shown_energy
from everywatt.report.html.lines import offset_ns_of
from everywatt.report.html.pyramid import pack

ITEM = "item"  # role of the spans of a batch
MOST_BANDS = 10_000
MOST_PHASES = 60
MOST_SPANS = 5_000  # the ledger by span, and the energies one by one, of more take seconds


def _label(span: Span) -> str:
    """A span's name, with its precision or the candidate that it tried: what is compared is not added up."""
    found = span.attributes
    trial = found.get("role") == "trial"
    tried = (found.get("label") if trial else None) or found.get("precision")
    name = "warm-up" if trial and found.get("warmup") else span.name
    return shown_name(f"{name} {tried}" if isinstance(tried, str) else name)


def spans_over_time(run: Run) -> list[tuple[str, float, float, int]]:
    """(name, start, end, depth) of every span in seconds after the start, outer ones first, each depth in order."""
    placed: dict[str, tuple[Span, float, float]] = {}
    for tape in run.tapes:
        offset_ns, high_ns = offset_ns_of(run, tape), tape.extent_ns()[1]
        for span in tape.spans():
            end_ns = high_ns if span.end_ns is None else span.end_ns
            placed.setdefault(span.id, (span, (span.start_ns - offset_ns) / NS, (end_ns - offset_ns) / NS))
    spans = {uid: span for uid, (span, _, _) in placed.items()}
    found = [(_label(span), start, end, len(_path(span, spans)) - 1) for span, start, end in placed.values()]
    return sorted(found, key=lambda band: (band[3], band[1]))


def bands_of(run: Run) -> dict[str, Any]:
    """Names, and packed for each span its name, start and end (µs) and depth; the longest where there are very many."""
    bands = spans_over_time(run)
    kept = bands
    if len(bands) > MOST_BANDS:
        # Among spans of about the same length any will do, so long as they are not all from one place.
        order = sorted(range(len(bands)), key=lambda i: (-_about(bands[i][2] - bands[i][1]), i * 2_654_435_761 % 2**32))
        kept = [bands[i] for i in sorted(order[:MOST_BANDS])]
    names = list(dict.fromkeys(band[0] for band in kept))
    places = {name: place for place, name in enumerate(names)}
    columns = {
        "name": [places[band[0]] for band in kept],
        "start": [round(band[1] * 1e6) for band in kept],
        "length": [round((band[2] - band[1]) * 1e6) for band in kept],
        "depth": [band[3] for band in kept],
    }
    data = pack({name: np.array(values, dtype=np.int64) for name, values in columns.items()})
    return {"names": names, "data": data if kept else None, "kept": len(kept), "count": len(bands)}


def _about(seconds: float) -> float:
    return float(f"{seconds:.1e}")


def phases_of(run: Run) -> dict[str, Any]:
    """Spans by name: how many, how long, joules with interval, mean watts, share of the run; the longest names."""
    by_name: dict[str, list[Span]] = {}
    found = [span for span in run.spans if span.attributes.get("role") != ITEM]  # they are in the table of items
    for span in found:
        by_name.setdefault(_label(span) if len(found) <= MOST_SPANS else span.name, []).append(span)
    until_ns = {span.id: tape.extent_ns()[1] for tape in run.tapes for span in tape.spans() if span.end_ns is None}
    lengths = {name: sum(_seconds(span, until_ns) for span in spans) for name, spans in by_name.items()}
    longest = sorted(by_name, key=lambda name: -lengths[name])[:MOST_PHASES]
    whole = run.energy().joules
    rows = [_phase(run, name, spans, lengths[name], whole) for name, spans in by_name.items() if name in longest]
    return {"rows": rows, "count": len(by_name), "overlap": overlap(found)}


def overlap(spans: Sequence[Span]) -> bool:
    """Whether spans of one parent ran at the same time, so that each has the joules of both."""
    until: dict[str | None, int] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        if span.start_ns < until.get(span.parent, span.start_ns):
            return True
        until[span.parent] = span.start_ns if span.end_ns is None else span.end_ns
    return False


def _seconds(span: Span, until_ns: Mapping[str, int]) -> float:
    """How long a span lasted; one that is open lasts until the end of its tape."""
    return (span.duration_s or 0.0) if span.end_ns is not None else max(until_ns[span.id] - span.start_ns, 0) / NS


def _phase(run: Run, name: str, spans: Sequence[Span], seconds: float, whole_j: float | None) -> dict[str, Any]:
    try:
        # Spans of one name are asked for together: time in several of them counts once.
        energy = run.energy(spans[0].name) if name == spans[0].name else sum_energies(map(run.energy, spans))
    except EverywattError as error:  # one of them lies where nothing was read
        energy = Energy.refuse(error.message)
    row: dict[str, Any] = {
        "name": shown_name(name),
        "count": len(spans),
        "seconds": seconds,
        "seconds_shown": format_duration(seconds),
        "energy": shown_energy(replace(energy, parts=())),
        "inner": any(span.parent is not None for span in spans),
        "idle": any(span.attributes.get("role") == IDLE_ROLE for span in spans),
        "share": energy.joules / whole_j if energy.joules is not None and whole_j else None,
        "mean_shown": format_watts(energy.joules / seconds) if energy.joules is not None and seconds > 0 else None,
        "each_shown": None,
    }
    if energy.joules is not None and len(spans) > 1:
        sides = energy.sides()
        row["each_shown"] = format_quantity(
            energy.joules / len(spans), "J", sides[0] / len(spans), sides[1] / len(spans)
        )
    return row


LEAST_SHARE = 0.002  # of the total: narrower nodes stay part of their parent


@dataclass(slots=True)
class _Node:
    own: list[Energy] = field(default_factory=list)
    children: dict[str, _Node] = field(default_factory=dict)
    spans: int = 0
    whole: list[Energy] = field(default_factory=list)
    """Its own and its children's together, where that is known better than their sum."""

    def energies(self) -> list[Energy]:
        return self.whole or [*self.own, *(energy for child in self.children.values() for energy in child.energies())]


def flames(run: Run, owners: Ledger | None, phases: dict[str, Any]) -> list[dict[str, Any]]:
    """The graphs that there is something to see in: `{"title", "root": {"name", "joules", "shown", "children"}}`.

    `left_out` is whether there are nodes that are too narrow to be shown.
    """
    found = [("Spans", _spans(run, phases)), ("Owners and devices", None if owners is None else _owners(owners))]
    return [
        {"title": title, "root": root, "left_out": _left_out(root)}
        for title, root in found
        if root and root["children"]
    ]


def _left_out(node: dict[str, Any]) -> bool:
    return bool(node["left_out"]) or any(map(_left_out, node["children"]))


def _spans(run: Run, phases: dict[str, Any]) -> dict[str, Any] | None:
    spans = {span.id: span for span in run.spans}
    if len(spans) > MOST_SPANS or not any(span.parent in spans for span in spans.values()):
        return None
    try:
        ledger = run.ledger(by="span")
    except EverywattError:
        return None
    root = _Node()
    nodes: dict[str, _Node] = {}
    for span in spans.values():
        node = root
        for around in reversed(_path(span, spans)):
            if around.attributes.get("role") != "run":  # the run is the root: its own share is outside the spans
                node = node.children.setdefault(_label(around), _Node())
        node.spans += 1
        nodes[span.id] = node
    for entry in ledger.entries:
        node = nodes.get(entry.owner.id) or root.children.setdefault(entry.owner.label, _Node())
        node.own.append(entry.energy)
    # Spans that do not overlap add up to their window, whose interval has no edges between them.
    known = {} if phases["overlap"] else {(row["name"], row["count"]): row["energy"]["shown"] for row in phases["rows"]}
    return _view("run", root, ledger.total, known=known)


def _path(span: Span, spans: dict[str, Span]) -> list[Span]:
    """A span and those around it, the outermost last."""
    path, seen = [span], {span.id}
    while (parent := path[-1].parent) in spans and parent not in seen:
        seen.add(parent)
        path.append(spans[parent])
    return path


def _owners(ledger: Ledger) -> dict[str, Any] | None:
    root = _Node()
    for entry in ledger.entries:
        owner = root.children.setdefault(shown_name(entry.owner.label), _Node())
        owner.whole.append(entry.energy)  # ends at what the devices drew together
        for device, energy in entry.energy.parts:
            owner.children.setdefault(device, _Node()).own.append(energy)
    return _view("run", root, ledger.total)


def _view(
    name: str, node: _Node, total: Energy, energy: Energy | None = None, known: dict[tuple[str, int], str] | None = None
) -> dict[str, Any]:
    """A node as plain data; `energy` is its own sum where it is known already."""
    energy = energy or total
    floor = LEAST_SHARE * (total.joules or 0.0)
    found = {name: child.energies() for name, child in node.children.items()}
    sums = {name: sum_energies(energies, join_scopes=True) for name, energies in found.items() if energies}
    kept = sorted(
        (name for name, one in sums.items() if (one.joules or 0.0) > floor), key=lambda name: -sums[name].value
    )
    shown = (known or {}).get((name, node.spans))
    return {
        "name": name,
        "joules": energy.joules,
        "shown": shown or format_energy(replace(energy, parts=())),
        "children": [_view(child, node.children[child], total, sums[child], known) for child in kept],
        "left_out": any((sums[name].joules or 0.0) > 0 for name in sums.keys() - set(kept)),
    }
