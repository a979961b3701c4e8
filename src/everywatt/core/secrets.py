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
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_HINT = re.compile(r"pass|pwd|secret|token|key|credential|auth|bearer|://|sk-|gh[pousr]_|hf_|glpat-|akia|xox", re.I)
_VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s&;,\"']+)"
_GIVEN = re.compile(rf"([A-Za-z][\w.-]*)(=|:\s*(?:(?:Bearer|Basic|Token)\s+)?){_VALUE}", re.I)
_OPTION = re.compile(rf"(?<!\S)(--?[A-Za-z][\w-]*)(\s+)(?!-){_VALUE}")
_LOGIN = re.compile(r"([a-z][\w+.-]*://[^\s/:@]*:)([^\s/@]+)(?=@)", re.I)
_KNOWN = re.compile(
    r"\b(?:sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|hf_\w{20,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16}|xox[a-z]-[\w-]{10,})"
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
    line = _LOGIN.sub(rf"\1{MASK}", line)
    line = _GIVEN.sub(_masked, line)
    line = _OPTION.sub(_masked, line)
    return _KNOWN.sub(MASK, line)


def _masked(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{MASK}" if _is_secret(match[1]) else match[0]


def _is_secret(name: str) -> bool:
    parts = [part.lower() for part in _PART.findall(name)]
    if not parts or parts[-1] in _NOT_ITSELF:
        return False
    keyed = any(first in _KEYS and second == "key" for first, second in pairwise(parts))
    return keyed or bool(_NAMES.intersection(parts))
