"""The page: one HTML file with its style, its scripts and its document inside. It makes no requests.

The scripts are driven by one JSON document (`data.report_document`); whoever has another way to bring that document to
a browser can use the same files.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from everywatt.core.jsonio import dumps

STYLES = ("vendor/uplot/uPlot.min.css", "html/page.css")
SCRIPTS = (
    "vendor/uplot/uPlot.iife.min.js",
    "html/js/unpack.js",
    "html/js/lines.js",
    "html/js/charts.js",
    "html/js/parts.js",
    "html/js/plots.js",
    "html/js/batch.js",
    "html/js/cockpit.js",
    "html/js/llm.js",
    "html/js/flame.js",
    "html/js/page.js",
)
TRIALS_SCRIPTS = (*SCRIPTS, "html/js/trials.js")
PRECISION_SCRIPTS = (*TRIALS_SCRIPTS, "html/js/precision.js")


@cache
def asset(name: str) -> str:
    """The text of a file of this room."""
    return files("everywatt.report").joinpath(*name.split("/")).read_text(encoding="utf-8")


def policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """The content security policy: only these very styles and scripts, and no connection to anywhere."""
    return "; ".join(
        [
            "default-src 'none'",
            *([f"script-src {' '.join(map(_hash, scripts))}"] if scripts else []),
            f"style-src {' '.join(map(_hash, styles))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that nothing in it can end early: `</script>` and `<!--` are only text."""
    return dumps(data).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page(data: Mapping[str, Any]) -> str:
    """The whole file over a report document."""
    names = [str(run["name"]) for run in data["runs"]]
    return _filled(" · ".join([*names[:3], *(["…"] if len(names) > 3 else [])]), SCRIPTS, data, _plain(data))


def trials_page(data: Mapping[str, Any]) -> str:
    """The whole file over the document of a comparison (`trials.trials_document`) or of the precision lab."""
    scripts = PRECISION_SCRIPTS if data["kind"] == "precision" else TRIALS_SCRIPTS
    return _filled(str(data["title"]), scripts, data, [*data["verdicts"], *data["failures"]])


def _filled(title: str, scripts: Sequence[str], data: Mapping[str, Any], plain: Sequence[str]) -> str:
    """The shell with everything inside."""
    styles, code = [asset(name) for name in STYLES], [asset(name) for name in scripts]
    parts = {
        "title": html.escape(title),
        "policy": html.escape(policy(styles, code)),
        "styles": "\n".join(f"<style>{text}</style>" for text in styles),
        "scripts": "\n".join(f"<script>{text}</script>" for text in code),
        "document": embedded(data),
        "plain": "".join(f"<p>{html.escape(line)}</p>" for line in plain),
    }
    # One pass, so that nothing that is put in is looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("html/page.html"))


def still_page(title: str, content: str) -> str:
    """A whole file without scripts, in the look of the report."""
    style = asset("html/page.css")
    heads = [
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy([style], []))}">',
        f"<style>{style}</style>",
    ]
    brand = '<div class="brand"><span class="mark"></span>everywatt</div>'
    return framed(title, heads, f'<header class="top">{brand}<h1>{html.escape(title)}</h1></header>', content)


def framed(title: str, heads: Sequence[str], top: str, content: str) -> str:
    """A whole page of HTML: what else its head has, what is above its content."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="everywatt">
<title>{html.escape(title)} · everywatt</title>
{"".join(heads)}
</head>
<body>
{top}
<main class="run" id="main">
{content}
</main>
</body>
</html>
"""


def card(title: str, content: str) -> str:
    head = f'<div class="head"><h2>{html.escape(title)}</h2></div>' if title else ""
    return f'<section class="card">{head}{content}</section>\n'


def _plain(data: Mapping[str, Any]) -> list[str]:
    """What a reader without scripts sees."""
    return [
        f"{run['name']}: {run['energy']['shown']}{' (sampling only)' if run['energy'].get('sampling_only') else ''} · "
        f"{run['energy']['scope']} · {run['energy']['pedigree']}"
        for run in data["runs"]
    ]
