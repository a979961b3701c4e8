"""Every other page and section that everywatt writes, in real headless Chromium: batches, scaling, language models,
wall and chips, the precision lab, a month of a Slurm site, pages of power models, and what a notebook shows."""

import known_site
import numpy as np
import pytest
from batches import batch_runs
from browsing import IN_A_BROWSER, PHONE, brightness, coloured, faults, keyboard_faults
from precisions import EVIL, precision_result
from reports import write_run

import everywatt
from everywatt.cli.main import main
from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Pedigree
from everywatt.core.clocks import NS
from everywatt.core.tables import Table
from everywatt.meters.series import Part, write_part
from everywatt.meters.series import Table as Series
from everywatt.report.html.data import report_document
from everywatt.report.html.figures import table_document
from everywatt.report.html.page import page as html_page
from everywatt.report.html.page import trials_page
from everywatt.report.html.trials import precision_document
from everywatt.report.plots import device_places

pytestmark = IN_A_BROWSER

SCRIPTED = ("batch", "scaling", "models", "wall", "precision")
STILL = ("month", "truth", "scatter", "notebook")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The address of each page by its name."""
    folder = tmp_path_factory.mktemp("sections")
    made = {**scripted(folder, batch_runs(tmp_path_factory)), **still(folder)}
    assert sorted(made) == sorted((*SCRIPTED, *STILL))
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text)
    return {name: (folder / f"{name}.html").as_uri() for name in made}


def scripted(folder, batches):
    llm_runs = pytest.importorskip("llm_runs", reason="pyarrow is not installed")
    found = {
        "batch": html_page(report_document(batches[1:])),
        "scaling": html_page(report_document(batches)),
    }
    models = [
        llm_runs.llm_run(folder, "small", lambda n: 10.0 + n % 5, lambda n: n % 2 == 0),
        llm_runs.llm_run(folder, "large" + EVIL.replace("/", ""), lambda n: 20.0 + n % 7, lambda n: n % 4 != 1),
    ]
    found["models"] = html_page(report_document(models))
    found["wall"] = html_page(report_document([everywatt.load(metered(folder / "metered.tape"))]))
    words = ["everywatt", "bench", "precision", EVIL]
    found["precision"] = trials_page(precision_document(precision_result(), command=words))
    return found


def still(folder):
    plots = pytest.importorskip("everywatt.report.model_plots")
    pytest.importorskip("vl_convert")
    month = folder / "month.html"
    words = ["slurm", "report", "--month", "2026-11", "--store", known_site.make(folder / "site").path]
    assert main([*map(str, words), "--country", "FR", "--price", "0.2 EUR", "-o", str(month)]) == 0
    t = np.arange(200.0)
    watts = 100 + 50 * np.sin(t / 9)
    drawn = [plots.truth_plot(t, watts, watts + 3, "wall <b>", folder / "truth <i>.html")]
    drawn.append(plots.scatter_plot({"cpu": watts / 2, "gpu": watts}, watts, "wall", folder / "scatter.html"))
    run = everywatt.load(write_run(folder / "cell.tape"))
    shown = [run, run.energy(), everywatt.Energy.refuse(f"nothing measures {EVIL}")]
    cells = "".join(f"<section>{one._repr_html_()}</section>" for one in shown)
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return {
        "month": month.read_text(),
        "truth": drawn[0].read_text(),
        "scatter": drawn[1].read_text(),
        "notebook": f"{head}<title>cell</title><main><h1>cell</h1>{cells}</main></html>",
    }


def metered(path):
    """A card between 100 and 300 W behind a meter that sees 60 W and a tenth more."""
    t = np.arange(0, 60, 0.1)
    card_w = np.where(np.sin(t) > 0.3, 300.0, 100.0)

    def group(device, domain):
        facts = Facts(gain_pct=1.0)
        channel = Channel(f"{device}.power", "W", Kind.GAUGE, device, domain, pedigree=Pedigree.INTEGRATED, facts=facts)
        return GroupInfo(device, "test", device, (channel,))

    def rows(watts):
        return [(round((1_760_000_000 + at) * NS), (float(w),)) for at, w in zip(t, watts, strict=True)]

    tables = [(group("gpu.0", Domain.GPU), rows(card_w)), (group("wall", Domain.WALL), rows(60 + 1.1 * card_w))]
    return write_part(path, Part([Series(*one) for one in tables]), [path], {})


def filled(page, selector):
    """How many shapes of a drawing have a size and a colour."""
    return page.eval_on_selector_all(
        selector,
        """all => all.filter((one) => {
             const box = one.getBoundingClientRect(), fill = getComputedStyle(one).fill;
             return box.width > 0 && box.height > 0 && fill !== "none" && fill !== "rgba(0, 0, 0, 0)";
           }).length""",
    )


def open_all(page):
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")


def of(open_page, pages, name, **settings):
    """The page of this name."""
    return open_page(pages[name], still=name in STILL, **settings)


@pytest.mark.parametrize("name", [*SCRIPTED, *STILL])
def test_it_shows_without_an_error_and_asks_nobody(open_page, pages, picture, name):
    page = of(open_page, pages, name)
    open_all(page)
    assert page.troubles == [] and page.requests == [pages[name]]
    assert page.evaluate("window.evil") is None
    text = page.inner_text("main")
    assert len(text) > 100
    assert not [wrong for wrong in ("[object ", "undefined", "NaN", "Infinity") if wrong in text]
    picture(page, f"section-{name}.png", full_page=True)


@pytest.mark.parametrize("name", [*SCRIPTED, *STILL])
def test_dark_on_a_phone(open_page, pages, picture, name):
    page = of(open_page, pages, name, viewport=PHONE, color_scheme="dark", has_touch=True, device_scale_factor=2)
    assert page.troubles == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    if name not in ("truth", "scatter", "notebook"):  # drawings on paper, and cells that have the notebook's colours
        assert brightness(page) < 40
    picture(page, f"section-{name}-phone-dark.png", full_page=True)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [*((name, "light") for name in (*SCRIPTED, *STILL)), *((name, "dark") for name in (*SCRIPTED, "month"))],
)
def test_no_fault_of_accessibility(open_page, pages, name, scheme):
    page = of(open_page, pages, name, color_scheme=scheme, bypass_csp=True)
    assert scheme == "dark" or keyboard_faults(page) == []
    open_all(page)
    assert faults(page) == []


@pytest.mark.parametrize("name", SCRIPTED)
def test_on_paper_no_table_is_cut_and_nothing_asks_for_a_pointer(open_page, pages, name):
    page = of(open_page, pages, name, viewport={"width": 718, "height": 1000})
    page.emulate_media(media="print")
    cut = """all => all.filter((one) => one.clientHeight && (one.scrollHeight > one.clientHeight + 1 ||
             one.firstElementChild.getBoundingClientRect().right > innerWidth + 1))
             .map((one) => one.getAttribute("aria-label"))"""
    assert page.eval_on_selector_all(".scroll", cut) == []
    assert not [words for words in ("Drag over", "Click ", "arrow keys") if words in page.inner_text("main")]
    assert page.is_hidden("button.series[aria-pressed=false] >> nth=0")


def test_the_head_of_items_is_on_every_sheet(open_page, pages):
    page = of(open_page, pages, "batch")
    heads = page.eval_on_selector_all(".items thead th", "all => all.map((one) => one.textContent)")
    page.emulate_media(media="print")
    page.wait_for_selector(".items thead button", state="detached")
    assert page.eval_on_selector_all(".items thead th", "all => all.map((one) => one.textContent)") == heads
    page.emulate_media(media="screen")
    page.wait_for_selector(".items thead button")
    assert len(page.query_selector_all(".items thead button")) == len(heads)


def test_a_device_and_a_span_have_one_colour_in_charts_bars_and_flames(open_page, pages):
    page = of(open_page, pages, "batch")
    swatches = """all => Object.fromEntries(all.map((one) => [one.textContent.trim(),
                  getComputedStyle(one.querySelector(".swatch")).backgroundColor]))"""
    drawn = page.eval_on_selector_all('[data-chart="power"] .legend button', swatches)
    flames = page.eval_on_selector_all(
        "button.flame", "all => all.map((one) => [one.textContent, getComputedStyle(one).borderLeftColor])"
    )
    found = {name: colour for name, colour in flames if name in drawn}
    assert found and found == {name: drawn[name] for name in found}


def test_a_device_has_one_colour_whatever_else_is_on_the_page(open_page, pages):
    page = of(open_page, pages, "batch")
    everything = [*(f"gpu.{n}" for n in range(8)), "cpu.0", "cpu.1", "host", "wall", "total"]
    alone = [["cpu.0"], ["host"], ["gpu.0", "cpu.0"], ["gpu.0", "gpu.1", "cpu.0", "host", "total"], everything]
    found = [page.evaluate("(names) => Object.fromEntries(everywatt.devicePlaces(names))", names) for names in alone]
    for names, places in zip(alone, found, strict=True):
        assert places.keys() == set(names) and len(set(places.values())) == len(names)
        assert places == device_places(names), "plots have the colours of pages"
    for name in ("gpu.0", "gpu.1", "cpu.0", "host"):
        assert len({places[name] for places in found if name in places}) == 1, name


def test_wall_and_chips_have_the_colours_of_their_curves(open_page, pages):
    page = of(open_page, pages, "wall")
    curves = page.eval_on_selector_all(
        '[data-chart="power"] .legend .swatch', "all => all.map((one) => getComputedStyle(one).backgroundColor)"
    )
    bars = page.eval_on_selector_all("#wall .bar", "all => all.map((one) => getComputedStyle(one).backgroundColor)")
    names = page.eval_on_selector_all('[data-chart="power"] .legend button', "all => all.map((one) => one.textContent)")
    assert dict(zip(names, curves, strict=True)) == {"gpu.0": bars[1], "wall": bars[0]} and bars[2] not in curves


def test_how_an_item_ended_has_no_colour_of_a_device(open_page, pages):
    page = of(open_page, pages, "batch")
    colour = "all => all.map((one) => getComputedStyle(one).backgroundColor)"
    devices = page.eval_on_selector_all('[data-chart="power"] .legend [aria-pressed=true] .swatch', colour)
    assert set(page.eval_on_selector_all("#batch .cockpit .key .swatch", colour)).isdisjoint(devices)


def test_items_of_a_batch_are_not_phases_too(open_page, pages):
    page = of(open_page, pages, "batch")
    assert "i5" not in page.inner_text("#phases") if page.query_selector("#phases") else True


@pytest.mark.parametrize("size", [None, PHONE])
def test_the_share_of_a_flame_is_seen_beside_a_long_name(open_page, pages, size):
    page = of(open_page, pages, "batch", **({} if size is None else {"viewport": size}))
    page.eval_on_selector("#flame tbody th", "(one) => { one.textContent = 'python -m ' + 'a-long-word'.repeat(9); }")
    wide = "all => all.map((one) => one.scrollWidth - one.clientWidth)"
    assert max(page.eval_on_selector_all("#flame .scroll", wide)) == 0


def test_a_batch_says_what_its_columns_of_energy_and_its_lanes_count(open_page, pages):
    page = of(open_page, pages, "batch")
    assert "the card and the item's share of the processors" in page.inner_text("#batch").replace("\n", " ")
    assert page.inner_text("#batch .lane-row .value >> nth=0").endswith("attempts")
    wide = "all => all.map((one) => one.scrollWidth - one.clientWidth)"
    assert max(page.eval_on_selector_all("#batch .lane-row", wide)) == 0, "on one line"
    tall = "(one) => one.getBoundingClientRect().height"
    assert page.eval_on_selector("#batch .lane-row .value", tall) < 28


def test_scaling_bars_have_the_interval_of_their_energy(open_page, pages):
    page = of(open_page, pages, "scaling")
    shown = page.eval_on_selector_all("#scaling .value", "all => all.map((one) => one.textContent)")
    assert sum("±" in text or "…" in text for text in shown) == 2
    assert page.eval_on_selector_all("#scaling .whisker:not([hidden])", "all => all.length") == 2


def test_a_comparison_has_a_head_over_every_column(open_page, pages):
    page = of(open_page, pages, "scaling")
    heads = page.eval_on_selector_all("#comparison thead th", "all => all.map((one) => one.textContent)")
    assert all(heads) and heads[-1] == "Verdict"


def test_histograms_count_queries_and_tables_of_queries_print_as_others_do(open_page, pages):
    page = of(open_page, pages, "models")
    assert "queries" in page.eval_on_selector_all("#llm svg.wide text", "all => all.map((one) => one.textContent)")
    rows = page.eval_on_selector_all(
        '#llm [aria-label="Table: Most expensive queries"] tbody tr', "all => all.map((one) => one.textContent)"
    )
    assert rows[0].endswith("14.00 J1.400 J700 ms"), "as everywhere else, to four digits"
    assert "1/s" not in page.inner_text('#llm [aria-label="Table: Loads"] tbody'), "the unit is in the head"
    assert "The joules cover" in page.inner_text("#llm")


def test_a_batch_has_its_devices_its_use_and_what_went_wrong(open_page, pages):
    page = of(open_page, pages, "batch")
    assert page.inner_text("#batch .head").splitlines()[-1].startswith("6 items: 5 done, 1 failed")
    assert filled(page, "#batch .heat-row rect") > 10 and filled(page, "#batch .scatter circle") == 6
    assert page.eval_on_selector_all("#batch .heat-row .name", "all => all.map((one) => one.textContent)") == [
        "gpu.0",
        "gpu.1",
    ]
    assert coloured(page, "power") > 200, "the charts below are there too"
    open_all(page)
    text = page.inner_text("#batch")
    assert "exit code 4" in text and "Stragglers" in text and "i5" in text
    assert page.eval_on_selector_all("#batch .scatter tbody tr", "rows => rows.length") == 6


def test_an_attempt_on_a_lane_is_chosen_by_keyboard(open_page, pages):
    page = of(open_page, pages, "batch")
    page.focus(".cockpit .lanes .attempt[tabindex='0']", timeout=2000)
    first = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("ArrowRight")
    second = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert first != second
    page.keyboard.press("Enter")
    assert page.inner_text(".item-detail h4").split()[0] == second.split(",")[0]
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == second, "one goes on from there"
    page.keyboard.press("ArrowDown")
    lane = "document.activeElement.closest('.lane-row').querySelector('.name').textContent"
    assert page.evaluate(lane) == "gpu.1 · lane 1"
    assert page.locator(".attempt[tabindex='0']").count() == 1, "one stop of the Tab key"


def test_the_cockpit_of_a_batch_can_be_searched_sorted_and_opened(open_page, pages):
    page = of(open_page, pages, "batch")
    assert filled(page, "#batch .lane-row rect") == 6
    names = "all => all.map((one) => one.textContent)"
    page.fill("#batch input[type=search]", "FAILED exit")
    assert page.eval_on_selector_all("#batch .items tbody th", names) == ["i3"]
    page.fill("#batch input[type=search]", "")
    page.click("#batch button.link >> text=exit code 4")
    assert page.eval_on_selector_all("#batch .items tbody th", names) == ["i3"], "the items of that cause"
    page.fill("#batch input[type=search]", "")
    page.click("#batch .items button.sort >> text=Time")
    page.click("#batch .items button.sort >> text=Time")
    assert page.eval_on_selector_all("#batch .items tbody th", names)[0] == "i5", "the slowest first"
    page.focus("#batch .items tbody tr:first-child button")
    page.keyboard.press("Enter")
    assert "i5" in page.inner_text("#batch .item-detail h4")
    page.click("#batch .item-detail >> text=Show its power in the charts")
    a, b = page.evaluate("[everywatt.page.view.a, everywatt.page.view.b]")
    (attempt,) = page.evaluate("everywatt.page.report.runs[0].batch.items[5].attempts")
    assert (
        a <= attempt["window_s"][0] and attempt["window_s"][1] <= b < page.evaluate("everywatt.page.view.whole[1]") + 1
    )
    assert page.troubles == []


def test_several_batches_have_bars_that_follow_the_theme(open_page, pages):
    page = of(open_page, pages, "scaling")
    colours = "all => all.map((one) => getComputedStyle(one).backgroundColor)"
    before = page.eval_on_selector_all("#scaling .bar", colours)
    widths = page.eval_on_selector_all("#scaling .bar", "all => all.map((one) => one.getBoundingClientRect().width)")
    assert len(before) == 4 and min(widths) > 20
    page.click("text=Theme: automatic")
    page.click("text=Theme: light")
    assert page.eval_on_selector_all("#scaling .bar", colours) != before
    page.click("nav.tabs button >> nth=1")
    page.wait_for_selector("#batch .heat-row >> nth=1")
    assert page.troubles == []


def test_models_have_their_drawings(open_page, pages):
    page = of(open_page, pages, "models")
    assert filled(page, "#models circle") == 2
    # One for each query in each of two drawings.
    assert filled(page, "#llm circle") == 2 * 60 and filled(page, "#llm rect") > 3
    open_all(page)
    rows = "all => all.map((one) => Number(one.lastElementChild.textContent)).reduce((a, b) => a + b, 0)"
    assert page.eval_on_selector_all("#llm .small-plot:first-child tbody tr", rows) == 60, "every query is in a bin"
    assert "50 % ± 13" in page.inner_text("#models")


def test_a_model_has_the_colour_of_its_run(open_page, pages):
    page = of(open_page, pages, "models")
    colour = "(all) => all.map((one) => getComputedStyle(one).backgroundColor)"
    runs = page.eval_on_selector_all("#comparison .bar", colour)
    names = page.eval_on_selector_all("#models .key li", "(all) => all.map((one) => one.textContent)")
    models = page.eval_on_selector_all("#models .key .swatch", colour)
    found = dict(zip((name.partition(",")[0][:5] for name in names), models, strict=True))
    assert [found["small"], found["large"]] == runs


def test_wall_and_chips_are_three_bars(open_page, pages):
    page = of(open_page, pages, "wall")
    names = page.eval_on_selector_all("#wall .what", "all => all.map((one) => one.textContent)")
    assert names == ["At the wall", "Chips", "Not explained by the chips"]
    widths = page.eval_on_selector_all("#wall .bar", "all => all.map((one) => one.getBoundingClientRect().width)")
    assert widths[0] > widths[1] > widths[2] > 5
    assert widths[1] + widths[2] == pytest.approx(widths[0], rel=0.02)


def test_precisions_are_compared(open_page, pages):
    page = of(open_page, pages, "precision")
    assert filled(page, '[data-chart="worth"] circle') > 1 and filled(page, '[data-chart="trials"] circle') > 3
    assert "this CPU has no fp16" in page.inner_text("#failures")
    assert "int8 uses 50" in page.inner_text("#verdict")
    parts = page.eval_on_selector_all(
        "#layers-fp32 .whole span", "all => all.map((one) => one.getBoundingClientRect().width)"
    )
    assert parts[0] / parts[1] == pytest.approx(2.0, rel=0.05), "60 % and 30 %"
    open_all(page)
    assert EVIL in page.inner_text("#layers-fp32 table")
    assert "h.0.mlp" in page.inner_text("#sensitivity")


def test_a_month_has_its_days_and_its_people(open_page, pages):
    page = of(open_page, pages, "month")
    left = "(one) => (one.getBoundingClientRect().left - one.ownerSVGElement.getBoundingClientRect().left)"
    share = page.eval_on_selector("svg rect", f"(one) => ({left})(one) / one.ownerSVGElement.clientWidth")
    assert share == pytest.approx(14 / 30, abs=0.01), "the fifteenth of thirty days"
    assert "ada" in page.inner_text("main") and "7.60 MJ" in page.inner_text("main")


@pytest.mark.parametrize("name", ["month", "models"])
def test_drawings_can_be_read_on_a_phone(open_page, pages, name):
    page = of(open_page, pages, name, viewport=PHONE)
    size = "all => all.map((one) => one.getBoundingClientRect()).map((box) => Math.max(box.width, box.height))"
    assert min(page.eval_on_selector_all("main svg text", size)) > 8


def test_a_model_is_drawn(open_page, pages):
    assert "truth <i>" in of(open_page, pages, "truth").inner_text("h1")
    for name in ("truth", "scatter"):
        page = of(open_page, pages, name)
        assert filled(page, "svg path") > 100


def test_the_mean_of_a_window_has_the_digits_of_the_energy(open_page, pages):
    page = of(open_page, pages, "batch")
    wide = "everywatt.rounded(6.2271, 'W', {joules: 42, low: 14, high: 102})"
    exact = "everywatt.rounded(99.97, 'W', {joules: 42, low: 42, high: 42})"
    assert (page.evaluate(wide), page.evaluate(exact)) == ("6.2 W", "99.97 W")


def test_a_page_of_tables_fits_a_desk(open_page, tmp_path):
    names = ("rank", "model", "load", "accuracy", "correct/J", "accuracy/W", "J/token", "J/request", "TTFT", "run")
    row = [
        "1 tied",
        "SmolLM2-135M-Instruct",
        "concurrency 4",
        *["≈ 0.26 (0.00 … 0.64)"] * 6,
        "20261117-190606-llm-" + "x" * 30,
    ]
    (tmp_path / "tables.html").write_text(table_document(Table.of(*names, rows=[row], title="questions")))
    page = open_page((tmp_path / "tables.html").as_uri(), still=True)
    assert page.eval_on_selector(".scroll", "(one) => one.scrollWidth - one.clientWidth") == 0


def test_what_a_precision_costs_has_its_interval_and_the_colour_of_its_bar(open_page, pages):
    page = of(open_page, pages, "precision")
    bars = page.eval_on_selector_all("#figures .bar", "all => all.map((one) => getComputedStyle(one).backgroundColor)")
    dots = page.eval_on_selector_all(
        '[data-chart="worth"] circle', "all => all.map((one) => getComputedStyle(one).fill)"
    )
    assert len(dots) == len(bars) and set(dots) & set(bars) and set(dots) - set(bars) <= {dots[1]}, "grey or its own"
    assert page.eval_on_selector_all('[data-chart="worth"] line.interval', "all => all.length") == 2 * len(dots)


def test_a_share_of_energy_is_dashed_as_its_key_is(open_page, tmp_path):
    (tmp_path / "nine.html").write_text(html_page(report_document([everywatt.load(nine(tmp_path / "nine.tape"))])))
    page = open_page((tmp_path / "nine.html").as_uri())
    style = "all => all.map((one) => getComputedStyle(one).background)"
    shares = page.eval_on_selector_all("#summary .whole span", style)
    assert len(shares) == len(set(shares)) == 9, "each can be distinguished"


@pytest.mark.parametrize(("names", "tinted"), [(3, True), (9, False)])
def test_spans_lie_behind_the_curve_where_each_has_a_colour_of_its_own(open_page, tmp_path, names, tinted):
    from tapes import gauge_group, rows, write_tape

    ticks = rows(lambda t: 100.0, 0, 9, 0.1)
    spans = [("run", 0.0, 9.0, None, {}), *((f"item {n}", n / 1, n + 0.9, "s0", {}) for n in range(names))]
    tape = write_tape(tmp_path / "a.tape", [(gauge_group(period_s=0.1, window_s=0.1), 0.1, ticks)], spans)
    (tmp_path / "a.html").write_text(html_page(report_document([everywatt.load(tape)])))
    page = open_page((tmp_path / "a.html").as_uri())
    shade = """() => { const plot = everywatt.page.made[0].plot, { ctx, bbox } = plot;
      const x = Math.round(plot.valToPos(0.4, "x", true)) + 3;
      return [...ctx.getImageData(x, bbox.top + bbox.height - 20, 1, 1).data]; }"""
    assert (page.evaluate(shade)[3] > 0) == tinted


def nine(path):
    """Nine cards of 10, 20 … 90 W."""
    from tapes import gauge_group, rows, write_tape

    groups = [(gauge_group(f"gpu.{n}", period_s=0.1, window_s=0.1), 0.1, n) for n in range(9)]
    return write_tape(
        path, [(info, period, rows(lambda t, n=n: 10.0 * (n + 1), 0, 3, 0.1)) for info, period, n in groups]
    )


def test_a_phase_without_a_figure_has_no_bar(open_page, tmp_path):
    from tapes import gauge_group, rows, write_tape

    ticks = rows(lambda t: 100.0, 0, 2, 0.1)
    spans = [("run", 0.0, 2.0, None, {}), ("later", 30.0, 31.0, None, {})]
    tape = write_tape(tmp_path / "a.tape", [(gauge_group(period_s=0.1, window_s=0.1), 0.1, ticks)], spans)
    (tmp_path / "a.html").write_text(html_page(report_document([everywatt.load(tape)])))
    page = open_page((tmp_path / "a.html").as_uri())
    rows = page.eval_on_selector_all(
        "#phases li",
        "all => all.map((one) => [one.querySelector('.value').textContent, !one.querySelector('.bar').hidden])",
    )
    assert ["refused" in words for words, _ in rows] == [not shown for _, shown in rows] and len(rows) == 2
