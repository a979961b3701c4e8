"""The documentation site builds offline, without a warning, and holds every page."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from browsing import SWITCHES
from pages import ROOT, WRITTEN

pytest.importorskip("mkdocs", reason="make docs needs mkdocs-material: pip install --group dev")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built once; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    return folder


def test_the_site_holds_every_page_and_loads_nothing_from_elsewhere(site):
    pages = {page.relative_to(site).with_suffix(".md").as_posix() for page in site.rglob("*.html")}
    written = {page.relative_to(ROOT / "docs").as_posix() for page in WRITTEN if page.is_relative_to(ROOT / "docs")}
    assert written <= pages
    for page in (site / "index.html", site / "reference" / "cli.html"):
        assert re.findall(r'(?:src|rel="stylesheet" href)="(?:https?:)?//[^"]+', page.read_text()) == []


def test_search_works_from_disk(site):
    """In a real browser, from file://, without a network."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    browser_path = shutil.which("chromium")
    if browser_path is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=SWITCHES)
        page = browser.new_page()
        page.route(re.compile("^https?://"), lambda route: route.abort())
        page.goto((site / "agent.html").as_uri())
        page.focus("[data-md-component=search-query]")
        page.keyboard.type("glossary")
        found = page.locator(".md-search-result__link[href*='glossary.html']").first
        found.wait_for(state="attached", timeout=20_000)
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_of_the_site_can_be_read(site, scheme):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    if shutil.which("chromium") is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=SWITCHES)
        page = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
        page.goto((site / "report.html").as_uri())
        rules = {"runOnly": ["color-contrast", "link-in-text-block"]}
        found = axe.Axe().run(page, options=rules).response["violations"]
        browser.close()
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []


def test_the_site_has_no_serious_fault_of_accessibility(site):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    if shutil.which("chromium") is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=SWITCHES)
        page = browser.new_context(bypass_csp=True).new_page()
        page.goto((site / "gallery.html").as_uri())
        found = axe.Axe().run(page).response["violations"]
        browser.close()
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
