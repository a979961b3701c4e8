"""What packages register by entry point, everywatt too: the names of a group, each with its `module:Attribute`.

A room finds what lives in a later one, or in another package, by name; nothing is imported until it is used.

`importlib.metadata` would do, but importing it takes longer than everything else that `everywatt run` does before the
command starts, so the folders of `sys.path` are read here. Only packages in zip files are not seen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

from everywatt.core.errors import EverywattError, MissingExtra, UsageError

SENSORS = "everywatt.sensors"
IMPORTERS = "everywatt.importers"
EXPORTERS = "everywatt.exporters"
ARCHIVE_COPIES = "everywatt.archive_copies"
METRIC_NAMES = "everywatt.metric_names"
JOB_PROVIDERS = "everywatt.job_providers"
LLM_CLIENTS = "everywatt.llm_clients"
LLM_DATASETS = "everywatt.llm_datasets"
LLM_SCORERS = "everywatt.llm_scorers"
MODELS = "everywatt.models"
GROUPS = (
    SENSORS,
    IMPORTERS,
    EXPORTERS,
    ARCHIVE_COPIES,
    METRIC_NAMES,
    JOB_PROVIDERS,
    LLM_CLIENTS,
    LLM_DATASETS,
    LLM_SCORERS,
    MODELS,
)
OWN = "everywatt"


def registered(group: str) -> dict[str, str]:
    """Every name of a group with its `module:Attribute`: ours in the order of pyproject.toml, then those of others.

    A name of another package takes the place of ours.
    """
    found = dict(_entries(tuple(sys.path)).get((OWN, group), {}))
    for (package, its_group), entries in _entries(tuple(sys.path)).items():
        if its_group == group and package != OWN:
            found.update(entries)
    return found


def load(target: str) -> Any:
    """What `module:Attribute` names. Raises what the import raises."""
    module, _, path = target.partition(":")
    value: Any = import_module(module)
    for name in filter(None, path.split(".")):
        value = getattr(value, name)
    return value


def library(name: str, extra: str) -> Any:
    """The module `name`; MissingExtra where its package is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # A module that the library itself misses is the library's own trouble, and its own message is better.
        if error.name is not None and error.name.split(".")[0] == name.split(".")[0]:
            raise MissingExtra(name.split(".")[0], extra) from error
        raise


def check_installed(name: str, extra: str) -> None:
    """MissingExtra where the package of the module `name` is not installed; it is not loaded."""
    from importlib.util import find_spec

    if find_spec(name) is None:
        raise MissingExtra(name, extra)


def arrow(extra: str = "analysis") -> tuple[Any, Any]:
    """pyarrow and its module for Parquet files, or MissingExtra."""
    return library("pyarrow", extra), library("pyarrow.parquet", extra)


@contextmanager
def border(what: str) -> Iterator[None]:
    """Raise UsageError for any exception of a plug-in; errors of everywatt pass."""
    try:
        yield
    except EverywattError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise UsageError(f"The plug-in {what} cannot be used: {reason}.", cure="everywatt plugins") from error


def load_plugin(group: str, name: str) -> Any:
    """What is registered under a name, loaded; None where nothing is. UsageError where it cannot be loaded."""
    target = registered(group).get(name)
    if target is None:
        return None
    with border(f"{name} ({target})"):
        return load(target)


def required_plugin(group: str, name: str, what: str) -> Any:
    """The same, for a name that a user gave; UsageError with the registered ones where nothing has it."""
    found = load_plugin(group, name)
    if found is None:
        raise UsageError(f"There is no {what} '{name}'.", cure=f"one of: {', '.join(sorted(registered(group)))}")
    return found


@lru_cache(maxsize=8)
def _entries(search_path: tuple[str, ...]) -> dict[tuple[str, str], dict[str, str]]:
    """The entry points of everywatt's groups by package and group; of two copies of a package the first counts."""
    seen: set[str] = set()
    found: dict[tuple[str, str], dict[str, str]] = {}
    for folder in search_path:
        for name in _metadata_folders(folder or "."):
            package = name.partition("-")[0].partition(".")[0].lower().replace("_", "-")
            if package in seen:
                continue
            seen.add(package)
            try:
                with open(f"{folder or '.'}/{name}/entry_points.txt", encoding="utf-8") as file:  # noqa: PTH123 - fast
                    text = file.read()
            except (OSError, UnicodeDecodeError):
                continue
            if f"[{OWN}." in text:
                for group, entries in _sections(text.split("\n")).items():
                    found[package, group] = entries
    return found


def _metadata_folders(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info")))  # noqa: PTH208 - fast
    except OSError:
        return []  # a zip file, or a folder that is not there


def _sections(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """The sections of an entry_points.txt that are ours; extras behind a target are left out."""
    sections: dict[str, dict[str, str]] = {}
    entries: dict[str, str] = {}
    for line in map(str.strip, lines):
        if line.startswith("["):
            entries = {}
            if line[1:-1].startswith(f"{OWN}."):
                entries = sections.setdefault(line[1:-1], entries)
        elif "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            entries[name.strip()] = target.partition("[")[0].strip()
    return sections
