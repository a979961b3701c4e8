"""Counting tokens where a server does not: with a tokenizer that the user names, never with a guess."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everywatt.core.errors import MissingExtra, UsageError


@dataclass(frozen=True, slots=True)
class Counter:
    """A tokenizer of the tokenizers library."""

    name: str
    tokenizer: Any

    def count(self, text: str) -> int:
        """How many tokens a text has, without those that a template adds."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)


def counter(path: str | None) -> Counter | None:
    """The counter for a `tokenizer.json`, or the folder that holds one; None where none is named."""
    if path is None:
        return None
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UsageError(
            f"There is no tokenizer {file}.", cure="the folder of the model, which contains tokenizer.json"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("tokenizers", "llm") from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
        # A file may say to fill every text up to a length, or to cut it there: neither is a token of the text.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return Counter(str(file), tokenizer)
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception
        raise UsageError(f"{file} is not a tokenizer: {error}.") from None
