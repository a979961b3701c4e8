"""Snapshots with known figures, for the tests of the live view's faces."""

from __future__ import annotations

import math

from everywatt.report.live.snapshot import Amount, DeviceNow, HostNow, OwnerNow, Owners, Snapshot

AT_NS = 1_700_000_000 * 10**9


def gpu(number: int, power_w: float = 100.0, **more) -> DeviceNow:
    """A card with everything."""
    values = {
        "label": "Simulated GPU",
        "power_w": power_w,
        "averages_w": (power_w, power_w - 1, power_w - 2),
        "energy": Amount(power_w * 60, power_w * 59.4, power_w * 60.6, "counter"),
        "utilisation_pct": 98.0,
        "memory_bytes": 4 * 2**30,
        "memory_total_bytes": 16 * 2**30,
        "temperature_c": 47.0,
        "clock_mhz": 1410.0,
        "throttled": False,
        "power_limit_w": 300.0,
        "history_w": tuple(power_w * (1 + math.sin(i / 5) / 2) for i in range(120)),
        "age_s": 0.4,
    }
    return DeviceNow(f"gpu.{number}", **(values | more))


def cpu() -> DeviceNow:
    """A package without a state."""
    energy = Amount(2400.0, 2390.0, 2410.0, "counter")
    return DeviceNow("cpu.0", "package-0", 40.0, (40.0, 40.0, 40.0), energy, history_w=(40.0,) * 60, age_s=0.2)


OWNERS = Owners(
    "process",
    (
        OwnerNow("process", "7:1", "python train.py --epochs 90", 210.0, 9000.0, 120.0, 97.0, 3 * 2**30, "sm time"),
        OwnerNow("process", "9:1", "postgres: writer", 12.5, 12_000.0, 8.0, None, 40 * 2**20, "cpu time"),
        OwnerNow("idle", "idle", "idle", 80.0, 4800.0, None, None, None, "prior"),
        OwnerNow("unattributed", "unattributed", "unattributed", 0.5, 30.0),
    ),
    2.0,
    0.002,
)


def snapshot(cards: int = 1, *, owners: Owners | None = OWNERS, **more) -> Snapshot:
    """A machine with so many cards; the total is 40 W and 100 W a card."""
    devices = (cpu(), *(gpu(number, 100.0 + number) for number in range(cards)))
    power_w = math.fsum(device.power_w or 0.0 for device in devices)
    values = {
        "source": "this machine",
        "at_ns": AT_NS,
        "elapsed_s": 60.0,
        "devices": devices,
        "total_w": power_w,
        "averages_w": (power_w, power_w, power_w),
        "total": Amount(power_w * 60, power_w * 59, power_w * 61, "counter"),
        "scope": "cpu+gpu",
        "history_w": (power_w,) * 60,
        "host": HostNow("box", 12.0, 2 * 2**30, 24 * 2**30, (12.0,) * 60),
        "owners": owners,
    }
    return Snapshot(**(values | more))
