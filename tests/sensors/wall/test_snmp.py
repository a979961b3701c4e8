"""SNMP by hand: bytes on the wire, an agent on loopback, and PDUs of two makers."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everywatt.core.errors import SensorError
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request, State
from everywatt.sensors.wall import snmp as wire
from everywatt.sensors.wall.snmp import Snmp, objects, watts_of

APC_UNIT = "1.3.6.1.4.1.318.1.1.26.4.3.1.5.1"
APC_OUTLET = "1.3.6.1.4.1.318.1.1.26.9.4.3.1.7.3"
RARITAN_OUTLET = "1.3.6.1.4.1.13742.6.5.4.3.1.4.1.7.5"
RARITAN_DIGITS = "1.3.6.1.4.1.13742.6.3.5.4.1.7.1.7.5"


def response(request: bytes, values: dict[str, int], community=b"public") -> bytes | None:
    """What an agent answers: written apart from the code under test, from RFC 3416 and X.690."""
    body, _ = wire._expect(request, 0, wire.SEQUENCE)
    version, at = wire._expect(body, 0, wire.INTEGER)
    said, at = wire._expect(body, at, wire.OCTETS)
    if said != community:
        return None
    pdu, _ = wire._expect(body, at, wire.GET)
    number, at = wire._expect(pdu, 0, wire.INTEGER)
    _, at = wire._expect(pdu, at, wire.INTEGER)
    _, at = wire._expect(pdu, at, wire.INTEGER)
    binds, _ = wire._expect(pdu, at, wire.SEQUENCE)
    out, at = b"", 0
    while at < len(binds):
        bind, at = wire._expect(binds, at, wire.SEQUENCE)
        name, _ = wire._expect(bind, 0, wire.OID)
        oid = ".".join(map(str, wire._oid_of(name)))
        value = wire._integer(values[oid]) if oid in values else wire._tlv(0x80, b"")  # noSuchObject
        out += wire._tlv(wire.SEQUENCE, wire._tlv(wire.OID, name) + value)
    inner = wire._tlv(wire.INTEGER, number) + wire._integer(0) * 2 + wire._tlv(wire.SEQUENCE, out)
    head = wire._tlv(wire.INTEGER, version) + wire._tlv(wire.OCTETS, said)
    return wire._tlv(wire.SEQUENCE, head + wire._tlv(wire.RESPONSE, inner))


class Agent:
    def __init__(self, values, community=b"public", drop=0):
        self.values, self.community, self.drop = values, community, drop
        self.line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.line.bind(("127.0.0.1", 0))
        self.line.settimeout(0.05)
        self.port = self.line.getsockname()[1]
        self.ended = False
        self.thread = threading.Thread(target=self.go, daemon=True)

    def go(self):
        while not self.ended:
            try:
                data, place = self.line.recvfrom(4096)
            except TimeoutError:
                continue
            if self.drop:
                self.drop -= 1
            elif (answer := response(data, self.values, self.community)) is not None:
                self.line.sendto(answer, place)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.ended = True
        self.thread.join()
        self.line.close()


def make(agent, environ=None, **options):
    options = {"host": "127.0.0.1", "port": agent.port, "timeout_s": 0.4, **options}
    return Snmp(Request(machine=Machine(environ=environ or {}), options={"snmp": options}))


def test_a_request_as_it_is_on_the_wire():
    """Byte by byte, as X.690 has it: sysUpTime.0 for the community `public`."""
    known = bytes.fromhex("302602010104067075626c6963a019020101020100020100300e300c06082b060102010103000500")
    assert wire.get_request("public", [wire.parse_oid("1.3.6.1.2.1.1.3.0")], 1) == known


def test_apc_and_raritan():
    values = {APC_UNIT: 152, APC_OUTLET: 187, RARITAN_OUTLET: 1834, RARITAN_DIGITS: 1}
    with Agent(values) as agent:
        assert make(agent, kind="apc").probe().samples == {"wall.unit.power": 1520.0}  # 0.01 kW
        assert make(agent, kind="apc", outlets=[3]).probe().samples == {"wall.outlet3.power": 187.0}
        assert make(agent, kind="raritan", outlets=7).probe().samples == {"wall.outlet7.power": pytest.approx(183.4)}
        sensor = make(agent, oid=APC_OUTLET, scale_w=0.1)
        assert sensor.probe().samples == {"wall.object.power": pytest.approx(18.7)}
        (group,) = sensor.groups()
        group.poll()
        assert group._rows[0].values == pytest.approx((18.7,))


def test_what_is_not_measured_is_no_number():
    with Agent({APC_OUTLET: -1}) as agent:
        for outlet in (3, 4):  # −1, and no such object
            report = make(agent, kind="apc", outlets=[outlet]).probe()
            assert report.state is State.UNUSABLE and "does not measure" in report.why
    with pytest.raises(SensorError, match="decimal digits"):
        watts_of(objects({"kind": "raritan", "outlets": [7]})[0], {RARITAN_OUTLET: 1834})


def test_a_lost_answer_is_asked_for_again_and_silence_is_told():
    with Agent({APC_UNIT: 152}, drop=1) as agent:
        assert make(agent, kind="apc").probe().samples == {"wall.unit.power": 1520.0}
    with Agent({APC_UNIT: 152}, community=b"hidden-word") as agent:
        report = make(agent, kind="apc").probe()
        assert report.state is State.UNUSABLE and "does not respond" in report.why
        environ = {"EVERYWATT_SNMP_COMMUNITY": "hidden-word"}
        assert make(agent, environ, kind="apc").probe().usable
        report = make(agent, environ, kind="apc", outlets=[9]).probe()
        assert "hidden-word" not in repr(report)


@pytest.mark.parametrize(
    "options", [{}, {"kind": "x"}, {"oid": "a.b"}, {"kind": "apc", "outlets": ["1"]}, {"kind": "apc", "version": 4}]
)
def test_settings_that_make_no_sense(options):
    sensor = Snmp(Request(machine=Machine(environ={}), options={"snmp": {"host": "127.0.0.1", **options}}))
    assert sensor.probe().state is State.UNUSABLE


def test_not_configured_is_not_asked():
    assert Snmp(Request(machine=Machine(environ={}))).probe().state is State.ABSENT


VALID = response(wire.get_request("public", [wire.parse_oid(APC_UNIT)], 77), {APC_UNIT: 152})


@given(st.binary(max_size=80) | st.tuples(st.integers(0, len(VALID)), st.integers(0, 255)).map(lambda p: spoil(*p)))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_an_answer_or_a_value_error(data):
    try:
        found = wire.parse_response(data, 77)
    except ValueError:
        return
    assert all(isinstance(oid, tuple) and (value is None or isinstance(value, int)) for oid, value in found.items())


def spoil(at, byte):
    return VALID[:at] + bytes((byte,)) + VALID[at + 1 :]


def test_an_answer_to_another_question_is_refused():
    with pytest.raises(ValueError, match="another request"):
        wire.parse_response(VALID, 78)
