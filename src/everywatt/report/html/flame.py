"""Energy flame graphs for a page: nested spans, and owners with their devices, each with its interval.

A span's own energy (outside its inner spans) comes from the ledger by span, so a node is exactly as wide as its own
energy and its children together. Spans of the same name under the same parents are one node.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from everywatt.api.run import Run
from everywatt.core.energy import Energy, sum_energies
from everywatt.core.errors import EverywattError
from everywatt.core.format import format_energy
from everywatt.ledger.owners import Ledger

MOST_SPANS = 5_000  # the ledger by span of more takes seconds
LEAST_SHARE = 0.002  # of the total: narrower nodes stay part of their parent


@dataclass(slots=True)
class _Node:
    own: list[Energy] = field(default_factory=list)
    children: dict[str, _Node] = field(default_factory=dict)

    def energies(self) -> list[Energy]:
        return [*self.own, *(energy for child in self.children.values() for energy in child.energies())]


def flames(run: Run, owners: Ledger | None) -> list[dict[str, Any]]:
    """The graphs that there is something to see in: `{"title", "root": {"name", "joules", "shown", "children"}}`."""
    found = [("Spans", _spans(run)), ("Owners and devices", None if owners is None else _owners(owners))]
    return [{"title": title, "root": root} for title, root in found if root and root["children"]]


def _spans(run: Run) -> dict[str, Any] | None:
    spans = {span.id: span for span in run.spans}
    if len(spans) > MOST_SPANS or not any(span.parent in spans for span in spans.values()):
        return None
    try:
        ledger = run.ledger(by="span")
    except EverywattError:
        return None
    root = _Node()
    for entry in ledger.entries:
        path, seen, span = [], set(), spans.get(entry.owner.id)
        while span is not None and span.id not in seen:
            seen.add(span.id)
            path.append(span.name)
            span = spans.get(span.parent or "")
        node = root
        for name in reversed(path or [entry.owner.label]):
            node = node.children.setdefault(name, _Node())
        node.own.append(entry.energy)
    return _view("run", root, ledger.total)


def _owners(ledger: Ledger) -> dict[str, Any] | None:
    root = _Node()
    for entry in ledger.entries:
        for device, energy in entry.energy.parts:
            root.children.setdefault(entry.owner.label, _Node()).children.setdefault(device, _Node()).own.append(energy)
    return _view("run", root, ledger.total)


def _view(name: str, node: _Node, total: Energy, energy: Energy | None = None) -> dict[str, Any]:
    """A node as plain data; `energy` is its own sum where it is known already."""
    shown = energy or total
    floor = LEAST_SHARE * (total.joules or 0.0)
    sums = {name: sum_energies(child.energies(), join_scopes=True) for name, child in node.children.items()}
    kept = sorted(
        (name for name, one in sums.items() if (one.joules or 0.0) > floor), key=lambda name: -sums[name].value
    )
    return {
        "name": name,
        "joules": shown.joules,
        "shown": format_energy(replace(shown, parts=())),
        "children": [_view(child, node.children[child], total, sums[child]) for child in kept],
    }
