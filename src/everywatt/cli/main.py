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

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("everywatt.cli.run", "Measure the energy of a command."),
    "monitor": ("everywatt.cli.monitor", "Watch power, energy and owners, live."),
    "attach": ("everywatt.cli.attach", "Measure processes that run already."),
    "compare": ("everywatt.cli.compare", "Compare the energy of commands, with a verdict."),
    "sweep": ("everywatt.cli.sweep", "Measure a command at several power limits or parameters."),
    "batch": ("everywatt.cli.batch.command", "Run a command for many items over GPUs, with what each item cost."),
    "bench": ("everywatt.cli.bench.command", "Benchmarks of models: precisions, training, language models."),
    "slurm": ("everywatt.cli.slurm.command", "The energy of every job of a Slurm cluster, and of every user."),
    "stress": ("everywatt.cli.stress", "Load this machine on purpose, by a shape over time."),
    "show": ("everywatt.cli.show", "Show a run: energy, devices, spans, quality."),
    "ledger": ("everywatt.cli.ledger", "Show who owes the energy of a run, to the last microjoule."),
    "list": ("everywatt.cli.list_", "List the runs, or add them up by tag."),
    "why": ("everywatt.cli.why", "Say where a run's interval comes from and what would narrow it."),
    "report": ("everywatt.cli.report", "Write runs as one HTML file, and compare them."),
    "serve": ("everywatt.cli.serve", "Show runs and the machine now in a browser."),
    "plot": ("everywatt.cli.plot", "Draw a run as PNG, SVG or PDF."),
    "export": ("everywatt.cli.export", "Write a run as CSV, JSON lines, Parquet or Arrow."),
    "import": ("everywatt.cli.importing.command", "Turn recordings of other tools into runs."),
    "meter": ("everywatt.cli.meter.command", "Record, archive and read wattmeters at the wall."),
    "model": ("everywatt.cli.model.command", "Learn power from use, and estimate it where no sensor is."),
    "calibrate": (
        "everywatt.cli.calibrate",
        "Find gain and offset of a card against a meter, and use them ever after.",
    ),
    "agent": ("everywatt.cli.agent", "Record this node for ever, for Prometheus and remote write."),
    "validate": ("everywatt.cli.validate", "Check every byte of a run."),
    "sensors": ("everywatt.cli.sensors", "List the sensors, a real value of each, and why others do not work."),
    "plugins": ("everywatt.cli.plugins", "List the installed plug-ins and whether they load."),
    "doctor": ("everywatt.cli.doctor", "Check this machine, with the cure for what is wrong."),
    "config": ("everywatt.cli.config", "Show the settings and where each came from."),
    "completion": ("everywatt.cli.completion", "Print the completion script of a shell."),
    "demo": ("everywatt.cli.demo", "Measure something small, here and now."),
    "sim": ("everywatt.cli.sim", "Run a command on a simulated machine whose energy is known."),
}
"""Each verb with the module that holds its `command`, and one line of help."""

OPTIONS = {"--version": "Print the version.", "-h, --help": "Print this text."}


def help_text() -> str:
    """What `everywatt --help` prints."""
    width = max(map(len, (*COMMANDS, *OPTIONS)))
    lines = [
        f"Usage: {PROGRAM} COMMAND [OPTIONS] [ARGS]...",
        "",
        "  Measure what computing costs in energy, and how sure you can be of it.",
        "",
        "Commands:",
        *(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()),
        "",
        "Options:",
        *(f"  {name:<{width}}  {text}" for name, text in OPTIONS.items()),
        "",
        f"  {PROGRAM} COMMAND --help says more. Start with: {PROGRAM} run -- COMMAND",
    ]
    return "\n".join(lines)


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
        return _stdout_failed(error)
    return code


def _stdout_failed(error: OSError) -> int:
    """The exit code where nobody reads stdout any more (head, less), or its disk is full. Other errors go on."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC) or error.filename is not None:
        raise error
    # Python would complain once more when it flushes stdout at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.errno == errno.EPIPE:
        return BROKEN_PIPE
    print(f"Error: stdout cannot be written: {error.strerror}.", file=sys.stderr)
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
    from everywatt.cli.common.group import dispatch

    return dispatch(args)
