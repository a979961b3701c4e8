"""The options that the commands of `everywatt slurm` share."""

from __future__ import annotations

from pathlib import Path

import click

from everywatt.core.config import resolve
from everywatt.core.errors import UsageError
from everywatt.slurm.hooks import DEFAULT_SPOOL
from everywatt.slurm.store import Store

FOLDER = click.Path(path_type=Path, file_okay=False)

spool_option = click.option("--spool", type=FOLDER, help="Where hooks drop their events (/var/spool/everywatt/slurm).")
store_option = click.option("--store", type=FOLDER, help="Where the site keeps the energy of its jobs.")


def spool_of(flag: Path | None) -> Path:
    """The spool of this node: as told, else as set, else the usual one."""
    return flag or resolve().slurm_spool or DEFAULT_SPOOL


def store_of(flag: Path | None) -> Store:
    """The store of this site; UsageError where nobody said where it is."""
    path = flag or resolve().slurm_store
    if path is None:
        raise UsageError("Where the site keeps its jobs is not set.", cure="--store DIR, or EVERYWATT_SLURM_STORE")
    return Store(path)
