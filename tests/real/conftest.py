"""A real browser for the modules that look at pages, and real services, each started once."""

from __future__ import annotations

import os

import pytest
from browsing import CHROMIUM, DESK, READY, ROOT, SWITCHES
from slurm_cluster import Options, SlurmCluster, missing
from slurm_counter import Counter, can_mount


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all modules; each page is in a context of its own."""
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


@pytest.fixture
def open_page(browser):
    """A function that opens an address and gives its page once it is ready; it keeps `troubles` and `requests`.

    A `still` page has no scripts that would say that it is ready.
    """
    contexts = []

    def opened(url, *, still=False, **settings):
        context = browser.new_context(**{"viewport": DESK, "color_scheme": "light", **settings})
        contexts.append(context)
        page = context.new_page()
        page.troubles, page.requests = [], []
        page.on("console", lambda message: page.troubles.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(url)
        if not still:
            page.wait_for_selector(READY, state="attached", timeout=30_000)
        return page

    yield opened
    for context in contexts:
        context.close()


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
