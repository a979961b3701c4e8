"""Which scorer judges which answer, and when: what takes a moment at once, a judge and unit tests after the load.

What judging costs must not fall into the time in which queries are open: a judge may run on the very server that is
measured, and unit tests run on this machine. No code of an answer runs unless the user allowed it. Who judges stands
in the record; where a judge does not answer, nothing was judged.

Code that a model wrote runs apart: in a process of its own, a folder of its own, with limits, and without a network
where the kernel lets us. It is a fence against mistakes, not a prison: the file system stays readable for whoever the
code runs as (`nobody` where everywatt is root, and never root). So nothing is run unless the user asks for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everywatt.bench.llm import clients
from everywatt.bench.llm.clients import Connection
from everywatt.bench.llm.records import OK, RIGHT, UNEVALUATED, UNPARSED, WRONG, Answer, Ask, Item, Score
from everywatt.bench.llm.scorers import schema_validator, scorer
from everywatt.core.errors import EverywattError, MeasurementRefused, UsageError
from everywatt.core.plugins import border

MOST_SECONDS = 10.0  # for the unit tests of an item, unless it says otherwise
MOST_BYTES = 1 << 30  # of address space
MOST_OUTPUT_BYTES = 4000  # kept of the end of stderr
PROBE_S = 60.0  # what cannot start ends at once; what can may be held up
NOBODY = 65534  # the uid that Linux reserves for it
MOST_OF_NOBODY = 512  # processes, of all that run as nobody here
MOUNT_PROC = "--mount-proc"
# An interpreter in a home directory may start for `nobody` and then find no library.
_PROBE = "import collections, json, re, socket"
# The limits are set by the process itself, before it reads a line of what the model wrote.
_LIMITS = f"""
import os, resource, sys
seconds, who = int(sys.argv[2]), int(sys.argv[3])
for what, most in (("CPU", seconds), ("AS", {MOST_BYTES}), ("FSIZE", 1 << 24), ("NOFILE", 64), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + what), (most, most))
try:
    import ctypes
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: a set-uid program gives nothing
except (ImportError, OSError, AttributeError):
    pass
if who:
    resource.setrlimit(resource.RLIMIT_NPROC, ({MOST_OF_NOBODY}, {MOST_OF_NOBODY}))
    os.setgroups([]); os.setgid(who); os.setuid(who)
with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
del os, resource, seconds, who, file
exec(compile(text, "answer.py", "exec"), {{"__name__": "__main__"}})
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended: its code (None where it was stopped for taking too long) and the end of its stderr."""

    code: int | None
    said: str


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A way to run Python apart. `before` is the command in front of the interpreter, `user` a uid to become, or 0."""

    before: tuple[str, ...] = ()
    user: int = 0
    python: str = sys.executable

    @property
    def about(self) -> str:
        """For the record: `no network, own processes, no other processes visible, as nobody`."""
        words = ["no network, own processes" if self.before else "network not isolated"]
        words += ["no other processes visible"] if MOUNT_PROC in self.before else []
        words += ["as nobody"] if self.user else []
        words += [f"by {self.python}"] if self.python != sys.executable else []
        return ", ".join(words)

    @classmethod
    def find(cls) -> Sandbox:
        """The strictest one that works here. MeasurementRefused where code would run as root, or not at all."""
        root = os.geteuid() == 0
        for before in _namespaces(root):
            for python in pythons():
                one = cls(before, NOBODY if root else 0, python)
                if one.run(_PROBE, seconds=PROBE_S).code == 0:
                    return one
        if root:
            raise MeasurementRefused(
                "Code written by a model would run as root: the user 'nobody' can read no Python on this machine.",
                cure="run everywatt as another user, or install a python3 that all users can read",
            )
        raise MeasurementRefused("Python cannot be started in a process of its own, so code cannot be scored.")

    def run(self, text: str, *, seconds: float = MOST_SECONDS) -> Ending:
        """Run a Python program; it and all that it started are gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="everywatt-code-") as name:
            folder = Path(name)
            (folder / "answer.py").write_text(text, encoding="utf-8", errors="replace")
            folder.chmod(0o777 if self.user else 0o700)
            words = [*self.before, self.python, "-I", "-c", _LIMITS, str(folder / "answer.py")]
            return _ended([*words, str(max(1, round(seconds))), str(self.user)], folder, seconds)


def pythons() -> tuple[str, ...]:
    """This interpreter, and the system's: one in a home directory is of no use to the user `nobody`."""
    found = shutil.which("python3", path=os.defpath)
    return (sys.executable,) if found is None else (sys.executable, found)


