"""TOML and options say the same in the same words, and mistakes are told with the file's name."""

import pytest

from everywatt.core.errors import UsageError
from everywatt.stress import KINDS, load_program
from everywatt.stress.files import Part, parse_devices, parse_kinds, parse_program

ONE = """
time = "20s"
cpu = 2
kind = "vector"
ram = "64MiB"
shape = "ramp:0..100"
steps = 6
seed = 3
"""

SEVERAL = """
name = "both"
cpu = 2

[[part]]
time = 4
shape = "constant:50"

[[part]]
time = "6s"
disk = "5MB/s"
one-by-one = true
shape = { cpu = "steps:10,20", disk = "constant:100" }
"""


def write(folder, text):
    path = folder / "load.toml"
    path.write_text(text)
    return path


def test_a_file_equals_its_options(tmp_path):
    options = Part(time=20.0, cpu=2, kind="vector", ram="64MiB", shape={"": "ramp:0..100"}, steps=6, seed=3)
    assert load_program(write(tmp_path, ONE)) == options.program("load")


def test_parts_follow_one_another_and_share_what_is_outside(tmp_path):
    program = load_program(write(tmp_path, SEVERAL))
    assert program.name == "both" and program.duration_s == pytest.approx(10.0)
    first, second, third, fourth = program.steps
    assert (first.duration_s, first.cpu.cores, first.cpu.percent) == (4.0, 2, 50.0)
    assert [(s.duration_s, s.cpu.percent) for s in (second, third)] == [(1.5, 10.0), (1.5, 20.0)]
    assert fourth.cpu is None and fourth.disk_bytes_per_s == 5e6 and fourth.duration_s == 3.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cpu = ", "is not TOML"),
        ("cpus = 2", "Unknown key 'cpus' in a load program"),
        ("cpu = 'two'", "cpu = 'two' is not valid"),
        ("cpu = true", "cpu = True is not valid"),
        ("cpu = 2\ntime = 'soon'", "'soon' is not a duration"),
        ("ram = 'lots'", "'lots' is not a size"),
        ("cpu = 1\nshape = {cup = '50'}", "no resource 'cup'"),
        ("cpu = 1\nshape = {cpu = 50}", "not a string"),
        ("cpu = 1\nkind = 'odd'", "no kind of work 'odd'"),
        ("gpu = 'first'", "not a list of GPUs"),
        ("part = 3", "each part a table"),
        ("time = 5", "No resource"),
    ],
)
def test_mistakes_name_the_file_and_the_word(tmp_path, text, says):
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=says) as caught:
        load_program(path)
    assert str(path) in caught.value.message


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_program(tmp_path / "none.toml")


def test_the_name_is_the_files_unless_it_says_another(tmp_path):
    assert load_program(write(tmp_path, "cpu = 1")).name == "load"
    assert parse_program({"cpu": 1, "name": "mine"}).name == "mine"


def test_sizes_kinds_and_devices():
    assert Part(cpu=1, ram=17, disk="50MB/s").program().steps[0].memory_bytes == 17
    assert parse_kinds("all") == KINDS
    assert parse_kinds("vector, integer,vector") == ("vector", "integer")
    assert parse_devices("0,2") == (0, 2) and parse_devices(1) == (1,) and parse_devices(()) == ()
