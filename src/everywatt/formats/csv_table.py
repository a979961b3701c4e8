"""Tables of other meters become tapes: CSV, TSV and the like, with a description of their columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from everywatt.core import foreign
from everywatt.core.channels import NAN, Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.errors import UsageError
from everywatt.core.units import SI_UNITS
from everywatt.meters.series import Part, Table, write_part, zone_ns
from everywatt.sensors.cpu.rapl import RAPL_DOMAINS, Cpu, counter_facts
from everywatt.tape import exporting
from everywatt.tape.importing import import_ours, parse_utc_ns

FACTS: Final = ("gain_pct", "offset_w", "quantum", "wrap", "max_w", "window_s")
OF_VALUES: Final = ("unit", "kind", "device", "domain", "scale", "cpu", *FACTS)
OPTIONS: Final = ("time", "time_format", "zone_h", "values", *OF_VALUES, "delimiter", "name", "meta")
DELIMITERS: Final = (",", "\t", ";", "|")


def import_csv(paths: Sequence[Path], out: Path, options: Mapping[str, Any]) -> Path:
    """Our own CSV, or any other with a map of its columns.

    options: time (column), values ({column: {"channel", "unit", "kind", "device", "domain", "scale", …}}; or a list of
    columns with unit and kind for all), time_format (`iso`, `s`, `ms`, `ns` or a strptime pattern), zone_h (hours to
    subtract from local times), delimiter (found in the header unless set). What is known of the meter (FACTS) goes into
    the interval; for counters of RAPL, `cpu` (FAMILY/MODEL of the processor, e.g. 6/106) stands for it.
    """
    delimiter = _delimiter(paths[0], options)
    header = next(_rows(paths[0], delimiter), (1, []))[1]
    if header == list(exporting.TICKS):
        return import_ours(paths, out, options)
    unknown = [key for key in options if key not in OPTIONS]
    if unknown:
        raise UsageError(f"'{unknown[0]}' is not an option for csv files.", cure=f"one of: {', '.join(OPTIONS)}")
    columns = [name.strip() for name in header]
    time_column, values = options.get("time"), _value_map(options)
    for name in (time_column, *values):
        if name not in columns:
            listed = ", ".join(columns)
            what = f"column '{name}'" if name is not None else "column given for the times"
            raise UsageError(
                f"{paths[0]} has no {what}.", cure=f"describe its columns with time and values; it has {listed}"
            )
    channels = tuple(_channel(name, spec) for name, spec in values.items())
    table = sorted(
        _read_table(paths, columns, str(time_column), list(values), delimiter, options), key=lambda row: row[0]
    )
    if not table:
        raise UsageError(f"{paths[0]} contains no rows.")
    for place, name in enumerate(values):
        if not any(math.isfinite(numbers[place]) for _, numbers in table):
            raise UsageError(f"Column '{name}' of {paths[0]} contains no numbers.")
    if table[0][0] == table[-1][0]:
        raise UsageError(f"{paths[0]} covers a single instant, and energy needs a duration.")
    info = GroupInfo(str(options.get("name", paths[0].stem)), "import", channels[0].device, channels)
    return write_part(out, Part([Table(info, table)]), paths, options)


def _delimiter(path: Path, options: Mapping[str, Any]) -> str:
    """The one that is given (`tab` too), else the one that makes the most columns of the first line."""
    given = options.get("delimiter")
    if given is not None:
        found = {"tab": "\t", "\\t": "\t"}.get(str(given), str(given))
        if len(found) != 1 or found in '\r\n"':
            raise UsageError(
                f"delimiter = {given!r} is not one character.", cure="--set delimiter=tab, or leave it out"
            )
        return found
    first = next(foreign.lines(path, errors="strict", ends=True), "")
    return max(DELIMITERS, key=first.count)


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of their line. UsageError where the file is no text, or no table."""
    reader = csv.reader(foreign.lines(path, errors="strict", ends=True), delimiter=delimiter)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise UsageError(f"{path}, line {reader.line_num}: {error}.") from None
        if row is None:
            return
        yield reader.line_num, row