def _namespaces(root: bool) -> Sequence[tuple[str, ...]]:
    """Ways to cut the network off, and to have every child process end with the first; those come first in which the
    code sees no process but its own: the environment of other processes must stay hidden from it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ((),)
    apart = ("--net", "--pid", "--fork", "--kill-child")
    users: tuple[tuple[str, ...], ...] = ((),) if root else (("--user", "--map-current-user"), ("--map-root-user",))
    ways = [(unshare, *user, *apart, *more) for more in ((MOUNT_PROC,), ()) for user in users]
    return (*ways, ())


def _ended(words: Sequence[str], folder: Path, seconds: float) -> Ending:
    environment = {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    with (folder / "stderr").open("wb") as said:
        child = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            code: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # and everything in its session
            child.wait()
    try:
        text = (folder / "stderr").read_bytes()[-MOST_OUTPUT_BYTES:].decode("utf-8", "replace").strip()
    except OSError:
        text = ""
    return Ending(code, text)


JUDGE = "judge"
MOST_ANSWER = 8000  # characters of an answer that a judge reads: about 2,000 tokens
PROMPT = """You grade answers. Judge only whether the answer means the same as the reference.

Question:
{question}

Reference answer:
{reference}

Answer to grade:
{answer}

End with one line that has one word: CORRECT or INCORRECT."""


class Judge:
    """Asks an OpenAI-compatible server for a verdict. A key comes only from the variable that `api_key_env` names:
    the key of the model that is measured is not shown to another server."""

    def __init__(self, model: str, base_url: str, params: Mapping[str, str] | None = None) -> None:
        given = dict(params or {})
        # Without a name of its own the connection would take the key that is meant for the measured server.
        environ: dict[str, str] | None = None if "api_key_env" in given else {}
        self._connection = Connection.of(model, base_url, given, environ=environ)
        self._client = clients.make("openai", self._connection)
        self.model, self.base_url = model, base_url

    def describe(self) -> dict[str, Any]:
        """Who judged and how, for the record."""
        digest = hashlib.sha256(PROMPT.encode()).hexdigest()
        return {"model": self.model, "base_url": self.base_url, "prompt_sha256": digest, "settings": {"temperature": 0}}

    async def health(self) -> str | None:
        """None where it can judge, else why not."""
        try:
            await self._client.health()
        except EverywattError as error:
            return error.message
        return None

    async def judge(self, text: str, item: Item) -> Score:
        """Right or wrong as the judge says; unevaluated where it says nothing."""
        how = f"judge {self.model}"
        prompt = PROMPT.format(question=item.prompt, reference=item.answer or "", answer=text[:MOST_ANSWER])
        answer = await self._client.ask(Ask(prompt, settings={"temperature": 0}, item=item.id))
        if answer.status != OK:
            return Score(UNEVALUATED, None, f"{how}: {answer.error or answer.status}"[:300])
        verdict = verdict_of(answer.text)
        if verdict is None:
            return Score(UNEVALUATED, answer.text[-200:], f"{how}: no verdict in the response")
        return Score(verdict, answer.text.strip()[-200:], how)

    async def close(self) -> None:
        await self._client.close()


def verdict_of(text: str) -> str | None:
    """The last verdict in what a judge wrote.

    >>> verdict_of("It is CORRECT that … but INCORRECT"), verdict_of("hm")
    ('wrong', None)
    """
    found = re.findall(r"\b(INCORRECT|CORRECT)\b", text.upper())
    return None if not found else RIGHT if found[-1] == "CORRECT" else WRONG


CODE = "code"
_FENCE = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def code_of(text: str) -> str | None:
    """The code in an answer: the fenced blocks together, else the whole text where it compiles."""
    blocks = _FENCE.findall(text)
    code = "\n".join(blocks) if blocks else text
    if not code.strip():
        return None
    try:
        compile(code, "answer.py", "exec")
    except (SyntaxError, ValueError):
        return code if blocks else None
    return code


def program(code: str, rules: Mapping[str, Any]) -> str:
    """The answer and the item's tests: `tests` (a text, or several), perhaps `before` it and an `entry_point`, with
    which a function `check` of the tests is called."""
    tests = rules.get("tests", "")
    body = tests if isinstance(tests, str) else "\n".join(str(one) for one in tests)
    parts = [str(rules.get("before", "")), code, body]
    if rules.get("entry_point"):
        name = str(rules["entry_point"])
        if not name.isidentifier():
            raise UsageError(f"entry_point {name!r} is not an identifier.")
        parts.append(f"check({name})")
    return "\n\n".join(part for part in parts if part)


def score_code(text: str, item: Item, sandbox: Sandbox) -> Score:
    """Run the item's tests on the answer. No code in it is unparsed; what fails, breaks or takes too long is wrong."""
    if not item.rules.get("tests"):
        raise UsageError(f"Item {item.id} has no unit tests.", cure='rules: {"tests": "assert …"}')
    code = code_of(text)
    how = f"unit tests ({sandbox.about})"
    if code is None:
        return Score(UNPARSED, None, how)
    ending = sandbox.run(program(code, item.rules), seconds=float(item.rules.get("seconds", MOST_SECONDS)))
    if ending.code == 0:
        return Score(RIGHT, "passed", how)
    last = ending.said.rstrip("\n").rpartition("\n")[2][:200] if ending.said else f"ended with {ending.code}"
    return Score(WRONG, "timed out" if ending.code is None else last, how)


