"""Commands, parameters and labels."""

import pytest

from everywatt.bench.trials import candidates, letter, parse_values, words_of
from everywatt.core.errors import UsageError


def test_commands_are_split_like_a_shell_does():
    (one,) = candidates(["python -c 'print(1, 2)'"])
    assert one.words == ("python", "-c", "print(1, 2)")
    assert one.label == "A"


def test_a_shell_reads_the_whole_line():
    assert words_of("a | b", shell=True) == ("/bin/sh", "-c", "a | b")


def test_parameters_are_scanned_in_every_combination():
    found = candidates(["x {n} {m}", "y {n}"], params={"n": ["1", "2"], "m": ["a"]})
    assert [one.text for one in found] == ["x 1 a", "x 2 a", "y 1", "y 2"]
    assert [one.label for one in found] == ["A n=1 m=a", "A n=2 m=a", "B n=1", "B n=2"]
    assert [one.index for one in found] == [0, 1, 2, 3]


def test_names_go_to_the_commands_in_order():
    assert [one.label for one in candidates(["a", "b"], names=["old"])] == ["old", "B"]


@pytest.mark.parametrize(
    ("commands", "more"),
    [
        ([""], {}),
        (["a 'b"], {}),
        (["a"], {"params": {"n": ["1"]}}),
        (["a"], {"names": ["x", "y"]}),
    ],
)
def test_what_cannot_be_compared_is_refused(commands, more):
    with pytest.raises(UsageError):
        candidates(commands, **more)


def test_values_are_lists_or_ranges():
    assert parse_values("1,2, 4") == ["1", "2", "4"]
    assert parse_values("1..9:4") == ["1", "5", "9"]
    assert parse_values("0.1..0.3:0.1") == ["0.1", "0.2", "0.3"]
    for bad in ("1,,2", "a..b", "3..1", "1..2:0"):
        with pytest.raises(UsageError):
            parse_values(bad)


def test_letters_go_on_after_z():
    assert [letter(place) for place in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]
