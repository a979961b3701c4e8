"""A small run with something of everything a report shows, and its truth."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from tapes import at, counter_group, gauge_group, rows

from everywatt.core.channels import Channel, Domain, Facts, GroupInfo, Kind, Row
from everywatt.core.clocks import Anchor
from everywatt.core.spans import Point, Span
from everywatt.tape.writer import TapeWriter

EVIL = "<script>window.evil = 1</script>"
UTC_NS = 1_700_000_000 * 10**9
CPU_W, LOW_W, HIGH_W = 40.0, 100.0, 250.0


def unpacked(packed: dict[str, Any]) -> dict[str, np.ndarray]:
    """The columns of a page's chart, read as its script reads them."""
    raw, found, at = zlib.decompress(base64.b64decode(packed["deflate"])), {}, 0
    for name, kind, n in packed["columns"]:
        values = np.frombuffer(raw, f"<{kind}", n, at)
        found[name], at = values if kind == "f4" else np.cumsum(values, dtype=float), at + values.nbytes
    assert at == len(raw)
    return found


def gpu_w(t: float) -> float:
    """A card that draws 100 W, and 250 W from 4 s to 6 s (readings hold for the time before them)."""
    return HIGH_W if 4.0 < t <= 6.0 else LOW_W


def write_run(path: Path, *, cpu: bool = True, seconds: float = 10.0, name: str = EVIL) -> Path:
    """Ten seconds of one package at 40 W and one card, with spans, points, temperature, clock, use and memory."""
    meta = {
        "host": {
            "name": "box",
            "cpus": 4,
            "cpu": "Example CPU",
            "system": "Linux",
            "kernel": "6.1",
            "machine": "x86_64",
        },
        "command": ["python", "train.py", "--name", EVIL],
        "cwd": "/home/someone/it's here",
        "git": {"commit": "0123456789abcdef", "branch": "main", "dirty": True},
        "tags": {"project": "alpha"},
        "period_s": 0.1,
        "everywatt": "0.1.0",
        "python": "3.11.7",
    }
    writer = TapeWriter(path, meta)
    writer.anchor(Anchor(at(0), UTC_NS, at(0), 0))
    if cpu:
        group = writer.add_group(counter_group(quantum=6e-5, max_w=200.0), 0.1)
        writer.append(group, rows(lambda t: CPU_W * t, 0.0, seconds, 0.1))
    facts = {"period_s": 0.1, "window_s": 0.1, "quantum": 0.001, "max_w": 400.0}
    group = writer.add_group(gauge_group(**facts), 0.1)
    writer.append(group, rows(gpu_w, 0.0, seconds, 0.1))
    group = writer.add_group(state_group(), 1.0)
    for second in range(int(seconds) + 1):
        values = (40.0 + second, 1500.0, 90.0 if 4 <= second <= 6 else 5.0, 2.0**30 * (1 + second % 2))
        writer.append(group, [Row(at(second), at(second), at(second), values)])
    for uid, (text, start, end, parent) in enumerate(
        [("run", 0.0, seconds, None), (name, 0.5, 3.5, "s0"), ("epoch", 4.0, 6.0, "s0"), ("epoch", 7.0, 9.0, "s0")]
    ):
        writer.span_open(Span(f"s{uid}", text, at(start), None, parent, {}))
        writer.span_close(f"s{uid}", at(end))
    for second in (2, 5, 8):
        writer.point(Point(at(second), "loss", 1.0 / second, None))
    writer.flush()
    return writer.seal()


def state_group() -> GroupInfo:
    """Temperature, clock, use and memory of the card."""
    channels = tuple(
        Channel(f"gpu.0.{what}", unit, Kind.GAUGE, "gpu.0", facts=Facts(window_s=0.0))
        for what, unit in (("temperature", "°C"), ("clock_sm", "MHz"), ("utilisation", "%"), ("memory", "B"))
    )
    return GroupInfo("test.gpu.0.state", "test", "gpu.0", channels)


def write_other_scope(path: Path) -> Path:
    """A run that covers a package alone."""
    writer = TapeWriter(path, {"host": {"name": "box"}, "period_s": 0.1})
    writer.anchor(Anchor(at(0), UTC_NS, at(0), 0))
    group = writer.add_group(counter_group("cpu.0", Domain.PACKAGE, quantum=6e-5, max_w=200.0), 0.1)
    writer.append(group, rows(lambda t: 30.0 * t, 0.0, 5.0, 0.1))
    writer.flush()
    return writer.seal()
