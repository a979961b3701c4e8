"""The options that the commands of `everywatt slurm` share."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everywatt.cli.common.options import TAG, TIME
from everywatt.core.clocks import NS
from everywatt.core.config import resolve
from everywatt.core.errors import UsageError
from everywatt.core.jobs import user_name
from everywatt.slurm.node.cards import DEFAULT_CONF
from everywatt.slurm.node.hooks import DEFAULT_SPOOL
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.users import folder_of

if TYPE_CHECKING:
    from everywatt.footprint.carbon import Factors

F = TypeVar("F", bound=Callable[..., Any])
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
DAY_S = 86_400.0
WEEK_S = 7 * DAY_S

spool_option = click.option(
    "--spool", type=FOLDER, help="Where hooks put their events.  [default: /var/spool/everywatt/slurm]"
)
slurm_conf_option = click.option(
    "--slurm-conf",
    type=click.Path(path_type=Path, dir_okay=False),
    default=DEFAULT_CONF,
    envvar="SLURM_CONF",
    help="The site's slurm.conf, which is read but never changed.  [default: SLURM_CONF, /etc/slurm/slurm.conf]",
)
store_option = click.option("--store", type=FOLDER, help="Store of the site's jobs.")
pseudonyms_option = click.option(
    "--pseudonyms",
    "key_file",
    metavar="KEYFILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replace names of users, accounts and jobs by keyed hashes; the key is created (0600) if there is none.",
)


def period_options(what: str, default_s: float, default: str) -> Callable[[F], F]:
    """Adds --since and --until; the function gets `period_s`, unix seconds from and to."""

    def decorate(function: F) -> F:
        @click.option("--since", type=TIME, help=f"Only {what} after this time.  [default: {default}]")
        @click.option("--until", type=TIME, help=f"Only {what} before this time.  [default: now]")
        @functools.wraps(function)
        def wrapped(*args: Any, since: int | None, until: int | None, **values: Any) -> Any:
            until_s = time.time() if until is None else until / NS
            since_s = until_s - default_s if since is None else since / NS
            return function(*args, period_s=(since_s, until_s), **values)

        return wrapped  # type: ignore[return-value]

    return decorate


def meter_options(function: F) -> F:
    """Adds the argument and options that name the meters of nodes; the function gets them as `meters`."""

    @click.argument("files", nargs=-1, metavar="[FILE]...", type=FILE)
    @click.option("--map", "map_file", type=FILE, help="Map of plugs to nodes.")
    @click.option("--archive", type=FOLDER, help="Archive of meters, instead of files.")
    @click.option("--meter", metavar="NAME", help="Meter of the archive, if it has several.")
    @click.option("--run", "runs", type=TAG, multiple=True, metavar="NODE=RUN", help="Run of a node's BMC or meter.")
    @functools.wraps(function)
    def wrapped(*args: Any, **values: Any) -> Any:
        from everywatt.slurm.site.node_meters import NodeMeters

        names = ("files", "map_file", "archive", "meter", "runs")
        return function(*args, meters=NodeMeters(*(values.pop(name) for name in names)), **values)

    return wrapped  # type: ignore[return-value]


def spool_of(flag: Path | None) -> Path:
    """The spool of this node: as told, else as set, else the usual one."""
    return flag or resolve().slurm_spool or DEFAULT_SPOOL


def store_of(flag: Path | None) -> Store:
    """The store of this site; UsageError if its location is not set."""
    path = flag or resolve().slurm_store
    if path is None:
        raise UsageError("The location of the site's store is not set.", cure="--store DIR, or EVERYWATT_SLURM_STORE")
    return Store(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say what could not be written, where something could not."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{error.filename or path} cannot be written: {error.strerror}.") from None


def readable_store(flag: Path | None) -> Store:
    """The store, or where its user may not read it the folder that `slurm daily` wrote for that user."""
    store = store_of(flag)
    if not store.path.exists():
        raise UsageError(f"There is no store at {store.path}.", cure="everywatt slurm install prints its location")
    if _listed(store.path / "jobs") is not False:
        return store
    own = folder_of(store.path, user_name(os.geteuid()))
    if _listed(own / "jobs"):
        return Store(own)
    raise UsageError(
        f"{store.path} is not readable, and it has no folder for {user_name(os.geteuid())}.",
        cure="`everywatt slurm daily` creates one the day after your first job",
    )


def _listed(folder: Path) -> bool | None:
    """Whether a folder can be listed; None where there is none."""
    try:
        next(folder.iterdir(), None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return False
    return True


def factor_lines(factors: Factors) -> list[str]:
    """With what carbon and cost are made, for people."""
    lines = []
    if factors.intensity is not None:
        lines.append(f"Carbon: {factors.intensity}.")
    if factors.curve is not None:
        lines.append(f"Carbon over time: {factors.curve.source}, {factors.curve.extent()}.")
    if factors.pue is not None:
        lines.append(f"PUE: {factors.pue:g}; carbon and cost are multiplied by it.")
    if factors.price_per_kwh is not None:
        lines.append(f"Price of a kWh: {factors.price_per_kwh:g} {factors.currency}".rstrip() + ".")
    return lines
