"""Redfish against a BMC on loopback over TLS: every schema, sessions, and what must not happen."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webserver import Bmc, Server, certificate

from everywatt.core.channels import Domain
from everywatt.core.errors import SensorError
from everywatt.core.machine import Machine
from everywatt.sensors.base import Request, State
from everywatt.sensors.node.redfish import Redfish, find_power, power_w, reading_w, sensor_w

CHASSIS = "/redfish/v1/Chassis"
ONE = f"{CHASSIS}/1"
SAMPLES = (Path(__file__).resolve().parents[2] / "data" / "meters" / "other_meters.txt").read_text().splitlines()


def link(path):
    return {"@odata.id": path}


def tree(chassis, **objects):
    return {CHASSIS: {"Members": [link(ONE)]}, ONE: chassis, **objects}


DELL = {"PowerControl": [json.loads(next(line for line in SAMPLES if "System Power Control" in line))]}
HPE = {"PowerControl": json.loads(next(line for line in SAMPLES if line.startswith("[{") and "PowerControl" in line))}
OLD = tree({"Power": link(f"{ONE}/Power")}, **{f"{ONE}/Power": DELL})
METRICS = tree(
    {"EnvironmentMetrics": link(f"{ONE}/E"), "Power": link(f"{ONE}/Power")},
    **{f"{ONE}/E": {"PowerWatts": {"Reading": 374.5}, "EnergykWh": {"Reading": 10}}, f"{ONE}/Power": DELL},
)
SUPPLIES = tree(
    {"PowerSubsystem": link(f"{ONE}/PS")},
    **{
        f"{ONE}/PS": {"PowerSupplies": link(f"{ONE}/PS/S")},
        f"{ONE}/PS/S": {"Members": [link(f"{ONE}/PS/S/0"), link(f"{ONE}/PS/S/1")]},
        f"{ONE}/PS/S/0": {"Metrics": link(f"{ONE}/PS/S/0/M")},
        f"{ONE}/PS/S/1": {"Metrics": link(f"{ONE}/PS/S/1/M")},
        f"{ONE}/PS/S/0/M": {"InputPowerWatts": {"Reading": 200.5}},
        f"{ONE}/PS/S/1/M": {"InputPowerWatts": {"Reading": 99.5}},
    },
)
SENSORS = tree(
    {"Sensors": link(f"{ONE}/Sensors")},
    **{
        f"{ONE}/Sensors": {"Members": [link(f"{ONE}/Sensors/fan"), link(f"{ONE}/Sensors/total")]},
        f"{ONE}/Sensors/fan": {"Id": "fan", "ReadingType": "Power", "ReadingUnits": "W", "Reading": 9},
        f"{ONE}/Sensors/total": {"Id": "total_power", "ReadingType": "Power", "ReadingUnits": "W", "Reading": 512.0},
    },
)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


def sensor(url, tmp_path, tls=None, **options):
    password = tmp_path / "password"
    password.write_text("s3cret-pass\n")
    told = {"url": url, "user": "reader", "password_file": str(password), "timeout_s": 2, **options}
    told = {key: value for key, value in told.items() if value is not None}
    if tls:
        told["ca_file"] = str(tls[0])
    return Redfish(Request(machine=Machine(environ={}), options={"redfish": told}))


@pytest.mark.parametrize(
    ("objects", "watts"),
    [(OLD, 429.0), (METRICS, 374.5), (SUPPLIES, 300.0), (SENSORS, 512.0)],
    ids=["Power", "EnvironmentMetrics", "PowerSubsystem", "Sensors"],
)
def test_every_schema_over_tls_with_a_session(tmp_path, tls, objects, watts):
    bmc = Bmc(objects)
    with Server(bmc.answer, tls) as server:
        found = sensor(server.url, tmp_path, tls)
        report = found.probe()
        assert report.samples == {"bmc.power": watts}, report.why
        (group,) = found.groups()
        assert group.info.channels[0].domain is Domain.PSU
        group.poll()
        (row,) = group._rows
        assert row.values == (watts,) and row.early_ns <= row.late_ns == row.read_ns
        assert bmc.logins == 1 and len(bmc.sessions) == 1
        group.close()
        assert not bmc.sessions, "the session is ended"


def test_a_session_that_has_run_out_is_made_again(tmp_path, tls):
    bmc = Bmc(OLD)
    with Server(bmc.answer, tls) as server:
        found = sensor(server.url, tmp_path, tls)
        assert found.probe().usable
        (group,) = found.groups()
        bmc.sessions.clear()
        group.poll()
        assert bmc.logins == 2 and group._rows[0].values == (429.0,)
        group.close()


def test_a_certificate_that_is_not_trusted_is_refused_before_anything_is_sent(tmp_path, tls):
    bmc = Bmc(OLD)
    with Server(bmc.answer, tls) as server:
        report = sensor(server.url, tmp_path).probe()
        assert report.state is State.UNUSABLE and "not trusted" in report.why
        assert not server.seen


def test_credentials_are_not_sent_in_the_clear_and_never_shown(tmp_path, tls):
    with Server(Bmc(OLD).answer) as server:
        report = sensor(server.url, tmp_path).probe()
        assert report.state is State.UNUSABLE and "only sent over https" in report.why and not server.seen
    bmc = Bmc(OLD, password="another")
    with Server(bmc.answer, tls) as server:
        report = sensor(server.url, tmp_path, tls).probe()
        assert "refuses access" in report.why
        assert "s3cret" not in repr(report) and "reader" not in repr(report)
    url = "https://reader:s3cret-pass@127.0.0.1/"
    report = sensor(url, tmp_path).probe()
    assert "url contains credentials" in report.why and "s3cret" not in repr(report)


def test_a_redirect_to_another_host_is_refused(tmp_path, tls):
    with Server(lambda *a: (302, {"Location": "https://example.org/redfish/v1/Chassis"}, {}), tls) as server:
        report = sensor(server.url, tmp_path, tls).probe()
        assert report.state is State.UNUSABLE and "redirects to another origin" in report.why
        assert len(server.seen) == 1


def test_a_redirect_on_the_same_host_is_followed(tmp_path, tls):
    bmc = Bmc({**OLD, f"{CHASSIS}/": OLD[CHASSIS]})

    def answer(method, path, headers, body):
        if path == CHASSIS:
            return 308, {"Location": f"{CHASSIS}/"}, {}
        return bmc.answer(method, path, headers, body)

    with Server(answer, tls) as server:
        found = sensor(server.url, tmp_path, tls)
        assert found.probe().samples == {"bmc.power": 429.0}
        found.groups()[0].close()


def test_it_is_not_asked_unless_it_is_configured():
    report = Redfish(Request(machine=Machine(environ={}))).probe()
    assert report.state is State.ABSENT and "not configured" in report.why


def test_a_bmc_that_tells_nothing_and_one_that_is_not_there(tmp_path, tls):
    with Server(Bmc(tree({})).answer, tls) as server:
        report = sensor(server.url, tmp_path, tls).probe()
        assert report.state is State.UNUSABLE and "no power for any chassis" in report.why
    report = sensor("https://127.0.0.1:9/", tmp_path).probe()
    assert report.state is State.UNUSABLE and "does not answer" in report.why


LENOVO = {
    "PowerControl": [
        {"Name": "CPU Sub-system Power", "PhysicalContext": "CPU", "PowerConsumedWatts": 60},
        {"Name": "Memory Sub-system Power", "PowerConsumedWatts": 12},
        {"Name": "Server Power Control", "PowerConsumedWatts": 301, "PowerLimit": {"LimitInWatts": 700}},
    ]
}


def test_a_control_of_processors_is_not_the_machine():
    assert power_w(LENOVO) == 301
    assert power_w({"PowerControl": LENOVO["PowerControl"][:2]}) is None


def test_supplies_of_the_old_schema_where_there_is_no_control():
    one, two = {"PowerInputWatts": 150, "LastPowerOutputWatts": 140}, {"PowerInputWatts": 162.5}
    empty = {"PowerInputWatts": None, "Status": {"State": "Absent"}}
    assert power_w({"PowerControl": [{"Name": "System"}], "PowerSupplies": [one, two, empty]}) == 312.5
    assert power_w({"PowerSupplies": [one, {"LastPowerOutputWatts": 140}]}) is None, "one of two is no total"


def test_boards_of_accelerators_are_not_the_machine():
    """A list of chassis that starts with modules, has two pages, and one member that does not answer."""
    gpu, machine, gone = f"{CHASSIS}/GPU_SXM_1", f"{CHASSIS}/System", f"{CHASSIS}/Gone"
    objects = {
        CHASSIS: {"Members": [link(gone), link(gpu)], "Members@odata.nextLink": f"{CHASSIS}?$skip=2"},
        f"{CHASSIS}?$skip=2": {"Members": [link(machine)]},
        gpu: {"ChassisType": "Module", "EnvironmentMetrics": link(f"{gpu}/E")},
        f"{gpu}/E": {"PowerWatts": {"Reading": 71.5}},
        machine: {"ChassisType": "RackMount", "Power": link(f"{machine}/Power")},
        f"{machine}/Power": DELL,
    }

    def get(path):
        if path not in objects:
            raise SensorError(f"{path}: status 404")
        return objects[path]

    where, ask = find_power(get)
    assert where == f"{machine}/Power" and ask() == 429
    assert find_power(get, "GPU_SXM_1")[1]() == 71.5, "asked for by its id"
    del objects[machine]
    with pytest.raises(SensorError, match="404"):
        find_power(get)


def test_only_the_whole_machine_counts():
    assert power_w(DELL) == 429 and power_w(HPE) == 221
    assert power_w({"PowerControl": [{"PowerMetrics": {"AverageConsumedWatts": 426}}]}) is None
    half = {**SUPPLIES, f"{ONE}/PS/S/1/M": {"InputPowerWatts": {"Reading": None}}}
    assert find_power(half.__getitem__) is None, "one supply of two is no total"
    assert sensor_w({"Id": "CPU1 Power", "ReadingType": "Power", "Reading": 90}) is None
    other = {**OLD, CHASSIS: {"Members": [link(f"{CHASSIS}/2"), link(ONE)]}, f"{CHASSIS}/2": {}}
    assert find_power(other.__getitem__, "1")[0] == f"{ONE}/Power"
    assert find_power(other.__getitem__, "2") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "PowerControl",
                    "PowerConsumedWatts",
                    "PowerWatts",
                    "Reading",
                    "ReadingType",
                    "Members",
                    "@odata.id",
                    "Id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=4,
)


@given(JSON)
@settings(max_examples=200, deadline=None)
def test_any_json_gives_a_number_or_none(data):
    for read in (power_w, sensor_w, partial(reading_w, name="PowerWatts")):
        watts = read(data)
        assert watts is None or (isinstance(watts, float) and watts == watts and abs(watts) < 1e15)

    def get(path):
        if path == CHASSIS:
            return {"Members": [link(ONE)]}
        if path == ONE:
            return {
                "Power": link("/p"),
                "Sensors": link("/s"),
                "PowerSubsystem": data,
                "EnvironmentMetrics": link("/p"),
            }
        if len(path) > 60:
            raise SensorError("far")
        return data

    find_power(get)
