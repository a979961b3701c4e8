"""Gain and offset of devices that were compared with a meter, kept by their UUID and used from then on.

They are in `calibrations.json` of the user's state folder: for each UUID, watts = gain × reading + bias_w, the 95 %
half-widths that are left, when it was found, on which host and in which slot. One that is older than a year, or of a
device that is in another machine or slot now, is not used, and `refusal` says so.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.core.channels import Facts
from everywatt.core.files import replace_text
from everywatt.core.machine import state_folder

VALID_S = 366 * 86_400
FILE = "calibrations.json"


@dataclass(frozen=True, slots=True)
class Stored:
    """What is known of one device: watts = gain × reading + bias_w, within gain_pct and offset_w.

    These are 95 % half-widths of `freedom` degrees of freedom; with their `correlation` they are the covariance of the
    fit and of what a card may drift. Older files have neither.
    """

    uuid: str
    gain: float
    bias_w: float
    gain_pct: float
    offset_w: float
    made_s: float
    host: str = ""
    slot: str = ""
    name: str = ""
    against: str = ""
    correlation: float = 0.0
    freedom: float | None = None

    def refusal(self, host: str, slot: str, now_s: float) -> str | None:
        """Why it must not be used for a device that is here now; None where it may."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.made_s))
        if now_s - self.made_s > VALID_S:
            return f"calibration of {day} not used: more than a year old (everywatt calibrate)"
        if self.made_s - now_s > 86_400:
            return f"calibration of {day} not used: its date is in the future"
        if self.host and host and self.host != host:
            return f"calibration not used: made in {self.host}, and the card is now in {host} (calibrate again)"
        if self.slot and slot and self.slot.lower()[-10:] != slot.lower()[-10:]:
            return (
                f"calibration not used: made in slot {self.slot}, and the card is now in slot {slot} (calibrate again)"
            )
        return None


def path_of() -> Path:
    """The file, in the user's state folder."""
    return state_folder() / FILE


def load_all(path: Path | None = None) -> dict[str, Stored]:
    """Every calibration by UUID; none where the file is missing or cannot be read, for a run must not end by it."""
    try:
        data = json.loads((path or path_of()).read_text(encoding="utf-8"))
        entries = data["calibrations"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    found = {}
    for entry in entries if isinstance(entries, list) else ():
        stored = _stored(entry)
        if stored is not None:
            found[stored.uuid] = stored
    return found


def _stored(entry: Any) -> Stored | None:
    """One entry, None where a number in it cannot be right: better no calibration than a wild one."""
    try:
        known = {key: entry[key] for key in Stored.__dataclass_fields__ if key in entry}
        stored = Stored(**known)
        sane = 0.5 < stored.gain < 2 and abs(stored.bias_w) < 500
        widths = 0 <= stored.gain_pct < 100 and 0 <= stored.offset_w < 500 and stored.made_s > 0
        whole = abs(stored.correlation) <= 1 and (stored.freedom is None or stored.freedom >= 1)
        return stored if sane and widths and whole and isinstance(stored.uuid, str) and stored.uuid else None
    except (TypeError, KeyError):
        return None


def save(stored: Stored, path: Path | None = None) -> Path:
    """Keep a calibration, in place of an older one of the device; the file is replaced as a whole."""
    target = path or path_of()
    target.parent.mkdir(parents=True, exist_ok=True)
    return _write(target, {**load_all(target), stored.uuid: stored})


def forget(uuid: str, path: Path | None = None) -> bool:
    """Remove a device's calibration; False if it has no calibration."""
    target = path or path_of()
    everything = load_all(target)
    if everything.pop(uuid, None) is None:
        return False
    _write(target, everything)
    return True


def _write(target: Path, everything: Mapping[str, Stored]) -> Path:
    text = json.dumps({"version": 1, "calibrations": [asdict(one) for one in everything.values()]}, indent=1)
    replace_text(target, text + "\n")
    return target


def calibrated(facts: Facts, uuid: str, slot: str = "", *, host: str | None = None) -> tuple[Facts, str | None]:
    """The facts of a device's power or energy with its calibration, and why there is one that is not used."""
    stored = load_all().get(uuid) if uuid else None
    if stored is None:
        return facts, None
    why = stored.refusal(os.uname().nodename if host is None else host, slot, time.time())
    if why is not None:
        return facts, why
    found = replace(facts, calibrated=True, gain=stored.gain, bias_w=stored.bias_w)
    left = replace(found, gain_pct=stored.gain_pct, offset_w=stored.offset_w)
    return replace(left, correlation=stored.correlation, freedom=stored.freedom), None
