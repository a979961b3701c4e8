"""Precedence, origins, and what is said of settings that cannot be used."""

import itertools
from pathlib import Path

import pytest

from everywatt.core.config import SETTINGS, Origin, find_project_file, resolve, user_file
from everywatt.core.errors import ConfigError


@pytest.fixture
def place(tmp_path):
    """A home folder with a repository in it, and a folder deep inside where the user works."""
    home = tmp_path / "home"
    deep = home / "repo" / "a" / "b"
    deep.mkdir(parents=True)
    (home / "repo" / ".git").mkdir()
    return home, home / "repo", deep


def settings(place, flags=None, environ=None):
    home, _, deep = place
    return resolve(flags, environ=environ or {}, cwd=deep, home=home)


def write_user(home: Path, text: str) -> Path:
    path = home / ".config" / "everywatt" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_defaults_when_nothing_is_set(place):
    found = settings(place)
    assert (found.home, found.period_s, found.sensors, found.estimate, found.profile) == (
        None,
        0.1,
        None,
        True,
        "normal",
    )
    assert found.tags == {}
    assert set(found.origins.values()) == {Origin("default")}
    assert set(found.origins) == {setting.name for setting in SETTINGS}


def test_each_layer_hides_the_weaker_ones(place):
    """All 16 ways to have flag, variable, project file and user file: the strongest that is there holds."""
    home, repo, _ = place
    project, user = repo / "everywatt.toml", write_user(home, "")
    for flag, variable, in_project, in_user in itertools.product([False, True], repeat=4):
        project.write_text("period = '3s'" if in_project else "")
        user.write_text("period = 4" if in_user else "")
        found = settings(place, {"period": "1s"} if flag else {}, {"EVERYWATT_PERIOD": "2s"} if variable else {})
        layers = [
            (flag, 1.0, Origin("flag", "--period")),
            (variable, 2.0, Origin("environment", "EVERYWATT_PERIOD")),
            (in_project, 3.0, Origin("project", str(project))),
            (in_user, 4.0, Origin("user", str(user))),
            (True, 0.1, Origin("default")),
        ]
        _, value, origin = next(layer for layer in layers if layer[0])
        assert (found.period_s, found.origins["period"]) == (value, origin)


def test_tags_are_joined_key_by_key(place):
    _home, repo, _ = place
    (repo / "everywatt.toml").write_text('tag = {project = "alpha", team = "blue"}')
    found = settings(place, {"tag": {"trial": "7"}}, {"EVERYWATT_TAG": "team=red,nightly"})
    assert found.tags == {"trial": "7", "team": "red", "name": "nightly", "project": "alpha"}
    assert found.origins["tag.trial"].source == "flag"
    assert found.origins["tag.team"].source == "environment"
    assert found.origins["tag.project"].source == "project"


def test_a_path_in_a_file_is_relative_to_that_file(place):
    _home, repo, deep = place
    (repo / "everywatt.toml").write_text('home = "runs"')
    assert settings(place).home == repo / "runs"
    assert settings(place, environ={"EVERYWATT_HOME": "runs"}).home == deep / "runs"
    assert settings(place, environ={"EVERYWATT_HOME": "/data/runs"}).home == Path("/data/runs")


def test_pyproject_counts_only_with_its_table(place):
    _home, repo, deep = place
    (deep / "pyproject.toml").write_text('[project]\nname = "other"\n')
    (repo / "pyproject.toml").write_text('[tool.everywatt]\nsensors = ["rapl", "nvml"]\nestimate = false\n')
    found = settings(place)
    assert (found.sensors, found.estimate) == (("rapl", "nvml"), False)
    assert found.origins["sensors"].where == str(repo / "pyproject.toml")
    (deep / "pyproject.toml").write_text("not toml at all = = =")
    assert settings(place).sensors == ("rapl", "nvml"), "a broken pyproject of somebody else is passed over"


def test_the_search_ends_at_the_repository_and_at_home(place, tmp_path):
    home, _repo, deep = place
    (home / "everywatt.toml").write_text("period = 9")
    assert find_project_file(deep, home) is None, "beyond the repository"
    assert find_project_file(home / "repo", home) is None
    plain = home / "plain" / "x"
    plain.mkdir(parents=True)
    assert find_project_file(plain, home) == home / "everywatt.toml"
    (tmp_path / "everywatt.toml").write_text("period = 9")
    outside = tmp_path / "outside"
    outside.mkdir()
    assert find_project_file(outside, home) is None, "parents that may be anybody's are left alone"
    assert find_project_file(tmp_path, home) == tmp_path / "everywatt.toml"


