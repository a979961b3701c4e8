"""Jobs from a real VictoriaMetrics and a real Prometheus that hold what agents export."""

import json
from pathlib import Path

import pytest
from engines import MARKS
from ports import free_port
from stored_series import T0

from everywatt.cli.main import main
from everywatt.net.api import ApiClient
from everywatt.slurm.site.from_series import jobs_of_series
from everywatt.slurm.site.totals import Wanted

pytestmark = MARKS


@pytest.fixture
def prometheus(engines) -> str:
    return engines[0].base


@pytest.fixture
def victoria(engines) -> str:
    return engines[1].base


@pytest.mark.parametrize("server", ["victoria", "prometheus"])
def test_jobs_and_their_joules(server: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(server)
    rows = jobs_of_series(ApiClient(url), Wanted(T0, T0 + 6 * 3600), "id")
    told = [(row["job_id"], row["user"], row["account"], row["nodes"], row["energy_uj"]) for row in rows]
    assert told[0] == (12, "ada", "phys", ["n1", "n2"], 108_000_000_000)
    # Job 13 had 18 kJ when the day began, and 72 at its end.
    assert told[1] == (13, "", "", ["n1"], 54_000_000_000)
    assert rows[0]["cpu_s"] == 1800.0 and rows[1]["cpu_s"] is None
    assert rows[0]["low_uj"] is None and rows[0]["idle_uj"] is None
    assert rows[0]["start_s"] == pytest.approx(T0 + 3600, abs=30)
    assert rows[0]["end_s"] == pytest.approx(T0 + 7200, abs=330)  # a server repeats a value for five minutes
    assert [row["job_id"] for row in jobs_of_series(ApiClient(url), Wanted(T0, T0 + 6 * 3600, user="ada"))] == [12]


def test_the_command(victoria: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["slurm", "jobs", "--from", victoria, "--since", "2026-11-15T00:00Z", "--until", "2026-11-15T06:00Z"]
    assert main([*words, "--sort", "energy"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[:3] == ["12", "ada", "phys"] and "108.0 kJ" in out[1]
    assert main([*words, "--json"]) == 0
    energy = json.loads(capsys.readouterr().out)["jobs"][0]["energy"]
    assert (energy["low"], energy["notes"]) == (None, ["from time series: no idle share, coverage unknown"])
    assert main([*words, "--by", "user"]) == 2


def test_what_is_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "jobs", "--from", f"http://127.0.0.1:{free_port()}"]) != 0
    assert "does not respond" in capsys.readouterr().err
    assert main(["slurm", "jobs", "--from", str(tmp_path)]) == 2
