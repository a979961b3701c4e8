"""A comparison, a sweep or the precision lab as one document: verdicts, figures, ratios, and every trial as it ran."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everywatt.api.run import Run
from everywatt.bench.comparing import Result
from everywatt.bench.figures import Figures, Mean
from everywatt.bench.precision.layers import by_part
from everywatt.bench.precision.result import LAYERS, Row, sensitivity_table
from everywatt.bench.precision.result import Result as PrecisionResult
from everywatt.bench.sweep import Choice, Sweep
from everywatt.bench.trials import Trial
from everywatt.bench.verdict import Comparison, finite
from everywatt.core.energy import Energy
from everywatt.core.format import format_energy, format_percent
from everywatt.core.jsonio import document, plain
from everywatt.core.tables import Cell, Table, columns_of
from everywatt.report.html.data import in_its_folder, made_now, provenance
from everywatt.report.html.figures import table_view

ENDED = {
    "decided": "every difference is known to the target",
    "trials": "all requested trials finished",
    "time": "time limit reached",
    "failures": "a command failed repeatedly",
    "interrupted": "interrupted",
}


def trials_document(
    result: Result, *, sweep: Sweep | None = None, run: Run | None = None, command: Sequence[str] = ()
) -> dict[str, Any]:
    """The document of a page over a comparison; with `sweep`, over that sweep."""
    kind, choice = ("comparison", None) if sweep is None else ("sweep", sweep.choice)
    found, shown = result.found, table_view(_telling(result.tables()[0]))
    said: list[str] = []
    for line in result.verdicts():  # what is indented belongs to the line before it
        if line.startswith(" ") and len(found) > 2:
            said[-1] += f"; {line.strip()}"
        else:
            said.append(line.strip())
    if choice is not None:
        said = [*_recommended(choice, said), *said]
    data = {
        **made_now(),
        "command": shlex.join(command),
        "reproduce": in_its_folder(run, shlex.join(command)),
        "title": _title(found, choice),
        "first": found[0].candidate.label,
        "verdicts": said or [_alone(found[0])],
        "failures": [line for one in found for line in _failures(one)],
        "remarks": _remarks(result),
        "headers": shown["heads"],
        "rows": shown["rows"],
        "numbers": shown["numbers"],
        "candidates": [_candidate(place, one, choice) for place, one in enumerate(found)],
        "ratios": [line for place, one in enumerate(found) for line in ratios_of(place, one)],
        "trials": trials_of(found),
        "pairs": _pairs(result) + ([] if run is None else provenance(run)),
    }
    return document(kind, dict(plain(data)))


def _recommended(choice: Choice, said: Sequence[str]) -> list[str]:
    """Which setting to choose, or that none is recommended, and why, unless a verdict says so."""
    if choice.best and not choice.decided:
        return ["No recommendation yet", f"{choice.best} has the {choice.why}"]
    why = [] if any(line.startswith(choice.why) for line in said) else [choice.why]
    return [*([f"Recommended: {choice.best}"] if choice.best else []), *why]


def _telling(shown: Table) -> Table:
    """The table without columns of words that are the same in every row, and without those that have no value."""
    columns = list(zip(*shown.rows, strict=True))
    kept = [
        place
        for place, cells in enumerate(columns)
        if place == 0 or (any(cell is not None for cell in cells) and not _same_words(cells))
    ]
    rows = tuple(tuple(row[place] for place in kept) for row in shown.rows)
    return replace(shown, columns=tuple(shown.columns[place] for place in kept), rows=rows)


def _same_words(cells: Sequence[Cell]) -> bool:
    return len(cells) > 1 and len(set(map(str, cells))) == 1 and isinstance(cells[0], str) and not cells[0].isdigit()


def _title(found: Sequence[Figures], choice: Choice | None) -> str:
    if choice is not None:
        same = len({one.candidate.text for one in found}) == 1
        return f"{len(found)} settings of {found[0].candidate.text if same else ', '.join(found[0].candidate.params)}"
    return (
        " against ".join(one.candidate.label if _named(one) else one.candidate.text for one in found)
        if len(found) < 3
        else f"{len(found)} commands compared"
    )


def _named(one: Figures) -> bool:
    """Whether the user gave it a name: those of everywatt are single letters."""
    return len(one.candidate.label) > 1


def _alone(one: Figures) -> str:
    if one.energy is None:
        return "no energy was measured"
    return f"{one.candidate.label} uses {one.energy.quantity('J')}"


def _failures(one: Figures) -> list[str]:
    if not one.failures:
        return []
    return [f"{one.candidate.label}: {one.failures} of {len(one.trials)} trials failed; the command {one.endings}"]


def _remarks(result: Result) -> list[str]:
    lines = [f"{one.candidate.label}: {note}" for one in result.found for note in one.notes]
    lines += [f"{one.candidate.label}: {one.outlier_line}" for one in result.found if one.outliers]
    return [*lines, *([result.floor] if result.floor else []), *result.notes]


def _candidate(place: int, one: Figures, choice: Choice | None) -> dict[str, Any]:
    return {
        "place": place,
        "label": one.candidate.label,
        "command": one.candidate.text,
        "cpu_time": _mean(one.cpu_s, "s") if one.modelled else None,  # certain, so it is shown first
        "energy": energy_of(one.energy),
        "seconds": finite(one.seconds.value),
        "chosen": choice is not None and one.candidate.label in choice.pareto,
    }


def energy_of(mean: Mean | None) -> dict[str, Any] | None:
    """A mean with the words for it; None where there is no figure; ends that are not known yet are null."""
    return _mean(mean, "J")


def _mean(mean: Mean | None, unit: str) -> dict[str, Any] | None:
    return None if mean is None else {**mean.to_dict(), "shown": str(mean.quantity(unit))}


def ratios_of(place: int, one: Figures) -> list[dict[str, Any]]:
    """What a page shows of the ratios of one candidate to the first."""
    label = one.candidate.label
    kinds = [("energy", one.gross), ("energy above idle", one.above_idle), ("time", one.time)]
    if one.modelled:  # what the kernel counts is certain, and comes first
        kinds.insert(0, ("CPU time", one.cpu))
    return [_ratio(place, label, what, found) for what, found in kinds if found is not None and finite(found.ratio)]


def _ratio(place: int, label: str, what: str, found: Comparison) -> dict[str, Any]:
    return {
        "place": place,
        "label": label,
        "what": what,
        "value": found.ratio,
        "low": finite(found.low),
        "high": finite(found.high),
        "shown": str(found.cell),
        "trials": found.trials,
        "verdict": found.text(label, what="energy" if what.startswith("energy") else what),
    }


def trials_of(found: Sequence[Figures]) -> list[dict[str, Any]]:
    """Trials in the order in which they ran."""
    rows = []
    for place, one in enumerate(found):
        rows += [(trial, place, one.candidate.label, n in one.outliers) for n, trial in enumerate(one.trials)]
    rows.sort(key=lambda entry: (entry[0].block, entry[0].place))
    return [_trial(number, *entry) for number, entry in enumerate(rows, 1)]


def _trial(number: int, trial: Trial, place: int, label: str, far: bool) -> dict[str, Any]:
    energy = trial.energy
    known = energy is not None and energy.joules is not None
    remarks = [*(["failed"] if trial.failed else []), *(["outlier"] if far else [])]
    return {
        "number": number,
        "block": trial.block,
        "candidate": place,
        "label": label,
        "joules": trial.joules,
        "low": energy.low if known and energy is not None else None,
        "high": energy.high if known and energy is not None else None,
        "shown": _shown(energy),
        "net_shown": _shown(trial.net),
        "seconds": trial.seconds,
        "exit_code": trial.exit_code,
        "remark": ", ".join(remarks),
    }


def _shown(energy: Energy | None) -> str:
    return "-" if energy is None or energy.joules is None else format_energy(energy)


def _pairs(result: Result) -> list[list[str]]:
    plan = result.plan
    pairs = [
        ("Run", result.run or "nothing recorded"),
        ("Ended", ENDED.get(result.ended, result.ended)),
        ("Target", format_percent(plan.target) if plan.trials is None else f"{plan.trials} trials of each"),
        ("Warm-up", f"{plan.warmup} of each, not counted"),
        ("Cool-down", "until power is back within 10 % of idle" if plan.cool else "none"),
    ]
    if len({one.text for one in result.candidates}) > 1:
        pairs += [(f"Command {one.label}", one.text) for one in result.candidates]
    return [list(pair) for pair in pairs]


MOST_LAYERS = 500
TITLES = ("Cost", "Quality", "Percent of the baseline")


def precision_document(
    result: PrecisionResult, *, run: Run | None = None, command: Sequence[str] = ()
) -> dict[str, Any]:
    """The document of a page over what the lab found."""
    known = [row for row in result.rows if row.failure is None]
    found = [row.figures for row in known if row.figures is not None]
    base = result.baseline
    data = {
        **made_now(),
        "command": shlex.join(command),
        "reproduce": in_its_folder(run, shlex.join(command)),
        "title": f"{result.job.name} at {len(result.rows)} precisions",
        "first": "" if base is None else base.precision,
        "verdicts": result.verdicts() or [_alone_row(result)],
        "failures": result.failures(),
        "remarks": result.remarks(),
        "tables": [
            table_view(replace(table, title=title, notes=()))
            for title, table in zip(TITLES, result.tables() if known else (), strict=False)
        ],
        "candidates": [_precision_row(place, row, result) for place, row in enumerate(known)],
        "metric": next((row.score.metric for row in known if row.score is not None), None),
        "ratios": [line for place, one in enumerate(found) for line in ratios_of(place, one)],
        "trials": trials_of(found),
        "computed": result.computed_lines(),
        "layers": [_layers(row) for row in known if row.layers],
        "sensitivity": _sensitivity(result),
        "pairs": _precision_pairs(result) + ([] if run is None else provenance(run)),
    }
    return document("precision", dict(plain(data)))


def _alone_row(result: PrecisionResult) -> str:
    base = result.baseline
    if base is None:
        return "no precision has an energy"
    each = base.energy_per_sample
    return f"{base.precision}: no energy" if each is None else f"{base.precision}: {each.quantity('J')} per sample"


def _precision_row(place: int, row: Row, result: PrecisionResult) -> dict[str, Any]:
    score = row.score
    return {
        "place": place,
        "label": row.precision,
        "command": row.emulated or "",
        "energy": energy_of(row.energy_per_sample),
        "score": None if score is None else score.to_dict(),
        "score_shown": "-" if score is None else str(score),
        "chosen": row.precision in result.pareto(),
    }


def _layers(row: Row) -> dict[str, Any]:
    """Parts of the model, which add up to a batch, and the layers in their order; the last row is the remainder."""
    rows = row.layers
    kept = [*rows[:-1][:MOST_LAYERS], rows[-1]]
    parts, each = by_part(rows), row.joules_of_layers([one.joules for one in kept])
    of_parts = row.joules_of_layers([part_j for _, _, part_j in parts])
    return {
        "precision": row.precision,
        "parts": [
            {"name": name, "share": share, "shown": joules or "-"}
            for (name, share, _), joules in zip(parts, of_parts, strict=True)
        ],
        "heads": [column.name for column in columns_of(LAYERS)],
        "rows": [
            [one.layer, one.kind, format_percent(one.share), joules or "-"]
            for one, joules in zip(kept, each, strict=True)
        ],
        "more": len(rows) - len(kept),
    }


def _sensitivity(result: PrecisionResult) -> dict[str, Any] | None:
    if result.sensitivity is None:
        return None
    shown = sensitivity_table(result.sensitivity, most=MOST_LAYERS)
    return table_view(replace(shown, title="Layers in order of sensitivity"))


def _precision_pairs(result: PrecisionResult) -> list[list[str]]:
    job = result.job
    length = next((row.seq_length for row in result.rows if row.seq_length), None)
    pairs = [
        ("Run", result.run or "nothing recorded"),
        ("Ended", ENDED.get(result.ended, result.ended)),
        ("Model", job.name),
        ("Task", job.task),
        ("Data", job.data),
        ("Batches", f"{job.batch_size} items" + (f" of {length} tokens" if length else "")),
        ("Runtime", job.runtime),
        ("Device", job.device),
    ]
    return [list(pair) for pair in pairs]
