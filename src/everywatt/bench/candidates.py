"""What is compared: commands, each perhaps at several values of a parameter."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everywatt.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Candidate:
    """One command. `words` is what is started, `text` what the user wrote, `label` what tables call it."""

    index: int
    label: str
    text: str
    words: tuple[str, ...]
    params: Mapping[str, str] = field(default_factory=dict)


def candidates(
    commands: Sequence[str],
    *,
    params: Mapping[str, Sequence[str]] | None = None,
    names: Sequence[str] = (),
    shell: bool = False,
) -> tuple[Candidate, ...]:
    """Every command at every combination of parameters; `{n}` in a command stands for the parameter n.

    >>> [c.label for c in candidates(["sleep {n}"], params={"n": ["1", "2"]})]
    ['A n=1', 'A n=2']
    """
    params = params or {}
    unused = [name for name in params if not any("{" + name + "}" in command for command in commands)]
    if unused:
        raise UsageError(f"No command uses the parameter '{unused[0]}'.", cure=f"'… {{{unused[0]}}} …' in a command")
    if len(names) > len(commands):
        raise UsageError(f"{len(names)} names were given for {len(commands)} commands.")
    found: list[Candidate] = []
    for place, command in enumerate(commands):
        name = names[place] if place < len(names) else letter(place)
        used = [key for key in params if "{" + key + "}" in command]
        for values in itertools.product(*(params[key] for key in used)):
            chosen = dict(zip(used, values, strict=True))
            text = _filled(command, chosen)
            label = " ".join([name, *(f"{key}={value}" for key, value in chosen.items())])
            found.append(Candidate(len(found), label, text, words_of(text, shell=shell), chosen))
    return tuple(found)


def words_of(command: str, *, shell: bool = False) -> tuple[str, ...]:
    """The words of a command line; with `shell`, a shell that reads it."""
    if shell:
        return ("/bin/sh", "-c", command)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"The command {command!r} cannot be split into words: {error}.") from None
    if not words:
        raise UsageError("A command is empty.")
    return tuple(words)


def letter(place: int) -> str:
    """A, B, … Z, AA, AB, …"""
    name = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        name = chr(65 + rest) + name
    return name


def parse_values(text: str) -> list[str]:
    """`1,2,4` or a range `1..9:2`, as texts."""
    if ".." in text:
        first, _, rest = text.partition("..")
        last, _, step = rest.partition(":")
        try:
            low, high, stride = (float(first), float(last), float(step or 1))
        except ValueError:
            raise UsageError(f"'{text}' is not a range such as 1..9 or 1..9:2.") from None
        if stride <= 0 or high < low or (high - low) / stride > 10_000:
            raise UsageError(f"'{text}' is not a range that goes up in at most 10,000 steps.")
        count = int((high - low) / stride + 1e-9) + 1
        return [f"{low + stride * place:g}" for place in range(count)]
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise UsageError(f"'{text}' has an empty value.")
    return values


def _filled(command: str, chosen: Mapping[str, str]) -> str:
    for key, value in chosen.items():
        command = command.replace("{" + key + "}", value)
    return command
