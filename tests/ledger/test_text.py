"""The printed ledger adds up to the last digit."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from everywatt.core.budget import Budget, Term
from everywatt.core.energy import Energy
from everywatt.ledger.owners import IDLE, UNATTRIBUTED, Checks, Entry, Ledger, Owner, OwnerKind, Part, in_order
from everywatt.ledger.text import ledger_table, owner_amounts


def ledger(amounts, idle=0):
    entries = [
        Entry(
            Owner(OwnerKind.PROCESS, f"{pid}:1", f"/usr/bin/work --number {pid}"),
            Energy(uj / 1e6),
            {Part.ACTIVE: uj},
            {"cpu_s": 1.5, "rss_bytes": 2048.0},
            "cpu time",
            {"pid": pid},
        )
        for pid, uj in enumerate(amounts, 100)
    ]
    entries.append(Entry(IDLE, Energy(idle / 1e6), {Part.IDLE: idle}, method="quiet"))
    entries.append(Entry(UNATTRIBUTED, Energy(0.0)))
    whole = Energy((sum(amounts) + idle) / 1e6)
    return Ledger("process", whole, in_order(entries), Checks(0, 0.0, 1.0))


FACTORS = {"µJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6}


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=12), st.integers(1, 15))
def test_rows_add_up_to_the_total_row_however_many_are_shown(amounts, top):
    """To the last digit where all rows have the unit of the total; else to one of its last digit."""
    rows = ledger_table(ledger(amounts, idle=5_000_000), top).cells()
    *owners, total = [(float(number), unit) for number, unit in (row[1].split() for row in rows)]
    decimals = len(rows[-1][1].split()[0].partition(".")[2])
    if len({unit for _, unit in (*owners, total)}) == 1:
        assert f"{sum(number for number, _ in owners):.{decimals}f}" == f"{total[0]:.{decimals}f}"
    joules = sum(number * FACTORS[unit] for number, unit in owners) / FACTORS[total[1]]
    assert abs(joules - total[0]) < 1.01 * 10.0**-decimals
    shares = [float(row[3].split()[0]) for row in rows[:-1] if not row[3].startswith("<")]
    assert abs(sum(shares) - 100.0) <= 0.05 * (len(rows) - 1 - len(shares)) + 1e-6


def test_owners_beyond_the_top_are_one_row_and_the_special_ones_stay():
    rows = ledger_table(ledger([3_000_000, 2_000_000, 1_000_000], idle=4_000_000), top=1).cells()
    assert [row[0] for row in rows] == ["/usr/bin/work --number 100 [100]", "2 more", "idle", "unattributed", "total"]
    assert [row[1] for row in rows] == ["3.000 J", "3.000 J", "4.000 J", "0.000 J", "10.000 J"]
    assert rows[0][4:] == ["1.50 s", "", "2.0 KiB", "cpu time"]


def test_intervals_are_those_of_the_json_and_end_at_zero():
    made = ledger([4_170_000], idle=10_896_000)
    wide = Budget((Term("model", "model", 23.5),))
    entries = tuple(
        replace(entry, energy=replace(entry.energy, budget=wide)) if entry.microjoules else entry
        for entry in made.entries
    )
    made = replace(made, entries=entries, total=replace(made.total, budget=wide))
    rows = {row[0]: row for row in ledger_table(made).cells()}
    assert rows["idle"][1:3] == ["10.9 J", "0.0 … 34.4"]
    assert rows["total"][1:3] == ["15.1 J", "0.0 … 38.6"]
    assert rows["unattributed"][1:3] == ["0.0 J", ""]
    assert made.entry("idle").to_dict()["energy"]["low"] == 0.0
    assert owner_amounts(made.entries, 5)[1] == ("idle", "10.9 J (0.0 … 34.4)")


def test_a_json_ledger_is_bounded_and_its_rest_is_exact():
    made = ledger([7, 11, 13, 17], idle=5)
    data = made.to_dict(top=2)
    assert [owner["microjoules"] for owner in data["owners"]] == [17, 13, 5, 0]
    assert (data["rest"]["owners"], data["rest"]["microjoules"]) == (2, 18)
    assert sum(owner["microjoules"] for owner in data["owners"]) + 18 == data["total_microjoules"] == 53
    assert data["rest"]["use"] == {"cpu_s": 3.0}
    assert made.to_dict()["rest"] is None


def test_a_small_owner_of_a_large_run_is_legible():
    """61 J of 3 MJ: in the unit of the whole nothing of it is left."""
    rows = {row[0]: row for row in ledger_table(ledger([3_000_000_000_000, 61_234_567], idle=200_000_000)).cells()}
    assert rows["/usr/bin/work --number 100 [100]"][1] == "3.0000 MJ"
    assert rows["/usr/bin/work --number 101 [101]"][1] == "61.235 J"
    assert rows["idle"][1] == "200.00 J"
    assert rows["unattributed"][1] == "0.0000 MJ"
    assert rows["total"][1] == "3.0003 MJ"


def test_a_small_owner_has_the_digits_of_its_own_interval():
    entries = [
        Entry(
            Owner(OwnerKind.PROCESS, name, name),
            Energy(uj / 1e6, Budget((Term("model", name, half_j),))),
            {Part.ACTIVE: uj},
        )
        for name, uj, half_j in (("big", 3_000_000_000_000, 60_000.0), ("small", 61_234_567, 20.0))
    ]
    assert owner_amounts(entries, 5) == [("big", "3.0000 MJ (2.9400 … 3.0600)"), ("small", "    61 J  (41 … 82 J)")]


def test_equal_owners_have_equal_shares():
    found = ledger_table(ledger([2_000_000] * 500, idle=5_000_000_000))
    shares = {row[3] for row in found.cells()[:500]}
    assert shares == {"< 0.1 %"}


def test_a_ledger_prints_as_its_table():
    found = ledger([1_000_000, 500_000])
    lines = str(found).splitlines()
    assert lines[0] == str(found.total)
    assert [line.split()[0] for line in lines[1:]] == ["OWNER", *["/usr/bin/work"] * 2, "idle", "unattributed", "total"]
    assert repr(found) == str(found)


def test_only_an_owner_of_nothing_has_no_share():
    rows = ledger_table(ledger([5_991_000, 2_000, 16_000], idle=20_894_000)).cells()
    assert [(row[1], row[3]) for row in rows if float(row[1].split()[0]) > 0 and row[3] == "0.0 %"] == []


def test_spans_of_one_name_are_told_apart_by_their_attributes():
    def span(key, name, /, **attributes):
        details = {"attributes": attributes}
        return Entry(Owner(OwnerKind.SPAN, f"s{key}", name), Energy(1.0), {Part.ACTIVE: 10**6}, details=details)

    entries = (span(0, "epoch", number=0, lr=0.1), span(1, "epoch", number=1, lr=0.1), span(2, "save", to="x"))
    made = Ledger("span", Energy(3.0), entries, Checks(0, 0.0, 1.0))
    labels = [row[0] for row in ledger_table(made).cells()]
    assert labels == ["epoch (number=0, lr=0.1)", "epoch (number=1, lr=0.1)", "save", "total"]
