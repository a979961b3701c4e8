"""Fill the measured figures that README and docs repeat, from docs/figures.json.

A figure is marked as `<!--fig:NAME-->VALUE<!--/fig-->`; HTML comments are invisible on the page.

    python scripts/fill_figures.py           # writes the values into the pages
    python scripts/fill_figures.py --check   # ends with 1 where a page differs
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures.json"
MARK = re.compile(r"<!--fig:([\w-]+)-->(.*?)<!--/fig-->", re.DOTALL)


def pages() -> list[Path]:
    """README and every page that people write."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, values: dict[str, str]) -> str:
    """The text with every marked figure set; KeyError names a figure that does not exist."""
    return MARK.sub(lambda mark: f"<!--fig:{mark[1]}-->{values[mark[1]]}<!--/fig-->", text)


def main(words: list[str]) -> int:
    """Write the figures, or compare them."""
    values = {name: figure["value"] for name, figure in json.loads(FIGURES.read_text(encoding="utf-8")).items()}
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        right = filled(text, values)
        if right != text:
            stale.append(str(page.relative_to(ROOT)))
            if words != ["--check"]:
                page.write_text(right, encoding="utf-8")
    if words == ["--check"] and stale:
        print(
            f"figures differ from docs/figures.json in {', '.join(stale)}: run scripts/fill_figures.py", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
