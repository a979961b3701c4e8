"""What an agent keeps over a restart: counters of devices and owners, idle levels, in one small file, replaced whole.

The file may be some seconds behind. What the last segment of the tape has beyond it is found there: a device's counter
is its value at the start of the segment plus what the segment counted; an owner's is the newest on the segment.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everywatt.core.channels import Row
from everywatt.core.errors import EverywattError
from everywatt.core.files import replace_text
from everywatt.core.machine import boot_id as boot_id
from everywatt.fleet.device_counters import accumulated_joules
from everywatt.fleet.metrics import LOW_HIGH, OWNER_CPU, OWNER_ENERGY, OWNER_LOW_HIGH
from everywatt.fleet.segments import number_of, segments, table_rows
from everywatt.ledger.counters import OwnerKey
from everywatt.ledger.engine import UJ, Level
from everywatt.recorder.session import FAR_NS, last_rows
from everywatt.tape import schema
from everywatt.tape.accumulate import Accumulator, Cum, energy_channels, publication_ns
from everywatt.tape.reader import StoredGroup, Tape

if TYPE_CHECKING:
    from everywatt.fleet.watch import Watcher

FILE = "state.json"
VERSION = 1
DEVICE = "device"  # the kind of a device's own bounds
BATCH = 500
_Key = tuple[str, str, str | None, int | None]  # kind, owner, device (None: CPU seconds), end of an interval


@dataclass(frozen=True, slots=True)
class LastRow:
    """The last row of a group on the newest segment: its channels' names, when it was (UTC), and in which boot."""

    row: Row
    channels: tuple[str, ...]
    utc_ns: int
    boot: str


@dataclass
class State:
    """Counters by device|domain in microjoules, rows of owners, idle levels, last segment, open accounts.

    `bounds` are rows of kind, owner, device and the ends of the interval in microjoules; those of a device's own
    counter have the kind `device` and its domain as owner. `reasons` are those of what is unattributed, by device.
    `use` is the CPU time of processes by then and who was on which GPU, with the boot that it is of; `used_s` the CPU
    seconds of owners by then.

    `counted` are counters at `rows`, the last row of each group: `devices` may be ahead of them by what was published
    but did not reach the disk.
    """

    devices: dict[str, int] = field(default_factory=dict)
    owners: list[list[Any]] = field(default_factory=list)
    levels: dict[str, list[Any]] = field(default_factory=dict)
    segment: int = 0
    accounts: dict[str, list[Any]] = field(default_factory=dict)
    bounds: list[list[Any]] = field(default_factory=list)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    use: dict[str, Any] = field(default_factory=dict)
    used_s: dict[tuple[str, str], float] = field(default_factory=dict)
    trouble: str = ""
    counted: dict[str, int] = field(default_factory=dict)
    rows: dict[str, LastRow] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        names = ("devices", "owners", "levels", "segment", "accounts", "bounds", "reasons", "use")
        head = {"schema": "everywatt/1", "kind": "agent-state", "version": VERSION}
        return {**head, **{name: getattr(self, name) for name in names}}


def write_json(path: Path, data: Any, *, sync: bool = False) -> None:
    """Replace a file whole: a reader, and a kill at any moment, sees the old one or the new one."""
    replace_text(path, json.dumps(data, ensure_ascii=False, separators=(",", ":")), durable=sync)


def read(folder: Path) -> State:
    """The state in a folder, empty without a file. An invalid file is put aside, with the reason."""
    path = folder / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return State(
            {str(key): int(value) for key, value in data["devices"].items()},
            [[str(kind), str(owner), float(cpu), dict(uj)] for kind, owner, cpu, uj in data["owners"]],
            {str(key): list(value) for key, value in data["levels"].items()},
            int(data["segment"]),
            dict(data.get("accounts") or {}),
            [
                [str(kind), str(owner), str(device), int(low), int(high)]
                for kind, owner, device, low, high in data.get("bounds") or ()
            ],
            {
                str(device): [str(reason) for reason in reasons]
                for device, reasons in (data.get("reasons") or {}).items()
            },
            dict(data.get("use") or {}),
            {(str(kind), str(owner)): float(cpu) for kind, owner, cpu, _ in data["owners"]},
        )
    except FileNotFoundError:
        return State()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        with contextlib.suppress(OSError):
            path.replace(path.with_suffix(".broken"))
        return State(trouble=f"{path} could not be used ({type(error).__name__}: {error}) and was moved aside.")


def levels(found: State) -> dict[str, Level]:
    """Idle levels by device|domain; older files have the first three numbers of each."""

    def level(idle_w: Any, held_w: Any, method: Any, noise_w: Any = 0.0, spread_w: Any = 0.0) -> Level:
        return Level(float(idle_w), float(held_w), float(noise_w), float(spread_w), str(method))

    return {key: level(*row) for key, row in found.levels.items()}


