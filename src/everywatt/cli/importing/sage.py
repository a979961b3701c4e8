"""`everywatt import sage`: records of a Sage data API, or files of them, become a run."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import click

from everywatt.cli.common.options import FILE, TAG, TIME, Verb, out_option, output_options
from everywatt.cli.common.output import Output
from everywatt.cli.importing.command import imported
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.formats.sage import parts_of, query
from everywatt.meters.series import write_parts
from everywatt.net.api import ApiClient
from everywatt.net.tls import read_token
from everywatt.tape.importing import import_files

FILES = (".json", ".ndjson", ".jsonl", ".gz", ".txt")
Pairs = tuple[tuple[str, str], ...]


@click.command(cls=Verb)
@click.argument("sources", nargs=-1, required=True, metavar="URL|FILE...")
@click.option("--start", type=TIME, help="Start of the period; URLs only.")
@click.option("--end", type=TIME, help="End of the period, now by default; URLs only.")
@click.option("--filter", "filters", type=TAG, multiple=True, metavar="K=V", help="Filter of the API; may be repeated.")
@click.option("--head", type=click.IntRange(min=1), metavar="N", help="Keep the first N records of each series.")
@click.option("--tail", type=click.IntRange(min=1), metavar="N", help="Keep the last N records of each series.")
@click.option("--bucket", metavar="NAME", help="Name of the bucket in the API.")
@click.option("--token-file", type=FILE, metavar="FILE", help="File whose first line is the bearer token.")
@click.option("--ca", type=FILE, metavar="FILE", help="CA certificate (PEM) to trust.")
@click.option(
    "--set",
    "settings",
    type=TAG,
    multiple=True,
    metavar="K=V",
    help="name=TEXT: keep only series whose name contains TEXT.",
)
@out_option
@output_options
def command(
    sources: tuple[str, ...],
    start: int | None,
    end: int | None,
    filters: Pairs,
    head: int | None,
    tail: int | None,
    bucket: str | None,
    token_file: Path | None,
    ca: Path | None,
    settings: Pairs,
    out: Path | None,
    output: Output,
) -> None:
    """Import records of Sage as a run, from a data API or from files (ndjson, also .gz).

    Watts of rails become power of the board; all other records are kept beside it. --filter name=tegra.* and
    --filter vsn=W023 are filters of the API itself.
    """
    asked = {"--start": start, "--end": end, "--filter": filters, "--head": head, "--tail": tail, "--bucket": bucket}
    if all(_is_file(source, start) for source in sources):
        given = next((name for name, value in asked.items() if value), None)
        if given:
            raise UsageError(f"{given} applies only to URLs, not to files.", cure="--set name=TEXT")
        paths = [Path(source) for source in sources]
        with imported(output, out, f"sage-{paths[0].stem}", f"import of {paths[0].name}") as (target, _):
            import_files("sage", paths, target, dict(settings))
        return
    if len(sources) > 1:
        raise UsageError(
            "Several sources were given and one is a URL: import one URL at a time, or files.",
            cure=f"everywatt import sage {sources[0]} --start -1h",
        )
    if start is None:
        raise UsageError("No start time was given.", cure=f"everywatt import sage {sources[0]} --start -1h")
    client = ApiClient(sources[0], token=read_token(None, token_file), ca=ca)
    if client.corrected:
        output.warn(client.corrected)
    name = f"sage-{urlsplit(client.url).hostname}"
    with imported(output, out, name, f"import from {client.shown}") as (target, _):
        lines = query(client, start_ns=start, end_ns=end, filters=dict(filters), head=head, tail=tail, bucket=bucket)
        parts = parts_of(lines, dict(settings).get("name", ""))
        if not parts:
            raise MeasurementRefused(
                f"{client.shown} returned no numbers for that period and filter ({len(lines)} records).",
                cure="another --start or --filter",
            )
        write_parts(target, parts, [Path(client.shown)], {"meta": {"imported_from": [client.shown]}})


def _is_file(source: str, start: int | None) -> bool:
    """A name without a scheme is a server only where a period is asked for, which files have none of."""
    return "://" not in source and (start is None or Path(source).exists() or Path(source).suffix in FILES)
