"""What an agent is asked to do: one frozen value, from the command line and a TOML file with a table [agent]."""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from everywatt.core.config import nearest
from everywatt.core.errors import ConfigError, EverywattError, UsageError
from everywatt.core.machine import state_folder
from everywatt.core.plugins import METRIC_NAMES, registered
from everywatt.core.units import parse_bytes, parse_duration_s

FORMATS: Final = ("prometheus", "influx", "sage")
DEFAULT_LISTEN: Final = "127.0.0.1:9876"
TABLES: Final = ("agent", "sensor")
"""Options that a file may contain."""
RELOADABLE: Final = (
    "remote_write", "remote_write_format", "remote_write_token_file", "remote_write_ca", "remote_write_cert",
    "remote_write_key", "compat", "owners", "programs", "retention_s", "disk_bytes",
)  # fmt: skip
"""Options that a reload may change; the others require a restart."""
LEAST_DISK: Final = 10**6


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent runs.

    listen      ADDR:PORT of /metrics; None: no HTTP (the small profile)
    remote_write  URL to send samples to, None: nowhere; with a format (one of FORMATS), a file that holds a token, a
                CA, a client's certificate and key
    state       folder of the state file; segments are in `tape` below it
    period_s    how often sensors are read
    profile     "normal" or "small"
    compat      further metric names to export: kepler, dcgm, jetson
    owners      how many owners are listed one by one
    programs    what is in no job or container goes by its program's name, not by its user
    jobs        providers of jobs, see `fleet.jobs`
    rotate_s, retention_s, disk_bytes  a segment's length; how long and how much of the tape is kept
    instance    the label `instance` of what is sent
    token_file, cert, key, client_ca, names   of the HTTP server
    llm         servers of language models to join with their energy, see `fleet.llm_servers.parse_target`
    llm_token_file  file that holds the token which they require
    """

    listen: str | None = DEFAULT_LISTEN
    remote_write: str | None = None
    remote_write_format: str = "prometheus"
    remote_write_token_file: Path | None = None
    remote_write_ca: Path | None = None
    remote_write_cert: Path | None = None
    remote_write_key: Path | None = None
    state: Path | None = None
    period_s: float = 1.0
    profile: str = "normal"
    sensors: tuple[str, ...] | None = None
    estimate: bool = True
    compat: tuple[str, ...] = ()
    owners: int = 500
    programs: bool = False
    jobs: tuple[str, ...] = ("cgroup",)
    rotate_s: float = 3600.0
    retention_s: float = 7 * 86400.0
    disk_bytes: int = 2 * 10**9
    instance: str = field(default_factory=socket.gethostname)
    token_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    names: tuple[str, ...] = ()
    llm: tuple[str, ...] = ()
    llm_token_file: Path | None = None
    sensor_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def small(self) -> bool:
        """Whether this is for a device with little memory and slow storage."""
        return self.profile == "small"

    def checked(self) -> AgentOptions:
        """The same; UsageError where something makes no sense."""
        if self.period_s < 0.05:
            raise UsageError("The shortest period of an agent is 0.05 s.", cure="--period 1s")
        names = registered(METRIC_NAMES) if self.compat else {}
        unknown = [name for name in self.compat if name not in names]
        if unknown:
            raise UsageError(f"There is no set of metric names '{unknown[0]}'.", cure=f"--compat {','.join(names)}")
        if self.owners < 1:
            raise UsageError("At least one owner must be exported.", cure="--owners 500")
        if self.rotate_s < 1 or self.retention_s < self.rotate_s:
            raise UsageError("The tape must be kept for at least one segment.", cure="--retention 7d --rotate 1h")
        if self.disk_bytes < LEAST_DISK:
            raise UsageError("The tape needs at least 1 MB.", cure="--disk 2GB")
        if self.remote_write is not None:
            check_url(self.remote_write)
        if self.remote_write_format not in FORMATS:
            raise UsageError(
                f"'{self.remote_write_format}' is not a format to send.", cure=f"one of: {', '.join(FORMATS)}"
            )
        if self.remote_write is None and self.remote_write_format != FORMATS[0]:
            raise UsageError("A format is for what is sent, and nothing is.", cure="--remote-write URL")
        if self.llm:
            from everywatt.fleet.llm_servers import check_targets

            check_targets(self.llm)
        if self.listen is None and self.remote_write is None:
            raise UsageError(
                "There is no output: the small profile has no HTTP server, and remote write is not configured.",
                cure="--remote-write URL",
            )
        return self


def check_url(url: str) -> None:
    """UsageError where samples cannot be sent there."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"'{url}' is not a remote-write address.", cure="--remote-write http://host:9090/api/v1/write")
    try:
        _ = parts.port
    except ValueError:
        raise UsageError(f"'{url}' has no valid port.") from None


