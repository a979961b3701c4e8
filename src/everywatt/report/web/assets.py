"""The files of the page: the report's own, and what the live page adds. All are in memory under fixed names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from everywatt.report.html.page import SCRIPTS, STYLES, asset

OWN_STYLES = ("web/static/serve.css",)
OWN_SCRIPTS = (
    "web/static/shell.js",
    "web/static/runs.js",
    "web/static/live.js",
    "web/static/served.js",
    "web/static/start.js",
)
LOGIN_SCRIPTS = ("web/static/login.js",)
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
ICON = "web/static/mark.svg"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent."""

    body: bytes
    kind: str
    etag: str


def fingerprint(*parts: object) -> str:
    """A short name for a value, as an ETag."""
    return f'"{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"'


@cache
def assets() -> dict[str, Asset]:
    """Every file by the name it has under /static/."""
    found = {}
    for name in (*STYLES, *SCRIPTS, *OWN_STYLES, *OWN_SCRIPTS, *LOGIN_SCRIPTS, ICON):
        body = asset(name).encode()
        found[_short(name)] = Asset(body, KINDS[Path(name).suffix], fingerprint(body))
    return found


@cache
def shell(*, login: bool = False, slurm: bool = False) -> bytes:
    """The page before anything is in it. It holds no name of anything: scripts ask for those and write them as text."""
    scripts = LOGIN_SCRIPTS if login else (*SCRIPTS, *OWN_SCRIPTS)
    heads = [f'<link rel="stylesheet" href="/static/{_short(name)}">' for name in (*STYLES, *OWN_STYLES)]
    heads += [f'<script defer src="/static/{_short(name)}"></script>' for name in scripts]
    page = asset("web/static/login.html" if login else "web/static/shell.html")
    page = page.replace('<html lang="en">', '<html lang="en" data-slurm>') if slurm else page  # its scripts link there
    return page.replace("{{files}}", "\n".join(heads)).encode()


def _short(name: str) -> str:
    return name.rpartition("/")[2]
