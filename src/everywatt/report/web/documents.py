"""Report documents for the page: made in a thread, shared by whoever asks for the same one, kept while memory lasts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everywatt.api.run import Run
from everywatt.core.jsonio import dumps
from everywatt.footprint.carbon import Factors
from everywatt.report.html.data import report_document
from everywatt.report.web.runs import close_run, fingerprint, open_run, signature

MOST_RUNS = 16
MOST_BYTES = 64 << 20
AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Document:
    """The JSON text of a report, and its ETag."""

    etag: str
    body: bytes


class Documents:
    """Report documents by the runs they are about."""

    def __init__(self, factors: Factors | None = None) -> None:
        self._factors = factors
        self._kept: OrderedDict[str, Document] = OrderedDict()
        self._making: dict[str, asyncio.Task[Document]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def of(self, paths: Sequence[Path]) -> Document:
        """The document over these runs as their files are now. Raises what opening them raises."""
        etag = fingerprint([(str(path), signature(path)) for path in paths])
        if etag in self._kept:
            self._kept.move_to_end(etag)
            return self._kept[etag]
        if etag not in self._making:
            task = self._making[etag] = asyncio.ensure_future(self._make(etag, tuple(paths)))
            task.add_done_callback(lambda done: self._making.pop(etag, None))
            # A viewer that leaves does not cancel it for the others, nor leave an unobserved exception.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._making[etag])

    async def _make(self, etag: str, paths: Sequence[Path]) -> Document:
        async with self._room:
            document = Document(etag, await asyncio.to_thread(write, paths, self._factors))
        self._keep(document)
        return document

    def _keep(self, document: Document) -> None:
        self._kept[document.etag] = document
        while len(self._kept) > 1 and sum(len(one.body) for one in self._kept.values()) > MOST_BYTES:
            self._kept.popitem(last=False)


def write(paths: Sequence[Path], factors: Factors | None = None) -> bytes:
    """The report document over runs, as `everywatt report` puts it into its file."""
    runs: list[Run] = []
    with contextlib.ExitStack() as opened:
        for path in paths:
            run = open_run(path)
            opened.callback(close_run, run)
            runs.append(run)
        command = ["everywatt", "report", *(run.name for run in runs)]
        return dumps(report_document(runs, factors=factors, command=command)).encode("utf-8", "replace")
