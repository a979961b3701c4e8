"""`everywatt agent`: a recorder that never stops, for Prometheus and remote write."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from everywatt.cli.common.options import DURATION, PATH, Parsed, Verb
from everywatt.cli.common.output import Output
from everywatt.core.errors import UsageError
from everywatt.core.plugins import check_installed
from everywatt.core.units import parse_bytes
from everywatt.fleet.options import DEFAULT_LISTEN, FORMATS, AgentOptions, combine

if TYPE_CHECKING:
    from everywatt.fleet.service import Http
    from everywatt.net.listen import Door


def _size(text: str) -> int:
    try:
        return round(parse_bytes(text))
    except UsageError:
        raise ValueError(f"'{text}' is not a size such as 500MB or 2GB.") from None


@click.command(cls=Verb)
@click.option("--listen", metavar="ADDR:PORT", help=f"Address of /metrics; {DEFAULT_LISTEN} by default.")
@click.option("--remote-write", metavar="URL", help="Send all samples to this URL (Prometheus remote write 1.0).")
@click.option(
    "--remote-write-format", type=click.Choice(FORMATS), help="Format to send: Influx lines or Sage records instead."
)
@click.option("--remote-write-token-file", type=PATH, help="File whose first line is the token for remote write.")
@click.option(
    "--remote-write-ca", type=PATH, help="CA certificate (PEM) to trust for remote write, instead of the system's."
)
@click.option("--remote-write-cert", type=PATH, help="Client certificate (PEM) for remote write.")
@click.option("--remote-write-key", type=PATH, help="Private key (PEM) of that client certificate.")
@click.option("--profile", type=click.Choice(["normal", "small"]), help="small: less memory, fewer writes, no HTTP.")
@click.option("--compat", metavar="NAMES", help="Also export under other exporters' names: kepler, dcgm, jetson.")
@click.option("--config", type=PATH, help="TOML file with these options in a table [agent]; reread on SIGHUP.")
@click.option("--state", type=PATH, help="Directory for the tape and the state of the counters.")
@click.option("--period", "period_s", type=DURATION, default=None, help="Time between two reads; 1s by default.")
@click.option("--sensors", metavar="NAMES", help="Use only these sensors, separated by commas.")
@click.option("--no-estimate", "estimate", flag_value=False, default=None, help="Never estimate power by a model.")
@click.option(
    "--owners",
    type=int,
    help="Number of owners exported individually; the others become one remainder. 500 by default.",
)
@click.option(
    "--programs",
    is_flag=True,
    default=None,
    help="Group processes outside jobs and containers by program instead of by user.",
)
@click.option("--jobs", metavar="NAMES", help="Where the job of a process comes from: cgroup, or module:Class.")
@click.option("--rotate", "rotate_s", type=DURATION, default=None, help="Length of a tape segment; 1h by default.")
@click.option("--retention", "retention_s", type=DURATION, default=None, help="How long tape is kept; 7d by default.")
@click.option(
    "--disk",
    "disk_bytes",
    type=Parsed("size", _size),
    default=None,
    help="Maximum size of the tape kept; 2GB by default.",
)
@click.option(
    "--instance", metavar="NAME", help="Value of the instance label in samples that are sent; the host name by default."
)
@click.option("--token-file", type=PATH, help="File whose first line is the token that scrapers must present.")
@click.option("--cert", type=PATH, help="Serve TLS with this certificate (PEM).")
@click.option("--key", type=PATH, help="Private key (PEM) of the certificate.")
@click.option("--client-ca", type=PATH, help="Require scrapers to present a certificate issued by this CA (PEM).")
@click.option("--name", "names", metavar="HOST", multiple=True, help="Also answer requests for this host name.")
@click.option(
    "--llm",
    metavar="[NAME=]URL[#CARDS]",
    multiple=True,
    help="Export joules per token of the vLLM, SGLang, TGI, llama.cpp or Ollama server at this URL; may be repeated.",
)
@click.option("--llm-token-file", type=PATH, help="File whose first line is the token that --llm servers require.")
@click.option("--check", is_flag=True, help="Check options and sensors, print the series and exit.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def command(config: Path | None, check: bool, quiet: bool, **given: Any) -> int:
    """Record this node continuously and export the energy of its devices, containers, jobs and users.

    Prometheus scrapes /metrics; --remote-write sends the same samples from the tape, so nothing is lost while the
    receiver is down. Counters continue across restarts. The agent listens on loopback unless --listen says otherwise;
    other addresses require TLS files and a token or --client-ca. SIGHUP rereads --config, SIGTERM and Ctrl-C stop the
    agent cleanly. Requires `pip install 'everywatt[export]'`.
    """
    output = Output(quiet=quiet)
    flags = {name: value for name, value in given.items() if value is not None and value != ()}
    for name in ("compat", "sensors", "jobs"):
        if name in flags:
            flags[name] = tuple(part.strip() for part in flags[name].split(",") if part.strip())
    options = combine(flags, config)
    if options.remote_write is not None and options.remote_write_format == FORMATS[0]:
        check_installed("cramjam", "export")
    if options.small and not check:
        _small(flags, config)
    from everywatt.fleet.agent import Agent
    from everywatt.fleet.service import serve

    if check:
        if not options.small:
            _door(options)
        return _check(options, output)
    agent = Agent(options, say=output.say)
    return serve(agent, lambda: combine(flags, config), _http(options))


def _door(options: AgentOptions) -> Door:
    """Where to listen, and what that takes. UsageError where it cannot be served."""
    from everywatt.net.listen import Door

    assert options.listen is not None
    tls = (options.cert, options.key)
    return Door.checked(options.listen, token_file=options.token_file, tls=tls, client_ca=options.client_ca)


def _http(options: AgentOptions) -> Http:
    check_installed("uvicorn", "export")
    sock, access, url = _door(options).open(options.names, pages=False)

    from everywatt.fleet.service import Http

    return Http(sock, access, cert=options.cert, key=options.key, client_ca=options.client_ca, url=f"{url}metrics")


def _small(flags: dict[str, Any], config: Path | None) -> NoReturn:
    """Become a process that has loaded nothing but what it needs: click alone takes 4 MB."""
    from everywatt.core.jsonio import dumps

    words = [sys.executable, "-m", "everywatt.fleet", dumps({"flags": flags, "config": config})]
    os.environ["MALLOC_ARENA_MAX"] = "1"  # a second thread would take a second arena
    os.execv(sys.executable, words)


def _check(options: AgentOptions, output: Output) -> int:
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from everywatt.fleet.agent import Agent
    from everywatt.fleet.service import look

    with TemporaryDirectory(prefix="everywatt-agent-") as folder:
        agent = Agent(replace(options, state=Path(folder), remote_write=None), say=output.say)
        click.echo(look(agent), nl=False)
    return 0
