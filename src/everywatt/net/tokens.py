"""Bearer tokens: read from the command line or a file, the same way for servers and for those who ask them."""

from __future__ import annotations

from pathlib import Path

from everywatt.core.errors import UsageError


def read_token(token: str | None, file: Path | None) -> str | None:
    """The token, from the command line or a file's first line. UsageError where it could not be sent in a header."""
    if token is not None and file is not None:
        raise UsageError("--token and --token-file cannot be combined.")
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'not text'}.") from None
        token = lines[0].strip()
    if token is None:
        return None
    if not token or not all("!" <= letter <= "~" for letter in token) or len(token) > 512:
        raise UsageError(
            "A token consists of letters, digits and punctuation, without blanks.",
            cure="python -c 'import secrets; print(secrets.token_urlsafe(24))'",
        )
    return token
