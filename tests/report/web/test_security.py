"""What gets in and what does not, through the whole application."""

import logging

import pytest
from sites import EVIL_RUN, HOST, FakeSource, tree, write_home
from starlette.testclient import TestClient

from everywatt.net.guard import HEADERS, MOST_FAILURES, Access, Failures
from everywatt.report.web.app import Site
from everywatt.report.web.runs import RunIndex

TOKEN = "correct-horse-battery-staple"
HOSTS = frozenset({HOST, "localhost:8765", "[::1]:8765"})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return write_home(tmp_path_factory.mktemp("home"))


def client(home, token=None, tls=False, **more):
    site = Site(RunIndex(home), Access(HOSTS, 8765, token, tls, **more), FakeSource)
    return TestClient(site.app(), base_url=f"{'https' if tls else 'http'}://{HOST}", follow_redirects=False)


@pytest.fixture
def web(home):
    return client(home)


@pytest.fixture
def closed(home):
    return client(home, TOKEN)


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


PAGES = [
    "/",
    "/live",
    "/compare",
    "/run/whole.tape",
    "/api/runs",
    "/api/report?run=whole.tape",
    "/static/page.js",
    "/login",
]


@pytest.mark.parametrize("path", [*PAGES, "/nothing", "/run/nothing", "/api/report?run=nothing"])
def test_every_answer_has_the_headers(web, path):
    answer = web.get(path)
    assert answer.status_code == (404 if "nothing" in path else 200)
    for name, value in HEADERS.items():
        assert answer.headers.get_list(name) == [value]
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy and "default-src 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] in ("no-store", "no-cache, private")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost.evil.example:8765",
        "127.0.0.1:8765.evil.example",
        "127.0.0.1:8765@evil.example",
        "2130706433:8765",
        "0.0.0.0:8765",
    ],
)
def test_a_foreign_host_is_refused(web, host):
    for path in ("/", "/api/runs", "/static/page.js", "/api/live", "/login"):
        assert web.get(path, headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", [HOST, "localhost:8765", "LOCALHOST:8765", "localhost.:8765", "[::1]:8765"])
def test_its_own_names_are_let_in(web, host):
    assert web.get("/api/runs", headers={"Host": host}).status_code == 200


def test_without_a_host_or_with_two_there_is_no_answer(web):
    assert web.get("/", headers={"Host": ""}).status_code == 400
    assert web.get("/", headers=[("Host", HOST), ("Host", "evil.example")]).status_code == 400


def test_on_all_addresses_the_one_that_was_reached_is_let_in(home):
    web = client(home, TOKEN, tls=True, own_ip=True)
    assert web.get("/login", headers={"Host": "10.1.2.3:8765"}).status_code == 421
    web.base_url = "https://10.1.2.3:8765"  # which is also what the connection came to
    assert web.get("/login").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "PROPFIND"])
def test_there_is_nothing_but_get(web, method):
    for path in ("/", "/api/runs", "/run/whole.tape", "/login", "/api/login"):
        answer = web.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8765", "http://127.0.0.1:8766"])
def test_another_origin_is_refused_whatever_the_method(web, origin):
    assert web.get("/api/runs", headers={"Origin": origin}).status_code == 403
    assert web.post("/", headers={"Origin": origin}).status_code == 405
    assert web.get("/api/runs", headers={"Origin": f"http://{HOST}"}).status_code == 200


