"""The report over runs at the edge: a gap, three milliseconds, no ticks at all, odd names, many devices."""

import numpy as np
import pytest
from browsing import IN_A_BROWSER, PHONE, faults
from machines import Process, write_machine
from tapes import at, counter_group, gauge_group, rows, write_tape

import everywatt
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.core.clocks import NS, Anchor
from everywatt.core.spans import Point, Span
from everywatt.footprint.carbon import Factors, Intensity
from everywatt.report.html.data import report_document
from everywatt.report.html.page import card, still_page
from everywatt.report.html.page import page as html_page
from everywatt.tape.writer import TapeWriter

pytestmark = IN_A_BROWSER

CARD = {"period_s": 0.1, "window_s": 0.1, "max_w": 400.0}
ODD = ["<b>bold</b>", "\u05e9\u05dc\u05d5\u05dd", "\u202ereversed", "x" * 300, "  ", "a\nb"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("extreme")


@pytest.fixture
def show(open_page, folder):
    """A function that writes the report of a tape, opens it, and gives its page."""

    def opened(tape, **settings):
        data = report_document([everywatt.load(tape)])
        path = folder / f"{tape.stem}.html"
        path.write_text(html_page(data))
        return open_page(path.as_uri(), **settings)

    return opened


def with_a_gap(path, seconds=20.0, period_s=0.1, noise_w=0.0):
    """A package at 40 W all the time; a card at 100 W, then nothing for 30 % of the time, then 250 W."""
    first, last = 0.35 * seconds, 0.65 * seconds
    noise = np.random.default_rng(1)
    near = [lambda t, watts=watts: watts + noise_w * noise.uniform(-1, 1) for watts in (100.0, 250.0)]
    card = [*rows(near[0], 0, first, period_s), *rows(near[1], last, seconds, period_s)]
    package = rows(lambda t: 40 * t, 0, seconds, period_s)
    facts = {**CARD, "period_s": period_s, "window_s": period_s}
    groups = [
        (counter_group(quantum=6e-5, max_w=200.0), period_s, package),
        (gauge_group(**facts), period_s, card),
    ]
    return write_tape(path, groups, [("run", 0, seconds, None, {})])


def with_odd_names(path):
    writer = TapeWriter(path, {"host": {"name": "box"}, "period_s": 0.1})
    writer.anchor(Anchor(at(0), 1_700_000_000 * NS, at(0), 0))
    for device in ("gpu.0", "gpu.1"):
        group = writer.add_group(gauge_group(device, **CARD), 0.1)
        writer.append(group, rows(lambda t: 100.0, 0, 6, 0.1))
    for place, name in enumerate(ODD):
        writer.span_open(Span(f"s{place}", name, at(place), None, None, {}))
        writer.span_close(f"s{place}", at(place + 0.8))
        for second in (0.2, 0.5):
            writer.point(Point(at(place + second), name, second, None))
    writer.flush()
    return writer.seal()


def drawn_at(page, t, label):
    """How many pixels above the time `t` have the colour of this line in the chart of power."""
    return page.evaluate(
        """([t, label]) => {
          const chart = everywatt.page.made.find((one) => one.about.id === "power"), u = chart.plot;
          const colour = chart.colour(chart.lines.findIndex((line) => line.about.label === label), everywatt.theme());
          const wanted = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
          const x = Math.round(u.valToPos(t, "x", true));
          const { data } = u.ctx.getImageData(x, u.bbox.top, 1, u.bbox.height);
          let count = 0;
          for (let i = 0; i < data.length; i += 4) {
            if (wanted.every((part, k) => Math.abs(part - data[i + k]) < 60)) count++;
          }
          return count;
        }""",
        [t, label],
    )


@pytest.mark.parametrize("period_s", [0.1, 0.002])
def test_nothing_is_drawn_where_nothing_was_read(show, folder, period_s):
    page = show(with_a_gap(folder / f"gap{period_s}.tape", period_s=period_s))
    assert [drawn_at(page, t, "gpu.0") > 0 for t in (3, 8, 10, 12, 16)] == [True, False, False, False, True]
    assert drawn_at(page, 10, "cpu.0") > 0


def test_the_mean_of_a_window_is_that_of_the_observed_time(show, folder):
    page = show(with_a_gap(folder / "mean.tape"))
    headline = page.inner_text("#summary .figures")
    assert "215.5 W" in headline and "mean 215.5 W" in page.inner_text(".readout"), "one figure for one window"
    page.evaluate("everywatt.page.view.set(8, 12)")
    assert "mean 40" in page.inner_text(".readout") and "without gpu.0" in page.inner_text(".readout")
    page.click('[data-chart="power"] summary')
    assert page.inner_text('[data-chart="power"] tbody tr >> nth=5').split("\t")[1:] == ["40", "–"]


@pytest.mark.parametrize(("period_s", "a", "b"), [(0.1, 2.9999, 6.0001), (0.002, 3.0011, 6.9)])
def test_lines_cross_the_chart_without_a_hook_at_its_edges(show, folder, period_s, a, b):
    page = show(with_a_gap(folder / f"edges{period_s}.tape", period_s=period_s, noise_w=5.0))
    page.evaluate(f"everywatt.page.view.set({a}, {b})")
    sliver = (b - a) / 4000  # a fourth of a pixel
    for t in page.evaluate("everywatt.page.made[0].slices.map((slice) => Array.from(slice.t))"):
        assert t[0] < a + sliver and t[-1] > b - sliver
        assert t[1] > a + sliver and t[-2] < b - sliver, "a step that is no pixel wide"


def test_a_gap_in_a_long_recording_adds_no_joules(show, folder):
    page = show(with_a_gap(folder / "long.tape", seconds=2000.0, period_s=0.01, noise_w=20.0))
    found = page.evaluate(
        """() => everywatt.page.made[0].lines.filter((line) => line.about.in_total).map((line) =>
             [line.about.label, line.exact, line.integral(0, 2000), line.integral(600, 1400)])"""
    )
    card = next(one for one in found if one[0] == "gpu.0")
    assert not card[1] and card[2] == pytest.approx(245_000, rel=1e-3) and card[3] == pytest.approx(35_000, rel=1e-3)
    assert [drawn_at(page, t, "gpu.0") > 0 for t in (300, 720, 1000, 1280, 1600)] == [True, False, False, False, True]


def test_three_milliseconds_have_ticks_in_milliseconds(show, folder):
    package = rows(lambda t: 40 * t, 0, 0.003, 0.001)
    tape = write_tape(folder / "short.tape", [(counter_group(quantum=6e-5, max_w=200.0), 0.001, package)])
    page = show(tape)
    assert page.inner_text(".readout").startswith("0.00 ms – 3.00 ms")


def test_a_run_without_ticks_has_no_empty_tables_and_no_buttons(show, folder):
    page = show(write_tape(folder / "nothing.tape", [], [("run", 0, 3, None, {})]))
    text = page.inner_text("main")
    assert "This run has no ticks to plot." in text and "All ticks" not in text
    assert not page.is_visible(".toolbar") and "Rates" not in text
    assert page.eval_on_selector_all("tbody", "all => all.filter((one) => !one.children.length).length") == 0


def test_odd_names_are_text_that_fits_and_take_no_colour_of_a_device(show, folder):
    tape = with_odd_names(folder / "odd.tape")
    page = show(tape, bypass_csp=True)
    assert page.inner_text("#phases").count("(blank)") == 1
    assert faults(page) == []
    colours = page.evaluate(
        """() => everywatt.page.made.flatMap(
             (chart) => chart.lines.map((line) => [chart.about.id, chart.colours(line.about)]))"""
    )
    devices = {place for chart, place in colours if chart == "power"}
    assert devices.isdisjoint(place for chart, place in colours if chart == "logged")
    assert devices == {0, 1, 3}  # gpu.0; the total, in the place of the cpu.0 that is not here; gpu.1
    page = show(tape, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_parts_of_a_board_can_be_told_apart(show, folder):
    names = [*(f"jetson.cpu{n}" for n in range(6)), "jetson.gpu"]
    channels = [Channel(f"{name}.utilisation", "%", Kind.GAUGE, "jetson", facts=Facts(window_s=0.0)) for name in names]
    group = GroupInfo("test.jetson.use", "test", "jetson", tuple(channels))
    ticks = [Row(at(t), at(t), at(t), tuple(float(n) for n in range(7))) for t in range(6)]
    page = show(write_tape(folder / "board.tape", [(group, 1.0, ticks)], [("run", 0, 5, None, {})]))
    styles = page.evaluate(
        """() => { const chart = everywatt.page.made[0], theme = everywatt.theme();
                   return chart.lines.map((_, i) => JSON.stringify([chart.colour(i, theme), chart.dash(i)])); }"""
    )
    assert len(styles) == 7 and len(set(styles)) == 7


def test_lines_hidden_at_first_are_folded_where_they_are_many(show, folder):
    # Cores are inside of their package, so they are not in the total.
    groups = [(counter_group("cpu.0", Domain.PACKAGE), 0.1, rows(lambda t: 50.0 * t, 0, 5, 0.1))]
    groups += [
        (counter_group(f"cpu.0.core{n}", Domain.CORE), 0.1, rows(lambda t: 5.0 * t, 0, 5, 0.1)) for n in range(5)
    ]
    page = show(write_tape(folder / "folded.tape", groups, [("run", 0, 5, None, {})]))
    legend = page.locator('[data-chart="power"] .legend')
    assert legend.locator("> button").count() == 1 and legend.locator("details button").count() == 5
    legend.locator("summary").click()
    legend.locator("details button").first.click()
    assert legend.locator("details[open] button[aria-pressed=true]").count() == 1


def test_a_caveat_of_many_devices_is_one_line(show, folder):
    groups = [(gauge_group(f"gpu.{n}", **CARD), 0.1, rows(lambda t: 50.0, 0, 5, 0.1)) for n in range(16)]
    page = show(write_tape(folder / "many.tape", groups, [("run", 0, 5, None, {})]))
    assert page.locator("#summary .warnings li").count() == 1
    assert "sampling only" in page.inner_text("#summary .big"), "also where the sampling leaves no interval"


def test_five_hundred_owners(show, folder):
    workers = [Process(1000 + n, [0.05 / (1 + n / 20)] * 10, name=f"worker-{n}") for n in range(500)]
    page = show(write_machine(folder / "owners.tape", {"cpu.0": [80.0] * 10}, workers, seconds=10, cpus=32))
    assert "480 more" in page.inner_text("#owners")
    assert "less than 0.2 %" in page.inner_text("#flame")
    assert page.locator("button.flame").count() > 1
    assert page.locator('button.flame[tabindex="0"]').count() == 1, "arrow keys go on from there"


def test_long_titles_of_still_pages_fit_a_phone(open_page, folder):
    path = folder / "still.html"
    path.write_text(still_page("x" * 300, card("y" * 300, "<p>z</p>")))
    page = open_page(path.as_uri(), still=True, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"] and page.troubles == []


def test_a_run_that_was_observed_in_part_says_so_everywhere(open_page, folder):
    groups = [
        (counter_group(), 0.1, rows(lambda t: 40 * t, 0, 3, 0.1)),
        (gauge_group(), 0.1, rows(lambda t: 100.0, 0, 5, 0.1)),
    ]
    run = everywatt.load(write_tape(folder / "part.tape", groups, [("run", 0, 10, None, {"role": "run"})]))
    factors = Factors(intensity=Intensity(56.0, "given"), embodied_g=120.0)
    path = folder / "part.html"
    path.write_text(html_page(report_document([run, run], factors=factors)))
    page = open_page(path.as_uri(), viewport=PHONE)
    assert "coverage 31.0 %" in page.inner_text("#comparison")
    quality = page.inner_text("#quality")
    assert "coverage 31.0 %" in quality and "no gaps" not in quality
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_no_line_joins_two_spikes(show, folder):
    spikes = (5.0, 35.0)
    level = rows(lambda t: 300.0 if any(abs(t - at_s) < 0.003 for at_s in spikes) else 100.0, 0, 40, 0.002)
    facts = {**CARD, "period_s": 0.002, "window_s": 0.002}
    page = show(write_tape(folder / "spikes.tape", [(gauge_group(**facts), 0.002, level)], [("run", 0, 40, None, {})]))
    found = page.evaluate(
        """() => {
          const chart = everywatt.page.made[0], { t, low, high } = chart.slices[0], u = chart.plot;
          const joined = [];
          const path = Path2D.prototype, old = [path.moveTo, path.lineTo];
          let at = null;
          path.moveTo = function (x, y) { at = x; old[0].call(this, x, y); };
          path.lineTo = function (x, y) { if (x - at > 40) joined.push(x - at); at = x; old[1].call(this, x, y); };
          chart.drawRanges(u, everywatt.theme());
          [path.moveTo, path.lineTo] = old;
          return [low.some((one, i) => one < high[i]), joined];
        }"""
    )
    assert found == [True, []]


def test_a_run_that_no_reading_covers_claims_nothing(show, folder):
    groups = [(gauge_group(), 0.1, rows(lambda t: 100.0, 0, 5, 0.1))]
    tape = write_tape(folder / "before.tape", groups, [("run", 12, 20, None, {"role": "run"})])
    page = show(tape, viewport=PHONE)
    assert " J" not in page.inner_text(".readout")
    assert "no gaps" not in page.inner_text("#quality") and "no power was read" in page.inner_text("#quality")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.fixture(scope="module")
def compared(folder):
    """The page over a run of 4 s after 2 s of idle on two cards, and one of 3 s on one card, each with a package."""
    runs = []
    for name, cards, start, end in (("two", 2, 2.0, 6.0), ("one", 1, 0.0, 3.0)):
        groups = [(counter_group(), 0.1, rows(lambda t: 40 * t, 0, end, 0.1))]
        level = [(gauge_group(f"gpu.{n}"), 0.1, rows(lambda t: 100.0, 0, end, 0.1)) for n in range(cards)]
        spans = [("run", start, end, None, {"role": "run"})]
        runs.append(everywatt.load(write_tape(folder / f"{name}.tape", [*groups, *level], spans)))
    path = folder / "compared.html"
    path.write_text(html_page(report_document(runs)))
    return path.as_uri()


def test_compared_runs_begin_together_without_what_was_recorded_before(open_page, compared):
    page = open_page(compared)
    view = "everywatt.page.charts.find((chart) => chart.kept)"
    assert page.evaluate(f"[{view}.view.a, {view}.view.b]") == pytest.approx([0, 4], abs=0.11)
    firsts = page.evaluate(f"{view}.lines.map((line) => line.first)")
    assert firsts == pytest.approx([-2, 0], abs=0.11), "idle time lies before the start"


def test_a_device_has_one_colour_in_all_runs_of_a_page(open_page, compared):
    page = open_page(compared)
    legend = """all => Object.fromEntries(all.map((one) => [one.childNodes[1].textContent,
                getComputedStyle(one.querySelector(".swatch")).backgroundColor]))"""
    first = page.eval_on_selector_all('.run [data-chart="power"] .legend button', legend)
    page.click("nav.tabs button >> nth=1")
    page.wait_for_selector("text=Energy of one")
    second = page.eval_on_selector_all('.run [data-chart="power"] .legend button', legend)
    assert set(second) < set(first) and {name: first[name] for name in second} == second


def test_spans_lie_behind_the_curve_only_where_all_of_them_can_be_seen(show, folder):
    spans = [("run", 0, 60, None, {})]
    spans += [(f"item{n}", n * 0.1, n * 0.1 + (0.04 if n % 2 else 0.35), None, {}) for n in range(590)]
    page = show(write_tape(folder / "items.tape", [(gauge_group(), 0.1, rows(lambda t: 100.0, 0, 60, 0.1))], spans))
    drawn = """() => {
      const chart = everywatt.page.made[0];
      let count = 0;
      const old = chart.plot.ctx.fillRect;
      chart.plot.ctx.fillRect = () => { count++; };
      chart.drawBands(chart.plot, everywatt.theme());
      chart.plot.ctx.fillRect = old;
      return count;
    }"""
    assert page.evaluate(drawn) == 0
    page.evaluate("everywatt.page.view.set(10, 11)")
    assert page.evaluate(drawn) == 0, "more names than colours"
    page.evaluate("everywatt.page.view.set(10, 10.4)")
    assert page.evaluate(drawn) > 5
