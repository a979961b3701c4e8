"""What sensors say of themselves, as it is listed."""

from everywatt.doctor.coverage import Coverage, SensorList
from everywatt.sensors.base import Report, State


def test_an_estimate_has_the_digits_of_its_interval():
    estimate = Report("modelled", State.USABLE, samples={"host.power": 2.357}, intervals={"host.power": (0.904, 6.144)})
    measured = Report("rapl", State.USABLE, samples={"cpu.0.package.power": 2.357})
    listed = SensorList([estimate, measured], Coverage("", ()))
    cells = [cell for table in listed.tables() for row in table.rows for cell in row]
    assert "≈ 2.4 W (0.9 … 6.2 W)" in cells and "2.357 W" in cells
