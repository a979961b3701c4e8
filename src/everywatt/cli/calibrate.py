"""`everywatt calibrate`: gain and offset of cards against a meter, kept by UUID and used ever after."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import click

from everywatt.api.meter import Meter
from everywatt.api.run import Run, load
from everywatt.cli.common.options import DURATION, RUN, Verb, output_options
from everywatt.cli.common.output import Output
from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.core.format import (
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_quantity,
    format_watts,
)
from everywatt.core.jsonio import declared
from everywatt.core.tables import Cell, Table, columns_of
from everywatt.doctor.calibration import Found, compare_with_meter
from everywatt.doctor.gpu_load import find_load
from everywatt.energy.sources import sources
from everywatt.recorder.client import Recording
from everywatt.sensors.base import Request
from everywatt.sensors.calibrations import Stored, forget, load_all, path_of, save
from everywatt.sensors.registry import known, probe

LEVEL_S = 10.0


@click.command(cls=Verb)
@click.option("--from", "from_run", type=RUN, help="Recording of the card.")
@click.option("--meter", "meter_run", type=RUN, help="Recording of the meter over the same time; may be the same run.")
@click.option("--against", metavar="METER", help="Record now, against this sensor or device of this machine.")
@click.option("--for", "duration", type=DURATION, default="10m", show_default=True, help="Duration of the recording.")
@click.option("--device", metavar="NAME", help="Device to calibrate, such as gpu.0; all cards by default.")
@click.option("--meter-device", metavar="NAME", help="Device that is the meter, if the recording has several.")
@click.option("--uuid", metavar="UUID", help="UUID of the card, if the recording comes from another machine.")
@click.option("--dry-run", is_flag=True, help="Print the result without storing it.")
@click.option("--list", "listing", is_flag=True, help="List the stored calibrations and whether they are used.")
@click.option("--forget", "forgotten", metavar="UUID", help="Delete the calibration of a device.")
@output_options
def command(
    from_run: str | None,
    meter_run: str | None,
    against: str | None,
    duration: float,
    device: str | None,
    meter_device: str | None,
    uuid: str | None,
    dry_run: bool,
    listing: bool,
    forgotten: str | None,
    output: Output,
) -> None:
    """Calibrate a card: fit gain and offset of its power sensor against a meter on its supply lines.

    --from RUN --meter RUN compares recordings. --against METER records now, with any meter that is a sensor here, while
    a load is switched on and off every ten seconds. The result is stored by the card's UUID in the user's state
    directory; runs recorded from then on use it and get a narrower interval. It is not used once it is older than a
    year, or if the card has moved to another machine or slot.
    """
    if forgotten is not None:
        if not forget(forgotten):
            raise UsageError(f"No calibration of {forgotten} is stored.", cure="everywatt calibrate --list")
        output.say(f"Deleted the calibration of {forgotten}.")
        return
    if listing:
        _list(output)
        return
    if against is not None:
        if from_run is not None or meter_run is not None:
            raise UsageError(
                "Recording now and comparing recordings cannot be combined.", cure="--against, or --from and --meter"
            )
        run = meter = _record(duration, against, output)
        meter_device = meter_device or _meter_of(run, against)
    elif from_run is not None and meter_run is not None:
        run = load(from_run)
        meter = run if meter_run == from_run else load(meter_run)
    else:
        raise UsageError("A card and a meter are required.", cure="--from RUN --meter RUN, or --against METER")
    found = compare_with_meter(run, meter, device, meter_device)
    found = [one for one in found if meter is not run or one.device != meter_device]
    here = _devices_here() if str(run.meta.get("host", {}).get("name", "")) == os.uname().nodename else {}
    kept = [_keep(one, run, uuid if len(found) == 1 else None, here, dry_run, output) for one in found]
    output.json("calibrate", {"devices": kept})


def _keep(
    found: Found, run: Run, uuid: str | None, here: dict[str, dict[str, Any]], dry_run: bool, output: Output
) -> dict[str, Any]:
    mine = here.get(found.device, {})
    uuid = uuid or str(mine.get("uuid", ""))
    gain = format_number(found.gain, "", found.gain_within, found.gain_within)
    offset = format_quantity(found.offset_w, "W", found.offset_within_w, found.offset_within_w, signed=True)
    equals = "≈" if offset.startswith("≈") else "="  # a rough offset makes the line rough
    line = f"({gain}) × watts {offset.removeprefix('≈ ')}"
    output.text(f"{found.device}: reading {equals} {line}   ({format_count(found.windows, 'window')})")
    output.say(f"clocks: meter minus card {found.clock}")
    left = found.correction.tolerance
    output.say(f"remaining: ± {format_percent(left.gain_pct / 100)} of the reading, ± {format_watts(left.offset_w)}")
    stored = Stored(
        uuid,
        found.correction.gain,
        found.correction.bias_w,
        left.gain_pct,
        left.offset_w,
        time.time(),
        str(run.meta.get("host", {}).get("name", "")) if mine else "",
        str(mine.get("pci_bus_id", "")),
        found.name or str(mine.get("name", "")),
        run.name,
        left.correlation,
        left.freedom,
    )
    kept = None
    if not uuid:
        output.warn(f"{found.device}: not stored, because its UUID is unknown. Pass it with --uuid.")
    elif not dry_run:
        kept = str(save(stored))
        output.say(f"Stored for {uuid} in {kept}.")
    return {
        **declared(found, "device gain gain_within offset_w offset_within_w windows"),
        "clock": asdict(found.clock),
        "correction": asdict(stored),
        "kept_in": kept,
    }


def _devices_here() -> dict[str, dict[str, Any]]:
    """Cards of this machine by device name, with UUID and slot."""
    for name in ("nvml", "nvidia-smi"):
        _, report = probe(name, known()[name], Request())
        if report.usable:
            return {str(entry.get("device")): dict(entry) for entry in report.devices}
    return {}


def _meter_of(run: Run, against: str) -> str:
    """The device on a run's tape that a sensor's or device's name means."""
    found = sources(run.tapes[0])
    for source in found:
        if against in (source.label, source.group.info.sensor, source.channel.device):
            return source.label
    listed = ", ".join(sorted({source.label for source in found})) or "none"
    raise MeasurementRefused(f"No meter '{against}' was found here; available: {listed}.", cure="everywatt sensors")


