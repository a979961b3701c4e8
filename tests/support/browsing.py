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


def serious_faults(page):
    """What axe-core finds that keeps people out; the page must have been opened with `bypass_csp`."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:160]}" for v in found if v["impact"] in ("serious", "critical")]
