"""Installed size of distributions with all they require, as JSON: `python _sizes.py NAME…`. For any Python with pip."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import re
import sys
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement  # type: ignore[no-redef]


def plain(name: str) -> str:
    """A distribution's name in its canonical form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(name: str, extras: frozenset[str] = frozenset(), into: dict | None = None) -> dict:
    """The distribution and all it requires here, by canonical name."""
    into = {} if into is None else into
    key = plain(name)
    if (key, extras) in into:
        return into
    found = metadata.distribution(name)
    into[(key, extras)] = found
    for text in found.requires or ():
        need = Requirement(text)
        wanted = [need.marker.evaluate({"extra": extra}) for extra in (extras or {""})] if need.marker else [True]
        if any(wanted):
            closure(need.name, frozenset(need.extras), into)
    return into


def size(distribution: metadata.Distribution) -> int:
    """Bytes of its files; of its package folder where it is installed as a link to its sources."""
    total = 0
    files = distribution.files or ()
    for file in files:
        path = Path(str(distribution.locate_file(file)))
        if path.is_file():
            total += path.stat().st_size
    if '"editable": true' in (distribution.read_text("direct_url.json") or ""):
        module = __import__(plain(distribution.metadata["Name"]).replace("-", "_"))
        total += sum(path.stat().st_size for path in Path(module.__file__ or "").parent.rglob("*") if path.is_file())
    return total


def main(names: list[str]) -> None:
    """One row for each name that is installed here."""
    rows = []
    for name in names:
        try:
            found = {key: distribution for (key, _), distribution in closure(name).items()}
        except metadata.PackageNotFoundError:
            continue
        sizes = {key: size(distribution) for key, distribution in found.items()}
        rows.append(
            {"name": name, "distributions": len(sizes), "bytes": sum(sizes.values()), "own": sizes[plain(name)]}
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