def current(watcher: Watcher, segment: int, boot: str) -> State:
    """What is to be kept of a watcher now."""
    counters = watcher.counters
    return State(
        {line.key: line.settled_uj for line in watcher.lines.all},
        counters.to_list(),
        watcher.levels(),
        segment,
        counters.accounts(),
        bounds(watcher),
        {device: list(reasons) for device, reasons in counters.reasons.items()},
        {"boot": boot, **watcher.cpu.to_dict(), "gpus": watcher.gpus.to_dict()},
    )


def bounds(watcher: Watcher) -> list[list[Any]]:
    own = [[DEVICE, line.domain, line.device, line.low_uj, line.high_uj] for line in watcher.lines.all]
    return own + watcher.counters.bounds()


def resume(found: State, watcher: Watcher, boot: str) -> dict[str, Row]:
    """The rows that counters go on from; what cannot be bridged counts as time that was not observed."""
    now_ns, utc_ns = watcher.clock.monotonic_ns(), watcher.clock.utc_ns()
    resumed = {}
    for source in watcher.sources:
        last = found.rows.get(source.info.name)
        if last is None:
            continue
        names = tuple(channel.name for channel in source.info.channels)
        if boot and (last.boot, last.channels) == (boot, names) and last.row.late_ns <= now_ns:
            resumed[source.info.name] = last.row
            watcher.lines.resume(source.info.name, last.row)
        else:
            watcher.lines.unseen(source.info.name, now_ns - max(utc_ns - last.utc_ns, 0))
    return resumed


def restore(found: State, watcher: Watcher, boot: str) -> None:
    """Let a watcher go on with the counters of before, after `resume`."""
    counters = watcher.counters
    counters.restore(found.owners, watcher.clock.monotonic_ns())
    counters.restore_accounts(found.accounts)
    counters.restore_bounds(found.bounds)
    counters.reasons |= {device: dict.fromkeys(reasons) for device, reasons in found.reasons.items()}
    if boot and found.use.get("boot") == boot:
        with contextlib.suppress(ValueError, TypeError):
            watcher.cpu.go_on_from(found.use)
            watcher.gpus.go_on_from(found.use.get("gpus") or {})
            watcher.used_before = {OwnerKey(*owner): seconds for owner, seconds in found.used_s.items()}
    ends = {(device, domain): ends for kind, domain, device, *ends in found.bounds if kind == DEVICE}
    for line in watcher.lines.all:
        line.base_uj = line.settled_uj = found.devices.get(line.key, 0)
        if line.in_total:
            owned_uj = counters.device_uj(line.device)
            if owned_uj > line.settled_uj:  # published, and lost from the tape in a power failure
                line.base_uj = line.settled_uj = owned_uj
            counters.close_gap(line.device, line.settled_uj)
        line.restore(*ends.get((line.device, line.domain), (None, None)))
        if line.resumed_ns:
            line.base_uj = found.counted.get(line.key, line.base_uj)


def recover(state: State, folder: Path) -> State:
    """The state with what the newest segments have beyond it. Segments that a kill left open are sealed first.

    Reading one otherwise empties its log, and without a log it seems to have lost what was in there.
    """
    seal_left(folder)
    for path in segments(folder):
        if number_of(path) < state.segment:
            continue
        try:
            _add(state, path)
        except (EverywattError, *schema.BROKEN, ValueError, KeyError, TypeError, zlib.error) as error:
            state.trouble = f"{path.name} could not be read: {error}"
            state.counted, state.rows = {}, {}  # counters may be ahead of the segments before
        state.segment = max(state.segment, number_of(path))
    return state


def _add(state: State, path: Path) -> None:
    with Tape.open(path, verify=False) as tape:
        agent = tape.meta.get("agent") or {}
        for key, entry in (agent.get("devices") or {}).items():
            counted_j = tape_joules(tape, entry["group"], entry["channel"], int(entry.get("at_ns") or 0))
            counted_uj = int(entry["uj"]) + round(counted_j * UJ)
            state.counted[key] = counted_uj
            state.devices[key] = max(state.devices.get(key, 0), counted_uj)
        for group, (names, row) in last_rows(tape).items():
            at_utc_ns = tape.to_utc_ns(publication_ns(row))
            state.rows[group] = LastRow(row, names, at_utc_ns, str(agent.get("boot") or ""))
        owners = list(agent.get("owners") or ())
        ends = {tuple(row[:3]): row[3:] for row in (*state.bounds, *(agent.get("bounds") or ()))}
    known = {(row[0], row[1]): row for row in state.owners}
    for row in owners:
        _merge(known, *row)
    for (kind, owner, device, side), value, ended in _newest_values(path):
        if side is not None:
            _merge_bound(ends, (kind, owner, device), side, value, ended)
            continue
        before = known.get((kind, owner))
        if ended and before is not None:
            # It became a part of the rest, and may have come back since: what was known before is counted there.
            before[2] = 0.0 if device is None else before[2]
            before[3].pop(device, None)
        if value is not None:
            uj = {} if device is None else {device: round(value * UJ)}
            _merge(known, kind, owner, value if device is None else 0.0, uj)
    state.owners = [row for row in known.values() if row[2] or row[3]]
    state.bounds = [[*key, *pair] for key, pair in ends.items()]


