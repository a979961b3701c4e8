"""The documentation site builds offline, without a warning, and holds every page."""

import os
import subprocess
import sys

import pytest
from pages import ROOT, WRITTEN

pytest.importorskip("mkdocs", reason="make docs needs mkdocs-material: pip install --group dev")


def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    pages = {page.relative_to(tmp_path).with_suffix(".md").as_posix() for page in tmp_path.rglob("*.html")}
    written = {page.relative_to(ROOT / "docs").as_posix() for page in WRITTEN if "docs" in page.parts}
    assert written <= pages
    text = (tmp_path / "index.html").read_text()
    assert 'src="http' not in text  # nothing is loaded from elsewhere
    assert 'rel="stylesheet" href="http' not in text
