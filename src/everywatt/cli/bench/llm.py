"""`everywatt bench llm`: query a language model, and report the energy and correctness of its answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from everywatt.api.run import Run, load
from everywatt.bench.experiment import folder_of
from everywatt.bench.llm import clients
from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.datasets import Dataset, fingerprint, load_dataset
from everywatt.bench.llm.loads import Level, parse_levels, repeated
from everywatt.bench.llm.local import TRANSCRIPT, transcribed
from everywatt.bench.llm.metrics import parse_bounds
from everywatt.bench.llm.plan import LlmPlan, Questions, ServerTape
from everywatt.bench.llm.records import read_records, recorded_items
from everywatt.bench.llm.result import evaluate
from everywatt.bench.llm.rows import ENDINGS, LlmResult, write_query_parquet
from everywatt.bench.llm.running import LOADING, LOST, Bench
from everywatt.bench.llm.scoring import LATER, Judge, Sandbox, Scoring, scored_by
from everywatt.bench.llm.serving import Serving
from everywatt.cli.common.metering import meter_of, terminable
from everywatt.cli.common.options import (
    PAIR,
    RUN,
    WAIT,
    Verb,
    as_value,
    country_option,
    gathered,
    idle_option,
    intensity_option,
    json_value,
    out_option,
    output_options,
    price_option,
    pue_option,
    settings_options_beside_model,
)
from everywatt.cli.common.output import Output
from everywatt.cli.common.results import check_ending, write_result
from everywatt.core.config import Settings, resolve
from everywatt.core.energy import Energy
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.format import format_duration
from everywatt.footprint.carbon import Factors, account, factors_of
from everywatt.net.server_processes import TUNNELS, forwarder, is_here, listeners, port_of

OURS = ("messages", "model", "prompt", "stream", "stream_options")
CURE_ELSEWHERE = "--server-tape RUN --server-skew 5ms"
ELSEWHERE = f"the server is on another host, whose energy is not measured here: {CURE_ELSEWHERE}"


def _factors(**flags: str | None) -> Factors:
    return factors_of(resolve(flags))


@click.command(cls=Verb)
@click.option("--base-url", default="", metavar="URL", help="URL of the server, such as http://127.0.0.1:8000.")
@click.option(
    "--serve",
    default=None,
    metavar="'CMD {port}'",
    help="Start this server, wait until it is ready, and stop it at the end; {model} is --model.",
)
@click.option("--model", default="", help="Name of the model on the server.")
@click.option("--dataset", default="", metavar="D", help="arithmetic, multiple-choice, instructions, … or a file.")
@click.option("--client", "client_id", default="openai", metavar="ID", help="openai, ollama, python, command, …")
@click.option(
    "--client-param",
    "client_params",
    type=PAIR,
    multiple=True,
    metavar="K=V",
    help="Parameter of the client; see docs/llm.md.",
)
@click.option(
    "--dataset-param",
    "dataset_params",
    type=PAIR,
    multiple=True,
    metavar="K=V",
    help="Parameter of the data set; see docs/llm.md.",
)
@click.option("--max-queries", type=click.IntRange(1), default=None, help="Use only the first N items.")
@click.option(
    "--set", "sampling", type=PAIR, multiple=True, metavar="K=V", help="Sampling parameter, such as temperature=0."
)
@click.option("--system", default=None, metavar="TEXT", help="System prompt for every query.")
@click.option("--concurrency", type=click.IntRange(1), default=None, help="Queries in flight at a time.  [default: 1]")
@click.option(
    "--rate", default=None, metavar="R", help="Arrival rate of queries: 2 per second, constant:2, ramp:1..10:60s."
)
@click.option("--sweep", default=None, metavar="N,N", help="Several concurrencies in turn: 1,2,4,8.")
@click.option("--repeats", type=click.IntRange(1), default=1, help="Number of passes over the items.  [default: 1]")
@click.option("--scorer", default=None, metavar="NAME", help="Score all items with this scorer: exact, judge, code, …")
@click.option("--judge-url", default="", metavar="URL", help="Server of the model that judges answers.")
@click.option("--judge-model", default="", metavar="NAME", help="Model that judges answers.")
@click.option(
    "--judge-param",
    "judge_params",
    type=PAIR,
    multiple=True,
    metavar="K=V",
    help="Parameter of the judge's client, as --client-param.",
)
@click.option(
    "--run-code", is_flag=True, help="Run code that the model wrote in a sandbox, and score it by unit tests."
)
@click.option("--mask", is_flag=True, help="Store hashes instead of prompts, references, data set columns and answers.")
@click.option("--reference", type=RUN, metavar="RUN", help="Report how many answers agree with those of another run.")
@click.option("--parameters", default=None, metavar="N", help="Active parameters per token, for FLOPs: 135M, 7B.")
@click.option("--peak-flops", default=None, metavar="N", help="Peak FLOP/s of the hardware, for MFU: 312T.")
@click.option(
    "--token-price",
    default=None,
    metavar="IN,OUT",
    help="Price of a million tokens, input and output: '0.15,0.60 USD'.",
)
@gathered("factors", _factors, country_option, intensity_option, pue_option, price_option)
@click.option(
    "--warmup",
    type=click.IntRange(0),
    default=2,
    help="Warm-up queries that are not counted; they use prompts of their own.  [default: 2]",
)
@idle_option
@click.option(
    "--server-pid", type=click.IntRange(1), multiple=True, help="PID of the server, if it cannot be found by port."
)
@click.option("--server-tape", default=None, metavar="RUN", help="Tape of the host on which the server runs.")
@click.option(
    "--server-skew",
    type=WAIT,
    default=None,
    help="Largest possible difference between that host's clock and this one's.",
)
@click.option("--goodput", default=None, metavar="BOUNDS", help="Latency objectives: ttft=500ms,tpot=50ms,e2e=5s.")
@click.option("--resume", type=RUN, metavar="RUN", help="Resume a run: send only the queries without an answer.")
@out_option
@settings_options_beside_model
@output_options
@as_value("asked", LlmPlan, ("base_url", "serve", "model", "max_queries", "system", "scorer", "mask"))
def command(
    asked: LlmPlan,
    dataset: str,
    client_id: str,
    client_params: tuple[tuple[str, str], ...],
    dataset_params: tuple[tuple[str, str], ...],
    sampling: tuple[tuple[str, str], ...],
    concurrency: int | None,
    rate: str | None,
    sweep: str | None,
    repeats: int,
    judge_url: str,
    judge_model: str,
    judge_params: tuple[tuple[str, str], ...],
    run_code: bool,
    reference: str | None,
    parameters: str | None,
    peak_flops: str | None,
    token_price: str | None,
    factors: Factors,
    warmup: int,
    idle_s: float,
    server_pid: tuple[int, ...],
    server_tape: str | None,
    server_skew: float | None,
    goodput: str | None,
    resume: str | None,
    out: Path | None,
    settings: Settings,
    output: Output,
) -> int:
    """Query a language model with the items of a data set: joules, accuracy and speed, each with its interval.

    The server is found by its port on this host and charged with the energy of its processes and the idle energy of its
    devices; other processes are not charged to it. Each finished query is on disk at once, and --resume sends the rest.
    With --serve the server is started here: the energy of loading is given separately, a server that dies is started
    again, and what it printed is server.log in the run's folder.

    The API key comes from EVERYWATT_LLM_API_KEY, or from the variable named by --client-param api_key_env=NAME. -o
    writes .json, .csv or .parquet (one row per query) or .md.

    The exit code is 0 even if answers are wrong, 3 if no query was answered or the server stopped answering, and 4 if
    no sensor measures power.
    """
    check_ending(out, ENDINGS)
    bounds = parse_bounds(goodput) if goodput else None
    compared = None if reference is None else read_records(folder_of(load(reference, home=settings.home)))
    folder = None if resume is None else folder_of(load(resume, home=settings.home))
    old = None if folder is None else LlmPlan.read(folder)
    server = None
    if asked.serve is not None:
        before = old or LlmPlan()
        server = Serving(asked.serve, model=asked.model or before.model, url=asked.base_url or before.base_url)
    plan = replace(
        asked,
        base_url=asked.base_url if server is None else server.url,
        client={"client": client_id},
        client_params=dict(client_params),
        dataset=Questions(dataset, dict(dataset_params)),
        settings=_settings(sampling),
        server_tape=_server_tape(server_tape, server_skew),
        loads=repeated(parse_levels(concurrency, rate, sweep), repeats),
    )
    plan = _checked(plan if old is None else plan.as_before(old), repeats)
    most = max((level.concurrency or 64) for level in plan.loads)
    connection = Connection.of(plan.model, plan.base_url, plan.client_params, concurrency=most)
    client = clients.make(plan.client["client"], connection)
    chosen = _dataset(plan, old, folder, output)
    items = chosen.items[: plan.max_queries]
    items = items if plan.scorer is None else scored_by(items, plan.scorer)
    scoring = _scoring(judge_url, judge_model, judge_params, run_code, old)
    scoring.check(items)
    if plan.mask and any(item.scorer in LATER for item in items):
        raise UsageError("--mask keeps no answers, which a judge or unit tests would need.", cure="leave out --mask")
    about = client.describe()
    given = server_pid if server is None else (server.prepare(),)
    pids, no_energy = _server(client.where, about.get("base_url") or plan.base_url, given, output)
    plan = replace(
        plan,
        client=about,
        timeouts_s=(connection.connect_s, connection.silence_s, connection.total_s),
        dataset=chosen.about,
        no_energy=no_energy,
        server_pids=pids,
        boundary="server" if pids or client.where == "here" else "machine",
        scoring=scoring.describe(),
        facts=plan.facts.given(parameters, peak_flops, token_price),
    )
    outcome = None
    try:
        plan = plan if old is None else old.continued(plan, str(resume))
        name = f"llm-{_short(plan.model) or about['client']}"
        meter = meter_of(settings, name, pids=pids or None, append=folder)
        reaper = None if client.where == "here" else os.getpid()
        bench = Bench(
            client,
            items,
            plan,
            meter,
            warmup=warmup,
            idle_s=idle_s,
            show=output.progress(),
            reaper=reaper,
            scoring=scoring,
            server=server,
        )
        with terminable() as code:
            outcome = bench.run(resume=folder)
    except MeasurementRefused as error:
        if old is None or old.serve is None or server is not None:
            raise
        raise MeasurementRefused(error.message, cure=old.again(str(resume))) from None
    finally:
        if server is not None:
            server.stop(None if outcome is None else outcome.folder)
    plan = bench.plan
    found = evaluate(outcome.run, outcome.records, plan, bounds=bounds, reference=compared, detail=True)
    footprints = tuple(account(one.bill.gross, factors) for one in found) if factors else ()
    result = LlmResult(
        *(outcome.folder.name, plan, tuple(found), footprints, tuple(_loading(outcome.run))),
        *(outcome.ended, outcome.notes),
    )
    _tell(result, outcome.folder, out, output)
    if outcome.ended == "interrupted":
        output.say(f"Interrupted. Resume with: {plan.again(outcome.folder.name)}")
        return code()
    if outcome.ended == LOST:
        done = sum(record.ok for record in outcome.records)
        output.warn(
            f"stopped: the server no longer answers. {done} of {len(items) * len(plan.loads)} queries are answered. "
            f"Resume with: {plan.again(outcome.folder.name)}"
        )
        return MeasurementRefused.exit_code
    if any(record.ok for record in outcome.records):
        return 0
    output.warn("no query was answered.")
    return MeasurementRefused.exit_code


def _checked(plan: LlmPlan, repeats: int) -> LlmPlan:
    """The plan with a load where none was given. UsageError where something is missing."""
    if not plan.dataset.name and not (plan.client["client"] == TRANSCRIPT and "file" in plan.client_params):
        raise UsageError("No data set was given.", cure="--dataset arithmetic")
    if not plan.model and plan.client["client"] in ("openai", "ollama"):
        raise UsageError("No model was given.", cure="--model NAME")
    return plan if plan.loads else replace(plan, loads=repeated((Level(),), repeats))


def _tell(result: LlmResult, folder: Path, out: Path | None, output: Output) -> None:
    output.warn(*result.notes)
    show(result, output)
    for seconds, energy in result.loading:
        output.text(f"loading: {format_duration(seconds)}, {energy}; the whole machine, not in the figures above")
    output.say(f"  run     {folder.name}")
    output.say(f"  next    everywatt report {folder.name} --open")
    if out is not None and out.suffix == ".parquet":
        write_query_parquet(result.found, out)
        out = None
    write_result(output, out, "llm", result)


def show(result: LlmResult, output: Output) -> None:
    """Tables for people; a note that several loads have is said once."""
    if output.json_to == "-":
        return
    for table in result.load_tables():
        output.table(table)
        output.text("")
    said: set[str] = set()
    for one, table in zip(result.found, result.figure_tables(), strict=True):
        output.table(table)
        for text in one.notes:
            if text not in said:
                output.say(f"Note: {text}")
        said.update(one.notes)
        output.text("")
    for table in result.repeat_tables():
        output.table(table)
        output.text("")
    if result.knee_line:
        output.text(result.knee_line)


def _loading(run: Run | None) -> list[tuple[float, Energy]]:
    """Time and energy of each start of a server that the benchmark started."""
    spans = [] if run is None else [span for span in run.spans if span.name == LOADING and span.end_ns is not None]
    return [] if run is None else [(span.duration_s or 0.0, run.energy(span)) for span in spans]


def _dataset(plan: LlmPlan, old: LlmPlan | None, folder: Path | None, output: Output) -> Dataset:
    """The items: of the data set, or as the run's own records have them where the data set is not here."""
    name, params = plan.dataset.name, plan.dataset.params
    if not name:
        kept = recorded_items(list(transcribed(Path(plan.client_params["file"]))))
        if not kept:
            raise UsageError("The transcript holds no items.", cure="--dataset D")
        return Dataset(Questions(TRANSCRIPT, {}, len(kept), fingerprint(kept)), tuple(kept))
    try:
        return load_dataset(name, params)
    except UsageError as error:
        kept = [] if folder is None else recorded_items(read_records(folder))
        if not kept or old is None:
            raise
        output.warn(f"{error.message} The {len(kept)} items in the run's own records are used.")
        return Dataset(Questions(name, params, old.dataset.items, old.dataset.sha256), tuple(kept))


