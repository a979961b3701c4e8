"""The table of jobs where there is little room."""

from everywatt.cli.slurm.jobs import HEADERS
from everywatt.cli.slurm.table import fit

TIMES = ["8.5 s", "86 mJ −86/+92", "4.913 J", "0.4 %"]
JOBS = [
    ["1", "ada", "phys", "COMPLETED", "1", *TIMES, "-", "a-rather-long-name-of-a-job.sh"],
    ["2_1", "eve", "phys", "FAILED", "1", *TIMES, "-", "b"],
]


def wide(headers: list[str], rows: list[list[str]]) -> int:
    """As rich lays it out: three columns apart, and one at each side."""
    lengths = [max(len(line[place]) for line in (headers, *rows)) for place in range(len(headers))]
    return sum(lengths) + 3 * (len(headers) - 1) + 2


def test_all_of_it_where_there_is_room() -> None:
    assert fit(HEADERS, JOBS, 200) == (HEADERS, JOBS)


def test_what_says_the_same_of_all_jobs_goes_first() -> None:
    headers, rows = fit(HEADERS, JOBS, 90)
    assert [name for name in HEADERS if name not in headers] == ["NODES", "GPU"]
    assert wide(headers, rows) == 90
    assert [name for name in HEADERS if name not in fit(HEADERS, JOBS, 80)[0]] == ["ACCOUNT", "NODES", "GPU"]
    assert rows[0][-1].endswith("…") and rows[1][-1] == "b"


def test_eighty_columns_and_fewer_have_a_line_for_each_job() -> None:
    for width in (80, 72, 60):
        headers, rows = fit(HEADERS, JOBS, width)
        assert wide(headers, rows) <= width
        assert {"JOB", "TIME", "ENERGY", "NAME"} <= set(headers)
