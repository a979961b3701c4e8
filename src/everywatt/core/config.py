"""Settings: flag, then EVERYWATT_*, then project file, then user file, then default; and where each value came from.

The project file is `everywatt.toml`, or the table `[tool.everywatt]` of `pyproject.toml`: the nearest one from the
working folder upwards, as far as the root of the git repository or the home folder. The user file is
`$XDG_CONFIG_HOME/everywatt/config.toml`. Files are data: nothing in them is executed, and a path in a file is taken
relative to that file. A file that belongs to another user than this one and root is left alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from everywatt.core.errors import ConfigError, EverywattError
from everywatt.core.lazy_dataclass import dataclass
from everywatt.core.platforms import MEMORIES
from everywatt.core.units import parse_duration_s

PROFILES = ("normal", "small")
SHORTEST_PERIOD_S = 0.001
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_SECRETS = ("password", "passwd", "secret", "token", "community", "auth", "authorization")
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a value: `source` is flag, environment, project, user or default; `where` the variable or file."""

    source: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.source} ({self.where})" if self.where else self.source


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name in files, how a text or TOML value becomes its value, and what it does."""

    name: str
    parse: Callable[[Any, Path], Any]
    takes: str
    help: str

    @property
    def variable(self) -> str:
        return f"EVERYWATT_{self.name.upper().replace('-', '_')}"

    @property
    def field(self) -> str:
        """Its name in `Settings`."""
        return {"period": "period_s", "tag": "tags", "sensor": "options"}.get(self.name, self.name.replace("-", "_"))

    @property
    def default(self) -> Any:
        return getattr(Settings(), self.field)


@dataclass(frozen=True, slots=True)
class Settings:
    """The values that hold, the origin of each (tags one by one: `tag.project`), and what was odd about the files.

    home      folder of the runs; None: ./everywatt-runs
    period_s  seconds between two reads of power and energy
    sensors   the only sensors to use; None: all that work
    estimate  whether the modelled sensor may stand in where nothing measures power
    profile   "normal", or "small" for devices with little memory and slow storage
    memory    metric of process memory: "rss", or "pss" (adds proportional and unique set size)
    mask_secrets  whether passwords, tokens and keys in the recorded command are replaced by ***
    tags      labels that every run gets; note: what its user says of one
    country, intensity, intensity_file, pue, price   factors for carbon and cost; None: not asked for. `price` is an
              amount per kWh and its currency
    slurm_spool, slurm_store   where hooks of Slurm leave what happened on a node, and where a site keeps its jobs
    options   options of sensors, by their names
    """

    home: Path | None = None
    period_s: float = 0.1
    sensors: tuple[str, ...] | None = None
    estimate: bool = True
    profile: str = "normal"
    memory: str = "rss"
    mask_secrets: bool = True
    tags: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    country: str | None = None
    intensity: float | None = None
    intensity_file: Path | None = None
    pue: float | None = None
    price: tuple[float, str] | None = None
    slurm_spool: Path | None = None
    slurm_store: Path | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def value(self, name: str) -> Any:
        return getattr(self, next((setting.field for setting in SETTINGS if setting.name == name), name))


def _path(value: Any, base: Path) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("a path")
    return base / Path(value).expanduser()


def _period(value: Any, base: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("a duration such as 250ms")
    seconds = parse_duration_s(str(value))
    if seconds < SHORTEST_PERIOD_S:
        raise ValueError("a duration of 1 ms or more")
    return seconds


def _names(value: Any, base: Path) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        raise ValueError("a list of sensor names (options of a sensor are in [sensor.NAME])")
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("a list of sensor names")
    names = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not names or not all(_NAME.issuperset(name) for name in names):
        raise ValueError("a list of sensor names")
    return names


def _switch(value: Any, base: Path) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    raise ValueError("true or false")


def _one_of(choices: Sequence[str]) -> Callable[[Any, Path], str]:
    def parse(value: Any, base: Path) -> str:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return str(value)

    return parse


def _tags(value: Any, base: Path) -> dict[str, str]:
    if isinstance(value, str):
        return dict(parse_tag(part) for part in value.split(",") if part.strip())
    if not isinstance(value, Mapping) or not all(isinstance(v, str | int | float) for v in value.values()):
        raise ValueError('a table of tags, key = "value"')
    return {str(key): str(entry) for key, entry in value.items()}


def _country(value: Any, base: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a country such as FR, DEU or France")
    return value.strip()


def _number(value: Any, least: float, what: str) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number < math.inf:
        raise ValueError(what)
    return number


def _at_least(least: float, what: str) -> Callable[[Any, Path], float]:
    return lambda value, base: _number(value, least, what)


def _price(value: Any, base: Path) -> tuple[float, str]:
    """`0.25` or `0.25 EUR`."""
    text = str(value).strip()
    digits = text.rstrip("€$£ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz ")
    return _number(digits, 0.0, "a price per kWh such as 0.25 or '0.25 EUR'"), text[len(digits) :].strip()


def _sensor_options(value: Any, base: Path) -> dict[str, dict[str, Any]]:
    """Options of sensors by name; paths are relative to the file, and secrets are not taken from here."""
    if isinstance(value, str):
        import json

        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError('JSON such as {"shelly": {"url": "http://…"}}') from None
    if not isinstance(value, Mapping) or not all(isinstance(table, Mapping) for table in value.values()):
        raise ValueError("a table for each sensor, such as [sensor.shelly] with url")
    found: dict[str, dict[str, Any]] = {}
    for name, table in value.items():
        if any(str(key).lower() in _SECRETS for key in table):
            raise ValueError(f"a file that contains the secret: [sensor.{name}] with password_file (or community_file)")
        found[str(name)] = {
            str(key): str(_path(entry, base)) if key == "file" or str(key).endswith("_file") else entry
            for key, entry in table.items()
        }
    return found


def parse_tag(text: str) -> tuple[str, str]:
    """`project=alpha` as key and value; a bare word is the tag `name`. ValueError where the key or value is empty."""
    key, equals, value = text.partition("=")
    key, value = (key.strip(), value.strip()) if equals else ("name", text.strip())
    if not key or not value:
        raise ValueError("a tag such as project=alpha")
    return key, value


SETTINGS: tuple[Setting, ...] = (
    Setting("home", _path, "PATH", "Run directory; ./everywatt-runs by default."),
    Setting("period", _period, "DURATION", "Time between two reads of power and energy."),
    Setting("sensors", _names, "NAMES", "Sensors to use; all by default."),
    Setting("estimate", _switch, "BOOLEAN", "Whether the modelled sensor may be used if no sensor measures power."),
    Setting("profile", _one_of(PROFILES), "normal|small", "small: fewer writes and less memory, for small devices."),
    Setting(
        "memory",
        _one_of(MEMORIES),
        "rss|pss",
        "Metric of process memory; pss adds proportional and unique set sizes, at 77 µs per process.",
    ),
    Setting(
        "mask-secrets",
        _switch,
        "BOOLEAN",
        "Whether passwords, tokens and keys in the recorded command are replaced by ***.",
    ),
    Setting("sensor", _sensor_options, "TABLES", "Options of sensors, by sensor; in the environment as JSON."),
    Setting("tag", _tags, "KEY=VALUE", "Tags for every run."),
    Setting("country", _country, "CODE", "Country whose yearly grid intensity gives carbon."),
    Setting(
        "intensity",
        _at_least(0.0, "grams of CO2e per kWh, such as 56"),
        "GRAMS",
        "Grams of CO2e per kWh; takes precedence over `country`.",
    ),
    Setting("intensity-file", _path, "CSV", "File with the grid intensity over time: time, g_per_kwh."),
    Setting(
        "pue",
        _at_least(1.0, "1 or more, such as 1.2"),
        "RATIO",
        "Power usage effectiveness: power of the room divided by power of its computers.",
    ),
    Setting("price", _price, "AMOUNT", "Price of a kWh, such as 0.25 or '0.25 EUR'."),
    Setting(
        "slurm-spool",
        _path,
        "PATH",
        "Where Slurm's hooks put their events on a node; /var/spool/everywatt/slurm by default.",
    ),
    Setting("slurm-store", _path, "PATH", "Store of a site's Slurm jobs."),
)

VARIABLES: Mapping[str, str] = {
    "EVERYWATT_PLUGINS": "Sensors under development, as name=module:Class, separated by commas.",
    "EVERYWATT_RUNTIME_DIR": "Folder of the recorder's socket.",
    "EVERYWATT_RECORDER_IDLE_S": "Seconds without a tape after which the recorder exits; 10 by default.",
    "EVERYWATT_RECORDER_PATH": "Where the recorder imports everywatt from; set by the program that starts it.",
    "EVERYWATT_SAFE_SETTINGS": "Settings files of other users, or their folders, that are obeyed; separated by colons.",
    "EVERYWATT_SYS": "Folder to use instead of /sys.",
    "EVERYWATT_PROC": "Folder to use instead of /proc.",
    "EVERYWATT_DEV": "Folder to use instead of /dev.",
    "EVERYWATT_BELOW": "Process above a simulated machine, and the one that generates its power; set by `everywatt "
    "sim`.",
    "EVERYWATT_REDFISH_USER": "User name for the BMC read by the redfish sensor.",
    "EVERYWATT_REDFISH_PASSWORD": "Its password; password_file in the settings is safer.",
    "EVERYWATT_IPMI_USER": "User name for the BMC read by the ipmi sensor over the network.",
    "EVERYWATT_IPMI_PASSWORD": "Its password; password_file in the settings is safer.",
    "EVERYWATT_SHELLY_USER": "User name for a Shelly that requires one.",
    "EVERYWATT_SHELLY_PASSWORD": "Its password.",
    "EVERYWATT_TASMOTA_USER": "User name for a Tasmota device that requires one.",
    "EVERYWATT_TASMOTA_PASSWORD": "Its password.",
    "EVERYWATT_SNMP_AUTH": "Authentication password of the SNMP v3 user, unless auth_file contains it.",
    "EVERYWATT_SNMP_COMMUNITY": "Community of the PDU read by the snmp sensor; public by default.",
    "EVERYWATT_SNMP_PRIVACY": "Privacy password for SNMP v3, unless privacy_file contains it.",
    "EVERYWATT_BATCH": "Folder of the batch to which an item's command belongs; set by `everywatt batch`.",
    "EVERYWATT_SIM": "Folder of the simulated machine; set by `everywatt sim`.",
    "EVERYWATT_LLM_API_KEY": "API key that `bench llm` sends to the server; never written to disk or shown.",
}
"""Environment variables that are not settings, and what they do."""

_MERGED = ("tag", "sensor")
_OTHER_FILES = {
    "agent": "the file of `everywatt agent --config FILE`",
    "batch": "the file of `everywatt batch --config FILE`",
}


@dataclass(frozen=True, slots=True)
class _Layer:
    source: str
    where: Callable[[str], str]
    base: Path
    values: Mapping[str, Any]


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    home: Path | None = None,
) -> Settings:
    """The settings that hold here. `flags` are by setting name, None where one was not given on the command line.

    Raises ConfigError, with the file and the key, where a value cannot be used.
    """
    environ = os.environ if environ is None else environ
    cwd = _working_folder() if cwd is None else cwd
    home = _home(environ) if home is None else home
    warnings: list[str] = []
    layers = list(_layers(flags or {}, environ, cwd, home, warnings))
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for setting in SETTINGS:
        values[setting.field], found = _settle(setting, layers)
        origins.update(found)
    return Settings(**values, origins=origins, warnings=tuple(warnings))


def _settle(setting: Setting, layers: list[_Layer]) -> tuple[Any, dict[str, Origin]]:
    """The value of the strongest layer; for tags and sensors, of the strongest layer key by key."""
    merged: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for layer in layers:
        raw = layer.values.get(setting.name)
        if raw is None:
            continue
        origin = Origin(layer.source, layer.where(setting.name))
        value = _parsed(setting, raw, layer.base, origin)
        if setting.name not in _MERGED:
            return value, {setting.name: origin}
        for key, entry in value.items():
            if key not in merged:
                merged[key] = entry
                origins[f"{setting.name}.{key}"] = origin
    default = {setting.name: Origin("default")}
    return (merged, origins or default) if setting.name in _MERGED else (setting.default, default)


def _parsed(setting: Setting, raw: Any, base: Path, origin: Origin) -> Any:
    try:
        return setting.parse(raw, base)
    except (ValueError, TypeError, EverywattError) as error:
        wanted = getattr(error, "cure", None) or str(error)
        place = origin.where or origin.source
        # The value may hold a secret.
        hidden = setting.name == "sensor" or (setting.name == "sensors" and isinstance(raw, Mapping))
        shown = "…" if hidden else raw if isinstance(raw, str) else repr(raw)
        raise ConfigError(f"{place}: {setting.name} = '{shown}' is not valid.", cure=wanted) from error


def _layers(
    flags: Mapping[str, Any], environ: Mapping[str, str], cwd: Path, home: Path, warnings: list[str]
) -> Iterator[_Layer]:
    """Strongest first."""
    yield _Layer("flag", lambda name: "--no-estimate" if name == "estimate" else f"--{name}", cwd, flags)
    variables = {setting.name: setting.variable for setting in SETTINGS}
    given = {name: environ[variable] for name, variable in variables.items() if environ.get(variable)}
    yield _Layer("environment", variables.__getitem__, cwd, given)
    warnings += _odd_variables(environ)
    project, user = find_project_file(cwd, home), user_file(environ, home)
    for source, path in (("project", project), ("user", user if _is_file(user) else None)):
        if path is not None and _is_safe(path, environ):
            yield _file_layer(source, path, warnings)
        elif path is not None:
            warnings.append(
                f"{path} belongs to another user and is not obeyed; EVERYWATT_SAFE_SETTINGS={path} obeys it."
            )


def _is_safe(path: Path, environ: Mapping[str, str]) -> bool:
    """Whether settings are this user's, root's, those of whoever called sudo, or named as safe."""
    sudo = environ.get("SUDO_UID", "0")
    ours = {0, os.geteuid() if hasattr(os, "geteuid") else 0, int(sudo) if sudo.isdecimal() else 0}
    named = [Path(part) for part in environ.get("EVERYWATT_SAFE_SETTINGS", "").split(":") if part]
    try:
        return path.stat().st_uid in ours or not {path, path.parent}.isdisjoint(named)
    except OSError:
        return False


def _file_layer(source: str, path: Path, warnings: list[str]) -> _Layer:
    values = dict(_table(path))
    if source == "project" and values.pop("sensor", None) is not None:
        # A folder from elsewhere must not name commands to run, or hosts to send credentials to.
        warnings.append(f"{path}: [sensor] is only read from your own settings, not from a project.")
    known = [setting.name for setting in SETTINGS]
    warnings += [
        f"{path}: there is no setting '{key}'{_elsewhere(key) or nearest(key, known) or '.'}"
        for key in values
        if key not in known
    ]
    return _Layer(source, lambda name: str(path), path.parent, values)


def _odd_variables(environ: Mapping[str, str]) -> list[str]:
    """EVERYWATT_* names that are close to one we know: plug-ins may have their own, misspelt ones should not pass."""
    known = [*VARIABLES, *(setting.variable for setting in SETTINGS)]
    odd = [name for name in environ if name.startswith("EVERYWATT_") and name not in known]
    return [f"{name} is not a setting{meant}" for name in odd if (meant := nearest(name, known))]


def nearest(word: str, known: Sequence[str]) -> str:
    """`, did you mean 'period'?` where a word is close to one of these, else nothing."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.75)
    return f", did you mean '{close[0]}'?" if close else ""


