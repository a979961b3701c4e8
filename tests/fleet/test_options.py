"""Options of an agent: command line, file, defaults, and what is refused."""

from pathlib import Path

import pytest

from everywatt.core.errors import ConfigError, UsageError
from everywatt.fleet.options import DEFAULT_LISTEN, combine, default_state


def test_flags_before_the_file_before_defaults(tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text(
        '[agent]\nlisten = "127.0.0.1:1"\nperiod = "2s"\nrotate = "30m"\ndisk = "500MB"\ncompat = ["dcgm"]\n'
        'remote-write = "http://store/api/v1/write"\nremote-write-token-file = "secret"\nowners = 20\n'
        '[sensor.shelly]\nurl = "http://plug"\n'
    )
    options = combine({"owners": 30, "listen": None, "state": tmp_path}, file)
    assert (options.listen, options.period_s, options.rotate_s, options.disk_bytes) == (
        "127.0.0.1:1",
        2.0,
        1800.0,
        5 * 10**8,
    )
    assert (options.owners, options.compat) == (30, ("dcgm",))
    assert options.remote_write_token_file == tmp_path / "secret", "a path is relative to its file"
    assert options.sensor_options == {"shelly": {"url": "http://plug"}}
    assert combine({"state": tmp_path}, None).listen == DEFAULT_LISTEN


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[agent]\nnothing = 1\n", "there is no such option"),
        ("[agent]\nowners = 'many'\n", "owners"),
        ("[agent]\nperiod = 'soon'\n", "period"),
        ("[agent]\nperiod_s = 2\n", "there is no such option"),
        ("agent = 3\n", "not a table"),
        ("[agent\n", "not TOML"),
        ("[agnet]\nowners = 3\n", r"unknown key '\[agnet\]', did you mean 'agent'"),
        ("[agent]\n[prometheus]\n", r"unknown key '\[prometheus\]'\."),
        ("owners = 3\n", r"unknown key 'owners': options are in the table \[agent\]"),
        ("sensor = 3\n", r"\[sensor\] is not a table"),
        ("[agent]\nremote-wirte = 'http://store/'\n", "no such option, did you mean 'remote-write'"),
        ("[agent]\nretension = '7d'\n", "no such option, did you mean 'retention'"),
        ("[agent]\ndisc = '2GB'\n", "no such option, did you mean 'disk'"),
        ("[agent]\nsensor_options = {}\n", "no such option"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_name(tmp_path, text, says):
    file = tmp_path / "agent.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        combine({}, file)
    with pytest.raises(ConfigError, match="cannot be read"):
        combine({}, tmp_path / "none.toml")


@pytest.mark.parametrize(
    "flags",
    [
        {"period_s": 0.001},
        {"compat": ("nobody",)},
        {"owners": 0},
        {"rotate_s": 3600.0, "retention_s": 60.0},
        {"disk_bytes": 10},
        {"remote_write": "store:9090/write"},
        {"remote_write": "ftp://store/write"},
        {"remote_write": "http://store:99999/write"},
        {"profile": "small"},
        {"profile": "small", "listen": "127.0.0.1:0", "remote_write": "http://store/"},
    ],
)
def test_what_cannot_be_is_refused(flags):
    with pytest.raises(UsageError):
        combine(flags, None)


def test_small_has_no_server():
    assert combine({"profile": "small", "remote_write": "http://store/"}, None).listen is None


def test_where_the_state_is():
    assert default_state({"STATE_DIRECTORY": "/var/lib/everywatt:/x"}) == Path("/var/lib/everywatt")
    assert default_state({"XDG_STATE_HOME": "/s"}) == Path("/s/everywatt/agent")
