"""Debian's Chromium for tests: how it is started, and what can be asked of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = Path("/usr/bin/chromium")
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
READY = "html[data-ready=true]"

IN_A_BROWSER = pytest.mark.skipif(
    not CHROMIUM.exists(), reason="Debian's chromium is not installed: make system-packages"
)
"""The mark of a module whose tests use the fixtures `browser` and `open_page`."""


def coloured(page, chart):
    """Pixels of a chart's canvas that are neither grey nor empty."""
    return page.evaluate(
        """(id) => {
          const canvas = document.querySelector(`[data-chart="${id}"] canvas`);
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          let count = 0;
          for (let i = 0; i < data.length; i += 4) {
            const [r, g, b, alpha] = data.slice(i, i + 4);
            if (alpha > 60 && Math.max(r, g, b) - Math.min(r, g, b) > 60) count++;
          }
          return count;
        }""",
        chart,
    )


def brightness(page, selector="body"):
    """Of what lies behind a part of the page, 0 to 255."""
    colour = page.evaluate("(s) => getComputedStyle(document.querySelector(s)).backgroundColor", selector)
    return sum(int(part) for part in colour[4:-1].split(",")) / 3


def faults(page):
    """Everything that axe-core finds, with its weight; the page must have been opened with `bypass_csp`."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page).response["violations"]
    return [f"{v['impact']}: {v['id']}: {v['nodes'][0]['html'][:160]}" for v in found]


STOP = """() => {
  const here = document.activeElement;
  if (!here || here === document.body) return null;
  const style = getComputedStyle(here), box = here.getBoundingClientRect();
  const titled = document.getElementById(here.getAttribute("aria-labelledby"));
  const name = here.getAttribute("aria-label") || (titled || here.labels && here.labels[0] || here).textContent.trim();
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== "none";
  const faults = [name ? "" : "has no name", ring ? "" : "does not show that it has the focus",
    box.width > 0 && box.height > 0 && box.right > 0 && box.left < innerWidth ? "" : "cannot be seen"];
  return faults.filter(Boolean).map((fault) => here.outerHTML.slice(0, 120) + " " + fault);
}"""


def keyboard_faults(page, most=300):
    """What a person with only a keyboard would miss at the stops of the Tab key, from the first to the last one."""
    found = []
    for _ in range(most):
        page.keyboard.press("Tab")
        faults = page.evaluate(STOP)
        if faults is None:
            return found
        found += faults
    return [*found, f"the Tab key is still in the page after {most} stops"]
