"""An agent as a live source: its Prometheus text, fetched once an interval.

Read are everywatt_power_watts, everywatt_energy_joules_total and everywatt_tick_age_seconds {device, domain},
everywatt_utilisation_ratio, everywatt_memory_bytes, everywatt_memory_total_bytes, everywatt_temperature_celsius,
everywatt_power_limit_watts {device}, everywatt_clock_hertz{device, clock="sm"},
everywatt_owner_energy_joules_total{kind, owner, device}, and the joules per token of language models. Other names are
left alone. A device whose everywatt_device_info has total="0" is not part of the sum.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from everywatt.core.errors import MeasurementRefused, NetworkError, UsageError
from everywatt.fleet.metrics import Sample, samples
from everywatt.ledger.counters import REST
from everywatt.ledger.owners import METER, OTHER
from everywatt.net.client import Client, Limits
from everywatt.net.tls import ClientTls, read_token
from everywatt.report.live.gather import HISTORY, Rolling, left_out, sum_of
from everywatt.report.live.snapshot import Amount, DeviceNow, HostNow, ModelNow, OwnerNow, Owners, Snapshot
from everywatt.report.live.tape_source import shown

TIMEOUT_S = 5.0
SILENT_S = 5.0  # an agent has no power of a sensor that is silent for longer
MAX_BYTES = 64 << 20
FIRST_TICK_S, LOOK_S = 2.5, 0.2  # how long a first look waits for the next tick, and how often it asks
PATH = "/metrics"
LABELS = {owner.kind.value: owner.label for owner in (METER, OTHER)} | {REST.kind: "ended"}
_TICK = re.compile(r"^everywatt_owner_energy_joules_total\{.*\} \S+ (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Access:
    """How to ask an agent that restricts access: a bearer token, and a CA (PEM) to trust."""

    token: str | None = None
    ca: Path | None = None

    @classmethod
    def of(cls, token_file: Path | None, ca: Path | None) -> Access:
        """With the token in a file's first line. UsageError where a file cannot be used."""
        token = read_token(None, token_file)
        made = cls(token, ca)
        if ca is not None:
            made.tls().context()
        return made

    def tls(self) -> ClientTls:
        return ClientTls(ca=self.ca)


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
        access = access or Access()
        limits = Limits(
            connect_s=TIMEOUT_S, silence_s=TIMEOUT_S, total_s=2 * TIMEOUT_S, body_bytes=MAX_BYTES, redirects=3
        )
        self._client = Client(self.url, token=access.token, tls=access.tls(), limits=limits, proxies=True)
        self._interval_s = interval_s
        self._gpus = gpus
        self._rolling: dict[str, Rolling] = {}
        self._history: dict[str, deque[float]] = {}
        self._owned: tuple[float, dict[tuple[str, str], float], dict[tuple[str, str], float]] = (0.0, {}, {})
        self._began_s = self._at_s = time.monotonic()
        self._last, self._tick_s = self._fetch()
        self._at_s = time.monotonic()
        if self._tick_s is not None:
            self._owned = (self._tick_s, _owner_joules(self._last), {})

    @property
    def title(self) -> str:
        return self._client.url.netloc

    def _fetch(self) -> tuple[list[Sample], float | None]:
        """The samples, and when the owners' newest tick was, where the agent tells."""
        shown = self._client.url.shown
        try:
            response = self._client.get()
        except NetworkError as error:
            cure = (
                "--ca FILE, with the certificate to trust"
                if error.kind == "certificate"
                else "check the agent's address"
            )
            raise MeasurementRefused(f"{shown} does not answer: {error.reason}.", cure=cure) from error
        if response.status != 200:
            cure = (
                "--token-file FILE, with the agent's token" if response.status == 401 else "check the agent's address"
            )
            raise MeasurementRefused(
                f"{shown} does not answer: HTTP {response.status} {response.reason}".rstrip() + ".", cure=cure
            )
        text = response.text
        found = [sample for sample in samples(text) if sample[0].startswith("everywatt_")]
        if not any(name in ("everywatt_power_watts", "everywatt_energy_joules_total") for name, _, _ in found):
            raise MeasurementRefused(f"{shown} has no everywatt metrics: is it an agent?")
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
        counted = [device.energy for device in devices if device.in_total and device.energy.joules is not None]
        return Snapshot(
            source=self.title,
            at_ns=time.time_ns(),
            elapsed_s=time.monotonic() - self._began_s,
            devices=devices,
            total_w=power_w,
            averages_w=averages_w,
            total=_sum(counted) if counted else Amount(refused="the agent reports no energy"),
            history_w=history_w,
            host=HostNow(self.title.partition(":")[0]),
            owners=self._owners(),
            models=_models(self._last),
            notes=(*notes, *left_out(devices)),
            since="the agent's counters began",
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
        tick_s = values.get("tick_age_seconds")
        rolling = self._rolling.setdefault(name, Rolling())
        history = self._history.setdefault(name, deque(maxlen=HISTORY))
        if power_w is not None and age_s < self._interval_s:
            rolling.add(power_w, self._interval_s)
            history.append(power_w)
        return DeviceNow(
            name,
            power_w=power_w if age_s < 5 * self._interval_s + TIMEOUT_S else None,
            averages_w=tuple(rolling.watts),
            energy=Amount(joules, values.get("energy_low_joules_total"), values.get("energy_high_joules_total"))
            if joules is not None
            else Amount(refused="the agent reports no energy"),
            in_total=values.get("total", 1.0) != 0,
            utilisation_pct=None if "utilisation_ratio" not in values else 100 * values["utilisation_ratio"],
            memory_bytes=values.get("memory_bytes"),
            memory_total_bytes=values.get("memory_total_bytes"),
            temperature_c=values.get("temperature_celsius"),
            clock_mhz=None if "clock_hertz" not in values else values["clock_hertz"] / 1e6,
            power_limit_w=values.get("power_limit_watts"),
            history_w=tuple(history),
            age_s=age_s + (tick_s or 0.0),
            settling=power_w is None and tick_s is not None and tick_s < SILENT_S,
        )

    def _owners(self) -> Owners | None:
        """Owners by what their counters have grown since the last look, or between reported ticks."""
        joules, lows, highs = (_owner_joules(self._last, side) for side in ("", "low_", "high_"))
        if not joules:
            return None
        at_s, before, powers = self._owned
        now_s = self._at_s if self._tick_s is None else self._tick_s
        if now_s > at_s:
            seconds = now_s - at_s
            # The rest grows by what owners that ended had used before: that is no power.
            grown = {key: value - before[key] for key, value in joules.items() if key in before and key[0] != "rest"}
            powers = {key: max(0.0, more) / seconds for key, more in grown.items()}
            self._owned = (now_s, joules, powers)
        why = dict.fromkeys(
            one.get("reason", "") for name, one, _ in self._last if name == "everywatt_unattributed_info"
        )
        rows = [
            OwnerNow(
                *(kind, id_, LABELS.get(kind, id_), powers.get((kind, id_), 0.0), value),
                method="; ".join(why) if kind == "unattributed" and value else "",
                low=lows.get((kind, id_)),
                high=highs.get((kind, id_)),
            )
            for (kind, id_), value in joules.items()
        ]
        return Owners("owner", tuple(sorted(rows, key=lambda row: (-row.power_w, -row.joules))))

    def close(self) -> None:
        self._client.close()


def _sum(amounts: Sequence[Amount]) -> Amount:
    """Amounts as one; its interval is the widest that theirs allow, since the agent does not say how they depend."""
    sides = ([getattr(one, side) for one in amounts] for side in ("joules", "low", "high"))
    joules, low, high = (None if None in side else math.fsum(side) for side in sides)
    return Amount(joules, low, high)


def _by_device(found: list[Sample]) -> dict[str, dict[str, float]]:
    """Values by device; a domain that is not part of the sum is a device of its own, `cpu.0 core`."""
    infos = [labels for name, labels, _ in found if name == "everywatt_device_info"]
    counted = {labels.get("device") for labels in infos if labels.get("total") != "0"}
    beside = {(labels.get("device"), labels.get("domain")) for labels in infos if labels.get("total") == "0"}
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


def _owner_joules(found: list[Sample], side: str = "") -> dict[tuple[str, str], float]:
    """Joules of each owner, over all devices; or one end of their intervals."""
    joules: dict[tuple[str, str], float] = {}
    for name, labels, value in found:
        if name == f"everywatt_owner_energy_{side}joules_total":
            key = (labels.get("kind", ""), labels.get("owner", ""))
            joules[key] = joules.get(key, 0.0) + value
    return joules


def _models(found: list[Sample]) -> tuple[ModelNow, ...]:
    """Joules per token by server, model and phase; servers without a figure come last, with the reason."""
    table: dict[tuple[str, str, str], dict[str, float]] = {}
    refused: dict[str, str] = {}
    for name, labels, value in found:
        server, end = labels.get("server", ""), name.removeprefix("everywatt_llm_joules_per_token")
        if end in ("", "_low", "_high"):
            table.setdefault((server, labels.get("model", ""), labels.get("phase", "")), {})[end] = value
        elif name == "everywatt_llm_refused_info":
            refused[server] = labels.get("reason", "")
    figures = [ModelNow(*key, row.get(""), row.get("_low"), row.get("_high")) for key, row in sorted(table.items())]
    return (*figures, *(ModelNow(server, refused=reason) for server, reason in sorted(refused.items())))
