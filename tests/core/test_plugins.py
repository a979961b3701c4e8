"""Entry points are found as importlib.metadata finds them, and everywatt's own are all there and load."""

import sys
from importlib.metadata import entry_points

import pytest

from everywatt.core.errors import UsageError
from everywatt.core.plugins import GROUPS, IMPORTERS, LLM_DATASETS, SENSORS, load, load_plugin, registered


@pytest.mark.parametrize("group", GROUPS)
def test_the_same_as_importlib_finds(group):
    theirs = {entry.name: entry.value for entry in entry_points(group=group)}
    assert registered(group) == theirs


@pytest.mark.parametrize("group", sorted(set(GROUPS) - {"everywatt.models"}))
def test_our_own_load(group):
    ours = {name: target for name, target in registered(group).items() if target.startswith("everywatt.")}
    assert ours
    for target in ours.values():
        assert callable(load(target))


@pytest.fixture
def package(tmp_path, monkeypatch):
    info = tmp_path / "Kettle_Plugin-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kettle-plugin\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[console_scripts]\nkettle = kettle:main\n\n[everywatt.sensors]\n# hot\nkettle = kettle:Kettle [steam]\n"
        "rapl=kettle:Rapl\n[everywatt.importers]\nsteam = kettle:missing\n"
    )
    (tmp_path / "kettle.py").write_text("class Kettle: pass\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_another_package_adds_names_and_may_replace_ours(package):
    found = registered(SENSORS)
    assert found["kettle"] == "kettle:Kettle"
    assert found["rapl"] == "kettle:Rapl"
    assert "nvml" in found


def test_of_two_copies_of_a_package_the_first_counts(package, tmp_path, monkeypatch):
    older = tmp_path / "older" / "kettle_plugin-1.0.dist-info"
    older.mkdir(parents=True)
    (older / "entry_points.txt").write_text("[everywatt.sensors]\npot = kettle:Pot\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(older.parent)])
    assert "pot" not in registered(SENSORS)


def test_one_that_cannot_be_loaded_is_a_usage_error(package):
    with pytest.raises(UsageError, match=r"steam .kettle:missing. cannot be used: AttributeError") as error:
        load_plugin(IMPORTERS, "steam")
    assert error.value.cure == "everywatt plugins"
    assert load_plugin(LLM_DATASETS, "nothing of that name") is None
