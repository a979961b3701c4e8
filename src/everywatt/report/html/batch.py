"""The section of a batch: throughput and energy by GPU, use over time and against power, stragglers, failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everywatt.api.run import Run
from everywatt.batch.figures import (
    AttemptFigures,
    BatchFigures,
    DeviceFigures,
    ItemFigures,
    cause_table,
    item_table,
    scaling_table,
    with_known_cpu,
)
from everywatt.batch.journal import DONE, FAILED, JOURNAL, read_journal
from everywatt.batch.measuring import figures
from everywatt.core.clocks import NS
from everywatt.core.errors import EverywattError
from everywatt.core.format import format_duration, format_energy, format_number
from everywatt.core.jsonio import declared, plain
from everywatt.core.tables import Cell, Table, columns_of
from everywatt.ledger.use.usage import find_series
from everywatt.report.html.figures import table_view
from everywatt.report.html.pyramid import pack_json
from everywatt.tape.reader import Tape

CELLS, FEWEST_CELLS = 120, 10
MOST_POINTS = 400
MOST_ROWS = 25
MOST_ITEMS = 2000  # of the table of all items
MOST_STDERR, ALL_STDERR, LEAST_STDERR = 600, 200_000, 60  # characters of an attempt that failed, of all, of one of many
DEVICE_COLUMNS = columns_of(
    "device, done [], failed [], retries [], items/s [], busy [%], waited [s], CPU time [s], util min/mean/max [], "
    "memory [B], power [W], energy [J], idle energy [J]"
)


def batch_of(run: Run) -> BatchFigures | None:
    """The figures of a run that is a batch; None if it is not one, or has none."""
    if not run.path.is_dir() or not (run.path / JOURNAL).is_file():
        return None
    try:
        return figures(run, read_journal(run.path))
    except EverywattError:
        return None


def batch_view(run: Run, found: BatchFigures | None) -> dict[str, Any] | None:
    """What the page shows of a batch; None if the run is not one."""
    if found is None:
        return None
    first = run.tapes[0]
    start_ns = first.to_utc_ns(first.extent_ns()[0])
    lost = found.unfinished()
    # Those that did not finish are looked for first.
    kept = sorted(
        [*lost, *(one for one in found.items if one.state.status == DONE)][:MOST_ITEMS],
        key=lambda one: one.state.item.index,
    )
    said = sum(attempt.attempt.status != DONE for one in kept for attempt in one.attempts)
    causes = {name: cause for cause, names in found.causes() for name in names}
    most = min(MOST_STDERR, max(LEAST_STDERR, ALL_STDERR // max(said, 1)))
    items = table_view(item_table(found.stragglers()[:MOST_ROWS]))
    rows = [_device(one, found) for one in found.devices]
    devices = table_view(with_known_cpu(Table.of(*DEVICE_COLUMNS, rows=rows)))
    return {
        "headline": found.headline,
        "heads": devices["heads"],
        "devices": devices["rows"],
        "heat": _heat(run, found, start_ns),
        "points": _points(found),
        "item_heads": items["heads"],
        "stragglers": items["rows"],
        "causes": cause_table(found, MOST_ROWS).cells(),
        "items": [{**_item(one, start_ns, most), "cause": causes.get(one.state.item.id, "")} for one in kept],
        "more_items": len(found.items) - len(kept),
        "notes": [*found.notes, *found.repeated()],
    }


def packed_batch(run: Run, found: BatchFigures | None) -> dict[str, Any] | None:
    """The same with its items deflated: a thousand are half a megabyte otherwise."""
    view = batch_view(run, found)
    return None if view is None else {**view, "items": pack_json(plain(view["items"]))}


def batch_figures(found: BatchFigures | None) -> list[dict[str, str]]:
    """What one comes for, beside the energy of the whole."""
    if found is None:
        return []
    count, done = len(found.items), found.count(DONE)
    rest = [(found.count(FAILED), "failed"), (found.left, "not run")]
    about = ", ".join(f"{n:,} {what}" for n, what in rest if n) or "all"
    figures = [{"label": "Items done", "value": f"{done:,} of {count:,}", "about": about}]
    if found.cpu_s_per_item is not None:
        about = "of the attempts that finished an item"
        figures.append({"label": "CPU time per item", "value": format_duration(found.cpu_s_per_item), "about": about})
    if found.per_item is not None:
        about = f"{'modelled ' if 'modelled' in found.total.pedigree else ''}energy of the batch / items done"
        figures.append({"label": "Energy per item", "value": format_energy(found.per_item), "about": about})
    return figures


def _item(one: ItemFigures, start_ns: int, most: int) -> dict[str, Any]:
    """An item of the cockpit: what it came to, and each of its attempts with at most so much of stderr."""
    last = one.last
    use = {} if last is None else last.use
    memory, power = use.get("memory"), use.get("power")
    known = one.energy.joules is not None
    return {
        **declared(one.state, "id=item.id input=item.input status device size=item.size"),
        "seconds": None if last is None else last.attempt.runtime_s,
        "time": _time(None if last is None else last.attempt.runtime_s),
        "joules": one.energy.joules,
        "energy": format_energy(one.energy) if known else None,
        "memory_bytes": None if memory is None else memory.high,
        "power": None if power is None else {"min": power.low, "mean": power.mean, "max": power.high},
        "why": one.why,
        "attempts": [_attempt(attempt, start_ns, most) for attempt in one.attempts],
    }


def _attempt(one: AttemptFigures, start_ns: int, most: int) -> dict[str, Any]:
    attempt, ended = one.attempt, one.attempt.ended
    device = f"{attempt.host}/{attempt.device}" if attempt.host else attempt.device
    said = str(ended.get("stderr") or ended.get("error") or "")
    # On the axis of the charts.
    window_s = None if one.window_ns is None else [round((at_ns - start_ns) / NS, 4) for at_ns in one.window_ns]
    return {
        "number": attempt.number,
        "status": attempt.status,
        "device": device,
        "lane": f"{attempt.task}:{attempt.lane}" if attempt.task else str(attempt.lane),
        "window_s": window_s,
        "time": _time(None if window_s is None else window_s[1] - window_s[0]),
        "exit_code": attempt.exit_code,
        "energy": format_energy(one.energy) if one.energy.joules is not None else None,
        "stderr": said[-most:] if attempt.status != DONE else "",
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(seconds)


def scaling_view(found: Sequence[BatchFigures | None]) -> dict[str, Any] | None:
    """Several batches side by side; None unless at least two of the runs are batches."""
    batches = [one for one in found if one is not None]
    if len(batches) < 2:
        return None
    points = [
        {
            "name": one.run,
            "gpus": sum(device.is_gpu for device in one.devices),
            "items_per_s": _rate(one),
            "joules_per_item": _each(one),
        }
        for one in batches
    ]
    points.sort(key=lambda point: int(str(point["gpus"])))
    return {**table_view(scaling_table(batches)), "points": points}


def _rate(one: BatchFigures) -> dict[str, Any] | None:
    """Finished items per second, as a bar."""
    rate = one.count(DONE) / one.duration_s if one.duration_s else None
    return None if rate is None else {"value": rate, "shown": format_number(rate)}


def _each(one: BatchFigures) -> dict[str, Any] | None:
    """Energy of the batch for each finished item, as a bar with its interval."""
    each = one.per_item
    if each is None:
        return None
    return {"value": each.joules, "low": each.low, "high": each.high, "shown": format_energy(each)}


def _device(one: DeviceFigures, found: BatchFigures) -> list[Cell]:
    """The device's row of every table, with rates and waiting beside the time in which it was busy."""
    name, done, failed, retries, _, *used, idle = one.row()
    rates: list[Cell] = [one.done / found.duration_s, one.busy_s / found.duration_s] if found.duration_s else [None] * 2
    return [name, done, failed, retries, *rates, max(found.duration_s - one.busy_s, 0.0), *used, idle]


