"""What went wrong on the way to a server, as one error that says what it was."""

from __future__ import annotations

import socket
import sys

from everywatt.core.errors import NetworkError


def network_error(error: Exception, server: str, *, waited_s: float | None = None) -> NetworkError:
    """The NetworkError for an exception of a socket, of TLS or of the parser, about the server of that address."""
    ssl = sys.modules.get("ssl")  # takes 4 MB, and is there where it can have raised anything
    if isinstance(error, NetworkError):
        return error
    untrusted = getattr(error, "verify_message", None)
    if untrusted:
        return NetworkError("certificate", server, f"its certificate is not trusted ({untrusted})")
    if isinstance(error, TimeoutError):
        reason = "no data in time" if waited_s is None else f"no data for {waited_s:g} s"
        return NetworkError("timeout", server, reason)
    if ssl is not None and isinstance(error, ssl.SSLError):
        return NetworkError("tls", server, f"TLS failed ({getattr(error, 'reason', None) or error})")
    if isinstance(error, socket.gaierror):
        kind = "connect" if error.errno == socket.EAI_AGAIN else "name"
        return NetworkError(kind, server, "its host name is unknown" if kind == "name" else str(error.strerror))
    if isinstance(error, ValueError):  # of the parser, and UnicodeError of names that cannot be encoded
        return NetworkError("name" if isinstance(error, UnicodeError) else "protocol", server, str(error))
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return NetworkError("connect", server, str(reason))
