"""A report as one plain document: everything that the page shows, and nothing that it has to compute but pixels."""

from __future__ import annotations

import shlex
from collections.abc import Container, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from everywatt.api.power import mean_w, power_statistics
from everywatt.api.run import IDLE_ROLE, Run
from everywatt.batch.figures import BatchFigures
from everywatt.core.energy import Energy
from everywatt.core.errors import EverywattError, ScopeError
from everywatt.core.format import format_duration, format_energy, format_quantity, format_watts
from everywatt.core.jsonio import document, dumps, plain
from everywatt.footprint.carbon import Factors, Footprint
from everywatt.ledger.owners import Ledger
from everywatt.ledger.text import by_reason, method_words, shown_name
from everywatt.report.html.batch import batch_figures, batch_of, packed_batch, scaling_view
from everywatt.report.html.figures import MISSING, shown_energy
from everywatt.report.html.lines import CHARTS, Line, Tell, extent_s, lines_of, run_s, total_line
from everywatt.report.html.llm import llm_view, models_view
from everywatt.report.html.pyramid import share_out, shrink
from everywatt.report.html.spans import bands_of, flames, phases_of
from everywatt.report.text import causes, certain_cpu_s, meter_text, run_footprint, warnings, watts_text, with_energy
from everywatt.report.wall import fitted, wall_of
from everywatt.tape.run_store import existing_home, run_argument

# Of a whole report's document, ticks included: with scripts and style a page is then below 1 MB.
MOST_BYTES = 800_000
LEAST_TICK_BYTES = 60_000  # of each run, however much else there is
MOST_OWNERS = 20
MOST_PIPED = 200  # items of standard input that a command line names


def report_document(
    runs: Sequence[Run],
    *,
    factors: Factors | None = None,
    raw: bool = False,
    command: Sequence[str] = (),
    tell: Tell = lambda share, text: None,
) -> dict[str, Any]:
    """The document of a page over these runs. `raw` keeps every tick, whatever it takes."""
    most = None if raw else MOST_BYTES / len(runs)
    views = []
    batches = [batch_of(run) for run in runs]
    for place, run in enumerate(runs):

        def tell_run(share: float, text: str, place: int = place, run: Run = run) -> None:
            tell((place + share) / len(runs), f"{run.name}: {text}")

        views.append(run_view(run, factors or Factors(), most, tell_run, batches[place]))
    return document(
        "report",
        {
            **made_now(),
            "command": shlex.join(command),
            "runs": views,
            "comparison": comparison(runs) if len(runs) > 1 else None,
            "scaling": scaling_view(batches),
            "models": models_view(runs),
        },
    )


def made_now() -> dict[str, str]:
    """Which everywatt writes a page, and when."""
    from everywatt import __version__

    return {"everywatt": __version__, "made": datetime.now(UTC).isoformat(timespec="seconds")}


def run_view(
    run: Run, factors: Factors, most_bytes: float | None, tell: Tell, batch: BatchFigures | None = None
) -> dict[str, Any]:
    """One run of the document. Ticks have the bytes that the rest of it leaves them."""
    energy, net, idle = run.energy(), run.energy_net(), _baseline(run)
    lines = lines_of(run, lambda share, text: tell(0.6 * share, text))
    tell(0.6, "phases")
    phases = phases_of(run)
    tell(0.7, "owners and quality")
    quality, owners, rows = run.quality(), ledger_of(run), _devices(run, energy, lines)
    found: dict[str, Any] = {
        "name": run.name,
        "argument": run_argument(run.path.absolute(), existing_home()),
        "started": run.started.isoformat(timespec="milliseconds"),
        "duration_s": run.duration_s,
        "extent_s": extent_s(run),
        "run_s": run_s(run),
        "energy": shown_energy(energy),
        "net": shown_energy(net),
        "baseline": idle,
        "mean_shown": _mean(energy, run.duration_s),
        "figures": [*batch_figures(batch), *_figures(run, energy, net, idle, rows)],
        "causes": [plain(cause) for cause in causes(energy, run.duration_s)],
        "warnings": by_reason(warnings(run, energy, quality), devices := {line.label for line in lines}),
        "devices": rows,
        "charts": [],
        "bands": bands_of(run),
        "phases": phases,
        "wall": wall_view(run),
        "llm": llm_view(run),
        "ledger": ledger_view(owners, devices),
        "flames": flames(run, None if isinstance(owners, str) else owners, phases),
        "quality": quality_view(quality),
        "carbon": _carbon(run_footprint(run, factors)),
        "provenance": provenance(run),
        "reproduce": _reproduce(run, batch),
        "batch": packed_batch(run, batch),
    }
    view = dict(plain(found))
    tell(0.9, "collecting the ticks")
    total = total_line(lines)
    # A third of packed ticks is base64's.
    left = None if most_bytes is None else max(0.75 * (most_bytes - len(dumps(view))), LEAST_TICK_BYTES)
    view["charts"] = plain(charts_of([*lines, total] if total else lines, left))
    return view


