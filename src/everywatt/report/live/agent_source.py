"""An agent as a live source: its Prometheus text, fetched once an interval.

Read are everywatt_power_watts and everywatt_energy_joules_total {device, domain}, everywatt_utilisation_ratio,
everywatt_memory_bytes, everywatt_memory_total_bytes, everywatt_temperature_celsius, everywatt_power_limit_watts
{device}, everywatt_clock_hertz{device, clock="sm"}, and everywatt_owner_energy_joules_total{kind, owner, device}. Other
names are left alone. A device whose everywatt_device_info has total="0" is not part of the sum.
"""

from __future__ import annotations

import math
import re
import ssl
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.report.live.gather import HISTORY, sum_of
from everywatt.report.live.rolling import Rolling
from everywatt.report.live.snapshot import Amount, DeviceNow, HostNow, OwnerNow, Owners, Snapshot
from everywatt.report.live.tape_source import shown

TIMEOUT_S = 5.0
MOST_BYTES = 16 << 20
FIRST_TICK_S, LOOK_S = 2.5, 0.2  # how long a first look waits for the next tick, and how often it asks
PATH = "/metrics"
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}

_TICK = re.compile(r"^everywatt_owner_energy_joules_total\{.*\} \S+ (\d+)$", re.MULTILINE)