def _heat(run: Run, found: BatchFigures, start_ns: int) -> dict[str, Any] | None:
    """Mean utilisation of each GPU in equal steps of the time of the lanes, in percent; None where nothing was read."""
    windows = [one.window_ns for item in found.items for one in item.attempts if one.window_ns is not None]
    low, high = min((start for start, _ in windows), default=0), max((end for _, end in windows), default=0)
    if high <= low:
        return None
    several = len({tape.host for tape in run.tapes}) > 1
    rows = []
    for device in (one.device for one in found.devices if one.is_gpu):
        host, _, name = device.rpartition("/")
        at, values = _readings([tape for tape in run.tapes if not several or tape.host == host], name)
        # Not more steps than readings: empty ones would look like something.
        cells_n = min(CELLS, max(FEWEST_CELLS, len(at) // 2))
        known = np.isfinite(values)
        counts, _ = np.histogram(at[known] - low, cells_n, (0, high - low))
        sums, _ = np.histogram(at[known] - low, cells_n, (0, high - low), weights=values[known])
        if counts.any():
            cells = [round(float(s / n), 1) if n else None for s, n in zip(sums, counts, strict=True)]
            rows.append({"device": device, "cells": cells})
    return {"from_s": (low - start_ns) / NS, "to_s": (high - start_ns) / NS, "rows": rows} if rows else None


def _readings(tapes: Sequence[Tape], device: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """When utilisation was read (UTC, ns), and what it was."""
    at: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    values: list[npt.NDArray[np.float64]] = [np.empty(0)]
    for tape in tapes:
        series = find_series(tape, f"{device}.utilisation")
        if series is not None:
            series.update(tape)
            start_ns = tape.extent_ns()[0]
            at.append(series.at_ns + (tape.to_utc_ns(start_ns) - start_ns))
            values.append(series.values)
    return np.concatenate(at), np.concatenate(values)


def _points(found: BatchFigures) -> list[dict[str, Any]]:
    """Items by mean utilisation and mean power, evenly chosen where there are many."""
    points = []
    for item in found.items:
        last = item.last
        use, power = (None, None) if last is None else (last.use.get("utilisation"), last.use.get("power"))
        if use is not None and power is not None:
            points.append(
                {"item": item.state.item.id, "device": item.state.device, "use": use.mean, "watts": power.mean}
            )
    step = -(-len(points) // MOST_POINTS) or 1
    return points[::step]
