"""The live page in real Chromium, over a real server with 200 runs, on a machine with a simulated card."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from browsing import IN_A_BROWSER, PHONE, READY, ROOT, brightness, coloured, faults, keyboard_faults
from reports import write_run
from sites import EVIL_RUN, small_run
from tapes import counter_group

from everywatt.core.channels import Row
from everywatt.core.clocks import Anchor
from everywatt.core.spans import Span
from everywatt.tape.writer import TapeWriter

pytest.importorskip("uvicorn")

RUNS = 200
LONG_MS = 240_000  # waits end with what they wait for; a machine with ten times the work it can do is as slow as this

pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """198 small runs of 40 W to 237 W, one with something of everything, one with an evil name."""
    folder = tmp_path_factory.mktemp("home")
    for number in range(RUNS - 2):
        project = ("alpha", "beta", "gamma", "delta")[number % 4]
        small_run(folder / f"20261115-{number:06d}-job", number, project=project, watts=40.0 + number)
    write_run(folder / "whole.tape")
    write_run(folder / f"{EVIL_RUN}.tape", seconds=5.0)
    return folder


@contextlib.contextmanager
def growing(folder):
    """A tape that is being written, ten rows a second: 60 W."""
    folder.mkdir()
    writer = TapeWriter(
        folder / "box-0001.tape", {"host": {"name": "box"}, "period_s": 0.1, "command": ["sleep", "60"]}
    )
    start = time.monotonic_ns()
    writer.anchor(Anchor(start, time.time_ns(), start, 0))
    group = writer.add_group(counter_group(quantum=6e-5, max_w=200.0), 0.1)
    writer.span_open(Span("s0", "run", start, None, None, {}))
    stop = threading.Event()

    def write():
        while not stop.wait(0.1):
            now = time.monotonic_ns()
            writer.append(group, [Row(now, now, now, (60.0 * (now - start) / 1e9,))])
            writer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(1.0)  # for a curve to draw
    try:
        yield lambda: (stop.set(), thread.join(), writer.span_close("s0", time.monotonic_ns()), writer.seal())
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def site(home, tmp_path_factory):
    """The address of a server on a machine whose card draws 100 W and 300 W in turn."""
    work = tmp_path_factory.mktemp("work")
    words = [sys.executable, "-m", "everywatt"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVERYWATT_")}
    process = subprocess.Popen(
        [*words, "sim", "--gpu", "square:100W,300W,4s", "--", *words, "serve", "--json", "--listen", "127.0.0.1:0"],
        env=kept
        | {
            "PYTHONPATH": str(ROOT / "src"),
            "EVERYWATT_HOME": str(home),
            "EVERYWATT_RUNTIME_DIR": str(work / "r"),
            "EVERYWATT_RECORDER_IDLE_S": "1",
            "TMPDIR": str(work),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lines = []
    while not lines or lines[-1] != "}\n":
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=10)[1])
        lines.append(line)
    yield json.loads("".join(lines))["url"].rstrip("/")
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=240)
    assert "Traceback" not in err
    assert list(work.glob("everywatt-monitor-*")) == [], "nothing is left of the live recording"


@pytest.fixture
def show(open_page, site):
    """A function that opens a page of the site; what they asked for and complained about is looked at in the end."""
    pages = []

    def opened(path, **settings):
        pages.append(open_page(site + path, **settings))
        return pages[-1]

    yield opened
    for page in pages:
        assert page.troubles == []
        assert [url for url in page.requests if not url.startswith(site + "/")] == []


def listed(page):
    return page.eval_on_selector_all("tbody tr[data-key]", "rows => rows.map((row) => row.dataset.key)")


def whole_list(page, count="200 runs"):
    page.wait_for_function(
        "(count) => document.querySelector('.count').textContent === count", arg=count, timeout=LONG_MS
    )
    return page


def test_two_hundred_runs_are_listed(show, picture):
    page = whole_list(show("/"))
    assert len(listed(page)) == RUNS
    row = page.inner_text('tr[data-key="20261115-000003-job"]')
    assert "86.00 J" in row and "2.00 s" in row
    assert "project=delta" in row and "python job3.py" in row and "cpu · counter" in row
    assert page.query_selector('tr[data-key="20261115-000003-job"] svg path') is not None
    picture(page, "serve-list-light.png")


def test_a_run_called_script_is_text(show):
    page = whole_list(show("/"))
    page.fill("#search", "window.evil = 2")
    assert listed(page) == [f"{EVIL_RUN}.tape"]
    page.click("tbody tr a")
    page.wait_for_selector(READY, state="attached")
    page.wait_for_selector("#summary")
    assert page.inner_text("h1") == EVIL_RUN
    assert page.evaluate("window.evil") is None


def test_search_sort_and_tags(show):
    page = whole_list(show("/"))
    page.keyboard.press("/")
    page.keyboard.type("job12.py")
    assert listed(page) == ["20261115-000012-job"] and "1 of 200 runs" in page.inner_text(".count")
    page.keyboard.press("Escape")
    assert len(listed(page)) == RUNS
    page.click("button.sort:has-text('Energy')")
    assert page.get_attribute("th[aria-sort]", "aria-sort") == "descending"
    assert listed(page)[0] == "whole.tape", "1700 J"
    page.click("button.sort:has-text('Energy')")
    assert listed(page)[0] == "20261115-000000-job", "80 J"
    page.click(".facets button:has-text('project=beta')")
    assert listed(page)[:2] == ["20261115-000001-job", "20261115-000005-job"] and "of 200 runs" in page.inner_text(
        ".count"
    )
    assert len(listed(page)) == 50 and page.query_selector(".facets button:has-text('size=small')") is None
    page.click("tr[data-key='20261115-000001-job'] button:has-text('size=large')")
    page.click(".facets button:has-text('project=beta')")
    assert len(listed(page)) == 99, "every other one"
    page.reload()
    page.wait_for_selector(READY, state="attached")
    assert page.get_attribute(".facets button:has-text('size=large')", "aria-pressed") == "true", "the address keeps it"
    assert len(listed(page)) == 99


def test_runs_are_picked_with_the_keyboard_and_compared(show, picture):
    page = whole_list(show("/?q=job&sort=energy&down=0"), "198 of 200 runs")
    for key in ("20261115-000000-job", "20261115-000040-job"):
        page.focus(f'tr[data-key="{key}"] input')
        page.keyboard.press("Space")
    page.wait_for_timeout(800)  # until it has scrolled
    picture(page, "serve-list-picked.png")
    page.focus(".picked a")
    page.keyboard.press("Enter")
    page.wait_for_selector("#comparison")
    page.wait_for_selector(READY, state="attached")
    text = page.inner_text("#comparison")
    assert "20261115-000040-job" in text and "2.000×" in text, "80 W against 40 W"
    page.wait_for_selector('[data-chart="overlay"] canvas')
    assert coloured(page, "overlay") > 200
    picture(page, "serve-compare.png")


def test_a_run_is_the_same_page_as_the_report(show, picture):
    page = show("/run/whole.tape")
    assert page.inner_text("h1") == "whole"
    for part in ("summary", "charts", "owners", "phases", "quality", "carbon", "provenance"):
        assert page.query_selector(f"#{part}") is not None
    assert coloured(page, "power") > 200
    page.focus('[data-chart="power"] figure')
    page.keyboard.press("+")
    assert page.evaluate("[everywatt.page.view.a, everywatt.page.view.b]") == pytest.approx([2.5, 7.5])
    picture(page, "serve-run.png")


def test_a_selected_window_has_its_exact_figure(show):
    page = show("/run/whole.tape")
    assert page.get_attribute(".readout [data-figure]", "data-figure") == "exact", "that of the run itself"
    page.focus('[data-chart="power"] figure')
    page.keyboard.press("+")
    page.wait_for_function("() => document.querySelector('.readout [data-figure]').dataset.figure === 'exact'")
    found = page.evaluate("fetch('/api/window?run=whole.tape&a=2.5&b=7.5').then((answer) => answer.json())")
    assert page.inner_text(".readout [data-figure]") == found["energy"]["shown"]


def test_an_address_that_is_not_there_shows_a_way_back(browser, site):
    page = browser.new_page()
    for path in ("/nothing", "/run/nothing"):
        assert page.goto(f"{site}{path}").status == 404
        page.wait_for_selector("[role=alert]")
        assert page.get_attribute("main a", "href") == "/"
    page.close()


def test_a_run_that_is_not_there(browser, site):
    page = browser.new_page()
    assert page.goto(f"{site}/run/nothing").status == 404
    page.goto(f"{site}/compare?run=nothing&run=whole.tape")
    page.wait_for_selector("[role=alert]")
    assert page.inner_text("[role=alert]") == "There is no run of that name."
    page.close()


@pytest.mark.serial  # a recorder that is kept from reading knows publications late, and power between them is off
def test_the_machine_moves(show, picture):
    page = show("/live")
    page.wait_for_function("() => everywatt.board.lines.get('power gpu.0')?.t.length >= 12", timeout=LONG_MS)
    watts = page.evaluate("everywatt.board.lines.get('power gpu.0').mean.filter((value) => !Number.isNaN(value))")
    # Until the recorder has found when the card publishes there is no power, instead of a wild one.
    assert all(90 < value < 310 for value in watts), watts
    assert max(watts) - min(watts) > 50, "the square of 100 W and 300 W"
    before = page.evaluate("[everywatt.board.view.b, everywatt.board.made.get('power').plot.scales.x.max]")
    page.wait_for_function("(then) => everywatt.board.view.b > then + 1.5", arg=before[0], timeout=LONG_MS)
    after = page.evaluate("[everywatt.board.view.b, everywatt.board.made.get('power').plot.scales.x.max]")
    assert after[1] > before[1] + 1.5 and after[0] == pytest.approx(after[1])
    assert coloured(page, "power") > 100
    tile = page.inner_text(".tile:has-text('gpu.0')")
    assert " W" in tile and " J" in tile
    assert "gpu" in page.inner_text(".live .chips")
    page.click("text=Pause")
    held = page.inner_text("[data-power]")
    page.wait_for_timeout(2500)
    assert page.inner_text("[data-power]") == held
    page.click("text=Resume")
    page.click('[data-chart="power"] summary')
    page.wait_for_selector('[data-chart="power"] table', state="attached", timeout=10_000)
    picture(page, "serve-live-light.png", full_page=True)


def test_a_run_that_is_being_written_grows(show, home, picture):
    with growing(home / "20991231-000000-now") as finish:
        page = show("/run/20991231-000000-now")
        page.wait_for_function("() => everywatt.board?.lines.get('power cpu.0')?.t.length >= 4", timeout=LONG_MS)
        before = page.evaluate("everywatt.board.snapshot.energy.joules")
        page.wait_for_function(
            "(then) => everywatt.board.snapshot.energy.joules > then + 100", arg=before, timeout=LONG_MS
        )
        assert page.evaluate("everywatt.board.snapshot.power_w") == pytest.approx(60.0, rel=0.05)
        page.wait_for_selector("#live-charts canvas")
        page.wait_for_selector("#summary")
        picture(page, "serve-run-live.png", full_page=True)
        finish()
        page.wait_for_function("() => !everywatt.board", timeout=LONG_MS)
        page.wait_for_selector(READY, state="attached")
        assert page.query_selector("#live-charts") is None, "it ended, and is a report now"
    for file in (home / "20991231-000000-now").iterdir():
        file.unlink()
    (home / "20991231-000000-now").rmdir()


def test_light_and_dark(show, picture):
    page = whole_list(show("/", color_scheme="dark"))
    assert brightness(page) < 40
    picture(page, "serve-list-dark.png")
    page.click("text=Theme: automatic")
    assert brightness(page) > 230
    page.goto(page.url.rpartition("/")[0] + "/run/whole.tape")
    page.wait_for_selector(READY, state="attached")
    assert brightness(page) > 230, "the choice goes along"
    live = show("/live", color_scheme="dark")
    live.wait_for_function("() => everywatt.board.lines.get('power gpu.0')?.t.length >= 4", timeout=LONG_MS)
    picture(live, "serve-live-dark.png", full_page=True)


def test_on_a_phone(show, picture):
    for path, name in (("/", "list"), ("/run/whole.tape", "run"), ("/live", "live")):
        page = show(path, viewport=PHONE, has_touch=True, device_scale_factor=2)
        if name == "live":
            page.wait_for_selector('[data-chart="power"] canvas', timeout=LONG_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        picture(page, f"serve-phone-{name}.png")
    page = show("/", viewport=PHONE)
    page.select_option("#order", "energy 1")
    whole_list(page)
    assert listed(page)[0] == "whole.tape"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_fault_of_accessibility(show, browser, site, scheme):
    compared = "/compare?run=20261115-000000-job&run=20261115-000001-job"
    for path in ("/?q=job12", compared, "/live"):
        page = show(path, color_scheme=scheme, bypass_csp=True)
        if path == "/live":
            page.wait_for_selector('[data-chart="power"] canvas', timeout=LONG_MS)
            page.click("text=Pause")
        assert faults(page) == []
        assert scheme == "dark" or keyboard_faults(page) == []
    page = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
    page.goto(f"{site}/login")
    assert faults(page) == []
    page.context.close()
