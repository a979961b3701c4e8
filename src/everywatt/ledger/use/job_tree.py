"""Jobs of Slurm where no cgroup tells them: every process of a step descends from its slurmstepd, which is root's and
is called `slurmstepd: [123.batch]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from everywatt.core.lazy_dataclass import dataclass
from everywatt.ledger.use.facts import ProcessFacts

_TITLE = re.compile(r"slurmstepd: \[(?P<job>\d+)(?:\+\d+)?\.(?P<step>\w+)\]")


@dataclass(slots=True)
class JobTree:
    """The jobs of the processes of one tape, by their parents as of when each was first seen.

    `given` is the job and step of processes (by their place in `processes`) that somebody told of otherwise; it holds
    for their children too.
    """

    processes: Sequence[ProcessFacts]
    given: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    _known: dict[int, tuple[int, str] | None] = field(default_factory=dict)
    _given: dict[int, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known.update(self.given)
        self._given = {id(self.processes[number]): step for number, step in self.given.items()}

    def step_of(self, facts: ProcessFacts) -> tuple[int, str] | None:
        """The job and step that a process descends from, itself included; None where it is in none."""
        if (own := told(facts) or self._given.get(id(facts))) is not None:
            return own
        return None if facts.parent is None else self._of(facts.parent)

    def _of(self, number: int) -> tuple[int, str] | None:
        chain: list[int] = []
        found: tuple[int, str] | None = None
        at: int | None = number
        while at is not None and at not in chain:
            if at in self._known:
                found = self._known[at]
                break
            chain.append(at)
            found = told(self.processes[at])
            if found is not None:
                break
            at = self.processes[at].parent
        for one in chain:
            self._known[one] = found
        return found


def told(facts: ProcessFacts) -> tuple[int, str] | None:
    """The job and step of a slurmstepd. Anybody may take its name: only root's is believed."""
    if facts.uid != 0 or facts.exited:
        return None
    match = _TITLE.match(facts.cmdline or "")
    return (int(match["job"]), match["step"]) if match else None
