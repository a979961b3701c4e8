"""Other receivers than Prometheus: Influx lines and Sage records, in order, from the same queue."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from virtual_world import VirtualWorld

from everywatt.core.clocks import NS
from everywatt.core.errors import UsageError
from everywatt.fleet.encodings import ENCODINGS, influx_lines, labels_bytes, labels_of, sage_records
from everywatt.fleet.options import FORMATS, AgentOptions

POWER = labels_bytes("everywatt_power_watts", {"device": "gpu.0", "instance": "n1", "job": "everywatt"})
ODD = labels_bytes("a", {"x": "b c,d=e\nf\\", "long": "y" * 300})


def test_labels_come_back() -> None:
    assert labels_of(ODD) == {"__name__": "a", "x": "b c,d=e\nf\\", "long": "y" * 300}
    assert tuple(ENCODINGS) == FORMATS


def test_influx_lines_are_in_order_and_escaped() -> None:
    lines = influx_lines([(POWER, [(1000, 2.5), (3000, None)]), (ODD, [(500, 1e300), (1500, 0.1)])]).decode()
    odd = f"a,long={'y' * 300},x=b\\ c\\,d\\=e\\ f"
    assert lines.split("\n") == [
        f"{odd} value=1e+300 500000000",
        "everywatt_power_watts,device=gpu.0,instance=n1,job=everywatt value=2.5 1000000000",
        f"{odd} value=0.1 1500000000",
        "",
    ]


def test_sage_records_have_topics_and_meta() -> None:
    (record,) = map(json.loads, sage_records([(POWER, [(1_700_000_000_123, 2.5)])]).splitlines())
    assert record == {
        "timestamp": "2023-11-14T22:13:20.123000000Z",
        "name": "everywatt.power.watts",
        "value": 2.5,
        "meta": {"device": "gpu.0", "node": "n1"},
    }


def test_options_say_what_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="not a format"):
        AgentOptions(remote_write="http://x/y", remote_write_format="csv").checked()
    with pytest.raises(UsageError, match="nothing is"):
        AgentOptions(remote_write_format="influx").checked()


class Taker:
    """Takes posts of text once `open_` says so."""

    def __init__(self, open_) -> None:  # type: ignore[no-untyped-def]
        self.bodies: list[str] = []
        self.headers: list[dict[str, str]] = []
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
        from threading import Thread

        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                good = open_()
                if good:
                    outer.bodies.append(body)
                    outer.headers.append({key.lower(): value for key, value in self.headers.items()})
                self.send_response(204 if good else 503)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> "Taker":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/write?db=x"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VirtualWorld]:
    with VirtualWorld(tmp_path, cpu="constant:60W", gpu="constant:100W") as made:
        yield made


@pytest.mark.parametrize("form", ["influx", "sage"])
def test_what_waited_for_the_receiver_goes_out_in_order(world: VirtualWorld, tmp_path: Path, form: str) -> None:
    """Away for twenty seconds, and the agent is started again meanwhile: nothing is lost."""
    (tmp_path / "token").write_text("secret-token-of-a-receiver\n")
    away_until_ns = world.now_ns + 20 * NS
    with Taker(lambda: world.now_ns > away_until_ns) as taker:
        options = {"remote_write": taker.url, "remote_write_format": form, "period_s": 1.0}
        first = world.agent(**options, remote_write_token_file=tmp_path / "token")
        world.sleep(8)
        first.end()
        assert not taker.bodies
        second = world.agent(**options, remote_write_token_file=tmp_path / "token", state=first.folder)
        world.sleep(60)
        second.end()
    lines = [line for body in taker.bodies for line in body.splitlines()]
    if form == "influx":
        assert taker.headers[0]["authorization"] == "Token secret-token-of-a-receiver"
        times = [int(line.rpartition(" ")[2]) // 10**6 for line in lines if line.startswith("everywatt_energy_joules")]
    else:
        assert taker.headers[0]["authorization"] == "Bearer secret-token-of-a-receiver"
        records = [json.loads(line) for line in lines]
        times = [record["timestamp"] for record in records if record["name"] == "everywatt.energy.joules.total"]
    assert len(times) > 40 and times == sorted(times)
