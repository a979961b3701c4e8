"""One precision in a process of its own: `python -m everywatt.bench.precision.worker`, JSON lines in and out.

Whatever libraries print goes to stderr; the answers have a descriptor of their own. A worker whose parent is gone reads
the end of its input and ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from everywatt.bench.precision.backend import Backend, make
from everywatt.bench.precision.data import Arrays, Dataset, by_length, halves, load_data, scored_items, timed_batches
from everywatt.bench.precision.plan import Job, LoopReport, job_from
from everywatt.core.platforms import own_peak_bytes

CALIBRATION_ITEMS = 64  # items from which ranges of activations are found; more change them little and take seconds
SCORING_BATCH = 16  # items: small enough for any memory, as nothing of scoring is timed


class Lab:
    """The model of this process and the steps that can be asked of it. Each gives plain data."""

    def __init__(self) -> None:
        self._job = Job()
        self.data: Dataset  # this and the model are there once it is set up
        self.model: Backend
        self._timed: list[Any] = []

    def setup(self, request: Mapping[str, Any]) -> dict[str, int | None]:
        """Load the data, make the model at its precision."""
        self._job = job_from(request["job"])
        self.data = load_data(self._job.data)
        layers: Sequence[str] | None = request.get("int8_layers")
        items = halves(len(self.data), self._job.seed)[0][:CALIBRATION_ITEMS]
        calibration = [self.data.batch(part) for part in by_length(self.data, items, SCORING_BATCH)]
        self.model = make(self._job, request["precision"], calibration, layers)
        length = self._job.seq_length or self.data.fitting_length()
        self._timed = [self.model.prepare(one) for one in timed_batches(self.data, self._job.batch_size, length)]
        return {"seq_length": length}

    def arrays(self, request: Mapping[str, Any]) -> dict[str, str]:
        """A data set as an .npz file, for a parent without torch."""
        data = load_data(request["data"])
        arrays: dict[str, Any] = {**data.inputs} if data.labels is None else {**data.inputs, "labels": data.labels}
        np.savez(request["file"], **arrays)
        return {"name": data.name, "note": data.note}

    def loop(self, request: Mapping[str, Any]) -> LoopReport:
        """The timed loop: nothing but forward passes, at least `iters` and until `seconds` are over; each latency."""
        hooks, run, batches, count = self.model.hooks(), self.model.run, self._timed, len(self._timed)
        clock = time.perf_counter_ns
        latencies: list[int] = []
        used = time.process_time()
        start_ns = time.monotonic_ns()
        least, until = int(request["iters"]), clock() + int(float(request.get("seconds", 0.0)) * 1e9)
        began = clock()
        while len(latencies) < least or began < until:
            run(batches[len(latencies) % count])
            ended = clock()
            latencies.append(ended - began)
            began = ended
        end_ns = time.monotonic_ns()
        used = time.process_time() - used
        return {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "latency_ns": latencies,
            "cpu_s": used,
            "peak_bytes": own_peak_bytes(),
            "hooks": hooks,
        }

    warmup = loop  # a few batches that do not count

    def score(self, request: Mapping[str, Any]) -> dict[str, int]:
        """Answers to all items that are scored, in the order of their numbers, in an .npz file."""
        data, job = self.data, self._job
        items = scored_items(data, job.task, job.seed, request.get("limit", job.limit))
        if request.get("part") == "train":
            items = halves(len(data), job.seed)[0]
        parts = list(by_length(data, items, SCORING_BATCH))
        answers = _in_order(items, [(part, self.model.answers(self.model.prepare(data.batch(part)))) for part in parts])
        _save(Path(request["file"]), items, answers)
        return {"items": len(items)}

    def facts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `Computed`, from a pass of its own."""
        return asdict(self.model.facts(self._timed[0]))

    def layers(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Where the time goes, from passes of their own."""
        found, whole_s = self.model.layers(self._timed[0], int(request.get("passes", 5)))
        return {"layers": found, "whole_s": whole_s}

    def sensitivity(self, request: Mapping[str, Any]) -> dict[str, list[str]]:
        """Answers with one layer in int8, layer after layer, in .npz files of a folder."""
        data, job = self.data, self._job
        items = scored_items(data, job.task, job.seed, request["limit"])
        parts = list(by_length(data, items, SCORING_BATCH))
        found = self.model.sensitivity([self.model.prepare(data.batch(part)) for part in parts])
        for place, answers in enumerate(found.values()):
            ordered = _in_order(items, list(zip(parts, answers, strict=True)))
            _save(Path(request["folder"]) / f"{place}.npz", items, ordered)
        return {"layers": list(found)}


def _in_order(items: Any, parts: Sequence[tuple[Any, Arrays]]) -> Arrays:
    """Answers of batches put back into the order of `items`; those of unequal length are left out."""
    order = np.argsort(np.concatenate([part for part, _ in parts]), kind="stable")
    found = {}
    for name in parts[0][1]:
        arrays = [answers[name] for _, answers in parts]
        if len({array.shape[1:] for array in arrays}) == 1:
            found[name] = np.concatenate(arrays)[order]
    assert len(order) == len(items)
    return found


def _save(file: Path, items: Any, answers: Arrays) -> None:
    arrays: dict[str, Any] = {"items": items, **answers}
    np.savez(file, **arrays)


def serve(lines: Iterable[str], out: TextIO, lab: Any) -> None:
    """Answer requests, one a line, until the stream ends. An exception is an answer too."""
    for line in lines:
        request = json.loads(line)
        step: Callable[[Mapping[str, Any]], Mapping[str, Any]] = getattr(lab, request["do"])
        try:
            answer = {"ok": True, **step(request)}
        except Exception as error:  # noqa: BLE001 - a model may raise anything; the parent shows it as a row
            cure = getattr(error, "cure", None)
            answer = {"ok": False, "kind": type(error).__name__, "message": getattr(error, "message", str(error))}
            answer["cure"] = cure
        out.write(json.dumps(answer) + "\n")
        out.flush()


def answer_channel() -> TextIO:
    """A stream to the parent; whatever a library prints goes to stderr from now on."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8")


if __name__ == "__main__":
    serve(sys.stdin, answer_channel(), Lab())
