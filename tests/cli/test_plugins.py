"""`everywatt plugins` with a real installed distribution that is made here."""

import json

import pytest

from everywatt.cli.main import main

ENTRY_POINTS = """
[everywatt.sensors]
kettle = kettle_plugin:Kettle

[everywatt.exporters]
steam = kettle_plugin:missing_name
quits = kettle_quits:Anything

[somebody.else]
kettle = kettle_plugin:Kettle
"""


@pytest.fixture
def kettle(tmp_path, monkeypatch):
    info = tmp_path / "kettle_plugin-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kettle-plugin\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "kettle_plugin.py").write_text("class Kettle: pass\n")
    (tmp_path / "kettle_quits.py").write_text("raise SystemExit(9)\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_json_lists_group_target_distribution_and_whether_it_loads(kettle, capsys):
    assert main(["plugins", "--json"]) == 1, "one does not load"
    data = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in data["plugins"] if row["distribution"] == "kettle-plugin"}
    assert set(rows) == {"kettle", "steam", "quits"}
    assert rows["kettle"] == {
        "group": "everywatt.sensors",
        "name": "kettle",
        "target": "kettle_plugin:Kettle",
        "distribution": "kettle-plugin",
        "version": "1.2",
        "error": None,
    }
    assert rows["steam"]["error"].startswith("AttributeError") and rows["quits"]["error"].startswith("SystemExit")
    assert {"everywatt.sensors", "everywatt.importers", "everywatt.exporters"} <= set(data["groups"])


def test_text(kettle, capsys):
    main(["plugins"])
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if " kettle " in line)
    assert line.split() == ["everywatt.sensors", "kettle", "kettle_plugin:Kettle", "kettle-plugin", "1.2", "yes"]


def test_sensors_of_the_environment_are_listed(monkeypatch, capsys):
    monkeypatch.setenv("EVERYWATT_PLUGINS", "mine=no_such_module_here:Mine")
    assert main(["plugins", "--json"]) == 1
    (row,) = [row for row in json.loads(capsys.readouterr().out)["plugins"] if row["name"] == "mine"]
    assert (row["distribution"], row["target"]) == (None, "no_such_module_here:Mine")
    assert "no_such_module_here" in row["error"]


def test_a_sensor_that_is_named_wrongly_says_how(capsys, monkeypatch):
    monkeypatch.setenv("EVERYWATT_PLUGINS", "weird")
    assert main(["plugins"]) == 1
    assert "name=module:Class" in capsys.readouterr().out
