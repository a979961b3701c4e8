"""The pictures of docs/gallery.md are there, shown, and made from the templates of today."""

import re
import sys

import pytest
from pages import ROOT

sys.path.append(str(ROOT / "scripts"))
from make_gallery import GALLERY, PICTURES, stored


@pytest.mark.parametrize("name", GALLERY)
def test_a_picture_is_made_from_the_files_of_today(name):
    assert stored().get(name) == GALLERY[name].digest(), f"out of date: python scripts/make_gallery.py {name}"
    assert (PICTURES / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_shows_every_picture_and_no_other():
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"images/gallery/([\w-]+)\.png", page)) == sorted(GALLERY)
    assert sorted(path.stem for path in PICTURES.glob("*.png")) == sorted(GALLERY)
