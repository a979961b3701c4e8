"""A sensor that just reads values, and the abilities that a group may have."""

from everywatt.core.channels import Channel, Domain, Kind
from everywatt.core.errors import SensorError
from everywatt.sensors.base import FedGroup, RawGroup, State, TroubledGroup, able
from everywatt.sensors.simple import SimpleSensor


class Thermos(SimpleSensor):
    name = "thermos"
    absent = "There is no thermos."
    cure = "open it"

    def find(self):
        folders = sorted((self.machine.sys / "thermos").glob("*"))
        return [self._one(number, folder) for number, folder in enumerate(folders)]

    def _one(self, number, path):
        def read():
            try:
                return float(path.read_text())
            except ValueError as error:
                raise SensorError(f"{path.name}: {error}") from error

        device = f"thermos.{number}"
        return self.group(Channel(f"{device}.power", "W", Kind.GAUGE, device, Domain.RAIL, 1e-3), read=read)


def test_it_is_probed_by_reading(tree):
    assert Thermos(tree.request()).probe() == Thermos(tree.request()).probe()
    assert Thermos(tree.request()).probe().why == "There is no thermos."
    tree.write("sys/thermos/a", "cold")
    report = Thermos(tree.request()).probe()
    assert (report.state, report.cure) == (State.UNUSABLE, "open it") and "cold" in report.why
    tree.write("sys/thermos/b", 4500)
    sensor = Thermos(tree.request())
    assert sensor.probe().samples == {"thermos.1.power": 4.5}
    assert [group.info.device for group in sensor.groups()] == ["thermos.1"]
    tree.clock.advance(1.0)
    (row,) = sensor.groups()[0].read()
    assert (row.values, row.read_ns) == ((4500.0,), tree.clock.monotonic_ns())


class Broken(Thermos):
    def find(self):
        self.missing["thermos.1.power"] = "its bus is closed"
        raise PermissionError(13, "Permission denied", "/sys/class/thermos")


def test_a_search_that_fails_keeps_what_it_noted(tree):
    report = Broken(tree.request()).probe()
    assert report.state is State.UNUSABLE and "Permission denied" in report.why
    assert report.missing == {"thermos.1.power": "its bus is closed"}


class Odd:
    rows_every_s = 2.0
    read_raw = None  # switched off for this device

    @property
    def trouble(self):
        raise RuntimeError("nonsense")

    def to_rows(self, taken):
        return []


def test_a_group_has_an_ability_if_it_has_all_of_its_members():
    odd = Odd()
    assert able(odd, FedGroup) is odd
    assert able(odd, RawGroup) is None
    assert able(odd, TroubledGroup) is None
    assert able(object(), FedGroup) is None
