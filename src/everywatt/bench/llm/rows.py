"""The result of `bench llm`: a table of figures for each load (the name, the value, its interval, and the formula or
why it is refused), a row for each query, and everything as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.loads import kind_of
from everywatt.bench.llm.metrics import FORMULAS, Metrics
from everywatt.bench.llm.plan import LlmPlan
from everywatt.bench.llm.result import knee, over_all_repeats, repeats_data
from everywatt.core.energy import Energy
from everywatt.core.files import replacing
from everywatt.core.format import (
    Printed,
    format_duration,
    format_energy,
    format_number,
    format_percent,
    format_rounded,
    print_quantity,
)
from everywatt.core.jsonio import as_data, declared, dumps
from everywatt.core.plugins import arrow
from everywatt.core.tables import Table, csv_text
from everywatt.footprint.carbon import Footprint

Row = tuple[str, str, str, str]
ENDINGS = (".json", ".csv", ".md", ".parquet")
MISSING = "–"
HEADERS = ("FIGURE", "VALUE", "95 %", "FORMULA")
REPEAT_HEADERS = ("FIGURE", "MEAN", "95 % (STUDENT)", "SD", "REPEATS")
REPEATED = ("accuracy", "energy_per_output_token", "energy_per_request", "accuracy_per_joule_mean")
_NAMES = {"joules": "energy_j", "low": "energy_low_j", "high": "energy_high_j", "net_joules": "energy_net_j"}
_PLAIN = (
    *("level", "id", "status", "error", "verdict", "input_tokens", "output_tokens", "ttft_s", "e2e_s"),
    *(*_NAMES.values(), "group", "attempts", "finish", "prompt", "reference", "answer"),
)


@dataclass(frozen=True)
class LlmResult:
    """What came of the queries: the figures of each load, their footprints where factors were given, the time and
    energy of each start of a server, and how it ended."""

    name: str
    plan: LlmPlan
    found: tuple[Metrics, ...]
    footprints: tuple[Footprint, ...] = ()
    loading: tuple[tuple[float, Energy], ...] = ()
    ended: str = "done"
    notes: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return f"{self.plan.model_name} on {self.plan.dataset_name}"

    def load_tables(self) -> list[Table]:
        """One line per load, where there are several."""
        if len(self.found) < 2:
            return []
        heads, rows = load_lines(self.found)
        return [Table.of(*map(str.upper, heads), rows=rows, title=f"{self.subject}, one line per load")]

    def figure_tables(self) -> list[Table]:
        """Every figure of each load, with its boundary as a note."""
        return [
            Table.of(
                *HEADERS,
                rows=[*figure_rows(one), *(() if footprint is None else _carbon_rows(footprint))],
                title=f"{self.subject}, {one.level}: {', '.join(f'{n} {name}' for name, n in one.statuses.items())}",
                notes=[f"boundary: {one.bill.about}"],
            )
            for one, footprint in zip_longest(self.found, self.footprints)
        ]

    def repeat_tables(self) -> list[Table]:
        """How much the figures of a repeated load vary from run to run."""
        found = []
        for kind, figures in over_all_repeats(self.found).items() if len(self.found) > 1 else ():
            rows = []
            for name, one in ((name, figures[name]) for name in REPEATED if name in figures):
                unit, scale = ("%", 100.0) if name == "accuracy" else (self.found[0].figures[name].unit, 1.0)
                shown = Figure(scale * one.value, scale * one.low, scale * one.high, unit, "").printed()
                words = row_of(name.replace("_", " "), shown, "")
                rows.append((*words[:3], format_rounded(unit, scale * one.sd, scale * one.sd), str(one.n)))
            found.append(Table.of(*REPEAT_HEADERS, rows=rows, title=f"{kind}, from run to run"))
        return found

    def tables(self) -> list[Table]:
        return [*self.load_tables(), *self.figure_tables(), *self.repeat_tables()]

    @property
    def knee_line(self) -> str:
        """The load beyond which more throughput hardly saves energy; empty if no such load was found."""
        best = knee(self.found) if len(self.found) > 1 else None
        if best is None:
            return ""
        same = next(one.figures["energy_per_output_token"] for one in self.found if kind_of(one.level) == best.level)
        low, high = same.low or 0.0, same.high or same.value or 0.0
        off = best.energy_per_output_token / (same.value or 1.0)  # the mean of repeats, as sure as the first of them
        cost = Figure(best.energy_per_output_token, low * off, high * off, "J", "").printed()
        return (
            f"knee: {best.level}, at {format_number(best.output_tokens_per_second, 'output tokens/s')} and "
            f"{cost} per output token; more load hardly saves energy beyond it"
        )

    def to_csv(self) -> str:
        """A line for each query of each load, with its joules; what is not known is an empty cell."""
        return csv_text(*query_rows(self.found))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: one load's figures stand at the top, and `levels` has all, with their items."""
        found = self.found
        data: dict[str, Any] = {
            "run": self.name,
            **as_data(declared(self.plan, "model client dataset settings")),
            "ended": self.ended,
            "notes": list(self.notes),
        }
        if self.footprints:
            data["carbon"] = {one.level: f.to_dict() for one, f in zip(found, self.footprints, strict=True)}
        if self.loading:
            data["loading"] = [{"duration_s": seconds, "energy": energy.to_dict()} for seconds, energy in self.loading]
        if len(found) == 1:
            data |= {name: value for name, value in found[0].to_dict().items() if name != "items"}
            data["notes"] = list(dict.fromkeys([*self.notes, *found[0].notes]))
        data["levels"] = [one.to_dict() for one in found]
        if len(found) > 1:
            data |= {"knee": as_data(knee(found)), "repeats": repeats_data(found)}
        return data


