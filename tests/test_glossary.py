"""Headings use the words of docs/glossary.md: none of the replaced ones, and none of the retired dialect."""

import re

import pytest
from pages import ROOT, WRITTEN

DIALECT = (
    r"for ever|as ever|anew\b|\bdear(er)?\b|\bnobody\b|\bsomebody\b|\bis none\b|\bowes?\b|\btold\b|on purpose|"
    r"what there is|what is there\b|what it costs|turn the order round"
)


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    found = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line[:2] == "| "]
    return [row for row in found if row[0] != "word"]


def replaced() -> list[str]:
    return [word for row in rows() if len(row) > 2 for word in row[2].split(", ") if word]


def headings(page) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ (.+)$", text, re.MULTILINE)


def test_every_word_has_one_row():
    words = [word for row in rows() for word in row[0].split(", ")]
    assert len(words) == len(set(words)) and {"tape", "tick", "span", "owner", "provenance", "coverage"} <= set(words)
    assert "pedigree" in replaced()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_headings_use_the_words_of_the_glossary(page):
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, replaced()))})\b|{DIALECT}", re.IGNORECASE)
    assert [heading for heading in headings(page) if pattern.search(heading)] == []


@pytest.mark.parametrize("page", [page for page in WRITTEN if page.name != "glossary.md"], ids=lambda page: page.stem)
def test_pages_avoid_the_retired_dialect(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    pattern = re.compile(
        r"\bfor ever\b|\bas ever\b|\bdear(er|est)?\b|\bsomebody\b|\b(is|are|be) told\b|\btold (by|as)\b|\bnobody\b"
    )
    assert pattern.findall(re.sub(r"`[^`\n]*`", "", text)) == []


def test_the_dialect_would_be_noticed():
    assert re.search(DIALECT, "What it costs", re.IGNORECASE) and re.search(DIALECT, "who owes")
    assert not re.search(DIALECT, "Overhead of the agent", re.IGNORECASE)
