"""`everywatt sim`: run a command inside a machine whose joules are known; `sim truth`: the exact joules of a window."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from everywatt.cli.common import child
from everywatt.cli.common.group import WithMembers
from everywatt.cli.common.options import PATH, Verb
from everywatt.cli.main import COMMANDS
from everywatt.core.errors import UsageError
from everywatt.core.foreign import read_json
from everywatt.core.format import format_duration
from everywatt.core.jsonio import document, dumps
from everywatt.sim import truth as truths
from everywatt.sim.machine import Lab, SimMachine

MEMBERS = {"truth": "everywatt.cli.sim:truth"}


@click.command(cls=WithMembers, modules=MEMBERS, context_settings={"allow_interspersed_args": False})
@click.option(
    "--gpu", "gpus", multiple=True, metavar="CURVE", help="Add a card that follows this power curve; repeat for more."
)
@click.option("--gpus", "number", type=int, metavar="N", help="Repeat the cards until there are N.")
@click.option("--package", "packages", multiple=True, metavar="CURVE", help="Add a processor package; repeat for more.")
@click.option("--sensor", "sensors", multiple=True, metavar="K=V,…", help="Properties of the sensors; see above.")
@click.option(
    "--like",
    type=PATH,
    metavar="FILE",
    help="Simulate the machine that `everywatt doctor --share` described in this file.",
)
@click.option("--truth", "truth_file", type=PATH, metavar="FILE", help="Write the exact joules to this file.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
def sim(
    gpus: Sequence[str],
    number: int | None,
    packages: Sequence[str],
    sensors: Sequence[str],
    like: Path | None,
    truth_file: Path | None,
    command: Sequence[str],
) -> None:
    """Run a command on a simulated machine, where the real sensors are hidden.

    CURVE is constant:100W, square:100W,300W,1.3s[,duty], ramp:100W,300W,10s, sine:MEAN,AMPLITUDE,PERIOD,
    step:100W,300W,5s[,back at], telegraph:LOW,HIGH,MEAN DWELL,SEED, replay:FILE (CSV of seconds,watts; repeated), or
    load:IDLE,MAX[,exponent], whose power follows the CPU time of the command (a package) or the utilisation that
    programs declare with everywatt.testing.use_gpu (a card). Time starts with the machine.

    --sensor sets properties of the cards' sensors: period=100ms, window=25ms, average=1s, counter_period=20ms, phase,
    counter_phase, jitter, drop, gain=0.958, offset=-2W, quantum=1J, power_quantum, start, exact=1, seed, name='NVIDIA
    A100-SXM4-40GB', unsupported=nvmlDeviceGetTotalEnergyConsumption+field:186, missing=CALL+…, failing=CALL+…,
    fail_call=100, fail_after=100, fail_code=999, lost_at=5s, back_at=8s, call_cost=50us, process_cost=500us,
    processes=PID:MEMORY:SM[:INSTANCE]+… (pid 0 is the command), mig=1g.5gb+3g.20gb, gpm=1, samples=120, utilisation,
    memory=40GiB, clock, memory_clock, capability=8.0, module=140W, memory_share=0.2, counter_module=1,
    power_limit=300W, power_limit_min, power_limit_max, denied=1. A key prefixed with gpu.1. applies to that card only.

    Packages take package.period, phase, quantum, wrap=300J, start, reset_at, tdp, dies=2, core=0.7, uncore, dram=0.2,
    mmio=1, range_unreadable=1, fault=unreadable|garbage|negative|empty|vanish and fault_at, each prefixed with package.
    or package.1. The machine takes psys=40W, driver=VERSION and
    smi=na|not-supported|unknown-error|hang|hang-after:N|exit-after:N|buffered|no-handle|no-loop.

    A card is exact unless a gain or an offset is given. The exit code is the command's own, 128+n after signal n.

    Query a truth file for any window:  everywatt sim truth FILE --between 1s 3.5s
    """
    if not command:
        raise UsageError("No command was given.", cure="everywatt sim --gpu constant:100W -- CMD")
    if like is None:
        machine = SimMachine.of(gpus=gpus, packages=packages, replicate=number, sensor=sensors)
    elif gpus or packages or sensors or number is not None:
        raise UsageError("--like describes the whole machine; leave out --gpu, --gpus, --package and --sensor.")
    else:
        machine = SimMachine.like(read_json(like))
    with machine.start() as lab:
        start_ns, end_ns, code = _run(lab, command)
        if truth_file is not None:
            lab.settle()
            truths.write(truth_file, truths.describe(lab, start_ns, end_ns, command=command, code=code))
    sys.exit(code)


def _run(lab: Lab, words: Sequence[str]) -> tuple[int, int, int]:
    """When the command started and ended on CLOCK_MONOTONIC, and its exit code."""
    os.environ.update(lab.environment())  # not only for the command: it is looked for in the machine's folders, too
    child.load()
    child.adopt_orphans()  # so that their CPU time still counts
    ended = child.Ended()
    with child.held_signals() as (caught, before):
        start_ns = time.monotonic_ns()
        try:
            pid = child.spawn(words, before, to_stderr=False)
        except OSError as error:
            ended.code = 127 if isinstance(error, FileNotFoundError) else 126
            click.echo(f"Error: {words[0]}: {error.strerror}", err=True)
            if ended.code == 127 and words[0] in COMMANDS:
                click.echo(f"Try:   everywatt sim … -- everywatt {' '.join(words)}", err=True)
        else:
            lab.adopt(pid)
            child.watch(pid, caught, ended)
            child.reap(pid, ended)
    return start_ns, time.monotonic_ns(), ended.code


command = sim


@click.command("truth", cls=Verb)
@click.argument("file", type=PATH)
@click.option("--between", nargs=2, metavar="A B", help="The window; by default the whole lifetime of the command.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def truth(file: Path, between: tuple[str, str] | None, as_json: bool) -> None:
    """Print the exact joules of each device in a window of a simulation.

    A and B are times after the command's start (1.5, 250ms), `end`, CLOCK_MONOTONIC seconds (mono:8123.5), or ISO
    times.
    """
    found = truths.load(file)
    a, b = between or ("0", "end")
    window = found.window(found.instant_ns(a), found.instant_ns(b))
    if as_json:
        click.echo(dumps(document("sim-truth-window", window)))
        return
    click.echo(f"exact joules over {format_duration(window['duration_s'])}", err=True)
    for name, row in window["devices"].items():
        click.echo(f"{name:<12} {row['joules']:14.6f} J  {row['mean_w']:10.3f} W")
