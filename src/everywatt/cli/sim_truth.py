"""`everywatt sim truth FILE`: the exact joules of a simulation, in any window."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("truth", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--between", nargs=2, metavar="A B", help="The window; by default the whole lifetime of the command.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(file: Path, between: tuple[str, str] | None, as_json: bool) -> None:
    """Print the exact joules of each device in a window of a simulation.

    A and B are times after the command's start (1.5, 250ms), `end`, CLOCK_MONOTONIC seconds (mono:8123.5), or ISO
    times.
    """
    from everywatt.core.format import format_duration
    from everywatt.core.jsonio import document, dumps
    from everywatt.sim.truth import load

    found = load(file)
    a, b = between or ("0", "end")
    window = found.window(found.instant_ns(a), found.instant_ns(b))
    if as_json:
        click.echo(dumps(document("sim-truth-window", window)))
        return
    click.echo(f"exact joules over {format_duration(window['duration_s'])}", err=True)
    for name, row in window["devices"].items():
        click.echo(f"{name:<12} {row['joules']:14.6f} J  {row['mean_w']:10.3f} W")
