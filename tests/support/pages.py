"""The documents as data: pages, links, code blocks with the mark before them, command lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
WRITTEN += sorted((ROOT / "docs").glob("*.md"))
WRITTEN += sorted((ROOT / "docs" / "coming-from").glob("*.md"))
GENERATED = sorted((ROOT / "docs" / "reference").glob("*.md"))

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^>]+) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`(everywatt [^`]+)`")
_BORDERS = ("|", "||", "&&", ";", ">", "2>", "<")


@dataclass(frozen=True)
class Block:
    """One fenced block: its page, its language, the text of the comment right before it, its code."""

    page: Path
    language: str
    mark: str
    code: str

    @property
    def label(self) -> str:
        """For the names of tests."""
        return f"{self.page.stem}:{self.code.strip().splitlines()[0][:40]}"


def blocks(*pages: Path) -> list[Block]:
    """Fenced blocks of pages, in order."""
    return [
        Block(page, found["language"], (found["mark"] or "").strip(), found["code"])
        for page in pages or WRITTEN
        for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def marked(page: str, mark: str) -> Block:
    """The one block of docs/PAGE with that mark."""
    (found,) = [block for block in blocks(ROOT / "docs" / page) if block.mark == mark]
    return found


def links(page: Path) -> list[str]:
    """Targets of links and pictures, outside of code."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCED.sub("", page.read_text(encoding="utf-8"))))


def anchors(page: Path) -> set[str]:
    """The names under which headings can be linked to, as GitHub makes them."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words of every `everywatt …` in shell blocks, indented code and inline code, also those inside others."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in blocks(page) if block.language == "sh" for line in _joined(block.code)]
    lines += [line.strip() for line in text.splitlines() if line.startswith("    everywatt ")]
    lines += [" ".join(found.split()) for found in _INLINE.findall(_FENCED.sub("", text))]
    for line in lines:
        yield from _commands(line)


def _joined(code: str) -> list[str]:
    """Lines of a script; a backslash at the end of one goes on in the next."""
    return code.replace("\\\n", " ").splitlines()


def _commands(line: str) -> Iterator[list[str]]:
    inner = re.search(r"\$\((everywatt .*?)\)", line)
    words = shlex.split(inner[1] if inner else line, comments=True)
    end = next((place for place, word in enumerate(words) if word in _BORDERS), len(words))
    words = [word.rstrip(";") for word in words[:end]]
    for place, word in enumerate(words):
        if word == "everywatt":
            yield words[place + 1 :]
