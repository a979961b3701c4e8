"""Energies of several windows, segments or hosts in one figure."""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.core.energy import Energy, join_labels, sum_energies, total


def combine(figures: Sequence[tuple[str, Energy]]) -> Energy:
    """The sum over (host, energy) pairs.

    On one host with one scope the parts are added device by device; otherwise each host's figure is a part of its own,
    and the scope names what all of them cover.
    """
    if len(figures) == 1:
        return figures[0][1]
    counted = [(host, energy) for host, energy in figures if energy.joules is not None]
    if not counted:
        return figures[0][1]
    hosts = {host for host, _ in counted}
    scopes = {energy.scope for _, energy in counted}
    missing = [f"{host}: {energy.refused}" for host, energy in figures if energy.joules is None]
    if len(hosts) == 1 and len(scopes) == 1:
        summed = sum_energies(energy for _, energy in counted)
        return _with_notes(summed, missing)
    by_host: dict[str, Energy] = {}
    for index, (host, energy) in enumerate(counted):
        same = host in by_host and by_host[host].scope == energy.scope
        name = host if same or host not in by_host else f"{host} #{index + 1}"
        by_host[name] = by_host[name] + energy if same else energy
    notes = [*missing, *(["hosts or segments cover different scopes"] if len(scopes) > 1 else [])]
    return total(by_host, scope=join_labels(sorted(scopes)), notes=notes)


def _with_notes(energy: Energy, notes: Sequence[str]) -> Energy:
    from dataclasses import replace

    return replace(energy, notes=(*energy.notes, *notes)) if notes else energy