def _baseline(run: Run) -> str | None:
    baseline = run.baseline
    if baseline is None:
        return None
    length = f", {format_duration(baseline.duration_s)}" if baseline.duration_s else ""
    return f"{baseline.where}{length}"


def _figures(
    run: Run, energy: Energy, net: Energy, idle: str | None, devices: Sequence[dict[str, Any]]
) -> list[dict[str, str]]:
    """The small figures beside the large one."""
    duration_s = run.duration_s
    figures = [{"label": "Duration", "value": format_duration(duration_s), "about": f"from {run.started:%H:%M:%S} UTC"}]
    cpu_s = certain_cpu_s(run, energy)
    if cpu_s is not None:
        about = f"{cpu_s / duration_s:.2f} CPUs on average"
        figures.insert(0, {"label": "CPU time", "value": format_duration(cpu_s), "about": about})
    if (shown := _mean(energy, duration_s)) is not None:
        figures.append({"label": "Mean power", "value": shown, "about": "energy / observed time"})
    read = [device for device in devices if device["in_total"] and device["power"]["max"] is not None]
    if read and "modelled" not in energy.pedigree:
        most = max(read, key=lambda device: float(device["power"]["max"]))
        figures.append({"label": "Highest reading", "value": most["power_shown"][-1], "about": f"of {most['name']}"})
    if net.joules is not None:
        figures.append({"label": "Above idle", "value": format_energy(net), "about": f"idle: {idle}"})
    return figures


def _mean(energy: Energy, duration_s: float) -> str | None:
    """Mean power with its interval; without one where there are gaps, which the mean of the observed time excludes."""
    mean = mean_w(energy, duration_s)
    if not energy.joules or mean is None:
        return None
    sides = [side / energy.joules * mean for side in energy.sides()] if energy.coverage == 1.0 else []
    return format_watts(mean, *sides)


