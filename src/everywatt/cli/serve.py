"""`everywatt serve`: runs and the machine now, in a browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everywatt.cli.common.options import PATH, Verb, output_options, settings_here
from everywatt.cli.common.output import Output, open_in_browser
from everywatt.core.config import Settings
from everywatt.core.errors import UsageError
from everywatt.core.plugins import check_installed
from everywatt.footprint.carbon import factors_of
from everywatt.net.listen import DEFAULT, Door
from everywatt.recorder.request import RecordRequest
from everywatt.report.live.agent_source import Access, AgentSource, address
from everywatt.report.live.local import LocalSource
from everywatt.report.live.snapshot import LiveSource
from everywatt.report.web.live import INTERVAL_S
from everywatt.tape.run_store import existing_home

if TYPE_CHECKING:
    from everywatt.report.web.slurm import SlurmPages

SHORT_TOKEN = 16


@click.command(cls=Verb)
@click.option(
    "--listen", "listen_on", metavar="ADDR:PORT", default=DEFAULT, show_default=True, help="Address to listen on."
)
@click.option("--token", metavar="TEXT", help="Token that viewers must present (visible in `ps`).")
@click.option("--token-file", type=PATH, help="File whose first line is the token.")
@click.option("--cert", type=PATH, help="Serve TLS with this certificate (PEM).")
@click.option("--key", type=PATH, help="Private key (PEM) of the certificate.")
@click.option("--name", "names", metavar="HOST", multiple=True, help="Also answer requests for this host name.")
@click.option("--home", type=PATH, help="Run directory to serve.")
@click.option("--slurm-store", type=PATH, help="Also serve the jobs of this Slurm site. Needs a token.")
@click.option(
    "--trusted-proxy",
    "proxies",
    metavar="IP",
    multiple=True,
    help="Address of a reverse proxy that logs users in; each sees their own Slurm jobs. May be repeated.",
)
@click.option("--user-header", metavar="NAME", help="Header in which that proxy names the user.")
@click.option("--admin", "admins", metavar="USER", multiple=True, help="User who sees all Slurm jobs; may be repeated.")
@click.option("--agent", metavar="URL", help="Show this agent live, with its language models, instead of this machine.")
@click.option("--agent-token-file", type=PATH, help="File whose first line is the agent's token.")
@click.option("--open", "open_it", is_flag=True, help="Open the page in a browser.")
@output_options
def command(
    listen_on: str,
    token: str | None,
    token_file: Path | None,
    cert: Path | None,
    key: Path | None,
    names: tuple[str, ...],
    home: Path | None,
    slurm_store: Path | None,
    proxies: tuple[str, ...],
    user_header: str | None,
    admins: tuple[str, ...],
    agent: str | None,
    agent_token_file: Path | None,
    open_it: bool,
    output: Output,
) -> None:
    """Serve runs and live power to a browser: list, open, compare, live charts.

    The server listens on loopback unless --listen says otherwise; other addresses require a token and TLS files. It
    never writes. Ctrl-C stops it. Requires `pip install 'everywatt[serve]'`.
    """
    for library in ("starlette", "uvicorn"):
        check_installed(library, "serve")
    settings = settings_here()
    door = Door.checked(listen_on, token=token, token_file=token_file, tls=(cert, key))
    if door.token is not None and len(door.token) < SHORT_TOKEN:
        output.warn(f"a token shorter than {SHORT_TOKEN} characters can be guessed.")
    slurm = _slurm(slurm_store, door.token, (proxies, user_header, admins), settings)
    site_home = existing_home(home or settings.home).absolute()
    machine = _machine(settings) if agent is None else _agent(agent, agent_token_file)
    sock, access, url = door.open(names)
    with sock:
        output.json("serve", {"url": url, "home": str(site_home), "token": door.token is not None})
        if output.json_to is not None:
            output.stdout.flush()
        output.say(f"{url}  (runs in {site_home}; stop with Ctrl-C)")
        if open_it:
            open_in_browser(url, output, shown=url)

        from everywatt.report.web.app import Site, run
        from everywatt.report.web.runs import RunIndex

        site = Site(RunIndex(site_home), access, machine, factors_of(settings), slurm)
        run(site, sock, cert=cert, key=key)


def _slurm(
    folder: Path | None, token: str | None, who: tuple[Sequence[str], str | None, Sequence[str]], settings: Settings
) -> SlurmPages | None:
    """The pages of a Slurm site, if one is to be served. UsageError where others could see its jobs."""
    proxies, header, admins = who
    if folder is None:
        if proxies or header or admins:
            raise UsageError("A proxy and administrators are for Slurm's pages.", cure="--slurm-store DIR")
        return None
    from everywatt.report.web.slurm import Proxy, SlurmPages, trusted_addresses
    from everywatt.slurm.site.store import Store

    for library in ("duckdb", "pyarrow"):
        check_installed(library, "analysis")
    if token is None:
        raise UsageError("Jobs of a site are served with a token only.", cure="--token-file FILE")
    if bool(proxies) != bool(header) or (admins and not proxies):
        raise UsageError(
            "A trusted proxy, and the header in which it names the user, go together.",
            cure="--trusted-proxy 127.0.0.1 --user-header X-Remote-User",
        )
    if not folder.is_dir():
        raise UsageError(f"There is no store at {folder}.", cure="--slurm-store DIR")
    proxy = Proxy(trusted_addresses(proxies), header, token, frozenset(admins)) if header else None
    factors = factors_of(settings)
    return SlurmPages(Store(folder), factors, factors.lines(), proxy)


def _agent(url: str, token_file: Path | None) -> Callable[[], LiveSource]:
    """What opens the live view of an agent."""
    address(url)
    access = Access.of(token_file, None)
    return lambda: AgentSource(url, INTERVAL_S, access=access)


def _machine(settings: Settings) -> Callable[[], LiveSource]:
    """What opens the live view of this machine: settings say by which sensors, and whether estimates will do."""
    asked = replace(RecordRequest.of_settings(settings), period_s=INTERVAL_S)
    return lambda: LocalSource(INTERVAL_S, asked, by="process")
