"""The page of a comparison in real headless Chromium."""

import pytest
from browsing import IN_A_BROWSER, PHONE, brightness, faults
from comparisons import EVIL, compared

from everywatt.bench.sweep import Sweep, choose
from everywatt.report.html.page import trials_page
from everywatt.report.html.trials import trials_document

pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparisons")
    swept = compared(((100, 1.0), (80, 1.2), (90, 1.3)))
    documents = {
        "plain": trials_document(compared(), command=["everywatt", "compare", "./old", EVIL]),
        "failed": trials_document(compared(failing=(1, 6), odd=(0, 2))),
        "few": trials_document(compared(count=2)),
        "modelled": trials_document(compared(pedigree="modelled")),
        "sweep": trials_document(swept, sweep=Sweep(swept, choose(swept.found))),
    }
    for name, data in documents.items():
        (folder / f"{name}.html").write_text(trials_page(data))
    return {name: (folder / f"{name}.html").as_uri() for name in documents}


def test_the_verdict_is_the_first_thing_and_nobody_is_asked(open_page, pages, picture):
    page = open_page(pages["plain"])
    assert page.troubles == [] and page.requests == [pages["plain"]]
    first = page.inner_text("main section >> nth=0")
    assert "B uses 20" in first and "less energy" in first
    assert page.inner_text("#ratios .value >> nth=0").startswith("0.80")
    assert page.evaluate("window.evil") is None and EVIL in page.inner_text("#figures")
    picture(page, "comparison-light.png", full_page=True)


def test_the_order_shows_the_interleaving(open_page, pages):
    page = open_page(pages["plain"])
    assert page.eval_on_selector_all(".order li", "all => all.map((one) => one.textContent).join('')") == "ABBA" * 4
    dots = page.eval_on_selector_all(
        '[data-chart="trials"] circle',
        "all => all.map((one) => [one.textContent.split('.')[0], one.getAttribute('fill')])",
    )
    assert len(dots) == 16 and len({colour for _, colour in dots}) == 2
    places = [title.rpartition(" ")[0] for title, _ in dots]
    assert places[:4] == ["A 1,", "B 2,", "B 3,", "A 4,"]
    joules = [float(title.rpartition(" ")[2]) for title, _ in dots]
    assert joules[:4] == pytest.approx([100, 80, 80, 100], abs=5)
    page.click("#trials summary")
    assert page.eval_on_selector_all("#trials tbody tr", "rows => rows.length") == 16


def test_whiskers_of_ratios_lie_where_their_interval_is(open_page, pages):
    page = open_page(pages["plain"])
    places = page.evaluate(
        """() => ["one", "point", "whisker"].map((name) => {
             const box = document.querySelector("#ratios li .track ." + name).getBoundingClientRect();
             return [box.left, box.right];
           })"""
    )
    (one, _), (left, right), (low, high) = places
    assert low < (left + right) / 2 < high < one, "B is cheaper: its whole interval is left of 1"


def test_an_interval_without_an_end_reaches_the_end_of_the_track(open_page, pages):
    page = open_page(pages["few"])
    assert "∞" in page.inner_text("#ratios .value >> nth=0")
    whisker, track = page.evaluate(
        """() => [".whisker", ".track"].map((name) => {
             const box = document.querySelector("#ratios li " + name).getBoundingClientRect();
             return [box.left, box.right];
           })"""
    )
    assert whisker[1] == pytest.approx(track[1], abs=2) and whisker[0] < whisker[1] - 20


def test_failures_are_shown(open_page, pages, picture):
    page = open_page(pages["failed"])
    assert page.troubles == []
    assert "B: 1 of 8 trials failed; the command ended with 3" in page.inner_text("#failures")
    assert page.inner_text("p.verdict").startswith("B: no verdict: 1 trial failed")
    assert page.eval_on_selector_all(".order li.failed", "all => all.length") == 1
    assert "trial 3 is an outlier" in page.inner_text("#verdict")
    picture(page, "comparison-failed.png", full_page=True)


def test_a_sweep_has_energy_against_time(open_page, pages, picture):
    page = open_page(pages["sweep"])
    assert page.troubles == []
    assert page.eval_on_selector_all('[data-chart="settings"] circle', "all => all.length") == 3
    picture(page, "sweep-light.png", full_page=True)


