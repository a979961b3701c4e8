import pytest

from everywatt.core.errors import UsageError
from everywatt.footprint.carbon import SOURCE, countries, country_intensity, read_curve


def test_the_bundled_table_is_whole():
    table = countries()
    assert len(table) > 200
    assert len({row[0] for row in table}) == len({row[1] for row in table}) == len(table)
    assert all(2021 <= row[3] <= 2023 and 0 < row[4] < 1500 for row in table)


@pytest.mark.parametrize("word", ["FR", "fra", "France", " fr "])
def test_a_country_by_any_of_its_names(word):
    found = country_intensity(word)
    assert (found.g_per_kwh, found.place, found.year, found.source) == (56.0, "France", 2023, SOURCE)
    assert str(found) == f"56 g/kWh (France, 2023, {SOURCE})"


def curve(tmp_path, text):
    path = tmp_path / "grid.csv"
    path.write_text(text, encoding="utf-8-sig")
    return read_curve(path)


def test_a_table_of_quarters_of_an_hour(tmp_path):
    found = curve(tmp_path, "time,g_per_kwh\n2026-11-15T10:00+01:00,40\n2026-11-15T10:15+01:00,50\n")
    assert found.start_s[0] == 1794733200.0 and found.g_per_kwh.tolist() == [40.0, 50.0]
    assert found.end_s == found.start_s[0] + 1800, "the last row holds as long as the one before"


def test_columns_as_the_french_grid_names_them_in_any_order(tmp_path):
    rows = ["51;2026-11-15T10:15:00+00:00", "49;2026-11-15T10:00:00+00:00", ";2026-11-15T10:30:00+00:00"]
    found = curve(tmp_path, "\n".join(["Perimetre;taux_co2;date_heure", *(f"France;{row}" for row in rows)]))
    assert found.g_per_kwh.tolist() == [49.0, 51.0], "in order of time; a row without a value is passed over"


def test_seconds_and_comments(tmp_path):
    found = curve(tmp_path, "# by hand\ntime,intensity\n100,40\n\n200,50\n")
    assert found.start_s.tolist() == [100.0, 200.0] and found.end_s == 300.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("when,g_per_kwh\n1,2\n", "no column time; it has: when, g_per_kwh"),
        ("time,grams\n1,2\n", "no column g_per_kwh"),
        ("time,g_per_kwh\nyesterday,2\n", "row 2: 'yesterday' is not a time"),
        ("time,g_per_kwh\nnan,2\n", "row 2: 'nan' is not a time"),
        ("time,g_per_kwh\n1700000000000,2\n", "row 2: '1700000000000' is not a time"),
        ("time,g_per_kwh\n1,many\n", "row 2: 'many' is not an amount"),
        ("time,g_per_kwh\n1,-3\n", "row 2: '-3' is not an amount"),
        ("time,g_per_kwh\n1,\n", "no row with a value"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        curve(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_curve(tmp_path / "none.csv")
