"""Windows at given instants, opened and closed by some tool. Standard library only: it runs in the peers' environment.

A driver is `python driver.py CONFIG`. It sets its tool up, prints `ready`, reads the start (CLOCK_MONOTONIC ns) from
stdin, opens and closes the windows of each lane in a thread, and writes what the tool said to the file that CONFIG names.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any


class Tool:
    """What a driver provides. `close` gives joules by device (a number or None), or None where `finish` does."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.devices: list[int] = list(range(config["devices"]))

    def open(self, key: str) -> Any:
        raise NotImplementedError

    def close(self, key: str, handle: Any) -> dict[str, Any] | None:
        raise NotImplementedError

    def finish(self, windows: list[dict[str, Any]]) -> None:
        """After the last window: fill in joules that are asked for afterwards."""


def wait_until(at_ns: int) -> None:
    while (left := at_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def _lane(tool: Tool, number: int, plan: list[list[float]], start_ns: int, out: list[dict[str, Any]]) -> None:
    for index, (offset_s, length_s) in enumerate(plan):
        key = f"{number}-{index}"
        wait_until(start_ns + round(offset_s * 1e9))
        a0, wall0 = time.monotonic_ns(), time.time()
        handle = tool.open(key)
        a1 = time.monotonic_ns()
        wait_until(a0 + round(length_s * 1e9))
        b0, wall1 = time.monotonic_ns(), time.time()
        joules = tool.close(key, handle)
        b1 = time.monotonic_ns()
        out.append(
            {"length_s": length_s, "open": [a0, a1], "close": [b0, b1], "wall": [wall0, wall1], "joules": joules}
        )


def drive(make: type[Tool]) -> None:
    """Run a driver."""
    with open(sys.argv[1]) as file:
        config = json.load(file)
    tool = make(config)
    print("ready", flush=True)
    start_ns = int(sys.stdin.readline())
    found: list[list[dict[str, Any]]] = [[] for _ in config["lanes"]]
    threads = [
        threading.Thread(target=_lane, args=(tool, number, plan, start_ns, found[number]))
        for number, plan in enumerate(config["lanes"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    windows = [window for lane in found for window in lane]
    tool.finish(windows)
    with open(config["out"], "w") as file:
        json.dump(windows, file)
