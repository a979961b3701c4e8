"""The command `everywatt`: the table of verbs, and how every ending becomes an exit code.

Only the module of the verb that is called gets imported, and `everywatt --help` needs neither it nor click.
"""

from __future__ import annotations

import errno
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "everywatt"
INTERRUPTED = 130
BROKEN_PIPE = 141
ANYWHERE = (
    *("show", "ledger", "list", "why", "report", "plot", "export", "import", "validate", "model", "config"),
    *("plugins", "completion"),
)  # commands that measure nothing: they work on every operating system, the others on Linux

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("everywatt.cli.run", "Measure the energy of a command."),
    "monitor": ("everywatt.cli.monitor", "Watch power, energy and owners live."),
    "attach": ("everywatt.cli.attach", "Measure processes that are already running."),
    "compare": ("everywatt.cli.compare", "Compare the energy of commands and give a verdict."),
    "sweep": ("everywatt.cli.sweep", "Measure a command at several power limits or parameters."),
    "batch": ("everywatt.cli.batch.command", "Run a command for many items over GPUs and measure each item."),
    "bench": ("everywatt.cli.bench", "Benchmark models: precisions, training, language models."),
    "slurm": ("everywatt.cli.slurm", "Show the energy of every job and user of a Slurm cluster."),
    "stress": ("everywatt.cli.stress", "Generate load that follows a profile over time."),
    "show": ("everywatt.cli.inspect:show", "Show a run: energy, devices, spans, quality."),
    "ledger": ("everywatt.cli.inspect:ledger", "Show who used the energy of a run, to the last microjoule."),
    "list": ("everywatt.cli.inspect:list_", "List runs, or add them up by tag."),
    "why": ("everywatt.cli.inspect:why", "Explain a run's interval and what would narrow it."),
    "report": ("everywatt.cli.report", "Write one or more runs as one HTML file."),
    "serve": ("everywatt.cli.serve", "Serve runs and live power to a browser."),
    "plot": ("everywatt.cli.report:plot_command", "Plot a run as PNG, SVG or PDF."),
    "export": ("everywatt.cli.report:export_command", "Write a run as CSV, JSON lines, Parquet or Arrow."),
    "import": ("everywatt.cli.importing.command", "Import recordings of other tools as runs."),
    "meter": ("everywatt.cli.meter", "Record, archive and analyse wattmeters."),
    "model": ("everywatt.cli.model", "Fit power models, and estimate power where there is no sensor."),
    "calibrate": ("everywatt.cli.calibrate", "Calibrate a card's power sensor against a meter."),
    "agent": ("everywatt.cli.agent", "Record this node continuously, for Prometheus and remote write."),
    "validate": ("everywatt.cli.validate", "Check the integrity of runs, tapes and stores."),
    "sensors": (
        "everywatt.cli.doctor:sensors_command",
        "List sensors with current values, and why others are missing.",
    ),
    "plugins": ("everywatt.cli.config:plugins", "List installed plug-ins and whether they load."),
    "doctor": ("everywatt.cli.doctor", "Check this machine and suggest fixes."),
    "config": ("everywatt.cli.config", "Show the settings and where each comes from."),
    "completion": ("everywatt.cli.config:completion", "Print the completion script for a shell."),
    "demo": ("everywatt.cli.demo", "Measure a small workload on this machine."),
    "sim": ("everywatt.cli.sim", "Run a command on a simulated machine whose energy is known."),
}
"""Each command with the module that holds its `command`, and one line of help."""

GROUPS = {
    "Measure": ("run", "monitor", "attach", "batch", "demo"),
    "Inspect": ("show", "ledger", "list", "why", "report", "serve", "plot", "export"),
    "Compare": ("compare", "sweep", "bench"),
    "Fleet": ("slurm", "agent", "meter"),
    "Tools": (
        *("doctor", "sensors", "calibrate", "model", "import", "validate", "stress", "sim", "config", "plugins"),
        "completion",
    ),
}
"""The commands as `everywatt --help` lists them; one that is in no group is among the tools."""

OPTIONS = {"--version": "Print the version and exit.", "-h, --help": "Print this help and exit."}


def help_text() -> str:
    width = max(map(len, (*COMMANDS, *OPTIONS)))
    lines = [
        f"Usage: {PROGRAM} COMMAND [OPTIONS] [ARGS]...",
        "",
        "  Measure the energy of computing, each figure with a 95 % interval.",
        "",
        *(line for title in GROUPS for line in _group(title, width)),
        "Options:",
        *(f"  {name:<{width}}  {text}" for name, text in OPTIONS.items()),
        "",
        f"  {PROGRAM} COMMAND --help prints details. Start with: {PROGRAM} run -- COMMAND",
    ]
    return "\n".join(lines)


def _group(title: str, width: int) -> list[str]:
    names = list(GROUPS[title])
    if title == "Tools":
        known = {name for group in GROUPS.values() for name in group}
        names += [name for name in COMMANDS if name not in known]
    return [f"{title}:", *(f"  {name:<{width}}  {COMMANDS[name][1]}" for name in names), ""]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. The caller exits with it."""
    args = list(sys.argv[1:] if argv is None else argv)
    # What is imported stays: looking through it for cycles again and again takes a tenth of the start.
    gc.set_threshold(50_000, 20, 50)
    try:
        code = _dispatch(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        return _failed(error)
    finally:
        # The process ends: looking through all that was imported once more takes 20 ms. DuckDB would miss it and
        # report its own objects as leaked, line by line.
        if argv is None and "duckdb" not in sys.modules:
            gc.freeze()
    return code


def _failed(error: OSError) -> int:
    """The exit code if stdout was closed by its reader (head, less), its disk is full, or a named file is out of reach.

    Other errors propagate.
    """
    if error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG) and error.filename is not None:
        print(f"Error: {error.filename} cannot be used: {error.strerror}.", file=sys.stderr)
        return 2
    if error.errno not in (errno.EPIPE, errno.ENOSPC) or error.filename is not None:
        raise error
    # Python would complain once more when it flushes stdout at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.errno == errno.EPIPE:
        return BROKEN_PIPE
    print(f"Error: cannot write to stdout: {error.strerror}.", file=sys.stderr)
    return 1


def _dispatch(args: list[str]) -> int:
    if "_EVERYWATT_COMPLETE" not in os.environ:
        if args in (["--help"], ["-h"]):
            print(help_text())
            return 0
        if not args:
            print(help_text(), file=sys.stderr)
            return 2
        if args == ["--version"]:
            from everywatt import __version__

            print(f"{PROGRAM} {__version__}")
            return 0
    if not sys.platform.startswith("linux") and args[0] not in ANYWHERE and args[0] in COMMANDS:
        from everywatt.core.errors import NoSensor
        from everywatt.core.platforms import require_linux

        try:
            require_linux()
        except NoSensor as error:
            print(f"Error: {error}", file=sys.stderr)
            return error.exit_code
    load = None
    if args[:1] == ["run"]:
        # Before all else is imported: the longer it looks, the surer it is how busy other programs keep the machine.
        from everywatt.doctor.preflight import CpuLoad

        load = CpuLoad()
    from everywatt.cli.common.group import dispatch

    return dispatch(args, load=load)
