"""What of a precision benchmark is finished, in files beside its tape, so that it can be taken up again.

`precision.jsonl` has a line for the request, for each precision whose label was checked, for each timed loop, and for
what the layers showed. The answers that were scored are `.npz` files in the folder `precision`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from everywatt.bench.lines import Lines, read_lines
from everywatt.bench.precision.variants import Arm
from everywatt.bench.trials import Trial
from everywatt.core.errors import UsageError

FILE, ANSWERS = "precision.jsonl", "precision"


class Journal:
    """Writes lines; without a folder (no recording) it does nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._lines = None if folder is None else Lines(folder / FILE)

    def request(self, job: Mapping[str, Any], conduct: Any) -> None:
        """What is asked for."""
        self._write("request", job=dict(job), conduct=asdict(conduct))

    def checked(self, arm: Arm, told: Mapping[str, Any]) -> None:
        """A precision was set up, looked at and scored; `told` is what its worker said was computed."""
        self._write(
            "checked",
            precision=arm.precision,
            told=dict(told),
            seq_length=arm.seq_length,
            notes=list(arm.notes),
            memory_bytes=arm.memory_bytes,
        )

    def timed(self, arm: Arm, trial: Trial, told: Mapping[str, Any]) -> None:
        """A timed loop ended."""
        self._write(
            "timed",
            precision=arm.precision,
            block=trial.block,
            place=trial.place,
            span=trial.span,
            seconds=trial.seconds,
            told={name: told[name] for name in ("latency_ns", "cpu_s", "peak_bytes", "hooks")},
        )

    def layers(self, arm: Arm) -> None:
        """Where the time of a precision goes."""
        self._write("layers", precision=arm.precision, times=arm.times, pass_s=arm.pass_s)

    def sensitivity(self, layers: Sequence[Any], plan: Sequence[str], first_block: int) -> None:
        """What each layer alone does, the plan from it, and the block with which its trials begin."""
        self._write("sensitivity", layers=[asdict(one) for one in layers], plan=list(plan), first_block=first_block)

    def close(self) -> str:
        """Close the file; gives a sentence where something could not be written."""
        lines, self._lines = self._lines, None
        return "" if lines is None else lines.close()

    def _write(self, kind: str, **data: Any) -> None:
        if self._lines is not None:
            self._lines.write({"kind": kind, **data})


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """The lines, the request first; UsageError where it is no such run."""
    found = [line for line in read_lines(folder / FILE) if "kind" in line]
    if not found or found[0]["kind"] != "request":
        raise UsageError(f"{folder.name} is not a run of `bench precision`.", cure="everywatt list")
    return found


def trial_of(arm: Arm, line: Mapping[str, Any]) -> Trial:
    """The trial that a line describes."""
    told = line["told"]
    return Trial(
        arm.index,
        int(line["block"]),
        int(line["place"]),
        line["span"],
        0,
        float(line["seconds"]),
        told["cpu_s"],
        told["peak_bytes"],
    )
