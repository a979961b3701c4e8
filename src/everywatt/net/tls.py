"""Credentials of clients and servers: TLS files and bearer tokens.

The ssl module takes 4 MB, so it is loaded where TLS is used, not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everywatt.core.errors import UsageError

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a client trusts and shows.

    ca          certificates (PEM) to trust instead of the system's
    cert, key   the certificate (PEM) to show, with its private key
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Certificates and host names are always verified. UsageError where a file cannot be used."""
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password="")  # "": OpenSSL must not prompt for one
        except (OSError, ValueError) as error:
            named = ", ".join(str(file) for file in (self.ca, self.cert, self.key) if file is not None)
            raise UsageError(f"{named or 'The system certificates'} cannot be used for TLS: {_why(error)}.") from None
        return context


def server_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """The TLS of a server; with `client_ca`, clients must show a certificate of that authority.

    UsageError where the files are not a certificate with its key.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password="")  # "": OpenSSL must not prompt for one
    except (OSError, ValueError) as error:
        raise UsageError(f"{cert} and {key} cannot be used for TLS: {_why(error)}.") from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ValueError) as error:
            raise UsageError(f"{client_ca} cannot be used for TLS: {_why(error)}.") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def check_tls(cert: Path | None, key: Path | None) -> bool:
    """Whether TLS is asked for. UsageError where one of the two files is missing or they do not fit together."""
    if cert is None and key is None:
        return False
    if cert is None or key is None:
        raise UsageError("TLS requires a certificate and its key.", cure="--cert FILE --key FILE")
    server_context(cert, key)
    return True


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError | PermissionError):
        return str(error.strerror)
    return str(error)


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
