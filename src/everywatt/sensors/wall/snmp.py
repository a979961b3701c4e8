"""Power distribution units by SNMP: APC and Raritan, or any object that holds watts.

v1 and v2c are as much of the protocol as a GET of whole numbers needs, without a library: pysnmp takes 23 MB, as much
as a whole recorder. v3, with a user (USM), is authenticated and, unless the PDU cannot, encrypted; it needs pysnmp.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everywatt.core.channels import Domain
from everywatt.core.errors import MissingExtra, SensorError
from everywatt.sensors.meters import PolledGroup, SlowMeters, power_channel, secret

INTEGER, OCTETS, NULL, OID, SEQUENCE, GET, RESPONSE = 0x02, 0x04, 0x05, 0x06, 0x30, 0xA0, 0xA2
_WHOLE = (INTEGER, 0x41, 0x42, 0x43, 0x46)  # Integer, Counter32, Gauge32, TimeTicks, Counter64
_LONGEST = 65_507
AUTH: Final = {
    "md5": "usmHMACMD5AuthProtocol",
    "sha": "usmHMACSHAAuthProtocol",
    "sha224": "usmHMAC128SHA224AuthProtocol",
    "sha256": "usmHMAC192SHA256AuthProtocol",
    "sha384": "usmHMAC256SHA384AuthProtocol",
    "sha512": "usmHMAC384SHA512AuthProtocol",
}
PRIVACY: Final = {
    "des": "usmDESPrivProtocol",
    "aes": "usmAesCfb128Protocol",
    "aes192": "usmAesCfb192Protocol",
    "aes256": "usmAesCfb256Protocol",
}
TRIES: Final = 2  # UDP loses a packet now and then
SHORTEST: Final = 8  # RFC 3414 refuses shorter passwords
_APC, _RARITAN = "1.3.6.1.4.1.318.1.1.26", "1.3.6.1.4.1.13742.6"
_ACTIVE_POWER = 5


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
    timeout_s: float,
    version: int,
) -> dict[str, int | None]:
    """Whole numbers of an agent by UDP, None for objects it does not have. SensorError where it does not answer."""
    asked = {parse_oid(oid): oid for oid in oids}
    number = int.from_bytes(os.urandom(3), "big") + 1
    message = get_request(community, list(asked), number, version)
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise SensorError(f"{host} was not found: {error.strerror}.") from None
    for _ in range(TRIES):
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


@dataclass(frozen=True, slots=True)
class User:
    """Who asks. Without `privacy_password` answers are proven but not hidden; its words never show in a repr."""

    name: str
    auth: str = "sha"
    privacy: str = "aes"
    auth_password: str = field(default="", repr=False)
    privacy_password: str = field(default="", repr=False)


def user_of(options: Mapping[str, Any], environ: Mapping[str, str]) -> User:
    """The user that options name: `user`, `auth` and `privacy`, passwords from files or the environment.

    SensorError where one is missing or too short: a request without a proof is never sent in its place.
    """
    name, auth, privacy = options.get("user"), options.get("auth", "sha"), options.get("privacy", "aes")
    if not name or not isinstance(name, str):
        raise SensorError("[sensor.snmp] version 3 requires user.")
    if auth not in AUTH:
        raise SensorError(f"[sensor.snmp] auth must be one of {', '.join(AUTH)}.")
    if privacy not in (*PRIVACY, "none"):
        raise SensorError(f"[sensor.snmp] privacy must be one of {', '.join(PRIVACY)}, or none.")
    proof = secret(options.get("auth_file"), environ.get("EVERYWATT_SNMP_AUTH")) or ""
    hide = secret(options.get("privacy_file"), environ.get("EVERYWATT_SNMP_PRIVACY")) or "" if privacy != "none" else ""
    for word, what, needed in ((proof, "auth_file", True), (hide, "privacy_file", privacy != "none")):
        if needed and len(word) < SHORTEST:
            raise SensorError(f"[sensor.snmp] {what} must contain a password of {SHORTEST} or more characters.")
    return User(name, auth, privacy, proof, hide)


def get_v3(host: str, port: int, user: User, oids: Sequence[str], *, timeout_s: float) -> dict[str, int | None]:
    """Whole numbers of an agent, None for objects it does not have. SensorError where it does not answer or refuses."""
    import asyncio  # here: the recorder is small without it

    try:
        from pysnmp.hlapi.v3arch import asyncio as pysnmp
    except ImportError:
        raise MissingExtra("pysnmp", "meters") from None
    return asyncio.run(_ask(pysnmp, host, port, user, oids, timeout_s))


async def _ask(
    snmp: Any, host: str, port: int, user: User, oids: Sequence[str], timeout_s: float
) -> dict[str, int | None]:
    hidden: dict[str, Any] = {}
    if user.privacy != "none":
        hidden = {"privKey": user.privacy_password, "privProtocol": getattr(snmp, PRIVACY[user.privacy])}
    proof = getattr(snmp, AUTH[user.auth])
    who = snmp.UsmUserData(user.name, authKey=user.auth_password, authProtocol=proof, **hidden)
    engine = snmp.SnmpEngine()
    try:
        place = await snmp.UdpTransportTarget.create((host, port), timeout=timeout_s, retries=TRIES - 1)
        trouble, status, _, binds = await snmp.get_cmd(
            engine, who, place, snmp.ContextData(), *(snmp.ObjectType(snmp.ObjectIdentity(oid)) for oid in oids)
        )
    except Exception as error:  # noqa: BLE001 - the library raises its own tree, OSError, and what a name look-up does
        raise SensorError(f"{host} cannot be queried by SNMP v3: {type(error).__name__}.") from None
    finally:
        engine.close_dispatcher()
    if trouble is not None:
        raise SensorError(f"{host} does not respond to SNMP v3: {trouble}.")
    if int(status) != 0:
        return dict.fromkeys(oids)
    return {oid: _whole(value) for oid, (_, value) in zip(oids, binds, strict=True)}


def _whole(value: Any) -> int | None:
    """A number of any of SNMP's kinds; None for `noSuchObject` and what is no number."""
    try:
        return int(value) if value.isValue else None
    except (TypeError, ValueError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class Watts:
    """An object that holds power: one count is `scale_w` watts, divided by 10 to the digits that another one holds."""

    name: str
    oid: str
    scale_w: float = 1.0
    digits_oid: str | None = None


def objects(options: Mapping[str, Any]) -> list[Watts]:
    """The objects that options name: `oid` with `scale_w`, or a kind with `outlets` (all of the unit, without them)."""
    outlets = options.get("outlets") or []
    outlets = [outlets] if isinstance(outlets, int) else list(outlets)
    if not all(isinstance(outlet, int) and not isinstance(outlet, bool) and outlet > 0 for outlet in outlets):
        raise SensorError("[sensor.snmp] outlets must be numbers from 1 up.")
    if options.get("oid"):
        scale = options.get("scale_w", 1.0)
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise SensorError("[sensor.snmp] scale_w must be the watts of one count.")
        return [Watts("object", str(options["oid"]), float(scale))]
    kind, unit = options.get("kind"), options.get("unit", 1)
    if not isinstance(unit, int) or unit < 1:
        raise SensorError("[sensor.snmp] unit must be a number from 1 up.")
    if kind == "apc":
        whole = [Watts("unit", f"{_APC}.4.3.1.5.{unit}", 10.0)]  # hundredths of a kilowatt
        return [Watts(f"outlet{n}", f"{_APC}.9.4.3.1.7.{n}") for n in outlets] or whole
    if kind == "raritan":
        return [_raritan(f"outlet{n}", 5, 4, unit, n) for n in outlets] or [_raritan("inlet", 3, 2, unit, 1)]
    raise SensorError("[sensor.snmp] kind must be apc or raritan, or oid must name an object.")


def _raritan(name: str, about: int, measured: int, unit: int, index: int) -> Watts:
    place = f"{unit}.{index}.{_ACTIVE_POWER}"
    return Watts(name, f"{_RARITAN}.5.{measured}.3.1.4.{place}", 1.0, f"{_RARITAN}.3.{about}.4.1.7.{place}")


def watts_of(wanted: Watts, values: Mapping[str, int | None]) -> float:
    """The watts of an answer. SensorError where the unit does not measure that (it says −1, or nothing)."""
    raw = values.get(wanted.oid)
    if raw is None or raw < 0:
        raise SensorError(f"{wanted.name}: the PDU does not measure its power.")
    digits = 0 if wanted.digits_oid is None else values.get(wanted.digits_oid)
    if digits is None or not 0 <= digits <= 9:
        raise SensorError(f"{wanted.name}: the PDU does not report its decimal digits.")
    return float(raw * wanted.scale_w / 10**digits)


class Snmp(SlowMeters):
    """The sensor. Options: host, port, kind (apc, raritan) and outlets, or oid and scale_w; version; community_file,
    or user with auth_file and privacy_file.
    """

    name = "snmp"
    needs = "host"

    def meters(self) -> list[PolledGroup]:
        return [self._meter(wanted) for wanted in objects(self.options)]

    def _meter(self, wanted: Watts) -> PolledGroup:
        host, port = str(self.options["host"]), self.options.get("port", 161)
        if not isinstance(port, int) or not 0 < port < 65536:
            raise SensorError("[sensor.snmp] port must be a number from 1 to 65535.")
        oids: Sequence[str] = [oid for oid in (wanted.oid, wanted.digits_oid) if oid]
        for oid in oids:
            try:
                parse_oid(oid)
            except ValueError as error:
                raise SensorError(f"[sensor.snmp] {error}.") from None

        asking = self._asking(host, port)

        def ask() -> tuple[float, ...]:
            return (watts_of(wanted, asking(oids)),)

        channel = power_channel(f"wall.{wanted.name}", Domain.WALL, self.facts(quantum=wanted.scale_w))
        return self.meter([channel], ask, host)

    def _asking(self, host: str, port: int) -> Callable[[Sequence[str]], dict[str, int | None]]:
        """How the PDU is asked for objects: by a community (versions 1, 2c) or as a user (version 3)."""
        version, timeout_s, environ = str(self.options.get("version", "2c")), self.timeout_s / 2, self.machine.environ
        if version == "3":
            user = user_of(self.options, environ)
            return lambda oids: get_v3(host, port, user, oids, timeout_s=timeout_s)
        number = {"1": 0, "2c": 1}.get(version)
        if number is None:
            raise SensorError("[sensor.snmp] version must be 1, 2c or 3.")
        word = secret(self.options.get("community_file"), environ.get("EVERYWATT_SNMP_COMMUNITY")) or "public"
        return lambda oids: get(host, port, word, oids, timeout_s=timeout_s, version=number)
