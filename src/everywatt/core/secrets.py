"""Secrets in command lines: masked before a line is stored, since others may read a run later."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

MASK = "***"
_NAMES = {"password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "credential", "credentials"}
_NAMES |= {"auth", "authorization", "bearer"}
_KEYS = {"api", "access", "private", "secret", "account", "signing", "encryption"}  # before `key`
_NOT_ITSELF = {"file", "path", "type", "name", "env", "url", "id"}  # at the end: --token-file names no token
# Texts, compiled when they are first used: nearly every command is done with after the hint.
_PART = r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+"
_HINT = re.compile(r"pass|pwd|secret|token|key|credential|auth|bearer|://|sk-|gh[pousr]_|hf_|glpat-|akia|xox", re.I)
_VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s&;,\"']+)"
_GIVEN = rf"(?i)([A-Za-z][\w.-]*)(=|:\s*(?:(?:Bearer|Basic|Token)\s+)?){_VALUE}"
_OPTION = rf"(?<!\S)(--?[A-Za-z][\w-]*)(\s+)(?!-){_VALUE}"
_LOGIN = r"(?i)([a-z][\w+.-]*://[^\s/:@]*:)([^\s/@]+)(?=@)"
_KNOWN = (
    r"\b(?:sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|hf_\w{20,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[a-z]-[\w-]{10,})"
)


def mask_words(words: Sequence[str]) -> list[str]:
    """A command with `***` in place of secrets: `--password=…`, `--token …`, `API_KEY=…`, `user:…@` in addresses."""
    found = [mask_text(word) for word in words]
    for place, word in enumerate(words[:-1]):
        follower = words[place + 1]
        if word.startswith("-") and "=" not in word and _is_secret(word) and not follower.startswith("-"):
            found[place + 1] = MASK
    return found


def mask_text(line: str) -> str:
    """A command line, or a part of one, with `***` in place of secrets."""
    if not _HINT.search(line):
        return line
    line = re.sub(_LOGIN, rf"\1{MASK}", line)
    line = re.sub(_GIVEN, _masked, line)
    line = re.sub(_OPTION, _masked, line)
    return re.sub(_KNOWN, MASK, line)


def _masked(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{MASK}" if _is_secret(match[1]) else match[0]


def _is_secret(name: str) -> bool:
    parts = [part.lower() for part in re.findall(_PART, name)]
    if not parts or parts[-1] in _NOT_ITSELF:
        return False
    keyed = any(first in _KEYS and second == "key" for first, second in pairwise(parts))
    return keyed or bool(_NAMES.intersection(parts))
