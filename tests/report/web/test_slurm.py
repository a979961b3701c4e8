"""Pages of a Slurm site: the same figures as the command line, and each user's own jobs only."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import known_site
import pytest
from known_site import T0
from sites import HOST, FakeSource
from starlette.testclient import TestClient

from everywatt.cli.main import main
from everywatt.footprint.carbon import Factors
from everywatt.net.guard import HEADERS, Access
from everywatt.report.web.app import Site
from everywatt.report.web.runs import RunIndex
from everywatt.report.web.slurm import Proxy, SlurmPages, trusted_addresses
from everywatt.slurm.site.store import Store

TOKEN = "correct-horse-battery-staple"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
NOW_S = T0 + 86_400
SPAN = "since=2026-11-14&until=2026-11-30"
VIEWS = ["/slurm", "/slurm/jobs", "/slurm/users", "/slurm/accounts", "/slurm/nodes", "/slurm/months"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = known_site.make(tmp_path_factory.mktemp("site"))
    made.append([known_site.job(9, "eve", 5, 1, 10**6, name="<script>alert(1)</script>", account="<b>")], "n1")
    return made


def client(store: Store, tmp_path: Path, proxy: Proxy | None = None, peer: str = "10.1.1.1") -> TestClient:
    pages = SlurmPages(store, Factors(), proxy=proxy, clock=lambda: NOW_S)
    access = Access(frozenset({HOST}), 8765, TOKEN)
    site = Site(RunIndex(tmp_path), access, FakeSource, slurm=pages)
    return TestClient(site.app(), base_url=f"http://{HOST}", follow_redirects=False, client=(peer, 1))


PROXY = Proxy(frozenset({"10.1.1.1"}), "x-remote-user", TOKEN, frozenset({"root"}))


def as_user(name: str) -> dict[str, str]:
    return {**BEARER, "X-Remote-User": name}


@pytest.fixture
def open_(store: Store, tmp_path: Path) -> TestClient:
    return client(store, tmp_path)


@pytest.fixture
def behind(store: Store, tmp_path: Path) -> TestClient:
    return client(store, tmp_path, PROXY)


@pytest.mark.parametrize("query", ["", "&user=ada", "&state=FAILED,TIMEOUT", "&node=n2", "&sort=energy&limit=2"])
def test_jobs_are_those_of_the_command(
    store: Store, open_: TestClient, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    answer = open_.get(f"/api/slurm/jobs?since=2026-11-14T00:00Z&until=2026-11-30T00:00Z{query}", headers=BEARER)
    words = [f"--{part}" for part in query.split("&") if part]
    since = ["--since", "2026-11-14T00:00Z", "--until", "2026-11-30T00:00Z"]
    assert main(["slurm", "jobs", "--store", str(store.path), "--json", *since, *words]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert without_version(answer.json()) == without_version(expected) and answer.json()["jobs"]


@pytest.mark.parametrize("by", ["user", "account", "state", "partition", "node", "month", "day"])
def test_sums_are_those_of_the_command(
    store: Store, open_: TestClient, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    answer = open_.get(f"/api/slurm/sums?by={by}&since=2026-11-14T00:00Z&until=2026-11-30T00:00Z", headers=BEARER)
    since = ["--since", "2026-11-14T00:00Z", "--until", "2026-11-30T00:00Z"]
    assert main(["slurm", "jobs", "--by", by, "--store", str(store.path), "--json", *since]) == 0
    assert without_version(answer.json()) == without_version(json.loads(capsys.readouterr().out))


def without_version(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in ("everywatt", "version", "created")}


@pytest.mark.parametrize("path", [*VIEWS, "/slurm/job/2", "/slurm/job/3_4", "/slurm/month/2026-11"])
def test_pages_are_guarded_and_hold_text_only(open_: TestClient, path: str) -> None:
    assert open_.get(path).status_code == 303  # no token
    answer = open_.get(path, headers=BEARER)
    assert answer.status_code == 200
    assert all(answer.headers.get_list(name) == [value] for name, value in HEADERS.items())
    assert "<script" not in answer.text and "<b>" not in answer.text and "style=" not in answer.text
    assert "http://" not in answer.text and "https://" not in answer.text


def test_what_nodes_drew_has_its_interval_on_every_page(behind: TestClient) -> None:
    drew = (
        "nodes in these hours: 11.60 MJ (11.25 … 11.95) = "
        "jobs 6.60 MJ (6.40 … 6.80), idle 3.50 MJ (3.39 … 3.61), system 1.50 MJ (1.45 … 1.55)"
    )
    for path in ("/slurm?period=30d", "/slurm/users?period=30d", "/slurm/month/2026-11"):
        assert drew in behind.get(path, headers=as_user("root")).text
    assert "Energy of jobs from start to end" in behind.get("/slurm/month/2026-11", headers=as_user("root")).text


def test_what_an_administrator_sees(behind: TestClient) -> None:
    text = behind.get("/slurm?period=30d", headers=as_user("root")).text
    assert "root (administrator)" in text and "3.60 MJ ± 0.36" in text and "/slurm/job/3_4" in text
    assert "ada" in behind.get("/slurm/users", headers=as_user("root")).text
    assert "&lt;script&gt;" in text
    assert "/slurm/month/2026-11" in behind.get("/slurm/months", headers=as_user("root")).text
    assert behind.get("/", headers=as_user("root")).status_code == 200


def test_the_period_is_marked_unless_a_window_was_asked_for(open_: TestClient) -> None:
    usual, asked = (open_.get(f"/slurm/jobs?{query}", headers=BEARER).text for query in ("", SPAN))
    assert '<a href="?period=7d" aria-current="page">7 days</a>' in usual
    assert '<a href="?period=7d">7 days</a>' in asked


@pytest.mark.parametrize("path", [*VIEWS, *(f"{view}?user=ada&period=365d" for view in VIEWS), "/slurm/month/2026-11"])
def test_a_user_sees_their_own_jobs(behind: TestClient, path: str) -> None:
    answer = behind.get(path, headers=as_user("bob"))
    assert answer.status_code == 200
    for word in ("ada", "phys", "3.60 MJ", "eve", "Nodes drew"):
        assert word not in answer.text.replace("everywatt", "")
    own = {"/slurm": "3_4", "/slurm/jobs": "3_4", "/slurm/accounts": "chem", "/slurm/users": "bob"}
    assert own.get(path.partition("?")[0], "500 kJ ± 50") in answer.text


def test_a_user_cannot_ask_for_others(behind: TestClient) -> None:
    ask = as_user("bob")
    assert behind.get("/slurm/job/1", headers=ask).status_code == 404
    assert behind.get("/slurm/job/3_4", headers=ask).status_code == 200
    rows = behind.get(f"/api/slurm/jobs?user=ada&{SPAN}", headers=ask).json()
    assert {row["user"] for row in rows["jobs"]} == {"bob"} and "nodes" not in rows
    groups = behind.get(f"/api/slurm/sums?by=user&{SPAN}", headers=ask).json()
    assert [row["group"] for row in groups["groups"]] == ["bob"]
    assert behind.get("/", headers=ask).headers["location"] == "/slurm"
    assert behind.get("/api/runs", headers=ask).status_code == 303
    nobody = behind.get(f"/api/slurm/jobs?{SPAN}", headers=as_user("stranger")).json()
    assert nobody["jobs"] == []


def test_a_kept_answer_is_its_viewers(behind: TestClient) -> None:
    assert "ada" in behind.get("/slurm/users", headers=as_user("root")).text
    assert ">ada<" not in behind.get("/slurm/users", headers=as_user("bob")).text


def test_only_the_proxy_says_who_looks(store: Store, tmp_path: Path, behind: TestClient) -> None:
    for headers in (BEARER, as_user(""), as_user("a b"), as_user("../x"), as_user("bob, root")):
        assert behind.get("/slurm", headers=headers).status_code == 403
    twice = [*BEARER.items(), ("X-Remote-User", "bob"), ("X-Remote-User", "root")]
    assert behind.get("/slurm", headers=twice).status_code == 403
    assert behind.get("/slurm", headers={"X-Remote-User": "root"}).status_code == 303
    elsewhere = client(store, tmp_path, PROXY, peer="10.1.1.2")
    assert elsewhere.get("/slurm", headers=as_user("root")).status_code == 403
    assert elsewhere.get("/", headers=as_user("root")).status_code == 403


def test_a_browser_gets_nothing_that_stands_for_the_proxy(store: Store, tmp_path: Path, behind: TestClient) -> None:
    answer = behind.get("/api/login", headers=as_user("root"))
    assert answer.status_code == 204 and "set-cookie" not in answer.headers
    # Even a right cookie is not the token: anyone on the machine can reach the port.
    pages = SlurmPages(store, Factors(), proxy=PROXY)
    access = Access(frozenset({HOST}), 8765, TOKEN)
    app = Site(RunIndex(tmp_path), access, FakeSource, slurm=pages).app()
    web = TestClient(app, base_url=f"http://{HOST}", client=("10.1.1.1", 1))
    cookie = access.cookie().partition(";")[0]
    assert web.get("/slurm", headers={"X-Remote-User": "root", "Cookie": cookie}).status_code == 403


def test_addresses() -> None:
    assert trusted_addresses(["127.0.0.1", "::1"]) == {"127.0.0.1", "::1"}
    assert PROXY.addresses == trusted_addresses(["::ffff:10.1.1.1"])
    with pytest.raises(Exception, match="not an IP address"):
        trusted_addresses(["proxy.example.org"])


@pytest.mark.parametrize(
    "query", ["period=9d", "sort=name", "since=yesterday", "month=2026-13", "state=,", "limit=0&x", "by=x"]
)
def test_wrong_words_are_refused(open_: TestClient, query: str) -> None:
    path = "/api/slurm/sums" if "by=" in query else "/api/slurm/jobs" if "limit" in query else "/slurm/jobs"
    assert open_.get(f"{path}?{query}", headers=BEARER).status_code == 400


def test_the_command_asks_for_what_keeps_jobs_private(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "--slurm-store", str(store.path)]
    for more in (
        [],
        ["--token", TOKEN, "--trusted-proxy", "127.0.0.1"],
        ["--token", TOKEN, "--user-header", "X-User"],
        ["--token", TOKEN, "--admin", "root"],
        ["--token", TOKEN, "--trusted-proxy", "proxy", "--user-header", "X-User"],
    ):
        assert main([*words, *more]) == 2
    assert main(["serve", "--admin", "root"]) == 2
    assert "token" in capsys.readouterr().err


def test_every_page_has_a_way_back(open_: TestClient, behind: TestClient) -> None:
    job = open_.get("/slurm/job/2", headers=BEARER).text
    assert '<a href="/">Runs</a>' in job and '<a href="/slurm/jobs" aria-current="page">Jobs</a>' in job
    for name, value in (("user", "ada"), ("account", "phys"), ("node", "n1"), ("node", "n2")):
        link = f"/slurm/jobs?month=2026-11&amp;{name}={value}"
        assert f'<a href="{link}">{value}</a>' in job
        assert "/slurm/job/2" in open_.get(link.replace("&amp;", "&"), headers=BEARER).text
    for view in VIEWS:
        assert '<a class="skip" href="#main">' in open_.get(view, headers=BEARER).text
    mine = behind.get("/slurm/job/2", headers=as_user("ada")).text
    assert 'href="/"' not in mine and "user=ada" not in mine, "a user sees no runs, and no choice of users"


def test_a_browser_gets_a_page_for_what_is_not_there_and_a_program_a_line(open_: TestClient) -> None:
    asked = {**BEARER, "Accept": "text/html,application/xhtml+xml"}
    page = open_.get("/slurm/job/99999", headers=asked)
    assert page.status_code == 404 and "There is no job 99999." in page.text and 'href="/slurm/jobs"' in page.text
    odd = open_.get("/slurm/job/%3Cb%3E", headers=asked)
    assert odd.status_code == 400 and "&lt;b&gt;" in odd.text and "<b>" not in odd.text
    plain = open_.get("/slurm/job/99999", headers=BEARER)
    assert (plain.status_code, plain.text) == (404, "There is no job 99999.\n")
    assert open_.get("/slurm/job/99999", headers={"Accept": "text/html"}).status_code != 404, "no token, no answer"


def test_parts_of_a_job_have_intervals_and_their_digits(open_: TestClient) -> None:
    two, one = (open_.get(f"/slurm/job/{job}", headers=BEARER).text for job in (2, 1))
    assert '<th>n1</th><td class="number">3.00 MJ ± 0.30</td>' in two
    assert '<th>n1 gpu.0</th><td class="number">≈ 2.0 MJ (0.0 … 3.0 MJ)</td>' in two
    assert '<th>batch</th><td class="number">600 kJ</td>' in one, "a step has the digits of its job's interval"
    assert "<h2>Job 2</h2>" not in two and "<h2>2 </h2>" not in two and "<th></th>" not in two


def test_wide_tables_can_be_scrolled_by_keyboard(open_: TestClient) -> None:
    for path in ("/slurm/month/2026-11", "/slurm/job/2", "/slurm/users?period=365d"):
        text = open_.get(path, headers=BEARER).text
        scrolled = re.findall(r'<div class="scroll[^>]*>', text)
        assert scrolled and all('tabindex="0" role="region" aria-label="' in one for one in scrolled)
        assert len(set(scrolled)) == len(scrolled), "each region has a name of its own"


def test_a_period_without_records_has_no_zeros(open_: TestClient) -> None:
    text = open_.get("/slurm/nodes?since=2020-01-01&until=2020-02-01", headers=BEARER).text
    assert "No node recorded energy in this period." in text and "0 J" not in text


def test_the_coverage_of_a_job_is_that_of_its_figure(tmp_path: Path) -> None:
    made = Store(tmp_path / "site")
    for node, part in (("n1", 0.6), ("n2", 1.0)):
        made.append([known_site.job(8, "dan", 3, 1, 2 * known_site.MJ, nodes=2, node=node, coverage=part)], node)
    text = client(made, tmp_path).get("/slurm/job/8", headers=BEARER).text
    assert re.search(r"<th>Coverage</th><td[^>]*>80.0 %</td>", text)
