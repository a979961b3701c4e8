"""`everywatt bench llm`: ask a language model, and tell what its answers cost and whether they are right."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from everywatt.api.run import load
from everywatt.bench.llm import clients
from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.datasets import Dataset, load_dataset
from everywatt.bench.llm.latency import parse_bounds
from everywatt.bench.llm.loads import Level, parse_rate, parse_sweep
from everywatt.bench.llm.metrics import Figure, Metrics
from everywatt.bench.llm.records import differences, read_plan
from everywatt.bench.llm.result import evaluate, to_dict
from everywatt.bench.llm.running import Bench, Plan
from everywatt.bench.llm.server import is_here, listeners, port_of
from everywatt.bench.runs import folder_of
from everywatt.cli.metering import meter_of
from everywatt.cli.options import DURATION, RUN, TAG, Verb, out_option, output_options, settings_options
from everywatt.cli.output import Output, emit_json
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError
from everywatt.core.jsonio import document, plain

INTERRUPTED = 130
SAME = ("client", "model", "dataset", "settings", "system", "levels")
ELSEWHERE = "the server is on another host, whose energy nothing here measures"


@click.command(cls=Verb)
@click.option("--base-url", default="", metavar="URL", help="The server, such as http://127.0.0.1:8000.")
@click.option("--model", default="", help="The model, as the server calls it.")
@click.option("--dataset", default="", metavar="D", help="arithmetic, multiple-choice, instructions, … or a file.")
@click.option("--client", "client_id", default="openai", metavar="ID", help="openai, ollama, python, command, …")
@click.option("--client-param", "client_params", type=TAG, multiple=True, metavar="K=V", help="See the guide.")
@click.option("--dataset-param", "dataset_params", type=TAG, multiple=True, metavar="K=V", help="See the guide.")
@click.option("--max-queries", type=click.IntRange(1), default=None, help="Ask only the first so many items.")
@click.option("--set", "sampling", type=TAG, multiple=True, metavar="K=V", help="Sampling, such as temperature=0.")
@click.option("--system", default=None, metavar="TEXT", help="A system prompt for every query.")
@click.option("--concurrency", type=click.IntRange(1), default=None, help="So many queries at a time (1).")
@click.option("--rate", default=None, metavar="R", help="So many new queries a second: 2, poisson:2, constant:2.")
@click.option("--sweep", default=None, metavar="N,N", help="Several concurrencies, one after the other: 1,2,4,8.")
@click.option("--warmup", type=click.IntRange(0), default=2, help="Queries that do not count, with own prompts (2).")
@click.option("--idle", "idle_s", type=DURATION, default=2.0, help="Record idle power for this long first (2s).")
@click.option("--server-pid", type=click.IntRange(1), multiple=True, help="The server, where its port does not tell.")
@click.option("--goodput", default=None, metavar="BOUNDS", help="Latency bounds: ttft=500ms,tpot=50ms,e2e=5s.")
@click.option("--resume", type=RUN, metavar="RUN", help="Go on with a run: ask what has no answer yet.")
@out_option
@settings_options
@output_options
def command(
    base_url: str,
    model: str,
    dataset: str,
    client_id: str,
    client_params: tuple[tuple[str, str], ...],
    dataset_params: tuple[tuple[str, str], ...],
    max_queries: int | None,
    sampling: tuple[tuple[str, str], ...],
    system: str | None,
    concurrency: int | None,
    rate: str | None,
    sweep: str | None,
    warmup: int,
    idle_s: float,
    server_pid: tuple[int, ...],
    goodput: str | None,
    resume: str | None,
    out: Path | None,
    settings: Settings,
    note: str | None,
    output: Output,
) -> int:
    """Ask a language model the items of a data set: joules, accuracy and speed, each with its interval.

    The server is found by its port on this host and charged with what its processes used and the idle of the devices;
    other processes are not. Each query is on disk when it is finished, and --resume asks the rest. An API key comes
    from EVERYWATT_LLM_API_KEY, or the variable that --client-param api_key_env=NAME names.

    Ends with 0 also where answers are wrong, with 3 where the server does not answer, with 4 where nothing measures.
    """
    for warning in settings.warnings:
        output.warn(warning)
    bounds = parse_bounds(goodput) if goodput else None
    levels = _levels(concurrency, rate, sweep)
    old: dict[str, Any] | None = None
    folder: Path | None = None
    if resume is not None:
        folder = folder_of(load(resume, home=settings.home))
        old = read_plan(folder)
        base_url, model, dataset = base_url or old["base_url"], model or old["model"], dataset or old["dataset"]["name"]
        client_id = old["client"]["client"] if client_id == "openai" else client_id
        client_params = client_params or tuple(old["client_params"].items())
        dataset_params = dataset_params or tuple(old["dataset"]["params"].items())
        sampling = sampling or tuple((key, json.dumps(value)) for key, value in old["settings"].items())
        system, max_queries = system or old["system"], max_queries or old["max_queries"]
        levels = levels if (concurrency or rate or sweep) else tuple(Level(**one) for one in old["loads"])
    if not dataset:
        raise UsageError("Which questions?", cure="--dataset arithmetic")
    if not model and client_id in ("openai", "ollama"):
        raise UsageError("Which model?", cure="--model NAME")
    levels = levels or (Level(),)
    most = max((level.concurrency or 64) for level in levels)
    connection = Connection.of(model, base_url, dict(client_params), concurrency=most)
    client = clients.make(client_id, connection)
    chosen = load_dataset(dataset, dict(dataset_params))
    items = chosen.items[:max_queries]
    pids, no_energy = _server(client.where, client.describe().get("base_url") or base_url, server_pid)
    plan = Plan(levels, {key: _value(text) for key, text in sampling}, system, warmup, idle_s)
    about = _about(plan, client.describe(), connection, chosen, model, base_url, max_queries, client_params)
    about |= {"no_energy": no_energy, "server_pids": list(pids), "boundary": "server" if pids else "machine"}
    if client.where == "here":
        about["boundary"] = "server"
    if old is not None and (wrong := differences(old, plain(about), SAME)):
        raise UsageError(f"{resume} asked something else: {', '.join(wrong)} differ.")
    meter = meter_of(settings, note, f"llm-{model or client_id}", pids=pids or None, append=folder)
    show = output.progress()
    bench = Bench(
        client,
        items,
        plan,
        meter,
        about,
        watch=lambda doing, done, of: show(f"{doing}: {done} of {of}"),
        reaper=None if client.where == "here" else os.getpid(),
    )
    outcome = bench.run(resume=folder)
    for text in outcome.notes:
        output.warn(text)
    found = evaluate(outcome.run, outcome.records, about, bounds=bounds)
    data = to_dict(outcome.folder.name, about, found, ended=outcome.ended, notes=list(outcome.notes))
    _show(about, found, output)
    output.say(f"  run     {outcome.folder}")
    if out is not None:
        emit_json(document("llm", data), str(out))
    output.json("llm", data)
    return INTERRUPTED if outcome.ended == "interrupted" else 0


def _levels(concurrency: int | None, rate: str | None, sweep: str | None) -> tuple[Level, ...]:
    if sum(one is not None for one in (concurrency, rate, sweep)) > 1:
        raise UsageError("--concurrency, --rate and --sweep exclude each other.")
    if sweep is not None:
        return parse_sweep(sweep)
    if rate is not None:
        return (parse_rate(rate),)
    return () if concurrency is None else (Level(concurrency),)


def _server(where: str, url: str, given: Sequence[int]) -> tuple[tuple[int, ...], str | None]:
    """The server's processes, and why there can be no energy."""
    if where == "nowhere":
        return (), "a transcript was recorded elsewhere"
    if where == "here" or given:
        return tuple(given), None
    if not is_here(url):
        return (), ELSEWHERE
    return tuple(listeners(port_of(url))), None


