"""The figures of a batch, of its devices, items and attempts: as tables and sentences, as Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everywatt.batch.journal import DONE, FAILED, INTERRUPTED, Attempt, State
from everywatt.core.device import is_gpu
from everywatt.core.energy import Energy
from everywatt.core.format import format_count, format_duration, format_quantity
from everywatt.core.jsonio import ToDict, as_data, declared
from everywatt.core.stats import median
from everywatt.core.tables import Cell, Quantity, Table, columns_of, csv_of

OUTSIDE = "outside items"
SLOW = 3.0  # times the median runtime: a straggler
LATE_S = 0.1  # and that much more: what starting a program may take on a busy machine
ITEM = (
    "id=state.item.id index=state.item.index input=state.item.input size=state.item.size status=state.status "
    "attempts=attempt_count device=state.device exit_code=last.attempt.exit_code runtime_s"
)
CSV_COLUMNS = (
    f"{ITEM} energy_j=energy.joules energy_low_j=energy.low energy_high_j=energy.high use_mean=use.utilisation.mean "
    "memory_max_bytes=use.memory.high power_min_w=use.power.low power_mean_w=use.power.mean "
    "power_max_w=use.power.high why cpu_s"
)

DEVICE_COLUMNS = columns_of(
    "device, done [], failed [], retries [], busy [s], CPU time [s], util min/mean/max [], memory [B], power [W], "
    "energy [J], idle energy [J]"
)
ITEM_COLUMNS = columns_of(
    "item, status, attempts [], device, runtime [s], CPU time [s], energy [J], util min/mean/max, reason"
)
SCALING_COLUMNS = columns_of(
    "run, GPUs [], done [], failed [], time [s], items/s [], CPU time/item [s], J/item [], util [%], power [W]"
)
MOST_SAID = 60  # characters of a failed item's last line, in tables


@dataclass(frozen=True, slots=True)
class During(ToDict):
    """Lowest, mean and highest reading inside an attempt; `samples` is how many there were."""

    JSON = "min=low mean max=high samples"

    low: float
    mean: float
    high: float
    samples: int


def range_of(during: During | None, unit: str) -> str | None:
    """`3/48/97 %`; None where nothing was read."""
    return None if during is None else f"{during.low:.0f}/{during.mean:.0f}/{during.high:.0f} {unit}"


@dataclass(frozen=True, slots=True)
class AttemptFigures:
    """An attempt with its energy, what its GPU did during it (None: no reading fell into it), and its memory curve.

    `window_ns` is its time as recorded, UTC.
    """

    attempt: Attempt
    energy: Energy
    use: Mapping[str, During | None] = field(default_factory=dict)
    memory_curve: tuple[tuple[float, float], ...] | None = None
    window_ns: tuple[int, int] | None = None

    @property
    def cpu_s(self) -> float | None:
        """CPU time of its command; None where the worker did not live to report it."""
        return self.attempt.ended.get("cpu_s")

    def to_dict(self) -> dict[str, Any]:
        one = self.attempt
        return {
            **declared(one, "attempt=number status device lane span started=at"),
            **{key: value for key, value in (("host", one.host), ("task", one.task)) if value},
            **{key: value for key, value in one.ended.items() if key != "file"},
            "energy": self.energy.to_dict(),
            "during": as_data(self.use),
            **({} if self.memory_curve is None else {"memory_curve": as_data(self.memory_curve)}),
        }


@dataclass(frozen=True, slots=True)
class ItemFigures(ToDict):
    """An item with all its attempts; its energy is that of all of them."""

    JSON = f"{ITEM} energy during=use file=state.file tries=attempts"

    state: State
    attempts: tuple[AttemptFigures, ...]
    energy: Energy

    @property
    def last(self) -> AttemptFigures | None:
        """The attempt that decided."""
        return self.attempts[-1] if self.attempts else None

    @property
    def attempt_count(self) -> int:
        return len(self.attempts)

    @property
    def use(self) -> Mapping[str, During | None]:
        """What its GPU did during the last attempt."""
        return {} if self.last is None else self.last.use

    @property
    def runtime_s(self) -> float | None:
        return None if self.last is None else self.last.attempt.runtime_s

    @property
    def cpu_s(self) -> float | None:
        """CPU time of all attempts; None where that of one is not known."""
        return known_sum([one.cpu_s for one in self.attempts])

    @property
    def reason(self) -> tuple[str, str]:
        """Why it is not done, and the last line of its stderr where that is the reason; empty where it is done."""
        last = self.last
        if last is None or last.attempt.status == DONE:
            return "", ""
        ended = last.attempt.ended
        if last.attempt.oom:
            return f"out of memory: {last.attempt.oom}", ""
        if ended.get("timed_out"):
            return "timed out", ""  # after how long is in the column beside it, and differs among items of one cause
        if ended.get("killed"):
            return "interrupted", ""
        if ended.get("error"):
            return str(ended["error"]), ""
        code = last.attempt.exit_code
        lines = [line for line in str(ended.get("stderr", "")).split("\n") if line.strip()]
        return ("", "") if code is None else (f"exit code {code}", lines[-1] if lines else "")

    @property
    def why(self) -> str:
        """Why it is not done, in a few words; empty where it is."""
        return _shortened(*self.reason)

    def names(self, word: str) -> bool:
        """Whether a word of a message belongs to this item alone: a number, a path, or what the item is called."""
        called = (self.state.item.id, self.state.item.input)
        return any(sign in "/\\" or sign.isdigit() for sign in word) or word.strip(".,:;'\"()[]") in called

    def row(self) -> list[Cell]:
        return [
            self.state.item.id,
            self.state.status,
            len(self.attempts),
            self.state.device or None,
            self.runtime_s,
            None if self.energy.measured else self.cpu_s,
            None if self.energy.joules is None else self.energy,
            range_of(self.use.get("utilisation"), "%"),
            self.why,
        ]


@dataclass(frozen=True, slots=True)
class DeviceFigures(ToDict):
    """All attempts that ran on one device. `idle` is what the device itself drew outside of items.

    `busy_s` is the time in which at least one item ran on it.
    """

    JSON = (
        "device name=title done failed attempts retries busy_s energy microjoules energy_own=own energy_own_idle=idle "
        "during=use cpu_s"
    )

    device: str
    title: str
    done: int
    failed: int
    attempts: int
    retries: int
    busy_s: float
    energy: Energy
    microjoules: int
    own: Energy | None
    idle: Energy | None
    use: Mapping[str, During | None]
    cpu_s: float | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, of this host or another."""
        return is_gpu(self.device)

    def row(self) -> list[Cell]:
        memory, power = self.use.get("memory"), self.use.get("power")
        return [
            *(self.device, self.done, self.failed, self.retries, self.busy_s),
            None if self.energy.measured else self.cpu_s,
            range_of(self.use.get("utilisation"), "%"),
            None if memory is None else memory.high,
            None if power is None else power.mean,
            None if self.energy.joules is None else self.energy,
            None if self.idle is None or self.idle.joules is None else self.idle,
        ]


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """The whole batch. `outside` is energy of no item; with that of the devices it is the ledger's total."""

    run: str
    duration_s: float
    items: tuple[ItemFigures, ...]
    devices: tuple[DeviceFigures, ...]
    total: Energy
    total_microjoules: int
    outside_microjoules: int
    notes: tuple[str, ...] = ()
    outside: Energy | None = None

    def count(self, status: str) -> int:
        return sum(item.state.status == status for item in self.items)

    @property
    def left(self) -> int:
        return len(self.items) - self.count(DONE) - self.count(FAILED)

    @property
    def adds_up(self) -> bool:
        """Whether devices and what lies outside of items are the total, to the microjoule."""
        owned = sum(device.microjoules for device in self.devices) + self.outside_microjoules
        return owned == self.total_microjoules

    @property
    def per_item(self) -> Energy | None:
        """All energy of the batch for each item that was done; None where there is no figure."""
        done = self.count(DONE)
        if self.total.joules is None or not done:
            return None
        return replace(self.total / done, joules=self.total.joules / done, parts=())

    @property
    def cpu_s(self) -> float | None:
        """CPU time of all attempts; None where that of one is not known."""
        return known_sum([item.cpu_s for item in self.items if item.attempts])

    def finished(self) -> list[AttemptFigures]:
        """The attempts that finished an item."""
        return [item.last for item in self.items if item.state.status == DONE and item.last is not None]

    @property
    def cpu_s_per_item(self) -> float | None:
        """Mean CPU time of the attempts that finished an item, where energy is only modelled from it, or refused: the
        kernel counts it, so it is shown first. None elsewhere."""
        total_s = known_sum([one.cpu_s for one in self.finished()])
        return None if total_s is None or self.total.measured else total_s / len(self.finished())

    @property
    def headline(self) -> str:
        """`12 items: 11 done, 1 failed in 3.20 s, 3.400 items/s, 21.30 J/item ± 0.44`"""
        counts = [f"{self.count(DONE)} done"]
        counts += [f"{self.count(FAILED)} failed"] if self.count(FAILED) else []
        counts += [f"{self.left} left"] if self.left else []
        each = self.per_item
        pace = self.count(DONE) / self.duration_s if self.duration_s else 0.0
        words = [f"{format_count(len(self.items), 'item')}: {', '.join(counts)} in {format_duration(self.duration_s)}"]
        words += [format_quantity(pace, "items/s")] if pace else []
        words += [f"{format_duration(self.cpu_s_per_item)} of CPU time/item"] if self.cpu_s_per_item is not None else []
        words += [format_quantity(each.value, "J/item", *each.sides())] if each is not None else []
        return ", ".join(words) + (f" on {self.cards}" if self.cards else "")

    @property
    def cards(self) -> str:
        """`4 × NVIDIA A100-SXM4-40GB`; empty where no GPU took part."""
        titles = [one.title for one in self.devices if one.is_gpu and one.title]
        return ", ".join(f"{titles.count(title)} × {title}" for title in dict.fromkeys(titles))

    def stragglers(self) -> list[ItemFigures]:
        """Items that took three times as long as the one in the middle, and 0.1 s more, the slowest first."""
        known = [(one.runtime_s, one) for one in self.items if one.runtime_s]
        if len(known) < 4:
            return []
        middle = median([seconds for seconds, _ in known])
        slow = [(seconds, one) for seconds, one in known if seconds > max(SLOW * middle, middle + LATE_S)]
        return [one for _, one in sorted(slow, key=lambda pair: -pair[0])]

    def unfinished(self) -> list[ItemFigures]:
        """Items that were begun and are not done."""
        return [item for item in self.items if item.state.status != DONE and item.attempts]

    def causes(self) -> list[tuple[str, list[str]]]:
        """Why items are not done, the most frequent cause first, with the ids of its items.

        Messages that differ only where each names its own item are one cause, with "…" in those places.
        """
        alike: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
        for item in self.unfinished():
            how, said = item.reason
            words = said.split()
            key = how or item.state.status, *("…" if item.names(word) else word for word in words)
            alike.setdefault(key, []).append((item.state.item.id, words))
        found = []
        for (how, *_), items in alike.items():
            places = zip(*(words for _, words in items), strict=True)
            said = " ".join(place[0] if len(set(place)) == 1 else "…" for place in places)
            found.append((_shortened(how, said), [name for name, _ in items]))
        return sorted(found, key=lambda cause: -len(cause[1]))

    def tables(self) -> list[Table]:
        """By device; what is not finished, and who was slow, where there are such items."""
        found = [self.device_table()]
        for title, items in (("Not finished", self.unfinished()), ("Stragglers", self.stragglers())):
            found += [item_table(items, title)] if items else []
        return found

    def device_table(self) -> Table:
        """One row for each device, what lies outside of items, and the total that they add up to."""
        rows = [one.row() for one in self.devices]
        if self.total.joules is not None:
            rows.append([OUTSIDE, *[""] * 8, self.outside, ""])
            retries = sum(device.retries for device in self.devices)
            counts = self.count(DONE), self.count(FAILED), retries
            cpu_s = "" if self.total.measured else self.cpu_s
            rows.append(["total", *counts, "", cpu_s, *[""] * 3, self.total, ""])
        return with_known_cpu(Table.of(*DEVICE_COLUMNS, rows=rows))

    def scaling_row(self) -> list[Cell]:
        gpus = [device for device in self.devices if device.is_gpu]
        done = self.count(DONE)
        use = [during.mean for device in gpus if (during := device.use.get("utilisation")) is not None]
        watts = [during.mean for device in gpus if (during := device.use.get("power")) is not None]
        return [
            self.run,
            len(gpus),
            done,
            self.count(FAILED),
            self.duration_s,
            done / self.duration_s if self.duration_s else None,
            self.cpu_s_per_item,
            None if self.per_item is None else Quantity(self.per_item.value, "", *self.per_item.sides()),
            sum(use) / len(use) / 100 if use else None,
            sum(watts) if watts else None,
        ]

    def repeated(self) -> list[str]:
        """A sentence on items that ran again after an interruption; [] if no item did."""
        count = sum(
            any(one.attempt.status == INTERRUPTED for one in item.attempts[:-1]) and len(item.attempts) > 1
            for item in self.items
        )
        if not count:
            return []
        were = "was" if count == 1 else "were"
        return [f"{format_count(count, 'item')} {were} interrupted and run again: each ran at least once"]

    def to_csv(self) -> str:
        """A line for each item; what is not known is an empty cell."""
        return csv_of(CSV_COLUMNS, self.items)

    def to_markdown(self, drift: Sequence[str] = ()) -> str:
        """The batch for notes: the headline, the table by device, what failed, who was slow."""
        lines = [f"## {self.run}", "", self.headline, "", f"Energy: {self.total}", ""]
        lines.append(self.device_table().markdown())
        lines += [table.markdown() for table in self.tables()[1:]]
        lines += ["### Drift", "", *(f"- {line}" for line in drift), ""] if drift else []
        lines += [f"- {note}" for note in (*self.notes, *self.repeated())]
        return "\n".join(lines).rstrip("\n") + "\n"

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "duration_s": self.duration_s,
            "counts": {"items": len(self.items), DONE: self.count(DONE), FAILED: self.count(FAILED), "left": self.left},
            "energy": self.total.to_dict(),
            "cpu_s": self.cpu_s,
            "energy_outside_j": self.outside_microjoules / 1e6,
            "adds_up": self.adds_up,
            "items_per_s": self.count(DONE) / self.duration_s if self.duration_s else None,
            "joules_per_item": None if self.per_item is None else self.per_item.joules,
            "items": [item.to_dict() for item in self.items],
            "by_device": [device.to_dict() for device in self.devices],
            "notes": list(self.notes),
        }


