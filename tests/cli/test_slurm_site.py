"""The commands of a site on a store with known jobs: known answers, exit codes, and who may read what."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import known_site
import pytest
from known_site import MJ

from everywatt.cli.main import main
from everywatt.slurm.site.sacct import COLUMNS
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.users import Person, as_person, person

SINCE = ["--since", "2026-11-14", "--until", "2026-11-30"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known_site.make(tmp_path_factory.mktemp("site")).path


@pytest.fixture
def own_site(tmp_path: Path) -> Path:
    return known_site.make(tmp_path / "site").path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: object) -> tuple[int, str]:
        code = main([str(word) for word in words])
        return code, capsys.readouterr().out

    return run


def data(said: Any, *words: object) -> dict[str, Any]:
    code, out = said(*words, "--json")
    assert code == 0
    return dict(json.loads(out))


def test_waste_has_a_known_answer(said: Any, site: Path) -> None:
    code, out = said("slurm", "jobs", "--waste", "--store", site, *SINCE)
    assert code == 0
    lines = out.splitlines()
    assert lines[1].split()[0] == "2" and "600.0 kJ" in lines[1]
    assert lines[2].split()[0] == "1" and "350.0 kJ" in lines[2]
    rows = data(said, "slurm", "jobs", "--waste", "--store", site, *SINCE)["jobs"]
    assert [(row["id"], row["waste_j"]) for row in rows[:2]] == [("2", 600_000), ("1", 350_000)]


def test_by_account_has_a_known_answer(said: Any, site: Path) -> None:
    found = data(said, "slurm", "jobs", "--by", "account", "--waste", "--store", site, *SINCE)
    told = [(row["group"], row["jobs"], row["energy"]["joules"], row["waste_j"]) for row in found["groups"]]
    assert told[:2] == [("phys", 2, 7.6e6, 950_000), ("chem", 2, 5e5, None)]
    nodes = found["nodes"]
    assert nodes["total_j"] == pytest.approx(nodes["jobs_j"] + nodes["idle_j"] + nodes["system_j"], abs=1e-6)


def test_a_job_in_full(said: Any, site: Path) -> None:
    code, out = said("slurm", "job", "1", "--store", site)
    assert code == 0
    assert "3.60 MJ ± 0.36" in out and "5.000 MJ   ours with the idle share: −20.0 %" in out
    assert "* 2.0 of 16 CPUs used on average." in out
    assert re.search(r"^  0 +#{40} +2\.90 MJ$", out, re.MULTILINE)
    (job,) = data(said, "slurm", "job", "3_4", "--store", site)["jobs"]
    assert (job["id"], job["job_id"], job["state"], job["energy"]["joules"]) == ("3_4", 7, "FAILED", 5e5)
    refused = data(said, "slurm", "job", "5", "--store", site)["jobs"][0]["energy"]
    assert (refused["joules"], refused["refused"]) == (None, "too short")
    assert said("slurm", "job", "404", "--store", site)[0] == 2


def test_a_summary_for_a_login(said: Any, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: known_site.T0 + 86_400)
    words = ("slurm", "summary", "--user", "ada", "--store", site, "--intensity", "52", "--pue", "1.36")
    code, out = said(*words, "--last", "1")
    first, last = out.splitlines()
    assert code == 0 and "ada, 2026-11: 2 jobs, " in first and "149 g CO2e" in first
    assert last.split()[:2] == ["2", "COMPLETED"]
    found = data(said, *words)
    assert found["carbon_g"] == pytest.approx(7.6 / 3.6 * 52 * 1.36)
    assert "no job of nobody ended" in said("slurm", "summary", "--user", "nobody", "--store", site)[1]


def test_a_month_as_a_page_and_a_table(said: Any, site: Path, tmp_path: Path) -> None:
    page, table = tmp_path / "m.html", tmp_path / "m.csv"
    words = ("slurm", "report", "--month", "2026-11", "--store", site, "--country", "FR", "--price", "0.2 EUR")
    assert said(*words, "-o", page)[0] == said(*words, "-o", table)[0] == 0
    text = page.read_text()
    assert "<th>ada</th>" in text and "7.60 MJ" in text and "0.45 EUR" in text
    assert '<td class="number">0.42</td>' in text
    assert "http://" not in text and "https://" not in text and "<script" not in text
    with table.open(newline="") as file:
        rows = {(row["by"], row["group"]): row for row in csv.DictReader(file)}
    assert float(rows["user", "ada"]["energy_j"]) == 7_600_000
    assert float(rows["user", "ada"]["cost"]) == pytest.approx(7.6 / 3.6 * 0.2)
    assert data(said, *words)["total"]["jobs"] == 5
    assert said("slurm", "report", "--month", "2026-13", "--store", site)[0] == 2
    assert said(*words, "-o", tmp_path / "m.pdf")[0] == 2


def test_names_in_a_page_are_text(said: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.append([known_site.job(1, "ada", 1, 1, MJ, name="<script>alert(1)</script>", account="<b>")], "n1")
    assert said("slurm", "report", "--month", "2026-11", "--store", store.path, "-o", tmp_path / "p.html")[0] == 0
    text = (tmp_path / "p.html").read_text()
    assert "<script" not in text and "<b>" not in text and "&lt;script&gt;" in text


def test_validate_does_not_call_a_folder_of_something_else_in_order(said: Any, tmp_path: Path) -> None:
    assert said("slurm", "validate", "--store", tmp_path)[0] == 2


def test_a_group_that_is_not_there_is_told_before_the_days_work(said: Any, own_site: Path) -> None:
    words = ("--date", "2026-11-15", "--no-sacct", "--group", "no-such-group-here", "--store", own_site)
    assert said("slurm", "daily", *words)[0] == 2
    assert not (own_site / "daily" / "2026-11-15.json").exists()


def test_validate_lists_and_ends_with_1(said: Any, site: Path, tmp_path: Path) -> None:
    code, out = said("slurm", "validate", "--store", site)
    assert code == 1
    assert [line.split()[:2] for line in out.splitlines()[1:-1]] == [
        ["refused", "5"],
        ["no-end", "6"],
        ["coverage", "6"],
        ["missing-nodes", "6"],
    ]
    code, out = said("validate", site, "--json")
    assert code == 1
    assert [finding["field"] for finding in json.loads(out)["findings"]] == [
        "refused",
        "no-end",
        "coverage",
        "missing-nodes",
    ]
    assert said("slurm", "validate", "--store", site, "--until", "2026-11-15T12:00Z") == (
        0,
        "No problems found.\n",
    )


def test_daily_with_what_sacct_wrote(said: Any, own_site: Path, tmp_path: Path) -> None:
    cells = dict.fromkeys(COLUMNS, "") | {"JobIDRaw": "7", "JobID": "3_4", "State": "TIMEOUT", "Cluster": "c"}
    start = int(known_site.T0 + 20 * 3600)
    cells |= {"Start": str(start), "End": str(start + 1800), "User": "bob", "NodeList": "n1"}
    other = cells | {"JobIDRaw": "8", "JobID": "8", "User": "eve", "NodeList": "n[1-2]", "State": "COMPLETED"}
    file = tmp_path / "sacct.txt"
    file.write_text("\n".join("|".join(row) for row in (COLUMNS, cells.values(), other.values())) + "\n")
    words = ("slurm", "daily", "--date", "2026-11-15", "--sacct", file, "--store", own_site)
    found = data(said, *words)
    assert found["sacct"] == {"jobs": 2, "changed": 1, "added": 1}
    assert data(said, *words)["sacct"] == {"jobs": 2, "changed": 0, "added": 0}
    states = data(said, "slurm", "jobs", "--by", "state", "--store", own_site, *SINCE)["groups"]
    assert {row["group"]: row["jobs"] for row in states} == {"COMPLETED": 5, "TIMEOUT": 1}
    assert found["day"]["total"]["jobs"] == 6
    assert said("slurm", "daily", "--date", "yesterday", "--store", own_site)[0] == 2
    assert said("slurm", "daily", "--store", tmp_path / "none")[0] == 2


def test_units_and_a_line_for_cron(said: Any, site: Path) -> None:
    code, out = said("slurm", "daily", "--units", "--group", "admins", "--store", site)
    assert code == 0
    assert f"slurm daily --store {site} --group admins" in out
    assert "OnCalendar=*-*-* 00:30:00 UTC" in out and re.search(r"^30 1 \* \* \* root ", out, re.MULTILINE)


def test_a_second_daily_leaves_at_once(said: Any, own_site: Path) -> None:
    code = (
        f"import fcntl, sys; f = open('{own_site}/.daily.lock', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)\n"
        "print('x', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        assert said("slurm", "daily", "--no-sacct", "--store", own_site) == (
            0,
            "Another process is working on this store.\n",
        )
    finally:
        other.communicate()


def test_a_tree_goes_out_and_in(said: Any, site: Path, tmp_path: Path) -> None:
    tree, back = tmp_path / "tree", tmp_path / "back"
    found = data(said, "slurm", "export", "--to", "labia-tree", "-o", tree, "--store", site, *SINCE)
    assert (found["added"], found["left_out"]) == (6, 0)
    assert data(said, "slurm", "import", tree, "--store", back)["added"] == 6
    assert data(said, "slurm", "import", tree, "--store", back)["added"] == 0
    assert said("slurm", "import", tmp_path / "nothing", "--store", back)[0] == 2


def test_emissions_of_both_kinds(said: Any, site: Path, tmp_path: Path) -> None:
    grid = tmp_path / "co2.csv"
    grid.write_text("date_heure;taux_co2\n2026-11-15T00:00+00:00;40\n2026-11-15T11:30+00:00;60\n2026-11-16T00:00Z;60\n")
    words = ("slurm", "export", "--to", "labia-csv-co2", "-o", tmp_path / "out", "--store", site, *SINCE)
    assert said(*words, "--intensity", "52", "--intensity-file", grid)[0] == 0
    with (tmp_path / "out" / "ada.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert first["CPU Emission RTE (gCO2eq)"] == f"{4 / 3.6 * 40:.4f}"
    assert first["CPU Emission ADEME (gCO2eq)"] == f"{4 / 3.6 * 52:.4f}"


def test_the_wall_of_a_meters_log(said: Any, own_site: Path, tmp_path: Path) -> None:
    """2000 W at two plugs from 9:59 to 12:01; n1 drew 4.6 MJ of chips between 10 and 11, of which job 1 had 4.0."""
    lines = ["#timestamp,#frame_is_ok,#U1,#U2,#U3,#current1,#activepow1,#current2,#activepow2"]
    start = int(known_site.T0 + 10 * 3600) - 60
    lines += [f"{start + n * 10}.000000000,true,230.0,0.0,0.0,1.0,1500.0,1.0,500.0" for n in range(740)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "map.toml").write_text('[[plug]]\nplug = 1\nnode = "n1"\n[[plug]]\nplug = 2\nnode = "n1"\n')
    words = ("slurm", "wall", tmp_path / "log.csv", "--map", tmp_path / "map.toml", "--store", own_site, *SINCE)
    assert data(said, *words, "--dry")["changed"] == 1
    found = data(said, *words)
    assert found["changed"] == 1 and found["nodes"][0]["node"] == "n1"
    assert data(said, *words)["changed"] == 0
    wall_j = data(said, "slurm", "job", "1", "--store", own_site)["jobs"][0]["nodes"][0]["wall_uj"] / 1e6
    assert wall_j == pytest.approx(4.0 / 4.6 * 7.2e6)
    assert "not explained by the chips" in said("slurm", "job", "1", "--store", own_site)[1]
    assert said("slurm", "wall", "--store", own_site)[0] == 2
    assert said("slurm", "wall", tmp_path / "log.csv", "--store", own_site)[0] == 2


def bmc_log(path: Path, minutes: Iterable[int]) -> Path:
    """What a loop around `date +%s; ipmitool dcmi power reading` leaves: 2000 W, minutes after 9:58."""
    start = int(known_site.T0 + 10 * 3600) - 120
    text = "{}\n\n    Instantaneous power reading:      2000 Watts\n    Minimum during sampling period: 9 Watts\n"
    path.write_text("".join(text.format(start + n * 60) for n in minutes))
    return path


def test_the_wall_of_a_bmc(said: Any, own_site: Path, tmp_path: Path) -> None:
    """The same as of a wattmeter, from a run that `import ipmi` made."""
    log = bmc_log(tmp_path / "bmc.log", range(124))
    assert said("import", "ipmi", log, "--out", tmp_path / "bmc")[0] == 0
    words = ("slurm", "wall", "--run", f"n1={tmp_path / 'bmc'}", "--store", own_site, *SINCE)
    (node,) = data(said, *words, "--dry")["nodes"]
    assert (node["node"], node["hours"], node["jobs"]) == ("n1", 2, 1)
    assert node["wall_j"] == pytest.approx(2 * 7.2e6, rel=1e-3)
    assert data(said, *words)["changed"] == 1
    assert data(said, *words)["changed"] == 0
    wall_j = data(said, "slurm", "job", "1", "--store", own_site)["jobs"][0]["nodes"][0]["wall_uj"] / 1e6
    assert wall_j == pytest.approx(4.0 / 4.6 * 7.2e6, rel=1e-3)
    assert said("slurm", "wall", "--run", "n1=none-such", "--store", own_site)[0] == 2


def test_the_bmc_beside_the_chips(said: Any, own_site: Path, tmp_path: Path) -> None:
    """2000 W over two hours in which the chips drew 5.6 MJ, and Slurm counted 5 MJ of a job of 4 MJ."""
    assert said("import", "ipmi", bmc_log(tmp_path / "bmc.log", range(124)), "--out", tmp_path / "bmc")[0] == 0
    words = ("slurm", "reconcile", "--run", f"n1={tmp_path / 'bmc'}", "--store", own_site, *SINCE)
    (day,) = data(said, *words)["days"]
    assert (day["node"], day["hours"], sorted(day["figures"])) == ("n1", 2, ["chips", "psu"])
    assert day["figures"]["chips"]["joules"] == pytest.approx(5.6e6)
    assert day["figures"]["psu"]["joules"] == pytest.approx(2 * 7.2e6, rel=1e-3)
    assert [(one["kind"], one["outer"], one["ratio"]) for one in day["findings"]] == [("scope", "slurm", 0.8)]


def test_chips_alone_agree_with_nothing(said: Any, site: Path) -> None:
    code, out = said("slurm", "reconcile", "--node", "n2", "--store", site, *SINCE)
    assert code == 0 and "Nothing was compared: no sensor beside the chips." in out
    assert "Slurm's count" not in out, "there is none"


def test_a_filter_that_nothing_passes_is_named(said: Any, site: Path) -> None:
    _, out = said("slurm", "jobs", "--state", "NOPE", "--user", "ada", "--store", site, *SINCE)
    assert "No job with user ada, state NOPE ended in that period." in out
    _, out = said("slurm", "jobs", "--store", site, "--since", "2020-01-01", "--until", "2020-01-02")
    assert "No job ended in that period." in out


def test_a_job_with_cards_shows_their_use(said: Any, site: Path) -> None:
    assert re.search(
        r"^  GPU         45\.0 % of \d+ GPUs?$", said("slurm", "job", "2", "--store", site)[1], re.MULTILINE
    )


def test_a_user_without_records_is_told_so(said: Any, own_site: Path) -> None:
    _, out = said("slurm", "forget", "--user", "nemo", "--before", "2026-11-30", "--store", own_site, "--dry")
    assert out == "There are no records of nemo before 2026-11-30T00:00Z.\n"


def test_a_bmc_that_was_silent_for_long_gives_no_figure(said: Any, own_site: Path, tmp_path: Path) -> None:
    for name, minutes in (("half", [*range(10), *range(40, 124)]), ("most", [*range(10), *range(14, 124)])):
        assert said("import", "ipmi", bmc_log(tmp_path / name, minutes), "--out", tmp_path / f"{name}.run")[0] == 0
    words = ("slurm", "wall", "--store", own_site, *SINCE, "--run")
    found = data(said, *words, f"n1={tmp_path / 'half.run'}")
    assert (found["changed"], found["nodes"][0]["hours"]) == (0, 1)
    # Of an hour that was nearly all seen the rest is taken to be like what was.
    found = data(said, *words, f"n1={tmp_path / 'most.run'}")
    assert (found["changed"], found["nodes"][0]["hours"]) == (1, 2)
    assert found["nodes"][0]["wall_j"] == pytest.approx(2 * 7.2e6, rel=1e-3)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users can pass through, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="everywatt-site-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_user_sees_own_jobs_only(said: Any, shared: Path) -> None:
    store = Store(shared / "store")
    for row, user in zip(known_site.jobs()[:2], ("nobody", "root"), strict=True):
        store.append([replace(row, user=user)], "n1")
    words = ("slurm", "daily", "--date", "2026-11-15", "--no-sacct", "--group", "root", "--store", store.path)
    assert data(said, *words)["users"] == ["nobody", "root"]
    asked = ("slurm", "jobs", "--store", store.path, *SINCE)
    assert [row["id"] for row in data(said, *asked)["jobs"]] == ["1", "2"]
    nobody = person("nobody")
    assert nobody is not None
    with as_person(nobody):
        assert [row["id"] for row in data(said, *asked)["jobs"]] == ["1"]
        assert said("slurm", "job", "2", "--store", store.path)[0] == 2
        with pytest.raises(PermissionError):
            os.listdir(store.path / "users" / "root")
    with as_person(Person("stranger", 54321, 54321)):
        assert said(*asked)[0] == 2


def test_a_query_prints_nothing_but_its_answer(site: Path) -> None:
    """DuckDB looks for objects that are left when Python ends, and lists them on stderr."""
    words = [sys.executable, "-m", "everywatt", "slurm", "jobs", "--store", str(site), *SINCE]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "JOB" in done.stdout and done.stderr == ""


def test_advice_is_about_the_store_that_was_asked(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "jobs", "--store", str(site), *SINCE]) == 0
    assert f"everywatt slurm validate --store {site})" in capsys.readouterr().out
    assert main(["slurm", "job", "99", "--store", str(site)]) == 2
    assert f"everywatt slurm jobs --since -30d --store {site}" in capsys.readouterr().err
    assert main(["slurm", "jobs", "--store", str(site), "--user", "ada", *SINCE]) == 0
    assert "validate" not in capsys.readouterr().out, "all of them are complete"


@pytest.mark.parametrize("words", [("jobs",), ("export", "--to", "labia-csv", "-o", "x"), ("annotate", "--dry")])
def test_a_period_that_ends_before_it_begins(said: Any, site: Path, words: tuple[str, ...]) -> None:
    code, _ = said("slurm", *words, "--store", site, "--since", "2026-11-20", "--until", "2026-11-14")
    assert code == 2
