"""`everywatt doctor`: ordered checks with the exact cure, the fix for root-only counters, and the sensor self-test."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from everywatt.api.provenance import user_name
from everywatt.cli.common.options import (
    DURATION,
    PATH,
    Verb,
    estimate_option,
    output_options,
    sensors_option,
    settings_here,
)
from everywatt.cli.common.output import Output, check_folder, write_text
from everywatt.core.channels import Domain, Pedigree
from everywatt.core.domains import WHOLE
from everywatt.core.errors import NoSensor, UsageError
from everywatt.core.format import format_count
from everywatt.core.jsonio import dumps
from everywatt.core.machine import Machine
from everywatt.core.tables import Table, columns_of
from everywatt.doctor.coverage import SensorList, example, probe_all, report_row
from everywatt.doctor.diagnose import Diagnosis, Verdict, check_up
from everywatt.doctor.permissions import by_hand, counters, fix
from everywatt.sensors.base import Report, Request, State
from everywatt.sensors.registry import known
from everywatt.slurm.node.hooks import DEFAULT_SPOOL

HOW = {Pedigree.COUNTER.value: "counted", Pedigree.INTEGRATED.value: "integrated from power"}


@click.command(cls=Verb)
@click.option("--fix", "mend", is_flag=True, help="Let a group read root-only CPU counters, and print what was done.")
@click.option(
    "--characterise", is_flag=True, help="Measure period, averaging and step response of the GPU power sensors."
)
@click.option("--from", "source", type=PATH, help="Characterise this nvidia-smi CSV log instead.")
@click.option("--marks", type=PATH, help="Times at which the load in that log switched: a CSV of unix_s.")
@click.option("--column", default=None, help="Column of the log to analyse, such as power.draw.instant.")
@click.option("--time", "time_s", type=DURATION, default=5.0, help="How long to poll each live sensor.")
@click.option(
    "--share",
    "shared",
    type=PATH,
    help="Write what the sensors are to this file, without names: to report a machine, or to simulate it.",
)
@click.option("--load", is_flag=True, help="Switch a load on each GPU on and off meanwhile, to show its averaging.")
@output_options
def command(
    mend: bool,
    characterise: bool,
    source: Path | None,
    marks: Path | None,
    column: str | None,
    time_s: float,
    shared: Path | None,
    load: bool,
    output: Output,
) -> int:
    """Check this machine: which sensors work, which domains they cover, and how to fix what is wrong.

    Read-only unless --fix is given. The exit code is 1 if a check failed, and 4 if there is no sensor to characterise.
    """
    if (marks is not None or column is not None) and source is None:
        raise UsageError("--marks and --column require --characterise --from FILE.")
    if load and (source is not None or not characterise):
        raise UsageError("--load requires --characterise with live sensors.")
    if shared is not None:
        return _share(shared, time_s, output)
    if characterise or source is not None:
        return _characterise(source, marks, column, time_s, load, output)
    machine = Machine.here()
    fixed = _fix(machine, output) if mend else []
    settings = settings_here()
    diagnosis = check_up(machine, settings.home, options=settings.options)
    if (settings.slurm_spool or DEFAULT_SPOOL).is_dir():  # a node of Slurm
        from everywatt.cli.slurm.common import here
        from everywatt.slurm.node.cards import slurm_conf
        from everywatt.slurm.node.check import check_node

        site, node = here(settings.slurm_spool, settings.slurm_store)
        diagnosis = replace(diagnosis, checks=(*diagnosis.checks, *check_node(site, node, slurm_conf())))
    data = {
        "ok": not diagnosis.failed,
        "checks": [asdict(check) for check in diagnosis.checks],
        "domains": list(diagnosis.domains),
        "sensors": {report.sensor: report_row(report) for report in diagnosis.reports},
    }
    output.json("doctor", {**data, "fixed": fixed})
    output.text(*outlook(diagnosis))
    output.text("")
    rows = [[check.name, check.verdict, check.seen, check.cure or None] for check in diagnosis.checks]
    output.table(Table.of("CHECK", "VERDICT", "RESULT", "FIX", rows=rows))
    output.text("")
    present = [report for report in diagnosis.reports if report.state is not State.ABSENT]
    output.table(Table.of("SENSOR", "STATE", "VALUE", "REASON", rows=[_sensor_row(report) for report in present]))
    if missing := absent(diagnosis.reports):
        output.text("")
        output.table(Table.of("ABSENT", "REASON", rows=missing))
    return 1 if diagnosis.failed else 0


def outlook(diagnosis: Diagnosis) -> list[str]:
    """What a run will measure here, and what stands in the way of more, each with its cure."""
    added = [part for part in diagnosis.covered.parts if part.in_total or Domain(part.domain) in WHOLE]
    measured = [part for part in added if part.pedigree != Pedigree.MODELLED]
    if measured:
        ways: dict[str, list[str]] = {}
        for part in measured:
            ways.setdefault(HOW[part.pedigree], []).append(part.label)
        found = [f"{', '.join(labels)} {how}" for how, labels in ways.items()]
        lines = [f"You will get: {'; '.join(found)}."]
    elif added:
        lines = ["You will get: CPU time, and energy as an estimate with a wide interval: no sensor measures power."]
    else:
        lines = ["You will get no energy: no sensor works here."]
    failed = [check for check in diagnosis.checks if check.verdict is Verdict.FAIL]
    by_cure: dict[str, list[str]] = {}
    for check in failed:
        by_cure.setdefault(check.cure, []).append(check.name)
    return lines + [
        f"{', '.join(dict.fromkeys(names))}: {f'fix with: {cure}' if cure else 'failed, see below'}"
        for cure, names in by_cure.items()
    ]


def absent(reports: Sequence[Report]) -> list[tuple[str, str]]:
    """The sensors that are not there, those with the same reason together: their names, and the reason."""
    found: dict[str, list[str]] = {}
    for report in reports:
        if report.state is State.ABSENT:
            found.setdefault(report.why.replace(report.sensor, "NAME"), []).append(report.sensor)
    return [
        (", ".join(names), why.replace("NAME", names[0]) if len(names) == 1 else why) for why, names in found.items()
    ]


def _sensor_row(report: Report) -> list[str | None]:
    return [report.sensor, str(report.state), example(report), report.why or None]


def _fix(machine: Machine, output: Output, etc: Path = Path("/etc")) -> list[Mapping[str, Any]]:
    if not counters(machine):
        output.say("No RAPL counters were found that a rule could make readable; nothing was changed.")
        return []
    user = os.environ.get("SUDO_USER") or user_name()
    if os.geteuid() != 0:
        output.say("The fix needs root; nothing was changed. Run:")
        for line in by_hand(user):
            output.say(f"  {line}")
        return []
    done = fix(machine, etc, user=user)
    for step in done:
        output.say(step.what if step.done else f"FAILED: {step.what}: {step.problem}")
    return [asdict(step) for step in done]


def _share(path: Path, time_s: float, output: Output) -> int:
    from everywatt.doctor.share import share
    from everywatt.sim.machine import SimMachine

    if path.exists():
        raise UsageError(f"{path} already exists.", cure="another file name")
    check_folder(path)
    document = share(time_s)
    write_text(path, dumps(document, indent=1) + "\n")
    devices = {
        channel["device"] for group in document["groups"] for channel in group["channels"] if channel.get("domain")
    }
    count = len(document["measured"])
    output.say(
        f"{path}: {format_count(count, 'channel')} of {format_count(len(devices), 'device')}, without names."
        if count
        else f"{path}: no sensor here measures power; the file has the reason of each, without names."
    )
    output.say("Please look at it before you send it.")
    try:
        SimMachine.like(document)
    except UsageError:
        return 0  # no simulator for such sensors
    output.say(f"Simulate the machine: everywatt sim --like {path} -- COMMAND")
    return 0


def _characterise(
    source: Path | None, marks: Path | None, column: str | None, time_s: float, load: bool, output: Output
) -> int:
    from everywatt.doctor.characterise import characterise_live, characterise_log
    from everywatt.doctor.gpu_load import find_load

    if source is not None:
        found = characterise_log(source, marks, column)
    else:
        found = characterise_live(time_s, load=find_load() if load else None)
    if not found:
        output.warn(
            "no sensor here measures power, so there is nothing to characterise (everywatt doctor gives the reason)"
        )
    output.json("characterisation", {"sensors": found})
    rows = [[one.sensor, one.period_s, one.window_s, one.observed, one.quantum, "; ".join(one.notes)] for one in found]
    columns = columns_of("SENSOR, PERIOD [s], AVERAGES OVER [s], OBSERVED [%], STEP [], NOTES")
    output.table(Table.of(*columns, rows=rows))
    return 0 if found else NoSensor.exit_code


@click.command(cls=Verb)
@click.option("--all", "everything", is_flag=True, help="Also list absent sensors and channels of sensors not in use.")
@sensors_option
@estimate_option
@output_options
def sensors_command(everything: bool, sensors: str | None, estimate: bool | None, output: Output) -> int:
    """List the sensors of this machine: what a total will contain, which sensors work, and a value of each channel.

    The exit code is 4 if no sensor delivers power and --no-estimate rules out the modelled sensor.
    """
    settings = settings_here({"sensors": sensors, "estimate": estimate})
    request = Request(
        devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        estimate=settings.estimate,
        options=settings.options,
        sensors=settings.sensors,
    )
    reports, covered = probe_all(known(), request, settings.sensors)
    found = SensorList(reports, covered, everything or settings.sensors is not None)
    output.result("sensors", found)
    if found.power or settings.estimate:
        return 0
    output.error("No sensor on this machine delivers power, and estimates are disabled.")
    return NoSensor.exit_code
