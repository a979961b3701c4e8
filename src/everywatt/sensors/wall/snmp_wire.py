"""As much of SNMP (v1 and v2c) as a GET of whole numbers needs; no library, so that the recorder stays small."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from everywatt.core.errors import SensorError

INTEGER, OCTETS, NULL, OID, SEQUENCE, GET, RESPONSE = 0x02, 0x04, 0x05, 0x06, 0x30, 0xA0, 0xA2
_WHOLE = (INTEGER, 0x41, 0x42, 0x43, 0x46)  # Integer, Counter32, Gauge32, TimeTicks, Counter64
_LONGEST = 65_507


def parse_oid(text: str) -> tuple[int, ...]:
    """`1.3.6.1.…` as numbers. ValueError where it is something else."""
    parts = tuple(int(part) for part in text.strip().strip(".").split("."))
    if len(parts) < 2 or len(parts) > 128 or parts[0] > 2 or parts[1] > 39 or any(not 0 <= p < 2**32 for p in parts):
        raise ValueError(f"{text!r} is not an object identifier")
    return parts


def get_request(community: str, oids: Sequence[tuple[int, ...]], number: int, version: int = 1) -> bytes:
    """A GET of these objects; version 0 is SNMP v1, 1 is v2c."""
    binds = b"".join(_tlv(SEQUENCE, _oid(oid) + _tlv(NULL, b"")) for oid in oids)
    body = _integer(number) + _integer(0) + _integer(0) + _tlv(SEQUENCE, binds)
    return _tlv(SEQUENCE, _integer(version) + _tlv(OCTETS, community.encode()) + _tlv(GET, body))


def parse_response(data: bytes, number: int) -> dict[tuple[int, ...], int | None]:
    """Whole numbers by object, None where the agent has no such one. ValueError where it is no answer to `number`."""
    body, _ = _expect(data, 0, SEQUENCE)
    _, at = _expect(body, 0, INTEGER)
    _, at = _expect(body, at, OCTETS)
    pdu, _ = _expect(body, at, RESPONSE)
    said, at = _expect(pdu, 0, INTEGER)
    error, at = _expect(pdu, at, INTEGER)
    _, at = _expect(pdu, at, INTEGER)
    if _signed(said) != number:
        raise ValueError("a response to another request")
    if _signed(error) != 0:
        return {}  # v1 refuses the whole request for one object that is not there
    binds, _ = _expect(pdu, at, SEQUENCE)
    found: dict[tuple[int, ...], int | None] = {}
    at = 0
    while at < len(binds):
        bind, at = _expect(binds, at, SEQUENCE)
        name, inner = _expect(bind, 0, OID)
        tag, value, _ = _read(bind, inner)
        found[_oid_of(name)] = _signed(value) if tag in _WHOLE else None
    return found


def get(
    host: str,
    port: int,
    community: str,
    oids: Sequence[str],
    *,
    timeout_s: float = 2.0,
    tries: int = 2,
    version: int = 1,
) -> dict[str, int | None]:
    """Whole numbers of an agent by UDP, None for objects it does not have. SensorError where it does not answer."""
    asked = {parse_oid(oid): oid for oid in oids}
    number = int.from_bytes(os.urandom(3), "big") + 1
    message = get_request(community, list(asked), number, version)
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise SensorError(f"{host} was not found: {error.strerror}.") from None
    for _ in range(tries):
        with socket.socket(kind, socket.SOCK_DGRAM) as line:
            line.settimeout(timeout_s)
            try:
                line.connect(address)  # answers from elsewhere are dropped by the kernel
                line.send(message)
                answer = parse_response(line.recv(_LONGEST), number)
            except (OSError, ValueError):
                continue
        return {oid: answer.get(parsed) for parsed, oid in asked.items()}
    raise SensorError(f"{host} does not respond to SNMP (wrong community, no access, or not reachable).")


def _tlv(tag: int, body: bytes) -> bytes:
    if len(body) < 128:
        return bytes((tag, len(body))) + body
    size = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(size))) + size + body


def _integer(value: int) -> bytes:
    return _tlv(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _oid(parts: tuple[int, ...]) -> bytes:
    out = bytearray((parts[0] * 40 + parts[1],))
    for part in parts[2:]:
        groups = [part & 0x7F]
        while part := part >> 7:
            groups.append(part & 0x7F | 0x80)
        out += bytes(reversed(groups))
    return _tlv(OID, bytes(out))


def _oid_of(body: bytes) -> tuple[int, ...]:
    if not body:
        raise ValueError("an empty object identifier")
    parts, value = [body[0] // 40, body[0] % 40], 0
    for byte in body[1:]:
        value = value << 7 | byte & 0x7F
        if value >= 2**32:
            raise ValueError("an object identifier that is too large")
        if not byte & 0x80:
            parts.append(value)
            value = 0
    return tuple(parts)


def _signed(body: bytes) -> int:
    if not 0 < len(body) <= 9:
        raise ValueError("a number without a size")
    return int.from_bytes(body, "big", signed=True)


def _expect(data: bytes, at: int, tag: int) -> tuple[bytes, int]:
    found, body, end = _read(data, at)
    if found != tag:
        raise ValueError(f"tag {found:#x} instead of {tag:#x}")
    return body, end


def _read(data: bytes, at: int) -> tuple[int, bytes, int]:
    if at + 2 > len(data):
        raise ValueError("truncated")
    tag, size, start = data[at], data[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        if not 1 <= count <= 4 or start + count > len(data):
            raise ValueError("an invalid length")
        size, start = int.from_bytes(data[start : start + count], "big"), start + count
    if start + size > len(data):
        raise ValueError("truncated")
    return tag, data[start : start + size], start + size