def test_the_user_file_follows_xdg(tmp_path):
    assert user_file({"XDG_CONFIG_HOME": "/etc/me"}, tmp_path) == Path("/etc/me/everywatt/config.toml")
    assert user_file({"XDG_CONFIG_HOME": "relative"}, tmp_path) == tmp_path / ".config/everywatt/config.toml"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("period = 'soon'", "period"),
        ("period = 0", "period"),
        ("period = '-1s'", "period"),
        ("period = true", "period"),
        ("period = nan", "period"),
        ("sensors = [1]", "sensors"),
        ("sensors = 'thermos=evil:Class'", "sensors"),
        ("sensors = ''", "sensors"),
        ("estimate = 'maybe'", "estimate"),
        ("estimate = 1", "estimate"),
        ("profile = 'large'", "profile"),
        ("home = 3", "home"),
        ("tag = 3", "tag"),
        ("tag = {a = [1]}", "tag"),
        ("tag = 'project='", "tag"),
    ],
)
def test_a_bad_value_names_file_and_key(place, text, key):
    path = place[1] / "everywatt.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        settings(place)
    assert str(path) in caught.value.message and f"{key} =" in caught.value.message
    assert caught.value.cure and caught.value.exit_code == 2


def test_a_bad_variable_is_named(place):
    with pytest.raises(ConfigError, match="EVERYWATT_ESTIMATE: estimate = 'perhaps' is not valid"):
        settings(place, environ={"EVERYWATT_ESTIMATE": "perhaps"})


@pytest.mark.parametrize("content", [b"period = = 1", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_cannot_be_read_is_named(place, content):
    path = place[1] / "everywatt.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        settings(place)
    assert str(path) in caught.value.message


def test_unknown_keys_warn_with_a_suggestion(place):
    path = place[1] / "everywatt.toml"
    path.write_text("perid = 1\nwhatever = 2\n[agnet]\nowners = 3\n[sensro.shelly]\n")
    assert settings(place).warnings == (
        f"{path}: there is no setting 'perid', did you mean 'period'?",
        f"{path}: there is no setting 'whatever'.",
        f"{path}: there is no setting 'agnet': [agent] is only read from the file of `everywatt agent --config FILE`.",
        f"{path}: there is no setting 'sensro', did you mean 'sensor'?",
    )


def test_misspelt_variables_warn_and_others_do_not(place):
    environ = {"EVERYWATT_PEROID": "1", "EVERYWATT_SYS": "/x", "EVERYWATT_THERMOS_PORT": "1", "HOME": "/h"}
    assert settings(place, environ=environ).warnings == (
        "EVERYWATT_PEROID is not a setting, did you mean 'EVERYWATT_PERIOD'?",
    )


def test_an_empty_variable_is_not_set(place):
    assert settings(place, environ={"EVERYWATT_PERIOD": ""}).origins["period"] == Origin("default")


@pytest.mark.parametrize(("text", "value"), [("0", False), ("no", False), ("OFF", False), ("1", True), ("True", True)])
def test_switches(place, text, value):
    assert settings(place, environ={"EVERYWATT_ESTIMATE": text}).estimate is value


def test_options_of_sensors_are_joined_sensor_by_sensor(place):
    text = '[sensor.redfish]\nurl = "https://bmc"\npassword_file = "bmc.pass"\n[sensor.ipmi]\nlocal = true\n'
    file = write_user(place[0], text)
    found = settings(place, environ={"EVERYWATT_SENSOR": '{"ipmi": {"host": "10.0.0.7"}}'})
    assert found.options == {
        "redfish": {"url": "https://bmc", "password_file": str(file.parent / "bmc.pass")},
        "ipmi": {"host": "10.0.0.7"},
    }
    assert found.origins["sensor.ipmi"].source == "environment"
    assert found.origins["sensor.redfish"].source == "user"


def test_options_in_the_wrong_table_are_told_and_not_repeated(place):
    write_user(place[0], '[sensors.redfish]\npassword = "hidden-word"\n')
    with pytest.raises(ConfigError) as caught:
        settings(place)
    assert "[sensor.NAME]" in caught.value.cure and "hidden-word" not in f"{caught.value} {caught.value.cure}"


def test_a_project_names_neither_hosts_nor_commands(place):
    (place[1] / "everywatt.toml").write_text('[sensor.exec]\ncommand = "reboot"\n')
    found = settings(place)
    assert found.options == {}
    assert "only read from your own settings" in found.warnings[0]


@pytest.mark.parametrize("text", ['{"redfish": {"password": "hidden-word"}}', '{"redfish": 3}', "hidden-word", "[1]"])
def test_secrets_and_nonsense_are_refused_and_not_repeated(place, text):
    with pytest.raises(ConfigError) as caught:
        settings(place, environ={"EVERYWATT_SENSOR": text})
    assert "EVERYWATT_SENSOR" in str(caught.value)
    assert "hidden-word" not in f"{caught.value} {caught.value.cure}"


def test_folders_that_cannot_be_looked_into_have_no_settings():
    closed = Path("/" + "x" * 300)
    assert find_project_file(closed / "work", closed) is None
    assert resolve(environ={}, cwd=closed, home=closed).warnings in ((), [])
