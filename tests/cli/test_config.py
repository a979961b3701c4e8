"""`everywatt config show`: each value with its origin."""

import json

import pytest

from everywatt.cli.main import main


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in ("EVERYWATT_HOME", "EVERYWATT_PERIOD", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "everywatt.toml").write_text(
        'profile = "small"\nsensors = ["rapl"]\nspeed = 3\n[tag]\nproject = "alpha"\n'
    )
    monkeypatch.setenv("EVERYWATT_PERIOD", "50ms")
    return tmp_path


def test_json(project, capsys):
    assert main(["config", "show", "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    rows = {row["name"]: (row["value"], row["source"], row["where"]) for row in data["settings"]}
    path = str(project / "everywatt.toml")
    assert rows == {
        "home": (None, "default", None),
        "period": (0.05, "environment", "EVERYWATT_PERIOD"),
        "sensors": (["rapl"], "project", path),
        "estimate": (True, "default", None),
        "profile": ("small", "project", path),
        "memory": ("rss", "default", None),
        "mask-secrets": (True, "default", None),
        "sensor": ({}, "default", None),
        "tag.project": ("alpha", "project", path),
        **dict.fromkeys(("country", "intensity", "intensity-file", "pue", "price"), (None, "default", None)),
        **dict.fromkeys(("slurm-spool", "slurm-store"), (None, "default", None)),
    }
    assert data["warnings"] == [f"{path}: there is no setting 'speed'."]
    assert err == f"Warning: {path}: there is no setting 'speed'.\n"


def test_text(project, capsys):
    assert main(["config", "show", "--quiet"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [rows[2][0], rows[2][1][:6]] == ["period", "0.05 s"] and "environment (EVERYWATT_PERIOD)" in out
    assert err == ""


def test_a_broken_file_ends_with_2(project, capsys):
    (project / "everywatt.toml").write_text("profile = 'huge'")
    assert main(["config", "show"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "everywatt.toml: profile = 'huge' is not valid." in err and "normal, small" in err


def test_a_group_without_its_word_is_a_usage_error(capsys):
    assert main(["config"]) == 2
    assert "show" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["config", "show"], ["list"], ["sensors", "--sensors", "use"], ["run", "--", "true"]]
)
def test_every_command_names_a_table_of_a_sensor_that_is_not_there(tmp_path, monkeypatch, capsys, words):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("EVERYWATT_HOME", str(tmp_path / "runs"))
    (tmp_path / "everywatt").mkdir()
    (tmp_path / "everywatt/config.toml").write_text('[sensor.shely]\nurl = "http://127.0.0.1:1"\n')
    assert main(words) == 0
    told = "Warning: [sensor.shely] in your settings: there is no such sensor, did you mean 'shelly'?\n"
    assert capsys.readouterr().err.count(told) == 1
