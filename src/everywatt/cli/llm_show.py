"""What `bench llm` prints: a table for each load, with formulas and boundary, and what the loads say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everywatt.bench.llm.figure import Figure
from everywatt.bench.llm.latency import FORMULAS
from everywatt.bench.llm.metrics import Metrics
from everywatt.bench.llm.result import knee, over_all_repeats
from everywatt.cli.output import Output
from everywatt.report.carbon import Footprint

HEADERS = ("FIGURE", "VALUE", "95 %", "FORMULA")
REPEATED = ("accuracy", "energy_per_output_token", "energy_per_request", "accuracy_per_joule_mean")


def show(
    about: Mapping[str, Any],
    found: Sequence[Metrics],
    footprints: Sequence[Footprint | None],
    output: Output,
) -> None:
    """Tables for people."""
    if output.json_to == "-":
        return
    for one, footprint in zip(found, footprints, strict=True):
        output.table(HEADERS, [*_rows(one), *_carbon_rows(footprint)], title=_title(about, one))
        output.text(f"boundary: {one.about}")
        for text in one.notes:
            output.say(f"Note: {text}")
        output.text()
    _show_together(found, output)


def _show_together(found: Sequence[Metrics], output: Output) -> None:
    if len(found) < 2:
        return
    for kind, figures in over_all_repeats(found).items():
        rows = []
        for name in REPEATED:
            one = figures.get(name)
            if one is not None:
                spread = f"{one['low']:.4g} … {one['high']:.4g}"
                rows.append((name.replace("_", " "), f"{one['mean']:.4g}", spread, f"{one['sd']:.3g}", str(one["n"])))
        output.table(("FIGURE", "MEAN", "95 % (STUDENT)", "SD", "REPEATS"), rows, title=f"{kind}, from run to run")
        output.text()
    best = knee(found)
    if best is not None:
        output.text(
            f"knee: {best['level']}, at {best['output_tokens_per_second']:.4g} output tokens/s and "
            f"{best['energy_per_output_token']:.4g} J a token; beyond it more load hardly saves energy"
        )


def _title(about: Mapping[str, Any], one: Metrics) -> str:
    states = ", ".join(f"{count} {name}" for name, count in one.statuses.items())
    return f"{about['model'] or about['client']['client']} on {about['dataset']['name']}, {one.level}: {states}"


def _rows(one: Metrics) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    of = ", ".join(f"{count} {name}" for name, count in one.verdicts.items())
    if one.accuracy is not None:
        interval = f"{one.accuracy.low:.1%} … {one.accuracy.high:.1%}"
        rows.append(("accuracy", f"{one.accuracy.value:.1%}", interval, f"right / judged answers ({of}); Wilson"))
    elif of:
        rows.append(("accuracy", "refused", "", f"nothing was judged ({of})"))
    for name, energy in (("energy, gross", one.gross), ("energy, net", one.net), ("other processes", one.others)):
        if energy.joules is None:
            rows.append((name, "refused", "", energy.refused or ""))
        else:
            about = f"{energy.scope} · {energy.pedigree} · coverage {energy.coverage:.0%}"
            # The budget is symmetric; what was used up cannot be less than nothing, as in the figures below.
            rows.append(
                (name, f"{energy.joules:.4g} J", f"{max(0.0, energy.low or 0.0):.4g} … {energy.high:.4g}", about)
            )
    rows += [_row(name, figure) for name, figure in one.figures.items()]
    for name, seconds in one.latency.items():
        if seconds is not None:
            text = f"{seconds['p50'] * 1000:.4g} ms"
            tail = f"p90 {seconds['p90'] * 1000:.4g}, p99 {seconds['p99'] * 1000:.4g} ms"
            rows.append((f"{name.removesuffix('_s')} p50", text, tail, FORMULAS[name]))
    return rows


def _row(name: str, figure: Figure) -> tuple[str, str, str, str]:
    words = name.replace("_", " ")
    if figure.value is None:
        return words, "refused", "", figure.refused or ""
    interval = (
        "" if figure.low is None else f"{figure.low:.3g} … {'∞' if figure.high is None else f'{figure.high:.3g}'}"
    )
    return words, f"{figure.value:.4g} {figure.unit}".strip(), interval, figure.formula


def _carbon_rows(found: Footprint | None) -> list[tuple[str, str, str, str]]:
    """Carbon and cost of the gross energy, where factors were given."""
    if found is None:
        return []
    rows = []
    for name, amount in (("carbon", found.carbon), ("electricity", found.cost)):
        if amount is None:
            continue
        if amount.value is None:
            rows.append((name, "refused", "", amount.refused))
        else:
            spread = f"{amount.low:.3g} … {amount.high:.3g}"
            rows.append((name, f"{amount.value:.4g} {amount.unit}", spread, f"gross {amount.how}"))
    return rows