Sample = tuple[str, dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Access:
    """How to ask an agent that does not answer everybody: a bearer token, and a CA (PEM) to trust."""

    token: str | None = None
    ca: Path | None = None

    @classmethod
    def of(cls, token_file: Path | None, ca: Path | None) -> Access:
        """With the token in a file's first line. UsageError where a file cannot be used."""
        token = None
        if token_file is not None:
            try:
                token = token_file.read_text(encoding="utf-8").partition("\n")[0].strip()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "not text"
                raise UsageError(f"{token_file} cannot be read: {why}.") from None
            if not token or not all("!" <= letter <= "~" for letter in token):
                raise UsageError(f"{token_file} has no token in its first line.")
        made = cls(token, ca)
        made.context()
        return made

    def context(self) -> ssl.SSLContext | None:
        """What TLS trusts; None: what the system trusts."""
        if self.ca is None:
            return None
        try:
            return ssl.create_default_context(cafile=str(self.ca))
        except OSError as error:
            raise UsageError(f"{self.ca} is no certificate that can be trusted: {error.strerror or error}.") from None


def samples(text: str) -> Iterator[Sample]:
    """Name, labels and value of every sample of a Prometheus text; lines that are none are left out."""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            continue
        labels = {
            name: re.sub(r'\\[n"\\]', lambda found: _ESCAPES[found.group()], value)
            for name, value in _LABEL.findall(match.group(2) or "")
        }
        try:
            yield match.group(1), labels, float(match.group(3))
        except ValueError:
            continue


def address(source: str) -> str:
    """The address to fetch: `/metrics` where the source has no path."""
    parts = urlsplit(source)
    if not parts.hostname:
        raise UsageError(f"'{source}' is not an address such as http://node1:9100.")
    return urlunsplit(parts._replace(path=parts.path if parts.path not in ("", "/") else PATH))


class AgentSource:
    """Snapshots of an agent. MeasurementRefused where nothing can be fetched at first; later it is a note."""

    def __init__(
        self, source: str, interval_s: float, *, gpus: tuple[str, ...] = (), access: Access | None = None
    ) -> None:
        self.url = address(source)
        self._token = None if access is None else access.token
        self._context = None if access is None else access.context()
        self._interval_s = interval_s
        self._gpus = gpus
        self._rolling: dict[str, Rolling] = {}
        self._history: dict[str, deque[float]] = {}
        self._before: dict[str, tuple[float, float]] = {}
        self._owned: tuple[float, dict[tuple[str, str], float], dict[tuple[str, str], float]] = (0.0, {}, {})
        self._began_s = self._at_s = time.monotonic()
        self._last, self._tick_s = self._fetch()
        self._at_s = time.monotonic()
        if self._tick_s is not None:
            self._owned = (self._tick_s, _owner_joules(self._last), {})

    @property
    def title(self) -> str:
        """The agent's address."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    def _fetch(self) -> tuple[list[Sample], float | None]:
        """The samples, and when the owners' newest tick was, where the agent tells."""
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            request = urllib.request.Request(self.url, headers=headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._context) as answer:
                text = answer.read(MOST_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError) as error:  # URLError is an OSError
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise MeasurementRefused(f"{self.url} does not answer: {reason}.", cure=_cure(error, reason)) from error
        found = [sample for sample in samples(text) if sample[0].startswith("everywatt_")]
        if not any(name in ("everywatt_power_watts", "everywatt_energy_joules_total") for name, _, _ in found):
            raise MeasurementRefused(f"{self.url} has no metric of everywatt: is it an agent?")
        ticks = _TICK.findall(text)
        return found, max(map(int, ticks)) / 1000 if ticks else None

    def poll(self) -> Snapshot:
        """What the agent says now; what it said last, with a note, where it does not answer."""
        notes: tuple[str, ...] = ()
        try:
            self._look()
        except MeasurementRefused as error:
            notes = (error.message,)
        age_s = time.monotonic() - self._at_s
        table = _by_device(self._last)
        devices = tuple(self._device(name, values, age_s) for name, values in table.items() if shown(name, self._gpus))
        power_w, averages_w, history_w = sum_of(devices)
        counted = [device.energy.joules for device in devices if device.in_total and device.energy.joules is not None]
        return Snapshot(
            source=self.title,
            at_ns=time.time_ns(),
            elapsed_s=time.monotonic() - self._began_s,
            devices=devices,
            total_w=power_w,
            averages_w=averages_w,
            total=Amount(math.fsum(counted)) if counted else Amount(refused="the agent gives no energy"),
            history_w=history_w,
            host=HostNow(self.title.partition(":")[0]),
            owners=self._owners(),
            notes=notes,
        )

    def _look(self) -> None:
        """Fetch; the first time once the agent has had another tick, since an owner's power is between two."""
        until_s = time.monotonic() + FIRST_TICK_S
        while True:
            self._last, self._tick_s = self._fetch()
            self._at_s = time.monotonic()
            at_s, _, powers = self._owned
            if powers or self._tick_s is None or self._tick_s > at_s or self._at_s > until_s:
                return
            time.sleep(LOOK_S)

    def _device(self, name: str, values: Mapping[str, float], age_s: float) -> DeviceNow:
        joules = values.get("energy_joules_total")
        power_w = values.get("power_watts")
        before = self._before.get(name)
        if power_w is None and joules is not None and before is not None and self._at_s > before[0]:
            power_w = max(0.0, joules - before[1]) / (self._at_s - before[0])
        if joules is not None and (before is None or self._at_s > before[0]):
            self._before[name] = (self._at_s, joules)
        rolling = self._rolling.setdefault(name, Rolling())
        history = self._history.setdefault(name, deque(maxlen=HISTORY))
        if power_w is not None and age_s < self._interval_s:
            rolling.add(power_w, self._interval_s)
            history.append(power_w)
        return DeviceNow(
            name,
            power_w=power_w if age_s < 5 * self._interval_s + TIMEOUT_S else None,
            averages_w=tuple(rolling.watts),
            energy=Amount(joules) if joules is not None else Amount(refused="the agent gives no energy"),
            in_total=values.get("total", 1.0) != 0,
            utilisation_pct=None if "utilisation_ratio" not in values else 100 * values["utilisation_ratio"],
            memory_bytes=values.get("memory_bytes"),
            memory_total_bytes=values.get("memory_total_bytes"),
            temperature_c=values.get("temperature_celsius"),
            clock_mhz=None if "clock_hertz" not in values else values["clock_hertz"] / 1e6,
            power_limit_w=values.get("power_limit_watts"),
            history_w=tuple(history),
            age_s=age_s,
        )

    def _owners(self) -> Owners | None:
        """Owners by what their counters have grown since the last look, or between the ticks that were told."""
        joules = _owner_joules(self._last)
        if not joules:
            return None
        at_s, before, powers = self._owned
        now_s = self._at_s if self._tick_s is None else self._tick_s
        if now_s > at_s:
            seconds = now_s - at_s
            powers = {key: max(0.0, value - before[key]) / seconds for key, value in joules.items() if key in before}
            self._owned = (now_s, joules, powers)
        rows = [OwnerNow(kind, id_, id_, powers.get((kind, id_), 0.0), value) for (kind, id_), value in joules.items()]
        return Owners("owner", tuple(sorted(rows, key=lambda row: (-row.power_w, -row.joules))))

    def close(self) -> None:
        """Nothing is kept open."""


def _cure(error: Exception, reason: object) -> str:
    """What to try where an agent does not answer."""
    if isinstance(error, urllib.error.HTTPError) and error.code == 401:
        return "--token-file FILE, with the agent's token"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return "--ca FILE, with the certificate to trust"
    return "check the agent's address"


def _by_device(found: list[Sample]) -> dict[str, dict[str, float]]:
    """Values by device; a domain that is not part of the sum is a device of its own, `cpu.0 core`."""
    told = [labels for name, labels, _ in found if name == "everywatt_device_info"]
    counted = {labels.get("device") for labels in told if labels.get("total") != "0"}
    beside = {(labels.get("device"), labels.get("domain")) for labels in told if labels.get("total") == "0"}
    table: dict[str, dict[str, float]] = {}
    for name, labels, value in found:
        if "device" not in labels or name.startswith("everywatt_owner_") or name.endswith("_info"):
            continue
        if name == "everywatt_clock_hertz" and labels.get("clock") != "sm":
            continue
        device, domain = labels["device"], labels.get("domain")
        whole = (device, domain) not in beside
        row = table.setdefault(device if whole or device not in counted else f"{device} {domain}", {})
        row[name.removeprefix("everywatt_")] = value
        if not whole:
            row["total"] = 0.0
    return {name: row for name, row in table.items() if "power_watts" in row or "energy_joules_total" in row}


def _owner_joules(found: list[Sample]) -> dict[tuple[str, str], float]:
    """Joules of each owner, over all devices."""
    joules: dict[tuple[str, str], float] = {}
    for name, labels, value in found:
        if name == "everywatt_owner_energy_joules_total":
            key = (labels.get("kind", ""), labels.get("owner", ""))
            joules[key] = joules.get(key, 0.0) + value
    return joules
