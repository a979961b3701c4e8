"""An agent's metrics as a live source, from a real server on the loopback."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.fleet.metrics import samples
from everywatt.report.live.agent_source import AgentSource, address

TEXT = """# HELP everywatt_power_watts Power.
# TYPE everywatt_power_watts gauge
everywatt_power_watts{device="gpu.0",domain="gpu"} 210.5
everywatt_power_watts{device="cpu.0",domain="package"} 60 1700000000000
everywatt_power_watts{device="psys",domain="node"} 300
everywatt_energy_joules_total{device="gpu.0",domain="gpu"} %(joules)s
everywatt_energy_joules_total{device="cpu.0",domain="package"} 1e3
everywatt_energy_joules_total{device="cpu.0",domain="core"} 7e2
everywatt_device_info{device="psys",domain="node",total="0"} 1
everywatt_device_info{device="cpu.0",domain="core",total="0"} 1
everywatt_device_info{device="cpu.0",domain="package",total="1"} 1
everywatt_utilisation_ratio{device="gpu.0"} 0.93
everywatt_clock_hertz{device="gpu.0",clock="sm"} 1.41e9
everywatt_clock_hertz{device="gpu.0",clock="memory"} 1e9
everywatt_owner_energy_joules_total{kind="user",owner="a \\"b\\"\\n\\\\c",device="gpu.0"} %(joules)s
everywatt_owner_energy_joules_total{kind="user",owner="a \\"b\\"\\n\\\\c",device="cpu.0"} 99
node_load1 0.5
nonsense
everywatt_power_watts{device="gpu.9"} NaN?
"""


@pytest.fixture
def server():
    """Serves TEXT; `.answers` says with which status, `.joules` with which counter."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            made.headers = self.headers
            self.send_response(made.status if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write((TEXT % {"joules": made.joules}).encode() if made.body is None else made.body)

        def log_message(self, *words):
            pass

    made = HTTPServer(("127.0.0.1", 0), Handler)
    made.status, made.joules, made.body = 200, 5000.0, None
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def url(server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_devices_owners_and_the_total(server):
    shown = AgentSource(url(server), 1.0).poll()
    devices = {device.name: device for device in shown.devices}
    assert devices["gpu.0"].power_w == 210.5 and devices["gpu.0"].utilisation_pct == 93
    assert devices["gpu.0"].energy.joules == 5000.0
    assert devices["gpu.0"].clock_mhz == 1410
    assert not devices["psys"].in_total and "gpu.9" not in devices
    assert devices["cpu.0 core"].energy.joules == 700 and not devices["cpu.0 core"].in_total
    assert shown.total_w == 270.5 and shown.total.joules == 6000.0
    assert shown.host.name == "127.0.0.1"
    (owner,) = shown.owners.entries
    assert (owner.kind, owner.id, owner.label, owner.power_w, owner.joules) == (
        "user",
        'a "b"\n\\c',
        'a "b"\n\\c',
        0,
        5099,
    )


def test_the_total_has_an_interval_where_its_devices_have(server):
    ends = [
        f'everywatt_energy_{side}_joules_total{{device="{device}",domain="{domain}"}} {value}\n'
        for device, domain, low, high in (("gpu.0", "gpu", 4800, 5100), ("cpu.0", "package", 990, 1010))
        for side, value in (("low", low), ("high", high))
    ]
    server.body = ((TEXT % {"joules": 5000}) + "".join(ends)).encode()
    total = AgentSource(url(server), 1.0).poll().total
    assert (total.low, total.joules, total.high) == (5790, 6000, 6110)


def test_an_owner_s_power_is_what_its_counters_grew_by(server):
    source = AgentSource(url(server), 1.0)
    source.poll()
    began_s = source._at_s
    server.joules = 6000.0
    (owner,) = source.poll().owners.entries
    assert owner.power_w == pytest.approx(1000 / (source._at_s - began_s))


def test_a_device_whose_sensor_is_silent_has_no_power(server):
    source = AgentSource(url(server), 1.0)
    source.poll()
    text = TEXT % {"joules": 5000}
    lines = text.splitlines(keepends=True)
    server.body = "".join(
        line for line in lines if not line.startswith('everywatt_power_watts{device="gpu.0"')
    ).encode()
    device = next(device for device in source.poll().devices if device.name == "gpu.0")
    assert (device.power_w, device.energy.joules) == (None, 5000.0)


def test_only_some_cards(server):
    assert [d.name for d in AgentSource(url(server), 1.0, gpus=("1",)).poll().devices] == [
        "cpu.0",
        "psys",
        "cpu.0 core",
    ]


def test_an_agent_that_stops_answering_is_a_note_and_comes_back(server):
    source = AgentSource(url(server), 1.0)
    server.status = 500
    shown = source.poll()
    assert "does not answer" in shown.notes[0] and shown.devices
    server.status = 200
    assert source.poll().notes == ()


def test_nothing_to_fetch_is_refused(server):
    with pytest.raises(MeasurementRefused, match="does not answer"):
        AgentSource("http://127.0.0.1:9", 1.0)
    server.body = b"node_load1 3\n"
    with pytest.raises(MeasurementRefused, match="no everywatt metrics"):
        AgentSource(url(server), 1.0)


def test_addresses():
    assert address("http://n:1") == "http://n:1/metrics" == address("http://n:1/")
    assert address("http://n:1/other") == "http://n:1/other"
    with pytest.raises(UsageError):
        address("http://")


def test_samples_of_the_text_format():
    found = list(samples('a 1\nb{x="1",y="a,b}"} 2.5e3 123\n# c 1\nd{ 1\n'))
    assert found == [("a", {}, 1.0), ("b", {"x": "1", "y": "a,b}"}, 2500.0)]


def test_a_token_is_shown_and_files_that_cannot_be_used_are_refused(server, tmp_path):
    from everywatt.core.errors import UsageError
    from everywatt.report.live.agent_source import Access

    token = tmp_path / "token"
    token.write_text("s3cret\nmore\n")
    AgentSource(url(server), 1.0, access=Access.of(token, None))
    assert server.headers["Authorization"] == "Bearer s3cret"
    AgentSource(url(server), 1.0)
    assert "Authorization" not in server.headers
    token.write_text("\n")
    for words in ((token, None), (tmp_path / "none", None), (None, token), (None, tmp_path / "none")):
        with pytest.raises(UsageError):
            Access.of(*words)


def test_an_agent_that_wants_a_token_says_so(server):
    server.status = 401
    with pytest.raises(MeasurementRefused) as refused:
        AgentSource(url(server), 1.0)
    assert "--token-file" in (refused.value.cure or "")


def test_a_token_is_not_sent_to_where_an_agent_points(tmp_path):
    from api_server import ApiServer

    from everywatt.report.live.agent_source import Access

    token = tmp_path / "token"
    token.write_text("s3cret\n")
    with ApiServer(lambda asked: (200, {}, (TEXT % {"joules": 1}).encode())) as other:
        there = {"Location": f"{other.url}/metrics"}
        agent = ApiServer(lambda asked: (302, dict(there), b""))
        with agent, pytest.raises(MeasurementRefused, match="another origin"):
            AgentSource(agent.url, 1.0, access=Access.of(token, None))
        assert other.asked == []