def default_state(environ: Mapping[str, str] | None = None) -> Path:
    """systemd's STATE_DIRECTORY, else `agent` in everywatt's state folder."""
    given = (os.environ if environ is None else environ).get("STATE_DIRECTORY")
    return Path(given.split(":")[0]) if given else state_folder(environ) / "agent"


PATHS = ("remote_write_token_file", "remote_write_ca", "remote_write_cert", "remote_write_key", "state", "token_file",
          "cert", "key", "client_ca", "llm_token_file")  # fmt: skip
_DURATIONS = ("period", "rotate", "retention")
LISTS = ("compat", "jobs", "names", "sensors", "llm")


def read_config(path: Path) -> dict[str, Any]:
    """Options of a TOML file's table [agent], by field; paths are relative to the file. ConfigError names the key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not text'}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None
    for key, value in data.items():
        if key not in TABLES:
            word = f"[{key}]" if isinstance(value, dict) else key
            meant = nearest(key, TABLES) or ("" if isinstance(value, dict) else ": options are in the table [agent]")
            raise ConfigError(f"{path}: unknown key '{word}'{meant or '.'}", cure="[agent] and [sensor.NAME]")
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: [{key}] is not a table.")
    table = data.get("agent", {})
    found: dict[str, Any] = {}
    for key, value in table.items():
        try:
            name, entry = _entry(key.replace("-", "_"), value, path.parent)
        except (ValueError, TypeError, EverywattError) as error:
            raise ConfigError(f"{path}: {key} = {value!r}: {str(error).removesuffix('.')}.") from None
        found[name] = entry
    sensor = data.get("sensor", {})
    if sensor:
        found["sensor_options"] = sensor
    return found


def _names() -> list[str]:
    return [one.name for one in fields(AgentOptions) if one.name not in ("sensor_options", "disk_bytes")] + ["disk"]


def _entry(key: str, value: Any, base: Path) -> tuple[str, Any]:
    if key in _DURATIONS:
        return f"{key}_s", parse_duration_s(str(value))
    if key == "disk":
        return "disk_bytes", round(parse_bytes(str(value)))
    if key not in _names() or key.endswith("_s"):
        known = [name.removesuffix("_s").replace("_", "-") for name in _names()]
        raise ValueError(f"there is no such option{nearest(key.replace('_', '-'), known)}")
    if key in PATHS:
        return key, base / Path(str(value)).expanduser()
    if key in LISTS:
        # A comma in the address of a server separates its cards.
        parts = ([value] if key == "llm" else value.split(",")) if isinstance(value, str) else list(value)
        return key, tuple(str(part).strip() for part in parts if str(part).strip())
    kinds: dict[str, type] = {"owners": int, "programs": bool, "estimate": bool}
    if not isinstance(value, kinds.get(key, str)):
        raise ValueError(f"not {kinds.get(key, str).__name__}")
    return key, value


def combine(flags: Mapping[str, Any], config: Path | None) -> AgentOptions:
    """Options: flags that are not None, then the file, then defaults; checked."""
    given = read_config(config) if config is not None else {}
    given |= {name: value for name, value in flags.items() if value is not None}
    options = AgentOptions(**given)
    if options.small and "listen" not in given:
        options = replace(options, listen=None)
    if options.small and options.listen is not None:
        raise UsageError("The small profile has no HTTP server.", cure="--remote-write URL, without --listen")
    return replace(options, state=options.state or default_state()).checked()