def _server_tape(name: str | None, skew_s: float | None) -> ServerTape | None:
    """Where the server's own tape is, and how far the clocks may be apart."""
    if name is None and skew_s is None:
        return None
    if name is None or skew_s is None:
        raise UsageError(
            "A tape of another host needs a bound on the difference between the clocks.",
            cure="--server-tape RUN --server-skew 5ms",
        )
    return ServerTape(str(Path(name).absolute()) if Path(name).exists() else name, skew_s)


def _scoring(url: str, model: str, params: Sequence[tuple[str, str]], run_code: bool, old: LlmPlan | None) -> Scoring:
    """Who judges. A run that goes on has the judge that it had."""
    before = None if old is None else old.scoring.get("judge")
    if before and not url and not model:
        url, model = before["base_url"], before["model"]
    if bool(url) != bool(model):
        raise UsageError("A judge needs both a server and a model.", cure="--judge-url URL --judge-model NAME")
    judge = Judge(model, url, dict(params)) if url else None
    return Scoring(judge, Sandbox.find() if run_code else None)


def _server(where: str, url: str, given: Sequence[int], output: Output) -> tuple[tuple[int, ...], str | None]:
    """The server's processes, and why there can be no energy."""
    if where == "nowhere":
        return (), "a transcript was recorded elsewhere"
    if where == "here" or given:
        return tuple(given), None
    if not is_here(url):
        return (), ELSEWHERE
    pids = listeners(port_of(url))
    name = forwarder(pids)
    if name in TUNNELS:
        return (), f"port {port_of(url)} belongs to {name}, which forwards it to another host: {CURE_ELSEWHERE}"
    if name is not None:
        output.warn(
            f"port {port_of(url)} belongs to {name}, which only forwards requests, so the whole machine is charged. "
            "Name the server's processes with --server-pid."
        )
        return (), None
    return tuple(pids), None


def _short(model: str) -> str:
    """A model's name for the name of a run: without the owner or the folders before it."""
    return model.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


def _settings(sampling: Sequence[tuple[str, str]]) -> dict[str, Any]:
    clients.no_secrets(key for key, _ in sampling)
    for key, _ in sampling:
        if key in OURS:
            raise UsageError(f"--set {key}: not a sampling parameter; everywatt sets it itself.")
    return {key: json_value(text) for key, text in sampling}
