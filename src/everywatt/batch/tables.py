"""A batch as tables and sentences, as Markdown, and as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everywatt.batch.figures import OUTSIDE, BatchFigures, DeviceFigures, During, ItemFigures
from everywatt.batch.journal import DONE, FAILED, INTERRUPTED
from everywatt.core.format import format_count, format_duration, format_quantity
from everywatt.core.stats import median
from everywatt.core.tables import Cell, Column, Table, csv_text

SLOW = 3.0  # times the median runtime: a straggler


def device_table(found: BatchFigures) -> Table:
    """One row for each device, what lies outside of items, and the total that they add up to."""
    rows = [_device(one) for one in found.devices]
    if found.total.joules is not None:
        rows.append([OUTSIDE, *[""] * 7, found.outside_microjoules / 1e6, ""])
        retries = sum(device.retries for device in found.devices)
        rows.append(["total", found.count(DONE), found.count(FAILED), retries, *[""] * 4, found.total, ""])
    return Table.of(
        "device",
        Column("done", ""),
        Column("failed", ""),
        Column("retries", ""),
        Column("busy", "s"),
        Column("util min/mean/max", align="right"),
        Column("memory", "B"),
        Column("power", "W"),
        Column("energy", "J"),
        Column("idle energy", "J"),
        rows=rows,
    )


def _device(one: DeviceFigures) -> list[Cell]:
    return [*device_cells(one, one.busy_s), None if one.idle is None or one.idle.joules is None else one.idle]


def device_cells(one: DeviceFigures, *busy: Cell) -> list[Cell]:
    """A device with its items, how `busy` it was, and what it did and took meanwhile."""
    memory, power = one.use.get("memory"), one.use.get("power")
    return [
        *(one.device, one.done, one.failed, one.retries, *busy, range_of(one.use.get("utilisation"), "%")),
        None if memory is None else memory.high,
        None if power is None else power.mean,
        None if one.energy.joules is None else one.energy,
    ]


def item_table(items: Sequence[ItemFigures], title: str = "") -> Table:
    """One row for each item."""
    return Table.of(
        "item",
        "status",
        Column("attempts", ""),
        "device",
        Column("runtime", "s"),
        Column("energy", "J"),
        "util min/mean/max",
        "reason",
        rows=[_item(item) for item in items],
        title=title,
    )


def _item(item: ItemFigures) -> list[Cell]:
    last = item.last
    return [
        item.state.item.id,
        item.state.status,
        len(item.attempts),
        item.state.device or None,
        None if last is None else last.attempt.runtime_s,
        None if item.energy.joules is None else item.energy,
        None if last is None else range_of(last.use.get("utilisation"), "%"),
        why(item),
    ]


def why(item: ItemFigures) -> str:
    """Why an item is not done, in a few words; empty where it is."""
    last = item.last
    if last is None or last.attempt.status == DONE:
        return ""
    ended = last.attempt.ended
    if last.attempt.oom:
        return f"out of memory: {last.attempt.oom}"
    if ended.get("timed_out"):
        return "timed out"
    if ended.get("killed"):
        return "interrupted"
    if ended.get("error"):
        return str(ended["error"])
    code = last.attempt.exit_code
    lines = [line for line in str(ended.get("stderr", "")).split("\n") if line.strip()]
    said = f": {lines[-1][:60]}" if lines else ""
    return "" if code is None else f"exit code {code}{said}"


def range_of(during: During | None, unit: str) -> str | None:
    """`3/48/97 %`; None where nothing was read."""
    return None if during is None else f"{during.low:.0f}/{during.mean:.0f}/{during.high:.0f} {unit}"


def headline(found: BatchFigures) -> str:
    """`12 items: 11 done, 1 failed in 3.20 s, 3.400 items/s, 21.30 J/item`"""
    counts = [f"{found.count(DONE)} done"]
    counts += [f"{found.count(FAILED)} failed"] if found.count(FAILED) else []
    counts += [f"{found.left} left"] if found.left else []
    each = found.joules_per_item()
    pace = found.count(DONE) / found.duration_s if found.duration_s else 0.0
    words = [f"{format_count(len(found.items), 'item')}: {', '.join(counts)} in {format_duration(found.duration_s)}"]
    words += [format_quantity(pace, "items/s")] if pace else []
    words += [format_quantity(each, "J/item")] if each is not None else []
    return ", ".join(words) + (f" on {cards(found)}" if cards(found) else "")


def cards(found: BatchFigures) -> str:
    """`4 × NVIDIA A100-SXM4-40GB`; empty where no GPU took part."""
    titles = [one.title for one in found.devices if one.is_gpu and one.title]
    return ", ".join(f"{titles.count(title)} × {title}" for title in dict.fromkeys(titles))


def stragglers(found: BatchFigures) -> list[ItemFigures]:
    """Items that took three times as long as the one in the middle, the slowest first."""
    known = [(one.last.attempt.runtime_s, one) for one in found.items if one.last and one.last.attempt.runtime_s]
    if len(known) < 4:
        return []
    middle = median([seconds or 0.0 for seconds, _ in known])
    slow = [(seconds or 0.0, one) for seconds, one in known if (seconds or 0.0) > SLOW * middle]
    return [one for _, one in sorted(slow, key=lambda pair: -pair[0])]


def repeated(found: BatchFigures) -> list[str]:
    """A sentence on items that ran again after an interruption; [] where there are none."""
    count = sum(
        any(one.attempt.status == INTERRUPTED for one in item.attempts[:-1]) and len(item.attempts) > 1
        for item in found.items
    )
    if not count:
        return []
    were = "was" if count == 1 else "were"
    return [f"{format_count(count, 'item')} {were} interrupted and run again: each ran at least once"]


def scaling_table(found: Sequence[BatchFigures]) -> Table:
    """One row for each batch: throughput and energy against the number of GPUs."""
    return Table.of(
        "run",
        Column("GPUs", ""),
        Column("done", ""),
        Column("failed", ""),
        Column("time", "s"),
        Column("items/s", ""),
        Column("J/item", ""),
        Column("util", "%"),
        Column("power", "W"),
        rows=[_scaling(one) for one in sorted(found, key=lambda one: sum(d.is_gpu for d in one.devices))],
    )


def scaling_csv(found: Sequence[BatchFigures]) -> str:
    """The same for programs, whose readers know the columns by these names."""
    shown = scaling_table(found)
    names = {"J/item": "J an item", "util": "use"}
    columns = tuple(replace(column, name=names.get(column.name, column.name)) for column in shown.columns)
    return replace(shown, columns=columns).csv()


def _scaling(one: BatchFigures) -> list[Cell]:
    gpus = [device for device in one.devices if device.is_gpu]
    done = one.count(DONE)
    use = [during.mean for device in gpus if (during := device.use.get("utilisation")) is not None]
    watts = [during.mean for device in gpus if (during := device.use.get("power")) is not None]
    return [
        one.run,
        len(gpus),
        done,
        one.count(FAILED),
        one.duration_s,
        done / one.duration_s if one.duration_s else None,
        one.joules_per_item(),
        sum(use) / len(use) / 100 if use else None,
        sum(watts) if watts else None,
    ]


CSV_COLUMNS = (
    *("id", "index", "input", "size", "status", "attempts", "device", "exit_code", "runtime_s"),
    *("energy_j", "energy_low_j", "energy_high_j"),
    *("use_mean", "memory_max_bytes", "power_min_w", "power_mean_w", "power_max_w", "why"),
)


def to_csv(found: BatchFigures) -> str:
    """A line for each item; what is not known is an empty cell."""
    return csv_text(CSV_COLUMNS, [_csv_line(one) for one in found.items])


def _csv_line(one: ItemFigures) -> list[object]:
    data = one.to_dict()
    use = {} if one.last is None else one.last.use
    busy, memory, power = use.get("utilisation"), use.get("memory"), use.get("power")
    return [
        *(data[name] for name in CSV_COLUMNS[:9]),
        *(one.energy.joules, one.energy.low, one.energy.high),
        None if busy is None else busy.mean,
        None if memory is None else memory.high,
        *((None, None, None) if power is None else (power.low, power.mean, power.high)),
        why(one),
    ]


def to_markdown(found: BatchFigures, drift: Sequence[str] = ()) -> str:
    """The batch for notes: the headline, the table by device, what failed, who was slow."""
    lines = [f"## {found.run}", "", headline(found), "", f"Energy: {found.total}", ""]
    lines.append(device_table(found).markdown())
    failed = [item for item in found.items if item.state.status != DONE and item.attempts]
    lines += [item_table(failed, "Not finished").markdown()] if failed else []
    if slow := stragglers(found):
        lines.append(item_table(slow, "Stragglers").markdown())
    lines += ["### Drift", "", *(f"- {line}" for line in drift), ""] if drift else []
    lines += [f"- {note}" for note in found.notes]
    return "\n".join(lines).rstrip("\n") + "\n"