def _about(
    plan: Plan,
    client: Mapping[str, Any],
    connection: Connection,
    dataset: Dataset,
    model: str,
    base_url: str,
    max_queries: int | None,
    client_params: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """What is asked, for the record. The connection's key is not in it."""
    return {
        "schema": "everywatt/1",
        "kind": "llm-plan",
        "model": model,
        "base_url": base_url,
        "client": dict(client),
        "client_params": dict(client_params),
        "timeouts_s": [connection.connect_s, connection.silence_s, connection.total_s],
        "dataset": dataset.describe(),
        "max_queries": max_queries,
        "settings": dict(plan.settings),
        "system": plan.system,
        "levels": [level.label for level in plan.levels],
        "loads": [
            {"concurrency": level.concurrency, "rate": level.rate, "poisson": level.poisson} for level in plan.levels
        ],
    }


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _show(about: Mapping[str, Any], found: Sequence[Metrics], output: Output) -> None:
    if output.json_to == "-":
        return
    for one in found:
        output.table(("FIGURE", "VALUE", "95 %", "FORMULA"), _rows(one), title=_title(about, one))
        output.text(f"boundary: {one.about}")
        for text in one.notes:
            output.say(f"Note: {text}")
        output.text()


def _title(about: Mapping[str, Any], one: Metrics) -> str:
    states = ", ".join(f"{count} {name}" for name, count in one.statuses.items())
    return f"{about['model'] or about['client']['client']} on {about['dataset']['name']}, {one.level}: {states}"


def _rows(one: Metrics) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    if one.accuracy is not None:
        of = ", ".join(f"{count} {name}" for name, count in one.verdicts.items())
        interval = f"{one.accuracy.low:.1%} … {one.accuracy.high:.1%}"
        rows.append(("accuracy", f"{one.accuracy.value:.1%}", interval, f"right / judged answers ({of}); Wilson"))
    for name, energy in (("energy, gross", one.gross), ("energy, net", one.net), ("other processes", one.others)):
        if energy.joules is None:
            rows.append((name, "refused", "", energy.refused or ""))
        else:
            about = f"{energy.scope} · {energy.pedigree} · coverage {energy.coverage:.0%}"
            rows.append((name, f"{energy.joules:.4g} J", f"{energy.low:.4g} … {energy.high:.4g}", about))
    rows += [_row(name, figure) for name, figure in one.figures.items()]
    for name, seconds in one.latency.items():
        if seconds is not None:
            text = f"{seconds['p50'] * 1000:.4g} ms"
            tail = f"p90 {seconds['p90'] * 1000:.4g}, p99 {seconds['p99'] * 1000:.4g} ms"
            rows.append((f"{name.removesuffix('_s')} p50", text, tail, _formula(name)))
    return rows


def _formula(name: str) -> str:
    from everywatt.bench.llm.latency import FORMULAS

    return FORMULAS[name]


def _row(name: str, figure: Figure) -> tuple[str, str, str, str]:
    words = name.replace("_", " ")
    if figure.value is None:
        return words, "refused", "", figure.refused or ""
    interval = (
        "" if figure.low is None else f"{figure.low:.3g} … {'∞' if figure.high is None else f'{figure.high:.3g}'}"
    )
    return words, f"{figure.value:.4g} {figure.unit}".strip(), interval, figure.formula
