"""A settings file that belongs to another user is not obeyed: whoever can write to a parent folder could leave one."""

import os

import pytest

from everywatt.core.config import resolve

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@needs_root
@pytest.mark.parametrize("name", ["everywatt.toml", "pyproject.toml"])
def test_a_project_file_of_another_user_is_not_obeyed(tmp_path, name):
    text = 'home = "/elsewhere"\nperiod = "7s"\n'
    folder = tmp_path / "project"
    folder.mkdir()
    file = folder / name
    file.write_text(text if name == "everywatt.toml" else f"[tool.everywatt]\n{text}")
    assert resolve(environ={}, cwd=folder, home=tmp_path).period_s == 7.0
    os.chown(file, 12345, 12345)
    found = resolve(environ={}, cwd=folder, home=tmp_path)
    assert found.period_s == 0.1 and found.home is None
    assert any("belongs to another user" in text and str(file) in text for text in found.warnings)
    for safe in (folder, file):
        assert resolve(environ={"EVERYWATT_SAFE_SETTINGS": f"/x:{safe}"}, cwd=folder, home=tmp_path).period_s == 7.0
    assert resolve(environ={"SUDO_UID": "12345"}, cwd=folder, home=tmp_path).period_s == 7.0


@needs_root
def test_a_user_file_of_another_user_is_not_obeyed(tmp_path):
    file = tmp_path / "everywatt" / "config.toml"
    file.parent.mkdir()
    file.write_text('period = "7s"\n')
    os.chown(file, 12345, 12345)
    found = resolve(environ={"XDG_CONFIG_HOME": str(tmp_path)}, cwd=tmp_path, home=tmp_path)
    assert found.period_s == 0.1 and "belongs to another user" in found.warnings[0]


@needs_root
def test_settings_of_root_are_obeyed_by_everyone(tmp_path, monkeypatch):
    (tmp_path / "everywatt.toml").write_text('period = "7s"\n')
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert resolve(environ={}, cwd=tmp_path, home=tmp_path).period_s == 7.0