def _devices(run: Run, energy: Energy, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """What each device drew; those in the total first, others marked."""
    # Of several hosts each is a part, whose parts are its devices.
    inner = {f"{host} {name}": part for host, whole in energy.parts for name, part in whole.parts}
    parts = {**dict(energy.parts), **inner}
    labels: dict[str, tuple[str, str]] = {}
    for tape in run.tapes:
        for group in tape.groups:
            for channel in group.info.channels:
                if channel.carries_energy:
                    labels.setdefault(channel.device, (group.info.label, group.info.sensor))
    rows = []
    for line in lines:
        if line.chart != "power":
            continue
        part = parts.get(line.label)
        if part is None:
            try:
                part = run.energy(device=line.label)
            except EverywattError:
                continue
        label, sensor = labels.get(line.device.rpartition(" ")[2], ("", ""))
        share = part.joules / energy.joules if line.in_total and part.joules and energy.joules else None
        rows.append(
            {
                "name": line.label,
                "device": line.device,
                "label": label,
                "sensor": sensor,
                "channel": line.channel,
                "energy": shown_energy(replace(part, parts=())),
                "share": share,
                "in_total": line.in_total,
                "power": (power := power_statistics(line.watts, part, line.seconds)),
                "power_shown": [
                    _watts(part, power["mean"]),
                    *(_watts(part, power["mean"], power[name], power["max"]) for name in ("min", "median", "max")),
                ],
            }
        )
    return rows


def _watts(energy: Energy, mean: float | None, *watts: float | None) -> str:
    """The first of these powers, with the digits that they have where they are printed together."""
    known = [one for one in watts if one is not None]
    if mean is None or len(known) < len(watts):
        return MISSING
    numbers, _, unit = watts_text(energy, mean, *known).rpartition(" ")
    return f"{numbers.split(' … ')[0]} {unit}"


def charts_of(lines: Sequence[Line], most_bytes: float | None) -> list[dict[str, Any]]:
    """The charts with their packed ticks. Lines share the bytes that there are."""
    shares: list[float | None] = [None] * len(lines)
    if most_bytes is not None:
        shares = list(share_out([len(line.series) for line in lines], most_bytes))
    charts: dict[str, dict[str, Any]] = {}
    for line, share in zip(lines, shares, strict=True):
        title, unit = CHARTS[line.chart]
        chart = charts.setdefault(line.chart, {"id": line.chart, "title": title, "unit": unit, "lines": []})
        packed = shrink(line.series, share)
        about = {"label": line.label, "device": line.device, "channel": line.channel, "shown": line.shown}
        chart["lines"].append({**about, "in_total": line.in_total, **packed})
    for chart in charts.values():
        if not any(line["shown"] for line in chart["lines"]):
            chart["lines"][0]["shown"] = True
    return list(charts.values())


def ledger_of(run: Run) -> Ledger | str:
    """The owners of the joules, or why there is no ledger."""
    if not any(group.info.table for tape in run.tapes for group in tape.groups):
        return "processes were not recorded"
    try:
        ledger = run.ledger()
    except EverywattError as error:
        return error.message
    return ledger if ledger.entries else "; ".join(ledger.notes) or "no owner was observed"


def ledger_view(ledger: Ledger | str, devices: Container[str] = ()) -> dict[str, Any]:
    """The owners as the page shows them, or the reason for showing none."""
    if isinstance(ledger, str):
        return {"refused": ledger}
    data: dict[str, Any] = ledger.to_dict(top=min(MOST_OWNERS, with_energy(ledger)))
    data["notes"] = by_reason(data["notes"], devices)
    data["total"] = shown_energy(replace(ledger.total, parts=()))
    rest = data["rest"]
    for row in [*data["owners"], *([rest] if rest else [])]:
        energy = {**row["energy"], "parts": {}}
        low, joules, high = energy["low"], energy["joules"], energy["high"]
        if "owner" in row:  # the rest has none
            row["owner"] = {**row["owner"], "label": shown_name(row["owner"]["label"])}
        row["method"] = method_words(row["method"]) if row.get("method") else ""
        row["energy"] = {**energy, "shown": format_quantity(joules, "J", joules - low, high - joules)}
    return data


def wall_view(run: Run) -> dict[str, Any] | None:
    """What the meter saw and the chips do not explain, with the offset of their clocks; None without a meter."""
    found = wall_of(run)
    if found is None:
        return None
    clock, overhead = fitted(run)
    return {
        "devices": list(found.devices),
        "wall": shown_energy(found.wall),
        "chips": shown_energy(found.chips),
        "unexplained": shown_energy(found.unexplained),
        "remark": found.remark,
        "share": found.share,
        "clock": str(clock),
        "clock_offset_s": clock.seconds,
        "overhead": str(overhead) if overhead else None,
    }


def quality_view(found: dict[str, Any]) -> dict[str, Any]:
    """Rates, gaps and the meter's own cost."""
    gaps = found["gaps"]
    return {
        "rates": [{"name": name, **entry, **_periods(entry)} for name, entry in found["groups"].items()],
        "gaps": gaps[:100],
        "gap_count": len(gaps),
        "gap_s": sum(gap["duration_s"] for gap in gaps),
        "meter": meter_text(found),
        "sealed": found["sealed"],
    }


def _periods(entry: dict[str, Any]) -> dict[str, str]:
    periods = {name: entry[f"{name}_period_s"] for name in ("requested", "achieved")}
    return {f"{name}_shown": format_duration(period_s) if period_s else MISSING for name, period_s in periods.items()}


def _carbon(found: Footprint | None) -> dict[str, Any] | None:
    if found is None:
        return None
    rows = []
    labels = {
        "energy": "Energy" if found.pue is None else "At the plug",
        "carbon": "Carbon",
        "carbon_varying": "Carbon, grid intensity over time",
        "cost": "Cost",
        "sci": "SCI score (ISO/IEC 21031)",
    }
    for name, label in labels.items():
        amount = getattr(found, name)
        if amount is not None:
            rows.append({"name": name, "label": label, "shown": str(amount), **amount.to_dict()})
    return {"rows": rows, "pue": found.pue, "equivalents": list(found.equivalents)}


def provenance(run: Run) -> list[list[str]]:
    """Pairs of words: what was recorded of host, devices, versions, command and git state."""
    meta = run.meta
    host = meta.get("host") if isinstance(meta.get("host"), dict) else {"name": meta.get("host")}
    assert isinstance(host, dict)
    git = meta.get("git") or {}
    pairs = [
        ("Host", ", ".join(dict.fromkeys(_host_name(tape.meta.get("host")) for tape in run.tapes))),
        ("CPUs", str(host.get("cpus") or "")),
        ("System", " ".join(str(host.get(key) or "") for key in ("system", "kernel", "machine")).strip()),
        ("Devices", ", ".join(dict.fromkeys(_device_names(run)))),
        ("User", str(meta.get("user") or "")),
        ("Directory", str(meta.get("cwd") or "")),
        ("Command", shlex.join(map(str, meta["command"])) if meta.get("command") else ""),
        ("Git", f"{git.get('commit', '')} {git.get('branch') or ''}{' (changed)' if git.get('dirty') else ''}".strip()),
        ("everywatt", str(meta.get("everywatt") or "")),
        ("Python", str(meta.get("python") or "")),
        ("Tags", ", ".join(f"{key}={value}" for key, value in (meta.get("tags") or {}).items())),
        ("Note", str(meta.get("note") or "")),
        ("Tapes", ", ".join(tape.path.name for tape in run.tapes)),
        ("Started", run.started.isoformat(timespec="milliseconds")),
    ]
    return [[label, text] for label, text in pairs if text]


def _host_name(host: object) -> str:
    """`node1 · AMD EPYC`"""
    about = host if isinstance(host, dict) else {"name": host}
    return " · ".join(str(about[key]) for key in ("name", "cpu") if about.get(key))


def _device_names(run: Run) -> list[str]:
    infos = [group.info for tape in run.tapes for group in tape.groups if not group.info.table]
    return [f"{info.device} ({info.label})" if info.label else info.device for info in infos if info.channels]


def _reproduce(run: Run, batch: BatchFigures | None) -> str:
    """The command line that would measure the same thing again."""
    words = run.meta.get("command")
    if not words:
        return ""
    words = [str(word) for word in words]
    if words[0] in ("attach", "bench"):  # verbs that store their words without the program's name
        words = ["everywatt", *words]
    whole = [span for span in run.spans if span.attributes.get("role") == "run"]
    itself = whole and not any(span.name == "run" or "exit_code" in span.attributes for span in whole)
    if words[0] != "everywatt" and not itself:  # a batch, a comparison, a program with measure() measure themselves
        tags = [part for key, value in (run.meta.get("tags") or {}).items() for part in ("--tag", f"{key}={value}")]
        words = ["everywatt", "run", *_idle_option(run), *tags, "--", *words]
    command = shlex.join(words)
    if words[:3] == ["everywatt", "batch", "-"] and batch is not None:
        inputs = [item.state.item.input for item in batch.items]
        if len(inputs) <= MOST_PIPED:
            command = f"printf '%s\\n' {shlex.join(inputs)} | {command}"
        else:
            command += f" < items.txt  # with the {len(inputs)} items of standard input, one per line"
    return in_its_folder(run, command)


def in_its_folder(run: Run | None, command: str) -> str:
    """The command line, run where the run was started, if that is known."""
    cwd = None if run is None else run.meta.get("cwd")
    return f"cd {shlex.quote(str(cwd))} && {command}" if cwd else command


def _idle_option(run: Run) -> list[str]:
    """`--idle` as it was given, to a tenth of a second, where idle power was recorded."""
    lengths = [span.duration_s for span in run.spans if span.attributes.get("role") == IDLE_ROLE and span.duration_s]
    return ["--idle", f"{lengths[0]:.1f}s"] if lengths else []


def comparison(runs: Sequence[Run]) -> dict[str, Any]:
    """Every run beside the first. Runs that cover something else get no ratio, and the row says why."""
    energies = [run.energy() for run in runs]
    first = energies[0]
    rows = []
    for run, energy in zip(runs, energies, strict=True):
        row: dict[str, Any] = {
            "name": run.name,
            "energy": shown_energy(replace(energy, parts=())),
            "duration_shown": format_duration(run.duration_s),
            "mean_shown": _mean(energy, run.duration_s) or MISSING,
            "ratio": None,
            "why": "",
        }
        if energy is first:
            row["why"] = "baseline"
        else:
            try:
                ratio = energy.ratio(first)
                row["ratio"] = {**ratio.to_dict(), "shown": str(ratio)}
                row["verdict"] = "more" if ratio.low > 1 else "less" if ratio.high < 1 else "no difference detected"
            except ScopeError:
                row["why"] = (
                    f"not compared: it covers {energy.scope or 'nothing'}, the first run {first.scope or 'nothing'}"
                )
            except EverywattError as error:
                row["why"] = f"not compared: {error.message}"
        rows.append(row)
    mixed = len({energy.scope for energy in energies if energy.joules is not None}) > 1
    return dict(plain({"rows": rows, "mixed_scopes": mixed}))
