"""The figures of a load as rows of a table: the name, the value, its interval, and the formula or why it is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everywatt.bench.llm.figure import Figure, Share
from everywatt.bench.llm.latency import FORMULAS
from everywatt.bench.llm.metrics import Metrics
from everywatt.core.errors import MissingExtra
from everywatt.core.format import Printed, format_duration, format_energy, format_number, format_percent, print_quantity
from everywatt.core.jsonio import dumps
from everywatt.core.tables import Table, csv_text

Row = tuple[str, str, str, str]
ENDINGS = (".json", ".csv", ".md", ".parquet")
MISSING = "–"
HEADERS = ("FIGURE", "VALUE", "95 %", "FORMULA")
_NAMES = {"joules": "energy_j", "low": "energy_low_j", "high": "energy_high_j", "net_joules": "energy_net_j"}
_PLAIN = (
    *("level", "id", "status", "error", "verdict", "input_tokens", "output_tokens", "ttft_s", "e2e_s"),
    *(*_NAMES.values(), "group", "attempts", "finish", "prompt", "reference", "answer"),
)


def query_rows(found: Sequence[Metrics]) -> tuple[list[str], list[list[Any]]]:
    """Columns and a row for each query of each load; what is not known is None.

    Devices, phases, server timings and columns of the data set are columns of their own: `gpu.0.power_w.mean`,
    `dataset.topic`.
    """
    flat = [{"level": one.level, **_flat(item)} for one in found for item in one.items]
    columns = list(dict.fromkeys((*_PLAIN, *sorted(name for row in flat for name in row if name not in _PLAIN))))
    return columns, [[row.get(name) for name in columns] for row in flat]


def _flat(item: Mapping[str, Any]) -> dict[str, Any]:
    row = {_NAMES.get(name, name): value for name, value in item.items() if not isinstance(value, Mapping)}
    row |= item["phases"]
    row |= {f"server.{name}": value for name, value in item["server"].items()}
    row |= {f"dataset.{name}": _cell(value) for name, value in item["columns"].items()}
    for device, told in item["devices"].items():
        for name, value in told.items():
            parts = value.items() if isinstance(value, Mapping) else ()
            row |= {f"{device}.{name}.{part}": one for part, one in parts}
            if not parts:
                row[f"{device}.{_NAMES.get(name, name)}"] = value
    return row


def _cell(value: Any) -> Any:
    """A value of a data set as one cell: lists and objects as JSON."""
    return value if value is None or isinstance(value, str | int | float) else dumps(value)


def query_csv(found: Sequence[Metrics]) -> str:
    """A line for each query of each load, with its joules; what is not known is an empty cell."""
    return csv_text(*query_rows(found))


def write_query_parquet(found: Sequence[Metrics], file: Path) -> None:
    """The same rows as a Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("pyarrow", "analysis") from None
    columns, rows = query_rows(found)
    arrays = {}
    for place, name in enumerate(columns):
        values = [row[place] for row in rows]
        if len({type(value) for value in values if value is not None} - {int, float}) > 1:
            values = [None if value is None else str(value) for value in values]
        arrays[name] = pa.array(values)
    part = file.with_name(f".{file.name}.part")
    pq.write_table(pa.table(arrays), part)
    part.replace(file)


def figures_markdown(found: Sequence[Metrics]) -> str:
    """A table of figures for each load."""
    return "\n".join(f"## {one.level}\n\n{figure_table(one).markdown()}\n- {one.about}\n" for one in found)


def figure_table(one: Metrics, title: str = "", more: Sequence[Row] = ()) -> Table:
    """Every figure of a load, and `more` rows below."""
    return Table.of(*HEADERS, rows=[*figure_rows(one), *more], title=title)


def figure_rows(one: Metrics) -> list[Row]:
    """Every figure of a load: accuracy, energies, what follows from them, and times."""
    rows: list[Row] = []
    of = ", ".join(f"{count} {name}" for name, count in one.verdicts.items())
    if (share := one.accuracy) is not None:
        shown = Figure(100 * share.value, 100 * share.low, 100 * share.high, "%", "").printed()
        failed = f", {share.n - judged} failed" if (judged := _judged(one)) < share.n else ""
        rows.append(row_of("accuracy", shown, f"correct / scored queries ({of}{failed}); Wilson"))
    elif of:
        rows.append(("accuracy", "refused", "", f"no answer was scored ({of})"))
    reasons = "; ".join(f"{told['queries']} {told['status']}: {told['reason']}" for told in one.failures)
    rows.append(("answered", f"{one.answered} of {one.queries}", "", reasons or "answered / sent queries"))
    for name, energy in (("energy, gross", one.gross), ("energy, net", one.net), ("other processes", one.others)):
        if energy.joules is None:
            rows.append((name, "refused", "", energy.refused or ""))
        else:
            about = f"{energy.scope} · {energy.pedigree} · coverage {format_percent(energy.coverage)}"
            below, above = energy.sides()
            # The budget is symmetric; what was used up cannot be less than nothing, as in the figures below.
            shown = print_quantity(energy.joules, "J", min(below, max(energy.joules, 0.0)), above)
            rows.append(row_of(name, shown, about))
    rows += [figure_row(name, figure) for name, figure in one.figures.items()]
    for name, seconds in one.latency.items():
        if seconds is not None:
            tail = f"p90 {format_duration(seconds['p90'])}, p99 {format_duration(seconds['p99'])}"
            rows.append((f"{name.removesuffix('_s')} p50", format_duration(seconds["p50"]), tail, FORMULAS[name]))
    return rows


def _judged(one: Metrics) -> int:
    return sum(count for verdict, count in one.verdicts.items() if verdict != "unevaluated")


def figure_row(name: str, figure: Figure) -> Row:
    """A figure as a row: its words, and its formula or why it is refused."""
    about = (figure.refused or "") if figure.value is None else figure.formula
    return row_of(name.replace("_", " "), figure.printed(), about)


def row_of(name: str, shown: Printed, about: str) -> Row:
    """Value and interval in two cells that share unit and digits."""
    return name, f"{shown.value} {shown.unit}".strip(), shown.interval, about


LOADS = (
    *("Load", "Answered", "Accuracy", "Server's energy", "Per request", "Per output token"),
    *("TTFT p50", "Answer p50", "Tokens/s"),
)


def load_row(one: Metrics) -> tuple[str, ...]:
    """A load in one line."""
    figures = one.figures
    energy = "refused" if one.gross.joules is None else format_energy(one.gross)
    return (
        one.level,
        f"{one.answered} of {one.queries}",
        percent_text(one.accuracy),
        energy,
        figure_text(figures["energy_per_request"]),
        figure_text(figures["energy_per_output_token"]),
        *(
            MISSING if (told := one.latency[name]) is None else format_duration(told["p50"])
            for name in ("ttft_s", "e2e_s")
        ),
        MISSING if (rate := figures["output_tokens_per_second"].value) is None else format_number(rate),
    )


def percent_text(share: Share | None) -> str:
    """A share with its interval."""
    if share is None:
        return MISSING
    return format_percent(share.value, share.value - share.low, share.high - share.value)


def figure_text(figure: Figure) -> str:
    """A figure with its interval, in words of a table."""
    return MISSING if figure.value is None else str(figure.printed())