LATER = (JUDGE, CODE)


@dataclass(frozen=True, slots=True)
class Scoring:
    """How answers are judged. `sandbox` is None if code must not run, `judge` is None if no judge was named."""

    judge: Judge | None = None
    sandbox: Sandbox | None = None

    def check(self, items: Sequence[Item]) -> None:
        """UsageError where an item cannot be judged: found out now, not after an hour."""
        for name in dict.fromkeys(item.scorer for item in items if item.scorer is not None):
            if name == JUDGE and self.judge is None:
                raise UsageError("Scoring these answers requires a judge.", cure="--judge-url URL --judge-model NAME")
            if name == CODE and self.sandbox is None:
                raise UsageError(
                    "These answers are code, and running it must be allowed explicitly.", cure="--run-code"
                )
        for item in items:
            if item.scorer is not None and item.scorer not in LATER:
                judges = scorer(item.scorer)
                with border(f"{item.scorer}, the scorer of item {item.id},"):
                    judges(item.answer or "?", item)
        for schema in (item.rules["schema"] for item in items if "schema" in item.rules):
            schema_validator(schema)

    def describe(self) -> dict[str, Any]:
        """Plain data for the record: who judges, and what runs where."""
        return {
            "judge": None if self.judge is None else self.judge.describe(),
            "sandbox": None if self.sandbox is None else self.sandbox.about,
        }

    def at_once(self, answer: Answer, item: Item) -> Score | None:
        """The score of an answer; None if it is not scored, or only later."""
        if item.scorer is None or item.scorer in LATER or answer.status != OK:
            return None
        try:
            return scorer(item.scorer)(answer.text, item)
        except Exception as error:  # noqa: BLE001 - a scorer may be third-party code: its error costs one score
            return Score(UNEVALUATED, None, f"the scorer {item.scorer} failed: {type(error).__name__}: {error}")

    async def later(self, answer: Answer, item: Item) -> Score | None:
        """What `at_once` left open."""
        if answer.status != OK:
            return None
        if item.scorer == JUDGE and self.judge is not None:
            return await self.judge.judge(answer.text, item)
        if item.scorer == CODE and self.sandbox is not None:
            return await asyncio.to_thread(score_code, answer.text, item, self.sandbox)
        return None

    async def close(self) -> None:
        if self.judge is not None:
            await self.judge.close()


def scored_by(items: Sequence[Item], name: str) -> tuple[Item, ...]:
    """The items with another scorer; those without an answer to compare with stay unjudged."""
    if name not in LATER:
        scorer(name)
    return tuple(replace(item, scorer=name) if item.answer is not None or item.rules else item for item in items)