def test_dark_phone_and_paper(open_page, pages, picture):
    page = open_page(pages["sweep"], viewport=PHONE, color_scheme="dark", has_touch=True, device_scale_factor=2)
    assert brightness(page) < 40 and page.is_visible('[data-chart="trials"] circle >> nth=0')
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    picture(page, "sweep-phone-dark.png", full_page=True)
    before = page.evaluate("getComputedStyle(document.querySelector('#ratios .point')).backgroundColor")
    page.click("text=Theme: automatic")
    assert brightness(page) > 230
    assert page.evaluate("getComputedStyle(document.querySelector('#ratios .point')).backgroundColor") != before
    page.emulate_media(media="print")
    assert brightness(page) == 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_fault_of_accessibility(open_page, pages, scheme):
    for name in ("failed", "sweep"):
        page = open_page(pages[name], color_scheme=scheme, bypass_csp=True)
        page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
        assert faults(page) == []


def test_bars_of_cpu_time_come_first_where_energy_is_modelled(open_page, pages):
    titles = "all => all.map((one) => one.getAttribute('aria-label'))"
    page = open_page(pages["modelled"])
    assert page.eval_on_selector_all("#figures .bars", titles) == ["Mean CPU time per trial", "Mean energy per trial"]
    page = open_page(pages["plain"])
    assert page.eval_on_selector_all("#figures .bars", titles) == ["Mean energy per trial"]


def test_labels_beside_dots_are_whole_on_a_phone_and_dots_can_be_seen(open_page, pages):
    page = open_page(pages["sweep"], viewport=PHONE)
    drawn = """() => everywatt.scatter("Settings", [0.2, 0.4].map((n) => ({ x: n, y: n, label: "n=" + n })),
      { tight: true, table: false })"""
    page.evaluate(f"""() => document.querySelector('[data-chart="settings"]').replaceChildren(({drawn})())""")
    ends = """all => all.map((one) => [one.getBoundingClientRect(), one.closest('svg').getBoundingClientRect()])
              .map(([text, svg]) => [text.left - svg.left, svg.right - text.right])"""
    assert min(min(pair) for pair in page.eval_on_selector_all('[data-chart="settings"] text.label', ends)) >= 0
    wide = "all => all.map((one) => one.getBoundingClientRect().width)"
    assert min(page.eval_on_selector_all('[data-chart="settings"] circle', wide)) > 6


def test_a_sweep_leads_with_the_setting_and_repeats_no_command(open_page, pages):
    page = open_page(pages["sweep"])
    assert page.inner_text("p.verdict") == "Recommended: B"
    heads = page.eval_on_selector_all("#figures thead th", "all => all.map((one) => one.textContent)")
    cells = page.eval_on_selector_all(
        "#figures tbody tr", "all => all.map((row) => [...row.cells].map((one) => one.textContent))"
    )
    assert not [head for i, head in enumerate(heads) if all(row[i] in ("–", "") for row in cells)]
    assert all("B" in line or "C" in line for line in page.inner_text(".verdicts").split("\n")[1:])


def test_labels_beside_dots_do_not_overlap(open_page, pages):
    page = open_page(pages["sweep"])
    boxes = page.eval_on_selector_all(
        '[data-chart="settings"] text.label',
        "all => all.map((one) => one.getBoundingClientRect()).map((b) => [b.left, b.right, b.top, b.bottom])",
    )
    assert len(boxes) == 3
    for i, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[:i]:
            assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top


def test_a_very_wide_interval_leaves_room_for_the_others(open_page, pages):
    page = open_page(pages["plain"])
    rows = """[{ name: "B", about: "energy", value: 2, low: 0, high: 109, shown: "", colour: "red" },
               { name: "B", about: "above idle", value: 1.9, low: 1.7, high: 2.1, shown: "", colour: "red" }]"""
    page.evaluate(f"document.querySelector('#ratios .bars').replaceWith(everywatt.ratios('Ratios', {rows}))")
    box = "all => all.map((one) => one.getBoundingClientRect()).map((box) => [box.left, box.right])"
    (start, end), *_ = page.eval_on_selector_all("#ratios .track", box)
    whiskers = page.eval_on_selector_all("#ratios .whisker", box)
    assert whiskers[0][1] == pytest.approx(end, abs=2), "it goes on"
    assert whiskers[1][1] - whiskers[1][0] > 0.03 * (end - start)
