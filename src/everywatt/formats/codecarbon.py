"""CodeCarbon's `emissions.csv` becomes a run: one tape and one span for each of its runs, joules as it counted them.

CodeCarbon writes energy in kWh since a run's start; a run that was flushed has several rows. RAM is always a model
there, the CPU often: what is not known to be measured is called modelled.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from everywatt.core import foreign
from everywatt.core.channels import Channel, Domain, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.core.units import J_PER_KWH
from everywatt.meters.series import Part, Table, group, number, write_parts, zone_ns
from everywatt.tape.importing import parse_utc_ns

COLUMNS: Final = (
    ("cpu_energy", "cpu.0.package.energy", "cpu.0", Domain.PACKAGE, Pedigree.MODELLED),
    ("gpu_energy", "gpu.all.energy", "gpu.all", Domain.GPU, Pedigree.COUNTER),
    ("ram_energy", "dram.0.energy", "dram.0", Domain.DRAM, Pedigree.MODELLED),
)


def import_codecarbon(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """A run from `emissions.csv`. options: zone_h, project (only runs of this one)."""
    runs: dict[str, list[dict[str, str]]] = {}
    for path in paths:
        for place, row in enumerate(rows_of(foreign.lines(path, ends=True), str(path))):
            if options.get("project") not in (None, row.get("project_name")):
                continue
            runs.setdefault(row.get("run_id") or f"{path.name} row {place + 2}", []).append(row)
    parts = [part for name, rows in runs.items() if (part := part_of(name, rows, options)) is not None]
    parts.sort(key=lambda part: part.spans[0][1])
    if not parts:
        raise UsageError(f"{paths[0]} contains no CodeCarbon runs with a time and a duration.")
    return write_parts(out, parts, paths, options)


def rows_of(file: Iterable[str], where: str) -> list[dict[str, str]]:
    """Rows of an `emissions.csv` by column. UsageError if it is not one."""
    try:
        reader = csv.DictReader(file)
        if not {"timestamp", "duration"} <= set(reader.fieldnames or ()):
            raise UsageError(f"{where} is not an emissions.csv of CodeCarbon.", cure="columns timestamp and duration")
        return [{key: value for key, value in row.items() if isinstance(value, str)} for row in reader if row]
    except csv.Error as error:
        raise UsageError(f"{where} cannot be read: {error}.") from None


def part_of(name: str, rows: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Part | None:
    """One run from its rows; None where none of them has a time and a duration."""
    ends = []
    for row in rows:
        duration_s = number(row.get("duration"))
        try:
            end = parse_utc_ns(row.get("timestamp", ""), "iso", "timestamp") - zone_ns(options)
        except UsageError:
            continue
        if duration_s is not None and 0 < duration_s < 3e9:
            ends.append((end, duration_s, row))
    if not ends:
        return None
    ends.sort(key=lambda entry: entry[:2])
    start = ends[0][0] - round(ends[0][1] * NS)
    channels = [
        Channel(name, "J", Kind.COUNTER, device, domain, pedigree=pedigree)
        for _, name, device, domain, pedigree in COLUMNS
    ]
    table = Table(group("codecarbon", "codecarbon", channels), period_s=max(ends[0][1], 1.0))
    table.add(start, [0.0 if any(number(row.get(c[0])) is not None for *_, row in ends) else None for c in COLUMNS])
    for end, _, row in ends:
        table.add(
            end, [None if (kwh := number(row.get(c[0]))) is None or kwh < 0 else kwh * J_PER_KWH for c in COLUMNS]
        )
    last = ends[-1][2]
    about = {
        key: last[key]
        for key in ("project_name", "run_id", "codecarbon_version", "cpu_model", "gpu_model")
        if key in last
    }
    span = (last.get("project_name") or name, start, ends[-1][0], about)
    return Part([table], spans=[span], meta={"codecarbon": about})
