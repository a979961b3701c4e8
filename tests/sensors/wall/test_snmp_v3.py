"""SNMP v3 against a PDU of ours on loopback: users, proof, privacy, and what is refused."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everywatt.core.errors import SensorError
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request, State
from everywatt.sensors.wall.snmp import Snmp, User, get_v3, user_of

pytest.importorskip("pysnmp")
pytest.importorskip("cryptography")

RARITAN_OUTLET = (1, 3, 6, 1, 4, 1, 13742, 6, 5, 4, 3, 1, 4, 1, 7, 5)
RARITAN_DIGITS = (1, 3, 6, 1, 4, 1, 13742, 6, 3, 5, 4, 1, 7, 1, 7, 5)
UNKNOWN = "1.3.6.1.4.1.13742.6.5.4.3.1.4.1.9.5"
PROOF, HIDE = "proof-of-who-asks", "hidden-from-others"


class Pdu:
    """A Raritan with one outlet of 183.4 W, for users of version 3 only. It hears what comes over the wire."""

    def __init__(self, users):
        self.users, self.port, self.heard = users, 0, []
        self.ready, self.thread = threading.Event(), threading.Thread(target=self.go, daemon=True)

    def go(self):
        asyncio.set_event_loop(loop := asyncio.new_event_loop())
        self.loop = loop
        loop.run_until_complete(self.serve())
        loop.close()

    async def serve(self):
        from pysnmp.carrier.asyncio.dgram import udp
        from pysnmp.entity import config, engine
        from pysnmp.entity.rfc3413 import cmdrsp, context

        self.ended = asyncio.Event()
        agent = engine.SnmpEngine()
        transport = udp.UdpAsyncioTransport().open_server_mode(("127.0.0.1", 0))
        config.add_transport(agent, udp.DOMAIN_NAME, transport)
        for name, words in self.users.items():
            config.add_v3_user(agent, name, *words)
            level = "authPriv" if len(words) > 2 else "authNoPriv"
            config.add_vacm_user(agent, 3, name, level, (1, 3, 6))
        where = context.SnmpContext(agent)
        self.fill(where.get_mib_instrum())
        cmdrsp.GetCommandResponder(agent, where)
        await asyncio.sleep(0.05)
        self.port = transport.transport.get_extra_info("sockname")[1]
        received = transport.datagram_received
        transport.datagram_received = lambda data, place: (self.heard.append(data), received(data, place))
        self.ready.set()
        await self.ended.wait()
        agent.close_dispatcher()

    def fill(self, instrument):
        from pysnmp.proto.rfc1902 import Gauge32

        build = instrument.get_mib_builder()
        scalar, instance = build.import_symbols("SNMPv2-SMI", "MibScalar", "MibScalarInstance")
        for number, (oid, value) in enumerate({RARITAN_OUTLET: 1834, RARITAN_DIGITS: 1}.items()):
            symbols = {
                f"watts{number}": scalar(oid[:-1], Gauge32()),
                f"watts{number}at": instance(oid[:-1], oid[-1:], Gauge32(value)),
            }
            build.export_symbols(f"PDU{number}", **symbols)

    def __enter__(self):
        self.thread.start()
        assert self.ready.wait(20)
        return self

    def __exit__(self, *error):
        self.loop.call_soon_threadsafe(self.ended.set)
        self.thread.join(10)


@pytest.fixture(scope="module")
def pdu():
    from pysnmp.entity import config

    users = {
        "watts": (config.USM_AUTH_HMAC192_SHA256, PROOF, config.USM_PRIV_CFB128_AES, HIDE),
        "old": (config.USM_AUTH_HMAC96_MD5, PROOF, config.USM_PRIV_CBC56_DES, HIDE),
        "open": (config.USM_AUTH_HMAC96_SHA, PROOF),
    }
    with Pdu(users) as running:
        yield running


def sensor(pdu, environ=None, **options):
    told = {"host": "127.0.0.1", "port": pdu.port, "kind": "raritan", "outlets": [7], "version": 3, "timeout_s": 6.0}
    words = {"EVERYWATT_SNMP_AUTH": PROOF, "EVERYWATT_SNMP_PRIVACY": HIDE} if environ is None else environ
    return Snmp(Request(machine=Machine(environ=words), options={"snmp": {**told, **options}}))


@pytest.mark.parametrize(
    "options",
    [
        {"user": "watts", "auth": "sha256", "privacy": "aes"},
        {"user": "old", "auth": "md5", "privacy": "des"},
        {"user": "open", "auth": "sha", "privacy": "none"},
    ],
    ids=["sha256+aes", "md5+des", "sha alone"],
)
def test_an_outlet_is_read_as_a_user(pdu, options):
    asked = sensor(pdu, **options)
    assert asked.probe().samples == {"wall.outlet7.power": pytest.approx(183.4)}
    (group,) = asked.groups()
    group.poll()
    assert group._rows[0].values == pytest.approx((183.4,))


def test_nobody_reads_along_and_no_password_is_sent(pdu):
    pdu.heard.clear()
    assert sensor(pdu, user="watts", auth="sha256").probe().usable
    sent = b"".join(pdu.heard)
    assert b"watts" in sent, "the user's name is not hidden in SNMP"
    assert bytes.fromhex("2b06010401eb2e") not in sent, "the objects are"
    assert PROOF.encode() not in sent and HIDE.encode() not in sent


def test_passwords_from_files(pdu, tmp_path):
    (tmp_path / "auth").write_text(PROOF + "\n")
    (tmp_path / "privacy").write_text(HIDE + "\n")
    files = {"auth_file": str(tmp_path / "auth"), "privacy_file": str(tmp_path / "privacy")}
    assert sensor(pdu, {}, user="watts", auth="sha256", **files).probe().usable


@pytest.mark.parametrize(
    ("environ", "user"),
    [
        ({"EVERYWATT_SNMP_AUTH": "not-the-proof", "EVERYWATT_SNMP_PRIVACY": HIDE}, "watts"),
        ({"EVERYWATT_SNMP_AUTH": PROOF, "EVERYWATT_SNMP_PRIVACY": "not-what-hides"}, "watts"),
        (None, "nobody"),
    ],
    ids=["proof", "privacy", "user"],
)
def test_wrong_words_are_refused_and_never_told(pdu, environ, user):
    report = sensor(pdu, environ, user=user, auth="sha256", timeout_s=1.0).probe()
    assert report.state is State.UNUSABLE and "SNMP v3" in report.why
    assert not any(word in repr(report) for word in (PROOF, HIDE, "not-the-proof", "not-what-hides"))


def test_what_the_pdu_does_not_have_is_none(pdu):
    user = User("watts", "sha256", "aes", PROOF, HIDE)
    assert get_v3("127.0.0.1", pdu.port, user, [UNKNOWN], timeout_s=3.0) == {UNKNOWN: None}
    assert PROOF not in repr(user) and HIDE not in repr(user)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "requires user"),
        ({"user": "watts", "auth": "rot13"}, "auth must be one of"),
        ({"user": "watts", "privacy": "xor"}, "privacy must be one of"),
        ({"user": "watts"}, "auth_file must contain"),
        ({"user": "watts", "auth_file": "/nowhere"}, "cannot be read"),
    ],
)
def test_settings_that_make_no_sense(options, why):
    with pytest.raises(SensorError, match=why):
        user_of(options, {})
