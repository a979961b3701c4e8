"""A batch as rows: for the terminal and for Markdown, both from one list."""

from __future__ import annotations

from collections.abc import Sequence

from everywatt.batch.figures import OUTSIDE, BatchFigures, DeviceFigures, During, ItemFigures
from everywatt.batch.journal import DONE, FAILED
from everywatt.bench.tables import csv_text
from everywatt.core.energy import Energy
from everywatt.core.units import format_bytes, format_duration, format_joules

HEADERS = (
    "device",
    "done",
    "failed",
    "retries",
    "busy",
    "use min/mean/max",
    "memory",
    "power",
    "J",
    "interval",
    "idle J",
)
RIGHT = (1, 2, 3, 4, 5, 6, 7, 8, 10)
ITEM_HEADERS = ("item", "status", "attempts", "device", "runtime", "energy", "use min/mean/max", "why")
ITEM_RIGHT = (2, 4)
SCALING_HEADERS = ("run", "GPUs", "done", "failed", "time", "items/s", "J an item", "use", "power")


def device_rows(found: BatchFigures) -> list[list[str]]:
    """One row for each device, what lies outside of items, and the total they add up to, to the microjoule."""
    rows = [_device(one) for one in found.devices]
    if found.total.joules is None:
        return rows
    rows.append([OUTSIDE, *[""] * 7, _joules(found.outside_microjoules), "", ""])
    done, failed = str(found.count(DONE)), str(found.count(FAILED))
    retries = str(sum(device.retries for device in found.devices))
    rows.append(
        ["total", done, failed, retries, "", "", "", "", _joules(found.total_microjoules), interval(found.total), ""]
    )
    return rows


def _device(one: DeviceFigures) -> list[str]:
    memory, power = one.use.get("memory"), one.use.get("power")
    return [
        one.device,
        str(one.done),
        str(one.failed),
        str(one.retries),
        format_duration(one.busy_s),
        range_of(one.use.get("utilisation"), "%"),
        "-" if memory is None else format_bytes(memory.high),
        "-" if power is None else f"{power.mean:.1f} W",
        "-" if one.energy.joules is None else _joules(one.microjoules),
        interval(one.energy),
        "-" if one.idle is None or one.idle.joules is None else f"{one.idle.joules:.3f}",
    ]


def item_rows(items: Sequence[ItemFigures]) -> list[list[str]]:
    """One row for each item."""
    return [_item(item) for item in items]


def _item(item: ItemFigures) -> list[str]:
    last = item.last
    runtime = None if last is None else last.attempt.runtime_s
    return [
        item.state.item.id,
        item.state.status,
        str(len(item.attempts)),
        item.state.device or "-",
        "-" if runtime is None else format_duration(runtime),
        _energy(item.energy),
        "-" if last is None else range_of(last.use.get("utilisation"), "%"),
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
        return "took too long"
    if ended.get("killed"):
        return "interrupted"
    if ended.get("error"):
        return str(ended["error"])
    code = last.attempt.exit_code
    lines = [line for line in str(ended.get("stderr", "")).splitlines() if line.strip()]
    said = f": {lines[-1][:60]}" if lines else ""
    return "" if code is None else f"exit code {code}{said}"


def range_of(during: During | None, unit: str) -> str:
    """`3/48/97 %`, `-` where nothing was read."""
    return "-" if during is None else f"{during.low:.0f}/{during.mean:.0f}/{during.high:.0f} {unit}"


def interval(energy: Energy) -> str:
    """`± 1.2`, `−0.2/+0.9`; empty where there is none."""
    if energy.joules is None:
        return "-"
    _, _, tail = format_joules(energy.joules, *energy.sides()).partition("J")
    return tail.strip()


def _energy(energy: Energy) -> str:
    return "-" if energy.joules is None else format_joules(energy.joules, *energy.sides())


def _joules(microjoules: int) -> str:
    return f"{microjoules / 1e6:.6f}"


def headline(found: BatchFigures) -> str:
    """`12 items: 11 done, 1 failed in 3.2 s, 3.4 items/s, 21.3 J an item`"""
    counts = [f"{found.count(DONE)} done"]
    counts += [f"{found.count(FAILED)} failed"] if found.count(FAILED) else []
    counts += [f"{found.left} left"] if found.left else []
    each = found.joules_per_item()
    pace = f", {found.count(DONE) / found.duration_s:.3g} items/s" if found.duration_s and found.count(DONE) else ""
    cost = f", {format_joules(each)} an item" if each is not None else ""
    where = f" on {cards(found)}" if cards(found) else ""
    items = f"{len(found.items)} item{'' if len(found.items) == 1 else 's'}"
    return f"{items}: {', '.join(counts)} in {format_duration(found.duration_s)}{pace}{cost}{where}"


def cards(found: BatchFigures) -> str:
    """`4 × NVIDIA A100-SXM4-40GB`; empty where no GPU took part."""
    titles = [one.title for one in found.devices if one.is_gpu and one.title]
    return ", ".join(f"{titles.count(title)} × {title}" for title in dict.fromkeys(titles))


def stragglers(found: BatchFigures, times: float = 3.0) -> list[ItemFigures]:
    """Items that took several times as long as the one in the middle, the slowest first."""
    known = [(one.last.attempt.runtime_s, one) for one in found.items if one.last and one.last.attempt.runtime_s]
    if len(known) < 4:
        return []
    middle = sorted(seconds or 0.0 for seconds, _ in known)[len(known) // 2]
    slow = [(seconds or 0.0, one) for seconds, one in known if (seconds or 0.0) > times * middle]
    return [one for _, one in sorted(slow, key=lambda pair: -pair[0])]


def scaling_rows(found: Sequence[BatchFigures]) -> list[list[str]]:
    """One row for each batch: throughput and energy against the number of GPUs."""
    return [_scaling(one) for one in sorted(found, key=lambda one: sum(d.is_gpu for d in one.devices))]


def _scaling(one: BatchFigures) -> list[str]:
    gpus = [device for device in one.devices if device.is_gpu]
    each, done = one.joules_per_item(), one.count(DONE)
    use = [during.mean for device in gpus if (during := device.use.get("utilisation")) is not None]
    watts = [during.mean for device in gpus if (during := device.use.get("power")) is not None]
    return [
        one.run,
        str(len(gpus)),
        str(done),
        str(one.count(FAILED)),
        format_duration(one.duration_s),
        f"{done / one.duration_s:.3g}" if one.duration_s else "-",
        "-" if each is None else f"{each:.4g}",
        f"{sum(use) / len(use):.0f} %" if use else "-",
        f"{sum(watts):.0f} W" if watts else "-",
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
    lines += _markdown(HEADERS, device_rows(found))
    failed = [item for item in found.items if item.state.status != DONE and item.attempts]
    if failed:
        lines += ["", "### Not done", "", *_markdown(ITEM_HEADERS, item_rows(failed))]
    if slow := stragglers(found):
        lines += ["", "### Stragglers", "", *_markdown(ITEM_HEADERS, item_rows(slow))]
    lines += ["", "### Drift", "", *(f"- {line}" for line in drift)] if drift else []
    lines += ["", *(f"- {note}" for note in found.notes)] if found.notes else []
    return "\n".join(lines) + "\n"


def _markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
