"""Models without a server: a Python callable, a command that reads the prompt and writes the answer, or a transcript,
whose answers of an earlier run are scored again without a model and without energy."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.http import Stream, count
from everywatt.bench.llm.records import OK, Answer, Ask, Record
from everywatt.core import foreign
from everywatt.core.errors import UsageError
from everywatt.core.plugins import load


class Local:
    """A client without a server has no connections to let go of."""

    where = "here"

    async def close(self) -> None:
        """Nothing to let go of."""


class PythonCallable(Local):
    """`call=module:function`, called with the prompt and the settings as keywords.

    It gives a text, or yields pieces of one; it may be async. A plain function runs in a thread. The last thing it
    yields may be a dict with `input_tokens` and `output_tokens`.
    """

    def __init__(self, connection: Connection) -> None:
        connection.only("call")
        target = connection.params.get("call", "")
        if ":" not in target:
            raise UsageError("The client 'python' requires --client-param call=module:function.")
        self._target, self._of = target, connection
        self._call: Callable[..., Any] | None = None

    def describe(self) -> dict[str, Any]:
        return {"client": "python", "call": self._target}

    async def health(self) -> list[str]:
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            self._call = load(self._target)
        except Exception as error:  # noqa: BLE001 - the user's module may do anything when it is imported
            raise UsageError(f"{self._target} cannot be used: {type(error).__name__}: {error}.") from None
        return []

    async def ask(self, ask: Ask) -> Answer:
        """Call it. Whatever it raises is the answer's error."""
        assert self._call is not None
        got, began_ns = Stream(), time.monotonic_ns()
        status, error = OK, None
        try:
            async with asyncio.timeout(self._of.total_s):
                await _collect(self._call, ask, got)
        except TimeoutError:
            status, error = "timeout", "timed out"
        except Exception as trouble:  # noqa: BLE001 - the user's function may raise anything
            status, error = "broken" if got.piece_ns else "failed", f"{type(trouble).__name__}: {trouble}"
        return self._of.without_key_in(got.answer(status, began_ns, began_ns, attempts=1, error=error))


async def _collect(call: Callable[..., Any], ask: Ask, got: Stream) -> None:
    if inspect.isasyncgenfunction(call):
        pieces: AsyncIterator[Any] = call(ask.prompt, **ask.settings)
        async for piece in pieces:
            _take(piece, got)
    elif inspect.iscoroutinefunction(call):
        _take(await call(ask.prompt, **ask.settings), got)
    else:
        await asyncio.to_thread(_in_thread, call, ask, got)


def _in_thread(call: Callable[..., Any], ask: Ask, got: Stream) -> None:
    made = call(ask.prompt, **ask.settings)
    if isinstance(made, Iterator):
        for piece in made:
            _take(piece, got)
    else:
        _take(made, got)


def _take(piece: Any, got: Stream) -> None:
    if isinstance(piece, dict):
        got.input_tokens, got.output_tokens = count(piece.get("input_tokens")), count(piece.get("output_tokens"))
        got.piece(time.monotonic_ns(), str(piece.get("text", "")))
    else:
        got.piece(time.monotonic_ns(), str(piece))


class ShellCommand(Local):
    """`run=COMMAND`: the prompt goes to its stdin, its stdout is the answer. `{model}` in it is the model.

    Each line that arrives is a piece. Tokens are not counted.
    """

    def __init__(self, connection: Connection) -> None:
        connection.only("run")
        text = connection.params.get("run", "")
        if not text:
            raise UsageError("The client 'command' requires --client-param run='COMMAND'.")
        self._words = [word.replace("{model}", connection.model) for word in shlex.split(text)]
        self._of = connection

    def describe(self) -> dict[str, Any]:
        return {"client": "command", "run": shlex.join(self._words)}

    async def health(self) -> list[str]:
        if shutil.which(self._words[0]) is None:
            raise UsageError(f"There is no program '{self._words[0]}'.")
        return []

    async def ask(self, ask: Ask) -> Answer:
        """Run it once. It is stopped if its caller no longer waits for it."""
        got, began_ns = Stream(), time.monotonic_ns()
        status, error = OK, None
        child = await _started(self._words)
        try:
            async with asyncio.timeout(self._of.total_s):
                await asyncio.gather(_feed(child, ask), _listen(child, got))
                if code := await child.wait():
                    status, error = "failed", f"the command ended with {code}"
        except TimeoutError:
            status, error = "timeout", "timed out"
        except ValueError as trouble:
            status, error = "broken", f"the output of the command cannot be read: {trouble}"
        finally:
            await _ended(child)
        return self._of.without_key_in(got.answer(status, began_ns, began_ns, attempts=1, error=error))


async def _started(words: Sequence[str]) -> asyncio.subprocess.Process:
    """The command, in a session of its own. One that is called off while it starts is ended too."""
    making = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=64 << 20,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await _ended(await making)
        raise


async def _ended(child: asyncio.subprocess.Process) -> None:
    """A command that has not ended is ended, with what it started."""
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


async def _feed(child: asyncio.subprocess.Process, ask: Ask) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(ask.text.encode())
        await child.stdin.drain()
        child.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it does not read its input


async def _listen(child: asyncio.subprocess.Process, got: Stream) -> None:
    assert child.stdout is not None
    async for line in child.stdout:
        got.piece(time.monotonic_ns(), line.decode("utf-8", "replace"))


TRANSCRIPT = "transcript"


def transcribed(file: Path) -> Iterator[Record]:
    """The records of a file; a line that only has `id` and `text` is one too. UsageError where a line is neither."""
    for number, data in foreign.json_lines(file, "a record"):
        try:
            answer = data.get("answer") if isinstance(data.get("answer"), dict) else {"status": OK, **data}
            yield Record.from_dict({"level": "", **data, "answer": answer})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{file}:{number} is not a record: {error}.") from None


class Transcript(Local):
    """`file=queries.jsonl`: the records of a run, or lines with `id` and `text`. Items are found by id."""

    where = "nowhere"

    def __init__(self, connection: Connection) -> None:
        connection.only("file")
        if "file" not in connection.params:
            raise UsageError("The client 'transcript' requires --client-param file=FILE.")
        self._file = Path(connection.params["file"])
        self._answers: dict[str, Answer] = {}

    def describe(self) -> dict[str, Any]:
        return {"client": TRANSCRIPT, "file": str(self._file)}

    async def health(self) -> list[str]:
        self._answers = {record.id: record.answer for record in transcribed(self._file)}
        return ["a transcript was recorded elsewhere, so there is no energy"]

    async def ask(self, ask: Ask) -> Answer:
        if ask.item not in self._answers:
            return Answer("failed", error="the transcript has no such item")
        return self._answers[ask.item]
