"""A language-model server that follows a script: what it does, and when, is written down, so that tests have a truth.

    python sse_server.py LOG '{"tokens": 8, "first_ms": 20, "gap_ms": 5}'

prints its port. A prompt that is a JSON object changes the script for that request:

    tokens, first_ms, gap_ms   how many pieces, and when
    burn_ms                    CPU time that each piece costs; requests take turns piece by piece
    status, times              answer with that HTTP status, the first so many times that this prompt comes
    usage                      false: the server tells no usage
    hold_s                     keep the stream open so long after its last event
    reset_after                cut the connection after so many pieces; silent_after: say nothing more
    raw                        base64 of bytes that are sent as the body
    name                       what the kernel calls the process
    need_key                   401 without that key; the error repeats what was sent

Sums (`What is 3 + 4?`) are answered rightly, everything else with "ok ok …". Each line of LOG is one request with the
monotonic times at which it came and its pieces were sent, and the client's port.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

DEFAULTS = {"tokens": 8, "first_ms": 5, "gap_ms": 2, "burn_ms": 0, "usage": True}


class Server:
    def __init__(self, log: Path, script: dict) -> None:
        self.log, self.script = log, {**DEFAULTS, **script}
        self.seen: dict[str, int] = {}
        self.turn = asyncio.Lock()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self.one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def one(self, reader, writer) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        at_ns = time.monotonic_ns()
        length = re.search(r"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length.group(1))) if length else b""
        if head.startswith("GET"):
            self.plain(writer, 200, {"object": "list", "data": [{"id": "scripted"}]})
            return True
        request = json.loads(body)
        prompt = request["messages"][-1]["content"]
        script = dict(self.script)
        if prompt.startswith("{"):
            script.update(json.loads(prompt))
        self.seen[prompt] = self.seen.get(prompt, 0) + 1
        peer = writer.get_extra_info("peername")[1]
        entry = {"prompt": prompt, "at_ns": at_ns, "peer": peer, "request": request, "pieces": []}
        try:
            return await self.answer(writer, script, prompt, head, entry)
        finally:
            with self.log.open("a") as stream:
                stream.write(json.dumps(entry) + "\n")

    async def answer(self, writer, script, prompt, head, entry) -> bool:
        if script.get("need_key") and f"Bearer {script['need_key']}" not in head:
            self.plain(writer, 401, {"error": head})
            return True
        if script.get("echo_key"):
            self.plain(writer, 400, {"error": re.search(r"(?i)authorization: (.*)", head).group(1)})
            return True
        if script.get("status") and self.seen[prompt] <= script.get("times", 1):
            entry["status"] = script["status"]
            self.plain(writer, script["status"], {"error": "scripted"})
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if script.get("raw"):
            self.chunk(writer, base64.b64decode(script["raw"]))
        else:
            await asyncio.sleep(script["first_ms"] / 1000)
            words = text_of(prompt, script["tokens"])
            for number, word in enumerate(words):
                if number:
                    await asyncio.sleep(script["gap_ms"] / 1000)
                if script.get("reset_after") == number:
                    writer.transport.abort()
                    return False
                if script.get("silent_after") == number:
                    await asyncio.sleep(600)
                if script["burn_ms"]:
                    async with self.turn:
                        burn(script["burn_ms"] / 1000)
                self.event(writer, {"choices": [{"delta": {"content": word}}]})
                await writer.drain()
                entry["pieces"].append(time.monotonic_ns())
            self.event(writer, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
            if script["usage"] and request_usage(entry):
                self.event(writer, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(words)}})
            if not script.get("cut"):
                self.chunk(writer, b"data: [DONE]\n\n")
            await asyncio.sleep(script.get("hold_s", 0))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        entry["done"], entry["done_ns"] = True, time.monotonic_ns()
        return True

    def event(self, writer, data) -> None:
        self.chunk(writer, f"data: {json.dumps(data)}\n\n".encode())

    def chunk(self, writer, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def plain(self, writer, status: int, data) -> None:
        body = json.dumps(data).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def request_usage(entry) -> bool:
    return bool((entry["request"].get("stream_options") or {}).get("include_usage"))


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def text_of(prompt: str, tokens: int) -> list[str]:
    found = re.match(r"What is (\d+) \+ (\d+)\?", prompt)
    if found:
        digits = str(int(found.group(1)) + int(found.group(2)))
        return list(digits) + [" "] * max(0, tokens - len(digits))
    return ["ok "] * tokens


async def main(log: Path, script: dict) -> None:
    if script.get("name"):
        Path("/proc/self/comm").write_text(script["name"])
    server = Server(log, script)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, limit=16 << 20)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


class Running:
    def __init__(self, process, log: Path) -> None:
        self.process, self._log = process, log
        self.port = int(process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> list[dict]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []


@contextmanager
def running(folder: Path, env=None, **script):
    """The server as a process of its own."""
    log = Path(folder) / "server.jsonl"
    words = [sys.executable, __file__, str(log), json.dumps(script)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield Running(process, log)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