def _check_meter(recording: Recording, against: str) -> None:
    """MeasurementRefused where nothing that is recorded goes by the meter's name: now, not after ten minutes."""
    names = {name for group in recording.groups for name in (group.sensor, *(one.device for one in group.channels))}
    if against not in names and against.rpartition(" ")[0] not in names:
        devices = sorted({one.device for group in recording.groups for one in group.channels if one.carries_energy})
        listed = ", ".join(devices) or "none"
        raise MeasurementRefused(f"No meter '{against}' was found here; available: {listed}.", cure="everywatt sensors")


def _record(duration_s: float, against: str, output: Output) -> Run:
    """A run with a load on every card, switched on and off."""
    if not 10 <= duration_s <= 86_400:
        raise UsageError("A calibration takes between 10 s and one day.", cure="--for 10m")
    cards = [int(str(entry["index"])) for entry in _devices_here().values() if "index" in entry]
    if not cards:
        raise MeasurementRefused("No card was found to calibrate.", cure="everywatt sensors")
    make = find_load(cure="install torch with CUDA, or record a load of your own: --from RUN --meter RUN")
    show = output.progress()
    level_s = min(LEVEL_S, duration_s / 6)
    output.say(
        f"Recording for {format_duration(duration_s)}, switching the load about every {format_duration(level_s)}."
    )
    with ExitStack() as stack:
        loads = [make(index) for index in cards]
        for one in loads:
            stack.callback(one.close)
        with Meter("calibrate") as meter:
            if meter.recording is not None:
                _check_meter(meter.recording, against)
            end, busy, turn = time.monotonic() + duration_s, False, 0
            while time.monotonic() < end:
                for one in loads:
                    (one.off if busy else one.on)()
                busy = not busy
                turn += 1
                uneven_s = level_s * (0.6 + 0.8 * (0.618 * turn % 1))  # a load that repeats would fit many clocks
                turn_end = min(time.monotonic() + uneven_s, end)
                while (left_s := turn_end - time.monotonic()) > 0:
                    show(f"load {'on' if busy else 'off'} · about {format_duration(end - time.monotonic())} left")
                    time.sleep(min(left_s, 1.0))
            for one in loads if busy else ():
                one.off()
    return load(meter.run.path)


def _list(output: Output) -> None:
    stored, now = load_all(), time.time()
    here = {str(entry.get("uuid")): entry for entry in _devices_here().values()} if stored else {}
    rows: list[list[Cell]] = []
    for one in stored.values():
        slot = str(here.get(one.uuid, {}).get("pci_bus_id", ""))
        state = one.refusal(os.uname().nodename, slot, now)
        state = state or ("used" if one.uuid in here else "the card is not present now")
        made = time.strftime("%Y-%m-%d", time.gmtime(one.made_s))
        rows.append(
            [one.uuid, one.name, 1 / one.gain, format_quantity(-one.bias_w / one.gain, "W", signed=True), made, state]
        )
    output.json("calibrations", {"path": str(path_of()), "calibrations": [asdict(one) for one in stored.values()]})
    output.table(Table.of(*columns_of("UUID, NAME, GAIN [], OFFSET [W], DATE, STATE"), rows=rows))
    if not rows:
        output.say("No calibrations are stored.")