def known_sum(values: Sequence[float | None]) -> float | None:
    """The sum of what is known of all; None where one is not known, or there is nothing."""
    return None if not values or None in values else sum(value for value in values if value is not None)


def with_known_cpu(table: Table) -> Table:
    """The table without its column of CPU time where that is empty: beside what was measured it is not shown."""
    place = next(place for place, name in enumerate(table.headers) if name.startswith("CPU time"))
    if any(row[place] not in (None, "") for row in table.rows):
        return table
    rows = tuple((*row[:place], *row[place + 1 :]) for row in table.rows)
    return replace(table, columns=(*table.columns[:place], *table.columns[place + 1 :]), rows=rows)


def _shortened(how: str, said: str) -> str:
    """`exit code 1: ValueError: no such volume`; a long line is cut."""
    return how + (f": {said if len(said) <= MOST_SAID else said[: MOST_SAID - 1] + '…'}" if said else "")


def cause_table(found: BatchFigures, most: int, title: str = "") -> Table:
    """A row for each cause: how many items, and the first of them."""
    rows: list[list[Cell]] = [
        [cause, len(ids), ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")] for cause, ids in found.causes()[:most]
    ]
    return Table.of(*columns_of("cause, items [], which"), rows=rows, title=title)


def item_table(items: Sequence[ItemFigures], title: str = "") -> Table:
    return with_known_cpu(Table.of(*ITEM_COLUMNS, rows=[item.row() for item in items], title=title))


def scaling_table(found: Sequence[BatchFigures]) -> Table:
    """One row for each batch: throughput and energy against the number of GPUs."""
    ordered = sorted(found, key=lambda one: sum(d.is_gpu for d in one.devices))
    return with_known_cpu(Table.of(*SCALING_COLUMNS, rows=[one.scaling_row() for one in ordered]))


def scaling_csv(found: Sequence[BatchFigures]) -> str:
    """The same for programs, whose readers know the columns by these names."""
    shown = scaling_table(found)
    names = {"J/item": "J an item", "util": "use"}
    columns = tuple(replace(column, name=names.get(column.name, column.name)) for column in shown.columns)
    return replace(shown, columns=columns).csv()
