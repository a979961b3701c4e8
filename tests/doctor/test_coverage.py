"""What sensors say of themselves, as it is listed."""

from everywatt.doctor import coverage
from everywatt.doctor.coverage import Coverage, SensorList
from everywatt.sensors.base import Report, State


def test_an_estimate_has_the_digits_of_its_interval():
    estimate = Report("modelled", State.USABLE, samples={"host.power": 2.357}, intervals={"host.power": (0.904, 6.144)})
    measured = Report("rapl", State.USABLE, samples={"cpu.0.package.power": 2.357})
    listed = SensorList([estimate, measured], Coverage("", ()))
    cells = [cell for table in listed.tables() for row in table.rows for cell in row]
    assert "≈ 2.4 W (0.9 … 6.2 W)" in cells and "2.357 W" in cells


def test_an_example_is_printed_the_same_way_by_every_check():
    values = {"cpu.0.temperature": None, "host.power": 2.357, "gpu.0.power": 30.0}
    estimate = Report("modelled", State.USABLE, samples=values, intervals={"host.power": (0.904, 6.144)})
    assert coverage.example(estimate) == "host.power ≈ 2.4 W (0.9 … 6.2 W)"
    assert coverage.example(Report("rapl", State.USABLE, samples={"gpu.0.power": 30.0})) == "gpu.0.power = 30.00 W"
    assert coverage.example(Report("rapl", State.USABLE, samples={"gpu.0.power": None})) is None
