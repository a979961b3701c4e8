import base64
import hashlib
import html
import re

import pytest
from reports import EVIL, write_run

import everywatt
from everywatt.report.html.data import report_document
from everywatt.report.html.page import SCRIPTS, STYLES, asset, embedded, page


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return page(report_document([everywatt.load(write_run(folder / "small.tape"))]))


def test_nothing_of_a_run_is_markup(text):
    assert EVIL not in text
    assert "\\u003cscript\\u003ewindow.evil" in text


def test_it_is_small_before_data():
    assert len(page({"runs": [], "everywatt": "", "made": ""}).encode()) < 200_000


def test_the_policy_allows_what_is_in_the_file_and_nothing_else(text):
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy
    for name in (*STYLES, *SCRIPTS):
        digest = base64.b64encode(hashlib.sha256(asset(name).encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_nothing_is_asked_of_anybody(text):
    body = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", body) == []
    assert re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|EventSource|\bon\w+=\"", body) == []


def test_json_in_a_page_ends_where_it_should():
    assert embedded({"a": "</script><!-- &"}) == '{"a": "\\u003c/script\\u003e\\u003c!-- \\u0026"}'


def test_readers_without_scripts_get_the_figure(text):
    plain = re.search(r"<noscript>.*</noscript>", text, re.DOTALL)[0]
    assert re.search(r"small: 1\d{3}[\d.]* J .* · cpu\+gpu · counter\+integrated", plain), plain


def test_the_vendored_library_is_what_its_note_says():
    """Unchanged: the digests were taken from the npm package."""
    note = asset("vendor/uplot/README.md")
    found = dict(re.findall(r"`([\w.]+)` \| `([0-9a-f]{64})`", note))
    assert set(found) == {"uPlot.iife.min.js", "uPlot.min.css", "LICENSE"}
    for name, digest in found.items():
        assert hashlib.sha256(asset(f"vendor/uplot/{name}").encode()).hexdigest() == digest


def test_an_interval_of_sampling_alone_says_so_in_the_headline(text):
    """The gain and offset of this run's sensors are unknown."""
    assert " (sampling only) · cpu+gpu" in re.search(r"<noscript>.*?</noscript>", text, re.DOTALL)[0]
    assert '"sampling only"' in asset("html/js/page.js")
