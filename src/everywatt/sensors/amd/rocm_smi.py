"""AMD GPUs by `rocm-smi --json`, without amdsmi and hwmon: every answer is a process of half a second."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everywatt.core.channels import Channel, Domain, Kind
from everywatt.core.errors import SensorError
from everywatt.sensors.amd.amdsmi import FACTS, device_of, hwmon_cards
from everywatt.sensors.meters import CommandMeters, PolledGroup, first_line, power_channel
from everywatt.sensors.simple import Absent
from everywatt.sensors.sysfs import short_pci, socket_of

# Newer cards report the present socket power, older ones an average; the same thing under names that change.
POWER = ("Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)")
_NUMBER = re.compile(r"\d{1,5}(?:\.\d{1,6})?")
_CARD = re.compile(r"card(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Card:
    """One card as rocm-smi prints it; `why` if it has no power."""

    index: int
    watts: float | None
    why: str
    pci: str | None
    name: str
    use_pct: float | None


def parse_rocm(text: str) -> list[Card]:
    """The cards of `rocm-smi --json`, whose values are all texts. SensorError where there is no JSON in it."""
    start, end = text.find("{"), text.rfind("}")
    try:
        data = json.loads(text[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, Mapping):
        raise SensorError(f"rocm-smi prints no JSON: {first_line(text)}")
    found = [_card(int(match[1]), entry) for key, entry in data.items() if (match := _CARD.fullmatch(str(key)))]
    return sorted((card for card in found if card is not None), key=lambda card: card.index)


def _card(index: int, entry: Any) -> Card | None:
    if not isinstance(entry, Mapping):
        return None
    watts, why = None, "rocm-smi prints no power for it"
    for key in POWER:
        if key in entry:
            watts = _number(entry[key])
            if watts is not None:
                break
            why = f"rocm-smi prints '{entry[key]}'"
    name = str(entry.get("Card series") or entry.get("Card Series") or entry.get("Card model") or "AMD GPU")
    return Card(index, watts, why, short_pci(str(entry.get("PCI Bus", ""))), name, _number(entry.get("GPU use (%)")))


def _number(value: Any) -> float | None:
    text = str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    return float(text) if _NUMBER.fullmatch(text) else None


class RocmSmi(CommandMeters):
    name = program = "rocm-smi"
    after: Sequence[str] = ("amdsmi",)

    def meters(self) -> list[PolledGroup]:
        """All cards, which come in one answer, as one meter, unless hwmon reads them anyhow."""
        if not self.named and hwmon_cards(self.machine):
            raise Absent("not tried: hwmon reads the same cards")
        cards = self._ask()
        if not cards:
            raise SensorError("rocm-smi runs but finds no card.")
        good = list(
            {socket_of(card.pci) or card.index: card for card in reversed(cards) if card.watts is not None}.values()
        )
        good.sort(key=lambda card: card.index)  # partitions repeat what their socket draws: the first speaks for it
        if not good:
            raise SensorError(f"card {cards[0].index}: {cards[0].why}.")
        known = hwmon_cards(self.machine)
        channels: list[Channel] = []
        sockets = list(dict.fromkeys(socket_of(card.pci) or str(card.index) for card in cards))
        for card in good:
            device = device_of(card.pci, sockets.index(socket_of(card.pci) or str(card.index)), known)
            channels.append(replace(power_channel(device, Domain.GPU, FACTS), in_slot=True))
            channels.append(Channel(f"{device}.utilisation", "%", Kind.GAUGE, device))

        def ask() -> tuple[float, ...]:
            latest = {card.index: card for card in self._ask()}
            found: list[float | None] = []
            for card in good:
                now = latest.get(card.index)
                found += [now.watts, now.use_pct] if now else [None, None]
            return tuple(float("nan") if value is None else value for value in found)

        return [self.meter(channels, ask, good[0].name)]

    def _ask(self) -> list[Card]:
        command = [self.binary, "--showpower", "--showuse", "--showbus", "--showproductname", "--json"]
        return parse_rocm(self.output(command))
