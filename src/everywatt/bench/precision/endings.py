"""How a worker ended, in words, with the known cure."""

from __future__ import annotations

import signal
from collections.abc import Mapping

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
ISA_CURES = ("AVX512_CORE_FP16", "AVX2")
"""ISA limits for oneDNN if the CPU faults on an instruction that it reports as available: first without AMX, then
AVX2."""
MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "failed to allocate")


def died(returncode: int, last_words: str = "") -> str:
    """Why a process that answered no more is gone.

    >>> died(-4)
    'SIGILL: illegal instruction: the CPU does not have it, or reports it and faults on it'
    """
    if returncode >= 0:
        return f"ended with {returncode}" + (f": {last_words}" if last_words else "")
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    why = {
        "SIGILL": "illegal instruction: the CPU does not have it, or reports it and faults on it",
        "SIGKILL": "killed, most likely by the kernel because memory ran out",
        "SIGSEGV": "segmentation fault in a native library",
        "SIGABRT": "aborted by a native library",
        "SIGFPE": "arithmetic fault in a native library",
        "SIGBUS": "memory fault, perhaps because /dev/shm is full",
    }.get(name)
    said = f": {why}" if why else ""
    return f"{name}{said}" + (f" ({last_words})" if last_words and name == "SIGABRT" else "")


def cure(returncode: int) -> str | None:
    """What to try after that ending."""
    if returncode == -signal.SIGILL:
        return f"{ISA_VARIABLE}={ISA_CURES[0]} in the environment"
    if returncode == -signal.SIGKILL:
        return "use a smaller --batch-size, or stop other programs"
    return None


def next_isa(returncode: int, environ: Mapping[str, str]) -> str | None:
    """Another limit to try after an illegal instruction; None where that was not it, or all were tried."""
    if returncode != -signal.SIGILL:
        return None
    current = environ.get(ISA_VARIABLE)
    if current is None:
        return ISA_CURES[0]
    return ISA_CURES[ISA_CURES.index(current) + 1] if current in ISA_CURES[:-1] else None


def explained(kind: str, message: str) -> str:
    """An exception of a worker as one line of a table."""
    text = " ".join(message.split())
    if kind == "MemoryError" or "OutOfMemory" in kind or any(word in text.lower() for word in MEMORY_WORDS):
        return f"out of memory: {_short(text)}" if text else "out of memory"
    return f"{_short(text)}" if kind in ("UsageError", "Unsupported", "MissingExtra") else f"{kind}: {_short(text)}"


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