def test_pages_elsewhere_may_link_and_not_fetch(web):
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert web.get("/", headers={**cross, "Sec-Fetch-Mode": "navigate"}).status_code == 200
    assert web.get("/api/live", headers={**cross, "Sec-Fetch-Mode": "no-cors"}).status_code == 403
    assert web.get("/static/page.js", headers={**cross, "Sec-Fetch-Mode": "no-cors"}).status_code == 403
    assert web.get("/api/runs", headers={"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}).status_code == 200


def test_long_and_full_requests_are_refused(web):
    assert web.get("/api/report?run=" + "x" * 5000).status_code == 414
    assert web.get("/run/" + "x" * 5000).status_code == 414
    assert web.get("/", headers={"X-Long": "x" * 20_000}).status_code == 431
    assert web.request("GET", "/", content=b"x" * 10).status_code == 413
    assert web.get("/api/report?" + "&".join(f"run=r{i}" for i in range(17))).status_code == 400
    assert web.get("/api/report").status_code == 400


TRAVERSALS = [
    "../whole.tape",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "%252e%252e%252fetc%252fpasswd",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "whole.tape%00",
    "%00",
    "..",
    ".",
    "%2e%2e",
    "whole.tape/..",
    "./whole.tape",
    "whole.tape%2f..%2fwhole.tape",
    "..%5cwhole.tape",
    "20261115-000000-job/box-0001.tape",
    "whole",
    "*",
    "whole.tape%0a",
    "file:%2f%2f%2fetc%2fpasswd",
    "%c0%ae%c0%ae/etc/passwd",
]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_a_name_is_looked_up_and_never_a_path(web, home, name):
    (home.parent / "whole.tape").write_bytes((home / "whole.tape").read_bytes())
    assert web.get(f"/api/report?run={name}").status_code == 404
    assert web.get(f"/api/live?run={name}").status_code == 404
    for answer in (web.get(f"/run/{name}"), web.get(f"/static/{name}")):
        # A client may take `..` out of an address itself; then it is a page that there is.
        assert answer.status_code in (200, 404)
        assert b"root:" not in answer.content
        if answer.status_code == 200:
            assert answer.url.path.strip() in ("/", "/run/whole.tape")


@pytest.mark.parametrize(
    "path", ["../page.py", "..%2fpage.py", "app.py", "%2e%2e%2fassets.py", "", "page.html", "shell.html"]
)
def test_only_files_of_the_page_are_served(web, path):
    assert web.get(f"/static/{path}").status_code == 404


def test_a_run_that_is_called_script_is_text(web):
    while (answer := web.get("/api/runs")).json()["pending"]:
        pass  # it answers before it has read all of them
    assert answer.headers["content-type"] == "application/json"
    assert EVIL_RUN in {run["name"] for run in answer.json()["runs"]}
    page = web.get(f"/run/{EVIL_RUN}.tape")
    assert page.status_code == 200 and "window.evil" not in page.text, "the page itself holds no name at all"
    missing = web.get("/run/<script>alert(1)</script>")
    assert missing.status_code == 404 and "<script>" not in missing.text
    assert missing.headers["content-type"].startswith("text/html") and "alert" not in missing.text


def test_no_page_has_script_or_style_inside(web):
    for path in ("/", "/login"):
        text = web.get(path).text
        assert (
            "<script>" not in text
            and "<style" not in text
            and " style=" not in text
            and " on" not in text.replace(" on ", "")
        )
        assert "http://" not in text and "https://" not in text


def test_without_the_token_nothing_is_told(closed):
    assert closed.get("/").status_code == 303 and closed.get("/").headers["location"] == "/login"
    assert closed.get("/run/whole.tape").status_code == 303
    assert closed.get("/run/nothing").status_code == 303, "nor whether there is such a run"
    for path in ("/api/runs", "/api/report?run=whole.tape", "/api/live", "/api/login"):
        answer = closed.get(path)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert closed.get("/login").status_code == 200
    assert closed.get("/static/login.js").status_code == 200


def test_the_token_lets_in_and_its_cookie_too(closed):
    assert closed.get("/api/runs", headers=bearer(TOKEN)).status_code == 200
    answer = closed.get("/api/login", headers=bearer(TOKEN))
    cookie = answer.headers["set-cookie"]
    assert answer.status_code == 204
    assert cookie.startswith("everywatt-8765=") and "; HttpOnly" in cookie and "; SameSite=Strict" in cookie
    assert TOKEN not in cookie and "Secure" not in cookie
    value = cookie.partition(";")[0]
    closed.cookies.clear()
    assert closed.get("/api/runs").status_code == 401
    assert closed.get("/api/runs", headers={"Cookie": f"other=1; {value}"}).status_code == 200
    assert closed.get("/", headers={"Cookie": value}).status_code == 200
    assert closed.get("/api/runs", headers={"Cookie": value[:-1]}).status_code == 401
    assert closed.get("/api/runs", headers={"Cookie": f"everywatt-8765={TOKEN}"}).status_code == 401
    assert closed.get("/api/login", headers={"Cookie": value}).status_code == 401, "only the token gives a cookie"


def test_over_tls_the_cookie_is_for_tls(home):
    cookie = client(home, TOKEN, tls=True).get("/api/login", headers=bearer(TOKEN)).headers["set-cookie"]
    assert cookie.startswith("__Host-everywatt-8765=") and "; Secure" in cookie and "; Path=/" in cookie


@pytest.mark.parametrize(
    "header",
    [f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \u00fc"],
)
def test_what_is_not_the_token_is_refused(closed, header):
    assert closed.get("/api/runs", headers={"Authorization": header.encode()}).status_code == 401


def test_the_token_in_an_address_is_no_token(closed):
    assert closed.get(f"/api/runs?token={TOKEN}").status_code == 401
    assert closed.get(f"/login?token={TOKEN}").headers.get("set-cookie") is None


def test_guessing_has_to_wait(closed):
    for _ in range(MOST_FAILURES):
        assert closed.get("/api/runs", headers=bearer("guess")).status_code == 401
    answer = closed.get("/api/runs", headers=bearer("guess"))
    assert answer.status_code == 429 and answer.headers["retry-after"] == "60"
    assert closed.get("/api/runs", headers=bearer(TOKEN)).status_code == 200, "the right token is never locked out"


def test_failures_are_forgotten_and_kept_apart():
    now = [0.0]
    failures = Failures(lambda: now[0])
    for _ in range(MOST_FAILURES):
        failures.add("a")
    assert failures.too_many("a") and not failures.too_many("b")
    now[0] = 61.0
    assert not failures.too_many("a")
    for number in range(3000):
        failures.add(str(number))
    assert len(failures._seen) == 1000


def test_the_token_is_never_logged(closed, caplog):
    with caplog.at_level(logging.DEBUG):
        closed.get("/api/runs", headers=bearer(TOKEN))
        closed.get("/api/runs", headers=bearer("wrong" + TOKEN))
        closed.get("/api/login", headers=bearer(TOKEN))
    assert TOKEN not in "".join(record.getMessage() for record in caplog.records if not record.name.startswith("http"))


def test_nothing_is_written(tmp_path):
    home = write_home(tmp_path / "home")
    before = tree(tmp_path)
    web = client(home)
    for path in (
        *PAGES,
        "/api/report?run=whole.tape&run=20261115-000000-job",
        "/api/report?run=broken.tape",
        "/nothing",
    ):
        web.get(path)
    assert tree(tmp_path) == before
