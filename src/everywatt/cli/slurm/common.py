"""The options that the commands of `everywatt slurm` share."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from everywatt.cli.common.options import FILE, FOLDER, TIME, F, gathered
from everywatt.core.clocks import NS
from everywatt.core.config import resolve
from everywatt.core.errors import UsageError
from everywatt.core.platforms import user_name
from everywatt.slurm.node.cards import DEFAULT_CONF
from everywatt.slurm.node.hooks import DEFAULT_FOLDER, DEFAULT_SPOOL, DEFAULT_STORE, Site
from everywatt.slurm.site.store import FOREVER_S, Store
from everywatt.slurm.site.users import folder_of

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S

spool_option = click.option(
    "--spool", type=FOLDER, help="Where hooks put their events.  [default: /var/spool/everywatt/slurm]"
)
slurm_conf_option = click.option(
    "--slurm-conf",
    type=FILE,
    default=DEFAULT_CONF,
    envvar="SLURM_CONF",
    help="The site's slurm.conf, which is read but never changed.  [default: SLURM_CONF, /etc/slurm/slurm.conf]",
)
store_option = click.option("--store", type=FOLDER, help="Store of the site's jobs.")
pseudonyms_option = click.option(
    "--pseudonyms",
    "key_file",
    metavar="KEYFILE",
    type=FILE,
    help="Replace names of users, accounts and jobs by keyed hashes; the key is created (0600) if there is none.",
)


def period_options(what: str, default_s: float | None = None, default: str = "all") -> Callable[[F], F]:
    """Adds --since and --until; the function gets `period_s`, unix seconds from and to. Without a default: all."""

    def period_s(since: int | None, until: int | None) -> tuple[float, float]:
        end_s = FOREVER_S if default_s is None else time.time()
        until_s = end_s if until is None else until / NS
        start_s = 0.0 if default_s is None else until_s - default_s
        start_s = start_s if since is None else since / NS
        if start_s > until_s:
            raise UsageError("The period ends before it begins.", cure="--since -2d --until -1d")
        return start_s, until_s

    last = "now" if default_s is not None else default
    return gathered(
        "period_s",
        period_s,
        click.option("--since", type=TIME, help=f"Only {what} after this time.  [default: {default}]"),
        click.option("--until", type=TIME, help=f"Only {what} before this time.  [default: {last}]"),
    )


def spool_of(flag: Path | None) -> Path:
    """The spool of this node: the option, else the setting, else the usual one."""
    return flag or resolve().slurm_spool or DEFAULT_SPOOL


def here(spool: Path | None, store: Path | None, folder: Path = DEFAULT_FOLDER) -> tuple[Site, str]:
    """Where the parts of this node are, and its name."""
    own, found = Path(sys.executable).with_name("everywatt"), shutil.which("everywatt")
    # A link in PATH to this program survives its updates; another installation that comes first there is not this one.
    program = Path(found) if found and (not own.exists() or Path(found).resolve() == own.resolve()) else own
    kept = store or resolve().slurm_store or DEFAULT_STORE
    site = Site(spool_of(spool).absolute(), folder.absolute(), kept.absolute(), program.absolute())
    return site, short_name(socket.gethostname())


def short_name(host: str) -> str:
    """What Slurm calls this host unless it is configured otherwise: its name without the domain."""
    return host.partition(".")[0]


def store_of(flag: Path | None) -> Store:
    """The store of this site; UsageError if its location is not set."""
    path = flag or resolve().slurm_store
    if path is None:
        raise UsageError("The location of the site's store is not set.", cure="--store DIR, or EVERYWATT_SLURM_STORE")
    return Store(path)


def with_store(command: str, flag: Path | None) -> str:
    """The command for the store that was given as an option; one from the settings is found by itself."""
    return command if flag is None else f"{command} --store {shlex.quote(str(flag))}"


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
    """Whether a folder can be listed; None if it does not exist."""
    try:
        next(folder.iterdir(), None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return False
    return True
