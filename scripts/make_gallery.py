"""Write docs/images/gallery/*.png: every page as a browser shows it, over runs of a simulated machine.

python scripts/make_gallery.py [NAME...]

The programs really run (about a minute in all) and the pages are those that a user gets. docs/images/gallery.txt keeps,
for each picture, a hash of the files that it was made from; tests/test_gallery.py says which pictures are out of date.
Needs Debian's Chromium and playwright.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "images" / "gallery"
HASHES = ROOT / "docs" / "images" / "gallery.txt"
REPORT = "src/everywatt/report"
PAGE = tuple(f"html/{name}" for name in ("page.css", "page.html", "js/page.js", "js/parts.js", "js/charts.js"))
SERVED = tuple(f"web/static/{name}" for name in ("serve.css", "shell.html", "shell.js"))
PORT = "127.0.0.1:8765"
# Little idle power: how long an interpreter takes to start, which varies, then matters little beside the work.
FRUGAL = ("everywatt", "sim", "--package", "load:1W,10W", "--gpu", "load:4W,260W")
SIM = ("everywatt", "sim", "--package", "load:20W,90W", "--gpu", "load:40W,260W")

TRAIN = """
import everywatt
from everywatt.testing import gpu_work

with everywatt.measure("train"):
    for epoch in range(3):
        with everywatt.span("epoch"):
            with everywatt.span("load"):
                sum(i * i for i in range(2_000_000))
            with everywatt.span("forward"):
                gpu_work(0.5)
            with everywatt.span("backward"):
                gpu_work(0.4)
"""
ITEM = """
import sys
from everywatt.testing import gpu_work

size = float(sys.argv[1])
gpu_work(0.1 + size / 1000)
if size > 440:
    sys.exit("RuntimeError: CUDA out of memory")
"""
WORK = "import sys\nfrom everywatt.testing import gpu_work\ngpu_work(float(sys.argv[1]))\n"


@dataclass(frozen=True)
class Picture:
    """A page, how wide and high it is shown, in which theme, which part is at the top, and what it is made from."""

    url: str
    inputs: tuple[str, ...]
    width: int = 1280
    height: int = 900
    theme: str = "light"
    part: str = ""

    def digest(self) -> str:
        """A hash over the picture's settings and its files."""
        found = hashlib.sha256(repr((self.url, self.width, self.height, self.theme, self.part)).encode())
        for name in self.inputs:
            found.update((ROOT / REPORT / name).read_bytes())
        return found.hexdigest()[:16]


GALLERY = {
    "report": Picture("train.html", PAGE),
    "report-dark": Picture("train.html", PAGE, theme="dark", part="#owners"),
    "report-phone": Picture("train.html", PAGE, width=390, height=844),
    "flame": Picture("train.html", (*PAGE, "html/js/flame.js"), height=760, part="#flame"),
    "batch": Picture(
        "batch.html", (*PAGE, "html/js/plots.js", "html/js/batch.js", "html/js/cockpit.js"), part=".cockpit"
    ),
    "comparison": Picture("compare.html", (*PAGE, "html/js/plots.js", "html/js/trials.js")),
    "runs": Picture(f"http://{PORT}/", (*PAGE[:1], *SERVED, "web/static/runs.js"), height=560),
    "live": Picture(f"http://{PORT}/live", (*PAGE[:1], *SERVED, "web/static/live.js"), theme="dark"),
}


def environment(folder: Path) -> dict[str, str]:
    """Where commands find everywatt, and keep their runs: a home with a name that may be shown."""
    launcher = folder / "bin" / "everywatt"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m everywatt "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{launcher.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "EVERYWATT_HOME": str(folder / "runs"),
        "EVERYWATT_RUNTIME_DIR": str(folder / "rt"),
    }


def record(folder: Path, env: dict[str, str]) -> None:
    """The runs and the pages over them. A batch with failed items ends with 1, as it should."""
    sizes = range(20, 500, 20)
    files = {
        "train.py": TRAIN,
        "item.py": ITEM,
        "work.py": WORK,
        "volumes.csv": "name,size\n" + "".join(f"volume{size},{size}\n" for size in sizes),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    batch = ("batch", "--max-retries", "0", "--tag", "name=volumes", "volumes.csv", "--", "python", "item.py", "{size}")
    compare = ("compare", "--trials", "6", "--idle", "1s", "--no-cooldown", "--tag", "name=precision")
    compared = ("--name", "float32", "--name", "float64", "python work.py 0.5", "python work.py 1.2")
    commands = (
        (*SIM, "--", "python", "train.py"),
        (*SIM, "--gpus", "2", "--", "everywatt", *batch),
        (*FRUGAL, "--", "everywatt", *compare, "-o", "compare.html", *compared),
    )
    for command in commands:
        subprocess.run(command, cwd=folder, env=env, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for page, run in (("train.html", "*train*"), ("batch.html", "*volumes*")):
        (found,) = (folder / "runs").glob(run)
        subprocess.run(["everywatt", "report", found.name, "-o", page], cwd=folder, env=env, check=True)


@contextlib.contextmanager
def serving(folder: Path, env: dict[str, str]) -> Iterator[None]:
    """`everywatt serve` on the simulated machine."""
    words = ("everywatt", "sim", "--package", "sine:45W,20W,7s", "--gpu", "square:60W,240W,9s", "--")
    with subprocess.Popen([*words, "everywatt", "serve", "--listen", PORT], cwd=folder, env=env, stderr=-1) as server:
        assert server.stderr is not None
        server.stderr.readline()  # the address: it listens
        try:
            yield
        finally:
            server.terminate()


def shoot(folder: Path, names: list[str]) -> None:
    """Open each page and keep what is seen."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        switches = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=switches)
        for name in names:
            one = GALLERY[name]
            page = browser.new_page(viewport={"width": one.width, "height": one.height}, color_scheme=one.theme)
            page.goto(one.url if one.url.startswith("http") else (folder / one.url).as_uri())
            page.wait_for_selector("html[data-ready=true]", state="attached")
            page.wait_for_timeout(25_000 if one.url.endswith("/live") else 500)
            if one.part:
                page.evaluate("(part) => document.querySelector(part).scrollIntoView({behavior: 'instant'})", one.part)
                page.wait_for_timeout(300)
            page.screenshot(path=str(PICTURES / f"{name}.png"))
            page.close()
        browser.close()


def stored() -> dict[str, str]:
    """The hash with which each picture was made."""
    lines = HASHES.read_text(encoding="utf-8").split("\n") if HASHES.exists() else []
    return dict(line.split("  ") for line in lines if line)


def main(names: list[str]) -> None:
    """Make these pictures, or all."""
    names = names or list(GALLERY)
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="everywatt-") as place:
        folder = Path(place)
        env = environment(folder)
        record(folder, env)
        with serving(folder, env):
            shoot(folder, names)
    hashes = {**stored(), **{name: GALLERY[name].digest() for name in names}}
    HASHES.write_text("".join(f"{name}  {hashes[name]}\n" for name in GALLERY if name in hashes), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