def _merge(known: dict[tuple[str, str], list[Any]], kind: str, owner: str, cpu_s: float, uj: dict[str, int]) -> None:
    row = known.setdefault((kind, owner), [kind, owner, 0.0, {}])
    row[2] = max(row[2], cpu_s)
    for device, amount in uj.items():
        row[3][device] = max(row[3].get(device, 0), amount)


def _merge_bound(
    ends: dict[tuple[Any, ...], list[int]], key: tuple[Any, ...], side: int, value: float | None, ended: bool
) -> None:
    """The newest published end of an interval; what ended becomes a part of the rest."""
    if value is None:
        ends.pop(key, None)
        return
    pair = ends.setdefault(key, [0, 0])
    pair[side] = round(value * UJ) if ended else max(pair[side], round(value * UJ))


def _key(name: str, labels: dict[str, str]) -> _Key | None:
    if name in LOW_HIGH:
        return DEVICE, labels["domain"], labels["device"], LOW_HIGH.index(name)
    if name in OWNER_LOW_HIGH:
        return labels["kind"], labels["owner"], labels["device"], OWNER_LOW_HIGH.index(name)
    if name in (OWNER_ENERGY, OWNER_CPU):
        return labels["kind"], labels["owner"], labels.get("device"), None
    return None


def _newest_values(path: Path) -> Iterator[tuple[_Key, float | None, bool]]:
    """Newest value of every owner's series on a segment, and of the ends of intervals.

    The value is None where the series has ended; the last item is whether it ever did.
    """
    keys: dict[int, _Key] = {}
    newest: dict[_Key, float | None] = {}
    ended = set()
    for row in sample_rows(path):
        if "i" in row:
            key = _key(row["n"], row["l"])
            if key is not None:
                keys[row["i"]] = key
            continue
        flat = json.loads(row["s"])
        for place in range(0, len(flat), 3):
            key = keys.get(flat[place])
            if key is not None:
                newest[key] = flat[place + 2]
                if flat[place + 2] is None:
                    ended.add(key)
    for key, value in newest.items():
        yield key, value, key in ended


def sample_rows(path: Path) -> Iterator[dict[str, Any]]:
    """All rows of `agent.samples` of a segment, in order."""
    after = 0
    while True:
        batch = table_rows(path, after, BATCH)
        for _, data in batch:
            yield from json.loads(zlib.decompress(data))
        if len(batch) < BATCH:
            return
        after = batch[-1][0]


def tape_joules(tape: Tape, group: str, channel: str, since_ns: int = 0) -> float:
    """Joules that a channel of a segment has counted since an instant (of one of its first rows), by its own sums."""
    stored = next((one for one in tape.groups if one.info.name == group), None)
    if stored is None:
        return 0.0
    index = next(i for i, one in enumerate(stored.info.channels) if one.name == channel)
    place = energy_channels(stored.info).index(index)
    last = tape.frames(stored.id, FAR_NS)[-1:]
    if not last:
        return 0.0
    rows = last[0].rows()
    sums = Accumulator.resumed(stored.info, stored.expected_period_s, rows[0], last[0].cum)
    for row in rows[1:]:
        sums.add(row)
    cum, shared = sums.cum()[place], _shared(tape, stored, since_ns)[place]
    total, observed_ns = cum.total - shared.total, cum.observed_ns - shared.observed_ns
    return accumulated_joules(stored.info.channels[index], total, observed_ns)


def _shared(tape: Tape, stored: StoredGroup, since_ns: int) -> list[Cum]:
    """What the rows up to an instant have accumulated: the segment before has them, too."""
    sums = Accumulator(stored.info, stored.expected_period_s)
    for frame in tape.frames(stored.id, None, since_ns) if since_ns else ():
        for row in frame.rows():
            if publication_ns(row) <= since_ns:
                sums.add(row)
    return sums.cum()


def seal_left(folder: Path, live: Path | None = None) -> list[Path]:
    """Seal segments that an agent before this one left open; only the agent of this folder may call it."""
    from everywatt.tape import mending

    return [path for path in segments(folder) if path != live and mending.seal_left(path, quiet_s=0.0)]
