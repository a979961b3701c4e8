"""The accuracy benchmark's driver for everywatt: a Meter, spans as windows, figures asked for afterwards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peer_drivers"))

from lanes import Tool, drive

import everywatt
from everywatt.core.spans import Span
from everywatt.energy.sources import Source, sources
from everywatt.energy.window import source_energies


class Everywatt(Tool):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.meter = everywatt.Meter(
            "accuracy", period=config["period_s"], home=config["home"], sensors=config["sensors"], estimate=False
        )
        self.meter.start()
        self.keys: list[str] = []

    def open(self, key: str) -> Any:
        return self.meter.open_span(key)

    def close(self, key: str, handle: Any) -> dict[str, Any]:
        handle.close()
        return {"span": handle.id}

    def finish(self, windows: list[dict[str, Any]]) -> None:
        run = self.meter.stop()
        assert run is not None, self.meter.energy.refused
        spans = {span.id: span for span in run.spans}
        found = {source.label: source for source in sources(run.tapes[0])}
        for window in windows:
            span = spans[window["joules"]["span"]]
            edges = {"open": window["open"], "close": window["close"], "span": [span.start_ns, span.end_ns]}
            window["joules"] = {
                str(device): {**self._figure(found[f"{self.config['prefix']}.{device}"], span), **edges}
                for device in self.devices
            }

    def _figure(self, source: Source, span: Span) -> dict[str, Any]:
        """As `run.energy(span, device=…)`, without looking the span up again for every device."""
        assert span.end_ns is not None
        energy = source_energies(source, [(span.start_ns, span.end_ns)])
        return {"joules": energy.joules, "low": energy.low, "high": energy.high}


if __name__ == "__main__":
    drive(Everywatt)
