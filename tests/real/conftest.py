"""A real browser for the modules that look at pages, and real services, each started once."""

from __future__ import annotations

import os
import subprocess

import pytest
import stored_series
from browsing import CHROMIUM, DESK, READY, ROOT, SWITCHES
from engines import prometheus, victoria
from slurm_cluster import Options, SlurmCluster, missing
from slurm_counter import Counter, can_mount


@pytest.fixture(scope="module")
def browser():
    """One Chromium for a module; each page is in a context of its own.

    Not for the whole session: while Playwright runs, no other test of this worker could run an event loop.
    """
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=SWITCHES)
        yield chromium
        chromium.close()


@pytest.fixture
def picture():
    """A function that keeps a screenshot in build/screenshots, for people to look at: only with SCREENSHOTS=1."""
    folder = ROOT / "build" / "screenshots"

    def take(page, name, *, full_page=False):
        if os.environ.get("SCREENSHOTS") == "1":
            page.screenshot(path=str(folder / name), full_page=full_page)

    return take


@pytest.fixture(scope="module")
def free_pages(browser):
    """Blank pages by the settings of their contexts: to open one more context costs more than most pages."""
    return {}


@pytest.fixture
def open_page(browser, free_pages):
    """A function that opens an address and gives its page once it is ready; it keeps `troubles` and `requests`.

    A `still` page has no scripts that would say that it is ready.
    """
    used = []

    def opened(url, *, still=False, **settings):
        settings = {"viewport": DESK, "color_scheme": "light", **settings}
        free = free_pages.setdefault(repr(sorted(settings.items())), [])
        page = free.pop() if free else watched(browser.new_context(**settings).new_page())
        used.append((page, free))
        page.troubles, page.requests = [], []
        page.goto(url)
        if not still:
            page.wait_for_selector(READY, state="attached", timeout=30_000)
        return page

    yield opened
    for page, free in used:
        page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        page.context.clear_cookies()
        page.emulate_media(media="null")
        page.goto("about:blank")
        free.append(page)


def watched(page):
    """A page that writes down what it complains about and what it asks for."""
    page.on("console", lambda message: page.troubles.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    return page


@pytest.fixture(scope="session")
def engines(tmp_path_factory):
    """Prometheus and VictoriaMetrics, each started once. They hold `stored_series`, and take what is written."""
    folder = tmp_path_factory.mktemp("engines")
    for name, text in (("jobs", stored_series.jobs()), ("board", stored_series.board())):
        (folder / name).write_text(text)
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / name, folder / "p" / "data"]
        subprocess.run(command, check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        both = prometheus(folder / "p", log, "{}", "--storage.tsdb.retention.time=100y"), victoria(folder / "v", log)
        try:
            both[1].post("/api/v1/import/prometheus", stored_series.jobs_for_victoria())
            both[1].post("/internal/force_flush", "")
            yield both
        finally:
            for engine in both:
                engine.close()


def need_slurm() -> None:
    """Skip where Slurm is not installed; in CI, where it has to be, fail."""
    if absent := missing(accounting=True):
        reason = f"{', '.join(absent)} not installed (make system-packages)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def with_slurm():
    """For modules that start a cluster of their own."""
    need_slurm()


@pytest.fixture(scope="session")
def slurm_counter(tmp_path_factory):
    """The counter of energy that Slurm reads on node1 of the cluster `slurm`; None where nothing can be mounted."""
    return Counter(tmp_path_factory.mktemp("counter")) if can_mount() else None


@pytest.fixture(scope="session")
def slurm(tmp_path_factory, slurm_counter):
    """A Slurm cluster of two nodes with two pretend GPUs each, and accounting."""
    need_slurm()
    counted = {"wrap": {"node1": slurm_counter.wrap}, "extra": slurm_counter.lines} if slurm_counter else {}
    folder = tmp_path_factory.mktemp("slurm")
    with SlurmCluster(folder, Options(nodes=2, gpus=2, accounting=True, **counted)) as cluster:
        yield cluster
