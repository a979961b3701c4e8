"""What a run will not measure although it is there: counters that nobody may read, a GPU that is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everywatt.sensors.base import State

MASK = "CUDA_VISIBLE_DEVICES"
_INSTEAD = {"rapl": "perf", "nvml": "nvidia-smi"}


def missed(reports: Sequence[Mapping[str, Any]], asked: Sequence[str] | None = None) -> list[str]:
    """One sentence for each broken sensor, with the cure; none for one whose stand-in works.

    One that is just absent is told only where it was `asked` for by name. A device that works may have a note: what its
    figure does not cover. A mask that names a card that is not there is told too.
    """
    states = {report["sensor"]: report["state"] for report in reports}
    found = []
    for report in reports:
        sensor = report["sensor"]
        first = next((better for better, instead in _INSTEAD.items() if instead == sensor), None)
        stands_in = states.get(_INSTEAD.get(sensor, "")) == State.USABLE
        told_already = first is not None and states.get(first) == State.UNUSABLE
        broken = report["state"] == State.UNUSABLE and not stands_in and not told_already
        if broken or (report["state"] == State.ABSENT and sensor in (asked or ())):
            why, cure = report["why"], report.get("cure")
            found.append(
                f"{sensor} is not measured: {_closed(why)} Try: {cure}" if cure else f"{sensor} is not measured: {why}"
            )
        elif report["state"] == State.USABLE:
            lost = [device for device in report.get("devices", ()) if device.get("error")]
            found += [f"{device.get('device', sensor)} is not measured: {device['error']}" for device in lost]
            noted = [device for device in report.get("devices", ()) if device.get("note")]
            found += [f"{device.get('device', sensor)}: {device['note']}" for device in noted]
        if MASK in report.get("missing", {}):
            found.append(report["missing"][MASK])
    return list(dict.fromkeys(found))


def _closed(text: str) -> str:
    """A sentence with its full stop: reasons come from sensors of all kinds."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
