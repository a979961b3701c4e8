"""SNMP v3 with a user (USM): authenticated and, unless the PDU cannot, encrypted. By pysnmp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everywatt.core.errors import MissingExtra, SensorError
from everywatt.sensors.json_device import secret
from everywatt.sensors.wall.snmp_wire import parse_oid

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
SHORTEST: Final = 8  # RFC 3414 refuses shorter passwords


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


def get_v3(
    host: str, port: int, user: User, oids: Sequence[str], *, timeout_s: float = 2.0, tries: int = 2
) -> dict[str, int | None]:
    """Whole numbers of an agent, None for objects it does not have. SensorError where it does not answer or refuses."""
    import asyncio  # here: the recorder is small without it

    try:
        from pysnmp.hlapi.v3arch import asyncio as pysnmp
    except ImportError:
        raise MissingExtra("pysnmp", "meters") from None
    for oid in oids:
        parse_oid(oid)
    return asyncio.run(_ask(pysnmp, host, port, user, oids, timeout_s, tries))


async def _ask(
    snmp: Any, host: str, port: int, user: User, oids: Sequence[str], timeout_s: float, tries: int
) -> dict[str, int | None]:
    hidden: dict[str, Any] = {}
    if user.privacy != "none":
        hidden = {"privKey": user.privacy_password, "privProtocol": getattr(snmp, PRIVACY[user.privacy])}
    proof = getattr(snmp, AUTH[user.auth])
    who = snmp.UsmUserData(user.name, authKey=user.auth_password, authProtocol=proof, **hidden)
    engine = snmp.SnmpEngine()
    try:
        place = await snmp.UdpTransportTarget.create((host, port), timeout=timeout_s, retries=tries - 1)
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
