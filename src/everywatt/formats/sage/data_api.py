"""A Sage data API: one POST of JSON, and lines of JSON back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everywatt.core.errors import MeasurementRefused, UsageError
from everywatt.net.api import ApiClient, NotTaken
from everywatt.tape.exporting import iso

PATH = "/api/v1/query"


def query(
    client: ApiClient,
    *,
    start_ns: int,
    end_ns: int | None = None,
    filters: Mapping[str, str] | None = None,
    head: int | None = None,
    tail: int | None = None,
    bucket: str | None = None,
) -> list[bytes]:
    """The records that the API has, as lines. `head` and `tail` are the first and the last so many of each series."""
    if head is not None and tail is not None:
        raise UsageError("--head and --tail exclude each other.")
    if end_ns is not None and end_ns <= start_ns:
        raise UsageError("The end must be after the start.", cure="--start -1h --end now")
    asked: dict[str, Any] = {"start": iso(start_ns)}
    told = {"end": None if end_ns is None else iso(end_ns), "head": head, "tail": tail, "bucket": bucket}
    asked.update({key: value for key, value in told.items() if value is not None})
    if filters:
        asked["filter"] = dict(filters)
    try:
        data = client.ask(PATH, body=json.dumps(asked).encode(), check=_whole)
    except NotTaken as error:
        raise MeasurementRefused(f"{client.shown} rejected the query: {str(error).rstrip('.')}.") from None
    return [line for line in data.split(b"\n") if line.strip()]


def _whole(data: bytes) -> None:
    """ValueError where the last line was cut, or what came is no lines of JSON at all."""
    lines = data.strip().split(b"\n")
    for line in (lines[0], lines[-1]) if data.strip() else ():
        if not isinstance(json.loads(line), dict):
            raise ValueError("it is not a record")