def _elsewhere(key: str) -> str:
    """Where a table belongs that another file has."""
    close = [name for name in _OTHER_FILES if nearest(key, [name])]
    return f": [{close[0]}] is only read from {_OTHER_FILES[close[0]]}." if close else ""


def user_file(environ: Mapping[str, str], home: Path) -> Path:
    """The user's own configuration file, whether or not it exists."""
    base = environ.get("XDG_CONFIG_HOME")
    folder = Path(base) if base and Path(base).is_absolute() else home / ".config"
    return folder / "everywatt" / "config.toml"


def find_project_file(cwd: Path, home: Path) -> Path | None:
    """The nearest project file from `cwd` upwards to the git root or the home folder; elsewhere `cwd` alone counts."""
    for folder in _upwards(cwd, home):
        own = folder / "everywatt.toml"
        if _is_file(own):
            return own
        shared = folder / "pyproject.toml"
        if _is_file(shared) and _has_table(shared):
            return shared
    return None


def _is_file(path: Path) -> bool:
    """False too where a folder may not be looked into, such as another user's home that su keeps: `is_file` raises."""
    return os.access(path, os.F_OK) and path.is_file()


def _upwards(cwd: Path, home: Path) -> list[Path]:
    """Folders to look in. Without a repository or home above, parents may belong to any user (/tmp): left alone."""
    folders: list[Path] = []
    for folder in (cwd, *cwd.parents):
        folders.append(folder)
        if os.access(folder / ".git", os.F_OK) or folder == home:
            return folders
    return [cwd]


def _has_table(path: Path) -> bool:
    """Whether a pyproject.toml is about everywatt at all; one that is not valid TOML is not ours to report."""
    try:
        return bool(_table(path))
    except ConfigError:
        return False


def _table(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.name == "pyproject.toml" and not any(sign in text for sign in ("everywatt", "\\u", "\\U")):
            return {}  # most projects: parsing all of it would take longer than opening a recording
        import tomllib  # most users have no file of settings

        data = tomllib.loads(text)
    except (OSError, ValueError) as error:  # not UTF-8 or not TOML
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read: {reason}.", cure="fix or remove the file") from error
    if path.name != "pyproject.toml":
        return data
    tool = data.get("tool", {})
    table = tool.get("everywatt", {}) if isinstance(tool, Mapping) else {}
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: tool.everywatt is not a table.", cure="[tool.everywatt]")
    return table


def _working_folder() -> Path:
    """The working folder, or the root where it has been removed: then there is no project file to find."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path("/")