def _value_map(options: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    values = options.get("values") or {}
    common = {key: options[key] for key in OF_VALUES if key in options}
    if isinstance(values, str):
        values = [values]
    if not isinstance(values, Mapping):
        # Columns of one unit are of different things (two supplies, four outlets): each is a device of its own.
        device = str(options.get("device", "host"))
        values = {name: {"device": f"{device}.{name}"} if len(values) > 1 else {} for name in values}
    if not values:
        raise UsageError(
            "A CSV file that everywatt did not write needs to be described: which columns hold values?",
            cure="--set time=COLUMN --set values=COLUMN --set unit=W --set kind=gauge --set domain=wall",
        )
    return {str(name): {**common, **(spec or {})} for name, spec in values.items()}


def _channel(column: str, spec: Mapping[str, Any]) -> Channel:
    try:
        kind = Kind(spec.get("kind", "gauge"))
        domain = Domain(spec["domain"]) if spec.get("domain") else None
        scale = float(spec.get("scale", 1.0))
        known: dict[str, Any] = {key: float(spec[key]) for key in FACTS if key in spec}
        facts = _rapl_facts(spec, domain) if "cpu" in spec else Facts()
    except (TypeError, ValueError) as error:
        raise UsageError(f"Column '{column}': {error}.") from None
    unit, factor = SI_UNITS.get(str(spec.get("unit", "")), (str(spec.get("unit", "")), 1.0))
    if unit in ("W", "J") and domain is None:
        cure = f"--set domain=wall, or another of {', '.join(Domain)}"
        raise UsageError(f"Column '{column}' in {unit} needs a domain for its joules.", cure=cure)
    if (unit, kind) in (("J", Kind.GAUGE), ("W", Kind.COUNTER)):
        raise UsageError(
            f"Column '{column}': {spec['unit']} is not a unit of a {kind}.", cure="kind=counter for energy"
        )
    pedigree = Pedigree.COUNTER if kind is Kind.COUNTER else Pedigree.INTEGRATED
    device, name = str(spec.get("device", "host")), str(spec.get("channel", column))
    return Channel(name, unit, kind, device, domain, scale * factor, pedigree, facts=replace(facts, **known))


def _rapl_facts(spec: Mapping[str, Any], domain: Domain | None) -> Facts:
    """What is known of a counter of RAPL; its rate comes from the log."""
    facts = counter_facts(domain, Cpu.parse(str(spec["cpu"]))) if domain in RAPL_DOMAINS and domain else None
    if facts is None or spec.get("kind") != Kind.COUNTER:
        raise ValueError(f"cpu applies only to RAPL counters (kind=counter, domain one of {', '.join(RAPL_DOMAINS)})")
    return replace(facts, period_s=None)


def _read_table(
    paths: Sequence[Path],
    columns: Sequence[str],
    time_column: str,
    values: Sequence[str],
    delimiter: str,
    options: Mapping[str, Any],
) -> Iterator[tuple[int, tuple[float, ...]]]:
    at = columns.index(time_column)
    indexes = [columns.index(name) for name in values]
    form, shift_ns = str(options.get("time_format", "iso")), zone_ns(options)
    for path in paths:
        for number, row in _rows(path, delimiter):
            if number > 1 and len(row) > max(at, min(indexes)):  # a line that was cut off may have half a time
                utc_ns = parse_utc_ns(row[at], form, f"{path}, line {number}") - shift_ns
                yield utc_ns, tuple(_number(row[i], delimiter) if i < len(row) else NAN for i in indexes)


def _number(text: str, delimiter: str) -> float:
    """The number at the start of a text (`39.32 W`), also with a decimal comma where commas part no columns; NaN if
    it has no number."""
    if delimiter != "," and text.count(",") == 1 and "." not in text:
        text = text.replace(",", ".")
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return NAN
