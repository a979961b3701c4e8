"""`everywatt demo`: measure something small, here and now, and write the report."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from everywatt.api.meter import Meter
from everywatt.api.run import Run, load
from everywatt.bench.experiment import folder_of
from everywatt.cli.common.metering import recording_of, start
from everywatt.cli.common.options import DURATION, Verb, output_options, settings_here
from everywatt.cli.common.output import Output, write_text
from everywatt.core.config import Settings
from everywatt.core.errors import MeasurementRefused
from everywatt.core.format import format_duration, format_energy
from everywatt.core.jsonio import dumps
from everywatt.core.plugins import check_installed
from everywatt.report.text import summary

SIZE = 512
PRECISIONS = ("float64", "float32")


@click.command(cls=Verb)
@click.argument("what", type=click.Choice(("products", "precision", "llm")), default="products", required=False)
@click.option("--time", "work_s", type=DURATION, default=3.0, help="Duration of each load; not for llm.")
@click.option("--max-queries", type=click.IntRange(1, 32), default=32, help="For llm: ask only the first N questions.")
@output_options
def command(what: str, work_s: float, max_queries: int, output: Output) -> int:
    """Measure a small real workload: the same matrix products in double and in single precision.

    `demo precision` measures a packaged sentence encoder on bundled reviews in fp32 and int8 instead: joules, accuracy
    and size, in about two minutes on a CPU (requires everywatt[precision]).

    `demo llm` starts a packaged language model and asks it short questions, one at a time and four at a time: joules,
    accuracy and speed, in less than three minutes on a CPU. It needs neither a server nor a GPU; if the model is not
    installed, the command that installs it is printed.

    Uses the sensors of this machine or, if there are none, a modelled estimate that is labelled as such. The run is
    kept like any other, with its report beside the tape.
    """
    settings = settings_here()
    if what == "precision":
        return _precision(work_s, settings, output)
    if what == "llm":
        return _llm(max_queries, settings, output)
    output.say(f"everywatt demo: idle for 2 s, then two loads of {format_duration(work_s)} each")
    meter = Meter("demo", home=settings.home, note="the same matrix products in float64 and in float32")
    start(meter, output)
    recording = recording_of(meter)
    idle = recording.span_open("idle", attributes={"role": "idle"})
    time.sleep(2.0)
    recording.span_close(idle)
    work = recording.span_open("demo", attributes={"role": "run"})
    products, cpu_s = dict.fromkeys(PRECISIONS, 0), dict.fromkeys(PRECISIONS, 0.0)
    for precision in (*PRECISIONS, *reversed(PRECISIONS)):  # so that a machine that warms up favours neither
        uid = recording.span_open(precision, parent=work)
        before_s = time.process_time()
        count = multiply(precision, work_s / 2)
        used_s = time.process_time() - before_s
        recording.span_close(uid, attributes={"products": count, "cpu_s": used_s})
        products[precision] += count
        cpu_s[precision] += used_s
    recording.span_close(work, attributes={"cpu_s": sum(cpu_s.values())})
    meter.stop()
    run = meter.run
    # What refuses a net figure is cured by `everywatt run --idle`, which a demo is not.
    shown = [line for line in summary(run) if not line.startswith("  net     refused")]
    lines = [*_ratio(run, products, cpu_s), *shown]
    for precision, count in products.items():
        energy = run.energy(span=precision)
        if energy.joules is not None:
            lines.append(
                f"  each    {format_energy(energy / count)} per product of {SIZE}×{SIZE} in {precision} ({count} of "
                "them)"
            )
    folder = folder_of(run)
    write_text(folder / "report.json", dumps(run.to_dict(), indent=2) + "\n")
    write_text(folder / "report.txt", "\n".join(lines) + "\n")
    output.json("run", run.to_dict())
    output.text(*lines)
    if "modelled" in run.energy().pedigree:
        output.say("No sensor here measures power: joules are modelled from CPU utilisation. See: everywatt doctor")
    # The folder of runs may be set for this process alone, as `make demo` does: a path works from everywhere.
    name = run.name if settings.home is None else shlex.quote(str(folder))
    output.say(f"next:   everywatt why {name}")
    output.say(f"        everywatt run -- {Path(sys.executable).name} -c 'sum(range(10**7))'")
    output.say(f"report: {_report(run, folder)}")
    return 0


def _ratio(run: Run, products: Mapping[str, int], cpu_s: Mapping[str, float]) -> list[str]:
    """One precision against the other, in CPU time and energy per product: a wrong gain of sensor or model cancels."""
    double, single = (cpu_s[name] / products[name] for name in PRECISIONS)
    each = f"{format_duration(double)} against {format_duration(single)}"
    lines = [f"ratio   float64 takes {double / single:.2f} times the CPU time of float32 per product ({each})"]
    energies = [run.energy(span=name) for name in PRECISIONS]
    if all(energy.joules for energy in energies):
        each_j = [energy / products[name] for energy, name in zip(energies, PRECISIONS, strict=True)]
        found = each_j[0].ratio(each_j[1])
        lines.append(f"        and {found} times the energy")
    return lines


def _precision(loop_s: float, settings: Settings, output: Output) -> int:
    """A small `bench precision`, with its page beside the tape."""
    from everywatt.bench.precision.lab import Conduct
    from everywatt.bench.precision.plan import Job
    from everywatt.cli.bench.precision import KIND, experiment, page_of, show
    from everywatt.cli.common.results import write_result

    check_installed("torch", "precision")
    output.say("everywatt demo: a sentence encoder in fp32 and int8, three timed loops of each")
    job = Job(precisions=("fp32", "int8"), loop_s=loop_s, limit=128)
    result = experiment(job, Conduct(trials=3, cool=False), replace(settings, note="demo precision"), output)
    show(result, output)
    folder = None if result.run is None else folder_of(load(result.run, home=settings.home))
    page = None if folder is None else folder / "report.html"
    write_result(output, page, KIND, result, lambda: page_of(result, settings))
    if page is not None:
        output.say(f"next:   everywatt why {result.run}    everywatt bench precision --model DIR")
        output.say(f"report: {page}")
    return 0 if result.baseline is not None else MeasurementRefused.exit_code


def _llm(questions: int, settings: Settings, output: Output) -> int:
    """A small `bench llm` of a server that it starts, with its page beside the tape."""
    from everywatt.bench.llm.packaged_model import NAME, QUESTIONS, weights
    from everywatt.cli.bench.llm import command as bench_llm

    weights()
    output.say(f"everywatt demo: {NAME} answers {questions} short questions, one at a time and then four at a time")
    serve = shlex.join([sys.executable, "-m", "everywatt.bench.llm.packaged_model", "{port}"])
    words = ["--serve", serve, "--model", NAME, "--dataset", str(QUESTIONS), "--dataset-param", "scorer=regex"]
    words += ["--sweep", "1,4", "--set", "max_tokens=16", "--set", "temperature=0", "--set", "cache_prompt=false"]
    words += ["--max-queries", str(questions), "--note", "demo llm", *(["--quiet"] if output.quiet else [])]
    words += [f"--json={output.json_to}"] if output.json_to is not None else []
    with tempfile.TemporaryDirectory(prefix="everywatt-") as folder:
        out = Path(folder) / "llm.json"
        code: int = bench_llm.main([*words, "-o", str(out)], standalone_mode=False)
        name = json.loads(out.read_text(encoding="utf-8"))["run"] if out.exists() else None
    if name is not None:
        run = load(name, home=settings.home)
        output.say(f"report: {_report(run, folder_of(run))}")
    return code


def _report(run: Run, folder: Path) -> Path:
    """Write the HTML report beside the tape and give its path."""
    from everywatt.report.html.data import report_document
    from everywatt.report.html.page import page

    path = folder / "report.html"
    write_text(path, page(report_document([run], command=["everywatt", "report", run.name])))
    return path


def multiply(precision: str, seconds: float) -> int:
    """Matrix products until the time is up; returns how many were made."""
    import numpy as np

    random = np.random.default_rng(7)
    left = random.standard_normal((SIZE, SIZE)).astype(precision)
    right = random.standard_normal((SIZE, SIZE)).astype(precision)
    count, end = 0, time.monotonic() + seconds
    while count == 0 or time.monotonic() < end:
        np.matmul(left, right)
        count += 1
    return count
