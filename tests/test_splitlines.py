"""Lines of what others wrote end at line feeds and nowhere else: `splitlines` also breaks at \\v, \\x1e, \\x85, U+2028.

A use of it in src says why it is safe in a comment on its line: `# ours: a constant`. For text from elsewhere there are
`core.foreign.lines` (files) and `core.foreign.text_lines` (text in memory).
"""

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "everywatt"
USE = re.compile(r"\.splitlines\(")
REASON = re.compile(r"# ours: \w+")


def unjustified(text: str) -> list[int]:
    """Lines of source code that call splitlines without saying why."""
    return [number for number, line in enumerate(text.split("\n"), 1) if USE.search(line) and not REASON.search(line)]


def test_every_use_of_splitlines_says_why():
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 100
    found = [
        f"{path.relative_to(PACKAGE)}:{n}" for path in paths for n in unjustified(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_use_without_a_reason_is_found():
    assert unjustified("a = text.splitlines()\nb = DOC.splitlines()[0]  # ours: a constant\n") == [1]
