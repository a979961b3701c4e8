"""The report in real headless Chromium: what a person sees, and that nothing leaves the page."""

import re
import shlex
import shutil
import sys

import numpy as np
import pytest
from browsing import IN_A_BROWSER, PHONE, ROOT, brightness, coloured, faults
from reports import EVIL, unpacked, write_other_scope, write_run

import everywatt
from everywatt.cli.main import main
from everywatt.footprint.carbon import Factors, Intensity
from everywatt.report.html.data import report_document
from everywatt.report.html.page import page as html_page
from everywatt.report.html.pyramid import pack
from everywatt.tape.columns import load_columns

pytestmark = IN_A_BROWSER


def written(path, *tapes, factors=None, raw=False):
    path.write_text(html_page(report_document([everywatt.load(t) for t in tapes], factors=factors, raw=raw)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def small(folder):
    factors = Factors(Intensity(56.0, "given"), pue=1.2, price_per_kwh=0.25, currency="EUR")
    return written(folder / "small.html", write_run(folder / "small.tape"), factors=factors)


@pytest.fixture(scope="module")
def compared(folder, small):
    tapes = [folder / "small.tape", write_run(folder / "short.tape", seconds=5.0)]
    return written(folder / "compared.html", *tapes, write_other_scope(folder / "other.tape"))


@pytest.fixture
def spike(folder, rows):
    """So many ticks of 1 ms between 100 and 300 W, and one of 1 kW among them: the page and the row."""
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks._tapes import build, one_gauge
    finally:
        sys.path.remove(str(ROOT))
    tape, row = folder / "spike.tape", rows * 654_321 // 1_000_000
    tape.unlink(missing_ok=True)  # the one of fewer rows
    build(tape, rows, groups=one_gauge(), period_ns=1_000_000, spike=(row, 1_000_000.0))
    return written(folder / "spike.html", tape), row


@pytest.fixture
def show(open_page):
    """A function that opens a file and gives its page."""
    return lambda path, **settings: open_page(path.as_uri(), **settings)


def window(page):
    return page.evaluate("[everywatt.page.view.a, everywatt.page.view.b]")


def test_it_shows_without_an_error_and_asks_nobody(show, small, picture):
    page = show(small)
    assert page.troubles == []
    assert page.requests == [small.as_uri()]
    assert page.text_content("h1") == "small"
    summary = page.inner_text("#summary")
    assert (
        "cpu+gpu" in summary and "counter+integrated" in summary and "100 %" in summary and "95 % interval" in summary
    )
    for part in ("charts", "owners", "phases", "quality", "carbon", "provenance"):
        assert page.is_visible(f"#{part} h2")
    assert "g CO2e" in page.inner_text("#carbon") and "EUR" in page.inner_text("#carbon")
    picture(page, "report-light.png", full_page=True)


def test_every_chart_has_pixels(show, small):
    page = show(small)
    for chart in ("power", "utilisation", "temperature", "clocks", "memory", "logged"):
        assert coloured(page, chart) > 200, chart


def test_names_are_text(show, small):
    page = show(small)
    assert page.evaluate("window.evil") is None
    assert EVIL in page.inner_text("#phases") and EVIL in page.inner_text("#provenance")
    assert page.query_selector("#page script") is None


def test_dragging_zooms_all_charts_and_a_double_click_shows_everything(show, small):
    page = show(small)
    before = window(page)
    plot = page.query_selector('[data-chart="power"] .u-over')
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    x, y = box["x"], box["y"] + box["height"] / 2
    page.mouse.move(x + box["width"] * 0.4, y)
    page.mouse.down()
    page.mouse.move(x + box["width"] * 0.6, y, steps=4)
    page.mouse.up()
    low, high = window(page)
    assert (low, high) == pytest.approx((4.0, 6.0), abs=0.1)
    scales = page.evaluate("everywatt.page.made.map((chart) => [chart.plot.scales.x.min, chart.plot.scales.x.max])")
    assert len(scales) == 6
    for scale in scales:
        assert scale == pytest.approx([low, high], abs=1e-9)
    mean = float(re.search(r"mean ([\d.]+) W", page.inner_text(".readout"))[1])
    assert mean == pytest.approx(290, abs=2), "40 W and 250 W"
    page.mouse.dblclick(x + 30, y)
    assert window(page) == pytest.approx(before)


def test_the_crosshair_shows_the_time_in_all_charts(show, small):
    page = show(small)
    page.hover('[data-chart="power"] .u-over')
    page.wait_for_function(
        "() => [...document.querySelectorAll('.cursor-time')].filter((one) => !one.hidden).length > 1"
    )
    shown = page.eval_on_selector_all(
        ".cursor-time", "all => all.filter((one) => !one.hidden).map((one) => one.textContent)"
    )
    assert len(set(shown)) == 1 and shown[0].endswith(" s")


def test_keys_move_and_zoom(show, small):
    page = show(small)
    page.focus('[data-chart="power"] figure')
    page.keyboard.press("+")
    assert window(page) == pytest.approx([2.5, 7.5])
    page.keyboard.press("ArrowRight")
    assert window(page) == pytest.approx([3.5, 8.5])
    page.keyboard.press("-")
    assert window(page) == pytest.approx([0.0, 10.0])
    page.keyboard.press("+")
    page.keyboard.press("0")
    assert window(page) == pytest.approx([0.0, 10.0])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") in ("BUTTON", "SUMMARY")


def test_every_chart_has_its_table(show, small):
    page = show(small)
    page.click('[data-chart="power"] summary')
    text = page.inner_text('[data-chart="power"] table')
    assert "cpu.0 (W)" in text and "250" in text and "40" in text
    page.focus('[data-chart="power"] figure')
    page.keyboard.press("+")
    assert page.inner_text('[data-chart="power"] table') != text, "the table follows the window"
    assert page.evaluate("document.querySelectorAll('.chart-and-table').length") == page.evaluate(
        "document.querySelectorAll('.chart-and-table details').length"
    )


def test_lines_can_be_hidden(show, small):
    page = show(small)
    before = coloured(page, "power")
    page.click('[data-chart="power"] button.series >> nth=0')
    assert page.get_attribute('[data-chart="power"] button.series >> nth=0', "aria-pressed") == "false"
    assert coloured(page, "power") < before


@pytest.mark.parametrize("rows", [1_000_000, pytest.param(10_000_000, marks=pytest.mark.long)])
def test_one_tick_among_all_is_seen_and_its_zoom_is_exact(show, spike, folder, picture):
    file, row = spike
    at_s = row / 1000
    assert file.stat().st_size < 1_000_000
    page = show(file)
    assert page.troubles == []
    picture(page, "report-spike.png")
    highest = page.evaluate(
        """(at) => {
          const plot = everywatt.page.made[0].plot, x = Math.round(plot.valToPos(at, "x", true));
          const y = Math.round(plot.valToPos(950, "y", true));
          const data = plot.ctx.getImageData(x - 3, y, 7, 1).data;
          return Math.max(...data.filter((_, i) => i % 4 === 3));
        }""",
        at_s,
    )
    assert highest > 60, "it stands out in the whole run"
    page.click('[aria-label="Go to the highest reading"]')
    assert page.get_attribute(".depth", "data-exact") == "true"
    low, high = window(page)
    assert low < at_s < high and high - low < 0.05
    drawn = page.evaluate("(({t, mean}) => t.map((x, i) => [x, mean[i]]))(everywatt.page.made[0].slices[0])")
    tape = everywatt.load(folder / "spike.tape").tapes[0]
    start_ns = tape.extent_ns()[0]
    columns = load_columns(tape, 1, ["gpu.0.power"], start_ns + row * 10**6, start_ns + row * 10**6)
    seconds = np.round((columns.published - start_ns) / 1e9, 6)
    beside = np.flatnonzero(np.abs(seconds - at_s) < 0.0085)
    truth = {float(seconds[n]): columns.values["gpu.0.power"][n] / 1000 for n in beside}
    assert len(truth) == 17
    found = {round(t, 6): watts for t, watts in drawn}
    for t, watts in truth.items():
        assert found[t] == pytest.approx(watts, rel=1e-7), f"every tick at {t} s is the tape's, in single precision"
    assert found[at_s] == 1000.0
    picture(page, "report-spike-zoomed.png")
    page.click('[data-chart="power"] summary')
    assert "\t1000" in page.inner_text('[data-chart="power"] table')


def test_numbers_come_out_as_they_went_in(show, small):
    random = np.random.default_rng(5)
    values = np.where(random.random(3000) < 0.1, np.nan, random.integers(-(10**9), 10**9, 3000) * 0.001)
    packed = pack({"t": np.cumsum(random.integers(1, 2**33, 3000)), "n": np.arange(3000), "v": values})
    found = show(small).evaluate(
        """async (packed) => {
          const plain = (values) => Array.from(values, (x) => Number.isNaN(x) ? null : x);
          return Object.fromEntries(Object.entries(await everywatt.unpack(packed)).map(([k, v]) => [k, plain(v)]));
        }""",
        packed,
    )
    for name, numbers in unpacked(packed).items():
        assert np.array_equal(np.array(found[name], dtype=float), numbers, equal_nan=True)


def test_light_and_dark(show, small, picture):
    page = show(small, color_scheme="dark")
    assert brightness(page) < 40
    assert coloured(page, "power") > 200
    picture(page, "report-dark.png", full_page=True)
    page.click("text=Theme: automatic")
    assert brightness(page) > 230 and page.is_visible("text=Theme: light")
    page.click("text=Theme: light")
    assert brightness(page) < 40
    assert page.troubles == []


def test_on_a_phone(show, small, compared, picture):
    for path in (small, compared):
        page = show(path, viewport=PHONE, has_touch=True, device_scale_factor=2)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert page.query_selector('[data-chart="power"] canvas').bounding_box()["width"] <= PHONE["width"]
        picture(page, f"report-phone-{path.stem}.png", full_page=True)


def test_on_paper(show, small, picture):
    page = show(small, color_scheme="dark")
    page.emulate_media(media="print")
    page.wait_for_timeout(100)
    assert brightness(page) == 255, "paper is white, whatever the screen was"
    assert not page.is_visible(".toolbar .group") and page.is_visible("#summary")
    pdf = page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
    picture(page, "report-print.png", full_page=True)


def test_hosts_one_after_the_other_are_no_curve_of_one_power(show, folder, small):
    shutil.copytree(ROOT / "tests" / "corpus" / "data" / "runs" / "hosts", folder / "hosts")
    page = show(written(folder / "beside.html", folder / "small.tape", folder / "hosts"))
    assert "hosts" not in page.inner_text('[data-chart="overlay"] .legend')
    assert "not recorded over the same time: hosts" in page.inner_text("#comparison")


def test_a_long_figure_stays_in_its_tile_and_amounts_are_whole_on_a_phone(show, folder, small):
    unit = "request with an answer of a hundred tokens"
    factors = Factors(Intensity(56.0, "given"), embodied_g=0.0, unit=unit)
    page = show(written(folder / "score.html", folder / "small.tape", factors=factors))
    outside = """all => all.filter((one) => {
      const range = document.createRange();
      range.selectNodeContents(one);
      return range.getBoundingClientRect().right > one.closest(".hero").getBoundingClientRect().right;
    }).map((one) => one.textContent)"""
    assert page.eval_on_selector_all(".figures dd", outside) == []
    page.set_viewport_size(PHONE)
    assert page.eval_on_selector("#carbon .scroll", "(one) => one.scrollWidth - one.clientWidth") <= 0


def test_a_table_that_goes_on_below_has_a_shade_there(show, folder, small):
    page = show(small)
    shade = page.eval_on_selector(".flame-and-table .scroll", "(one) => getComputedStyle(one).backgroundImage")
    assert "to top" in shade


def test_a_chart_is_whole_on_paper(show, small):
    page = show(small)
    page.emulate_media(media="print")
    beyond = page.evaluate("""() => {
      document.querySelector("main").style.width = "680px"; // as a sheet is, which no observer reports
      return [...document.querySelectorAll(".plot canvas")].map((one) =>
        [one.getBoundingClientRect(), one.closest(".plot").getBoundingClientRect()]).map(([a, b]) => a.right - b.right);
    }""")
    assert len(beyond) == 6 and max(beyond) < 1
    # Letters are then as large as others on paper.
    page.wait_for_function(
        "[...document.querySelectorAll('.plot canvas')].every((one) => one.width / devicePixelRatio < 720)"
    )


def test_the_command_for_a_window_finds_a_run_that_lies_elsewhere(show, folder, capsys):
    page = show(written(folder / "elsewhere.html", write_run(folder / "my run.tape")))
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.evaluate("everywatt.page.view.set(4, 6)")
    page.click("text=Copy the command for this window")
    _, *words = shlex.split(page.evaluate("window.copied"))
    assert words == ["show", str(folder / "my run.tape"), "--between", "4.000000", "6.000000"]
    assert main(words) == 0
    assert "580" in capsys.readouterr().out.split("\n")[0], "40 W and 250 W for 2 s"
    assert shlex.quote(words[1]) in page.inner_text("#carbon")


def test_several_runs_are_compared(show, compared, picture):
    page = show(compared)
    assert page.troubles == []
    text = page.inner_text("#comparison")
    assert "do not cover the same scope" in text
    assert "not compared: it covers cpu, the first run cpu+gpu" in text
    assert "less" in text and "×" in text
    assert coloured(page, "overlay") > 200
    page.click("nav.tabs button >> nth=1")
    page.wait_for_selector('[data-chart="power"] canvas')
    assert page.inner_text("#summary-title") == "Energy of short"
    assert page.get_attribute("nav.tabs button >> nth=1", "aria-pressed") == "true"
    picture(page, "report-compared.png", full_page=True)


def test_the_command_can_be_copied(show, small):
    page = show(small)
    page.click("text=Copy the command to reproduce")
    page.wait_for_selector(".reproduce button:has-text('Copied')")
    assert page.inner_text(".reproduce code").endswith(f"-- python train.py --name '{EVIL}'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_fault_of_accessibility(show, small, compared, scheme):
    for path in (small, compared):
        page = show(path, color_scheme=scheme, bypass_csp=True)
        page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
        page.wait_for_selector('[data-chart="power"] table')
        assert faults(page) == []


def test_the_flame_graph_zooms_by_mouse_and_keyboard(show, small):
    page = show(small)

    def names():
        return page.eval_on_selector_all("button.flame", "(all) => all.map((one) => one.textContent)")

    assert names() == ["run", "run", "epoch", EVIL]
    page.click("button.flame >> text=epoch")
    assert names() == ["run", "run", "epoch"]
    assert page.inner_text("#flame tbody th") == "epoch"
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == EVIL
    assert page.troubles == []