def _carbon_rows(found: Footprint) -> list[Row]:
    """Carbon and cost of the gross energy."""
    rows: list[Row] = []
    for name, amount in (("carbon", found.carbon), ("electricity", found.cost)):
        if amount is None:
            continue
        if amount.value is None:
            rows.append((name, "refused", "", amount.refused))
        else:
            shown = Figure(amount.value, max(0.0, amount.low or 0.0), amount.high, amount.unit, "").printed()
            rows.append(row_of(name, shown, f"gross {amount.how}"))
    return rows


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
    for device, quantities in item["devices"].items():
        for name, value in quantities.items():
            parts = value.items() if isinstance(value, Mapping) else ()
            row |= {f"{device}.{name}.{part}": one for part, one in parts}
            if not parts:
                row[f"{device}.{_NAMES.get(name, name)}"] = value
    return row


def _cell(value: Any) -> Any:
    """A value of a data set as one cell: lists and objects as JSON."""
    return value if value is None or isinstance(value, str | int | float) else dumps(value)


def write_query_parquet(found: Sequence[Metrics], file: Path) -> None:
    """The same rows as a Parquet file."""
    pa, pq = arrow()
    columns, rows = query_rows(found)
    arrays = {}
    for place, name in enumerate(columns):
        values = [row[place] for row in rows]
        if len({type(value) for value in values if value is not None} - {int, float}) > 1:
            values = [None if value is None else str(value) for value in values]
        arrays[name] = pa.array(values)
    with replacing(file) as part:
        pq.write_table(pa.table(arrays), part)


def figure_rows(one: Metrics) -> list[Row]:
    """Every figure of a load: accuracy, energies, what follows from them, and times."""
    rows: list[Row] = []
    counts = [f"{count} {name}" for name, count in one.verdicts.items()]
    judged = sum(count for verdict, count in one.verdicts.items() if verdict != "unevaluated")
    if (share := one.accuracy) is not None:
        shown = Figure(100 * share.value, 100 * share.low, 100 * share.high, "%", "").printed()
        counts += [f"{share.n - judged} failed"] if judged < share.n else []
        rows.append(row_of("accuracy", shown, f"correct / scored queries ({', '.join(counts)}); Wilson"))
    elif counts:
        rows.append(("accuracy", "refused", "", f"no answer was scored ({', '.join(counts)})"))
    reasons = "; ".join(f"{why.queries} {why.status}: {why.reason}" for why in one.failures)
    rows.append(("answered", f"{one.answered} of {one.queries}", "", reasons or "answered / sent queries"))
    rows += [figure_row(name, figure) for name, figure in one.figures.items() if name.startswith(CPU_TIME)]
    bill = one.bill
    for name, energy in (("energy, gross", bill.gross), ("energy, net", bill.net), ("other processes", bill.others)):
        if energy.joules is None:
            rows.append((name, "refused", "", energy.refused or ""))
        else:
            about = f"{energy.scope} · {energy.pedigree} · coverage {format_percent(energy.coverage)}"
            below, above = energy.sides()
            # The budget is symmetric; what was used up cannot be less than nothing, as in the figures below.
            shown = print_quantity(energy.joules, "J", min(below, max(energy.joules, 0.0)), above)
            rows.append(row_of(name, shown, about))
    rows += [figure_row(name, figure) for name, figure in one.figures.items() if not name.startswith(CPU_TIME)]
    for name, seconds in one.latency.items():
        if seconds is not None:
            tail = f"p90 {format_duration(seconds['p90'])}, p99 {format_duration(seconds['p99'])}"
            rows.append((f"{name.removesuffix('_s')} p50", format_duration(seconds["p50"]), tail, FORMULAS[name]))
    return rows


def figure_row(name: str, figure: Figure) -> Row:
    """A figure as a row: its words, and its formula or why it is refused."""
    about = (figure.refused or "") if figure.value is None else figure.formula
    return row_of(name.replace("_", " "), figure.printed(), about)


def row_of(name: str, shown: Printed, about: str) -> Row:
    """Value and interval in two cells that share unit and digits."""
    return name, f"{shown.value} {shown.unit}".strip(), shown.interval, about


CPU_TIME = "cpu_time"
LEAD = 3  # the place in a line before the energies
LOADS = (
    *("Load", "Answered", "Accuracy", "Server's energy", "Per request", "Per output token"),
    *("TTFT p50", "Answer p50", "Tokens/s"),
)


def load_lines(found: Sequence[Metrics]) -> tuple[list[str], list[list[str]]]:
    """Heads and a line for each load; CPU time leads where energy is modelled from it."""
    heads, rows = list(LOADS), [_load_row(one) for one in found]
    if any(one.cpu_s is not None for one in found):
        heads.insert(LEAD, "CPU time")
        for row, one in zip(rows, found, strict=True):
            row.insert(LEAD, MISSING if one.cpu_s is None else format_duration(one.cpu_s))
    return heads, rows


def _load_row(one: Metrics) -> list[str]:
    figures = one.figures
    energy = "refused" if one.bill.gross.joules is None else format_energy(one.bill.gross)
    return [
        one.level,
        f"{one.answered} of {one.queries}",
        MISSING if one.accuracy is None else str(one.accuracy),
        energy,
        figure_text(figures["energy_per_request"]),
        figure_text(figures["energy_per_output_token"]),
        *(
            MISSING if (found := one.latency[name]) is None else format_duration(found["p50"])
            for name in ("ttft_s", "e2e_s")
        ),
        MISSING if (rate := figures["output_tokens_per_second"].value) is None else format_number(rate),
    ]


def figure_text(figure: Figure) -> str:
    """A figure with its interval, in words of a table."""
    return MISSING if figure.value is None else str(figure.printed())
