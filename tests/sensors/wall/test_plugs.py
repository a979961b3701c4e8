"""Shelly and Tasmota by HTTP, on answers of real devices (tests/data/meters/other_meters.txt names each)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webserver import Server

from everywatt.core.channels import Domain
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request, State
from everywatt.sensors.wall.plugs import Shelly, Tasmota, channels_of, energy_of

LINES = (Path(__file__).resolve().parents[2] / "data" / "meters" / "other_meters.txt").read_text().splitlines()
PLUG = json.loads("{" + next(line for line in LINES if line.startswith('"switch:0"')) + "}")
EM = json.loads("{" + "".join(line for line in LINES if line.startswith('"em1:')).rstrip(",") + "}")
TASMOTA = json.loads(next(line for line in LINES if line.startswith('{"StatusSNS"')))
TASMOTA_2018 = json.loads(next(line for line in LINES if line.startswith("STATUS8")).partition("= ")[2])
GEN1 = {"meters": [{"power": 61.2, "is_valid": True, "total": 60}], "relays": [{"ison": True}]}


def make(kind, url, environ=None, **options):
    options = {"url": url, "timeout_s": 1, **options}
    return kind(Request(machine=Machine(environ=environ or {}), options={kind.name: options}))


def test_shelly_of_both_generations():
    with Server({"/shelly": {"gen": 2, "model": "SNPL"}, "/rpc/Shelly.GetStatus": PLUG}) as server:
        sensor = make(Shelly, server.url)
        report = sensor.probe()
        assert report.samples == {"wall.shelly.power": 10.7, "wall.shelly.energy": pytest.approx(46791.262 * 3600)}
        power, energy = sensor.groups()[0].info.channels
        assert (power.domain, energy.domain) == (Domain.WALL, None)  # a count of whole minutes serves no window
    with Server({"/shelly": {"type": "SHPLG-S"}, "/status": GEN1}) as server:
        report = make(Shelly, server.url).probe()
        assert report.samples == {"wall.shelly.power": 61.2, "wall.shelly.energy": 3600.0}  # watt-minutes


def test_several_channels_have_to_be_told_apart():
    assert channels_of(EM) == {"em1:0": (0.0, None), "em1:1": (501.8, None)}
    with Server({"/shelly": {"gen": 2}, "/rpc/Shelly.GetStatus": EM}) as server:
        report = make(Shelly, server.url).probe()
        assert report.state is State.UNUSABLE and "em1:0, em1:1" in report.why
        assert make(Shelly, server.url, channel="em1:1").probe().samples == {"wall.shelly.power": 501.8}
        assert "no channel 'em1:7'" in make(Shelly, server.url, channel="em1:7").probe().why


def test_two_plugs_are_two_devices():
    with Server({"/shelly": {"gen": 2}, "/rpc/Shelly.GetStatus": PLUG}) as one:
        report = make(Shelly, [one.url, one.url]).probe()
        assert [device["device"] for device in report.devices] == ["wall.shelly", "wall.shelly-1"]


class DigestPlug:
    """A Shelly of the second generation with a password: digest with SHA-256, a nonce that is replaced now and then."""

    def __init__(self, password="s3cret", per_nonce=3):
        self.password, self.per_nonce, self.served, self.counts = password, per_nonce, 0, []

    def answer(self, method, path, headers, body):
        if path == "/shelly":
            return 200, {}, {"gen": 2, "auth_en": True}
        nonce = f"n{self.served // self.per_nonce}"
        challenge = f'Digest qop="auth", realm="plug-1", nonce="{nonce}", algorithm=SHA-256'
        kind, _, rest = headers.get("authorization", "").partition(" ")
        told = {key.strip(): value.strip('" ') for key, _, value in (part.partition("=") for part in rest.split(","))}
        if kind != "Digest" or told.get("nonce") != nonce or told.get("uri") != path:
            return 401, {"WWW-Authenticate": challenge}, {}

        def digest(*parts):
            return hashlib.sha256(":".join(parts).encode()).hexdigest()

        secret, asked = digest("admin", "plug-1", self.password), digest(method, path)
        if told["response"] != digest(secret, nonce, told["nc"], told["cnonce"], "auth", asked):
            return 401, {"WWW-Authenticate": challenge}, {}
        self.served += 1
        self.counts.append((nonce, told["nc"], told["cnonce"]))
        return 200, {}, PLUG


def test_a_shelly_with_a_password():
    plug = DigestPlug()
    with Server(plug.answer) as server:
        environ = {"EVERYWATT_SHELLY_USER": "admin", "EVERYWATT_SHELLY_PASSWORD": "s3cret"}
        sensor = make(Shelly, server.url, environ)
        assert sensor.probe().samples["wall.shelly.power"] == 10.7
        (meter,) = sensor.meters()
        for _ in range(8):
            assert meter.ask()[0] == 10.7
        assert len(plug.counts) == len(set(plug.counts)) >= 8, "no count is used twice with a nonce"
        assert not any("Basic" in seen[2].get("authorization", "") for seen in server.seen[1:]), "sent in clear"
        wrong = make(Shelly, server.url, {**environ, "EVERYWATT_SHELLY_PASSWORD": "no"}).probe()
        assert wrong.state is State.UNUSABLE and "401" in wrong.why
        assert "401" in make(Shelly, server.url).probe().why


def test_tasmota_now_and_in_2018():
    assert energy_of(TASMOTA) == ([20.0], pytest.approx(6.04 * 3.6e6))
    assert energy_of(TASMOTA_2018) == ([27.0], pytest.approx(0.52 * 3.6e6))
    with Server({"/cm?cmnd=Status+8": TASMOTA}) as server:
        assert make(Tasmota, server.url).probe().samples["wall.tasmota.power"] == 20.0
    two = {"StatusSNS": {"ENERGY": {"Power": [20, 30], "Total": 1}}}
    with Server({"/cm?cmnd=Status+8": two}) as server:
        assert "2 channels" in make(Tasmota, server.url).probe().why
        assert make(Tasmota, server.url, channel=1).probe().samples["wall.tasmota.power"] == 30.0


def test_credentials_are_in_no_message():
    environ = {"EVERYWATT_TASMOTA_USER": "admin", "EVERYWATT_TASMOTA_PASSWORD": "s3cret-pass"}
    with Server(lambda *a: (500, {}, {})) as server:
        report = make(Tasmota, server.url, environ).probe()
        assert "password=s3cret-pass" in server.seen[0][1]
    assert report.state is State.UNUSABLE and "s3cret" not in repr(report) and "admin" not in repr(report)
    environ = {"EVERYWATT_SHELLY_USER": "admin", "EVERYWATT_SHELLY_PASSWORD": "s3cret-pass"}
    with Server(lambda *a: (401, {"WWW-Authenticate": 'Basic realm="x"'}, {})) as server:
        report = make(Shelly, server.url, environ).probe()
        assert server.seen[-1][2]["authorization"].startswith("Basic ")
    assert "credentials missing or wrong" in report.why and "s3cret" not in repr(report)


def test_redirects_elsewhere_garbage_and_silence():
    with Server(lambda *a: (302, {"Location": "http://example.org/"}, {})) as server:
        assert "another origin" in make(Shelly, server.url).probe().why
    with Server(lambda *a: (200, {}, b"<html>")) as server:
        assert "is not a Shelly" in make(Shelly, server.url).probe().why
        assert "reports no power" in make(Tasmota, server.url).probe().why
    import time

    # A plug that takes three times as long as it may.
    with Server(lambda *a: (time.sleep(0.6), (200, {}, PLUG))[1]) as server:
        assert "no data for 0.2 s" in make(Shelly, server.url, timeout_s=0.2).probe().why
    for kind in (Shelly, Tasmota):
        assert kind(Request(machine=Machine(environ={}))).probe().state is State.ABSENT
        assert "is not an http" in make(kind, "ftp://example.org").probe().why
        assert "period_s" in make(kind, "http://127.0.0.1:9", period_s=0).probe().why


KEYS = st.sampled_from(["switch:0", "em1:0", "apower", "aenergy", "total", "meters", "power", "StatusSNS", "ENERGY"])
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS | st.just("Power"), inner, max_size=3),
    max_leaves=5,
)


@given(JSON)
@settings(max_examples=200, deadline=None)
def test_any_json_gives_finite_numbers_or_none(data):
    for watts, joules in channels_of(data).values():
        assert abs(watts) < 1e15 and (joules is None or abs(joules) < 1e20)
    watts, joules = energy_of(data)
    assert all(abs(value) < 1e15 for value in watts) and (joules is None or abs(joules) < 1e22)
