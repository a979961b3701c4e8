"""What a run of `bench llm` asks, of whom and how: one value, kept as `llm.json` beside the tape."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from everywatt.bench.llm.compute import Facts
from everywatt.bench.llm.loads import Level
from everywatt.core.errors import UsageError
from everywatt.core.files import replacing
from everywatt.core.jsonio import SCHEMA, ToDict, dumps

PLAN = "llm.json"
KEPT = ("model", "base_url", "client_params", "settings", "system", "max_queries", "scorer", "mask", "server_tape")
SAME = ("client", "model", "dataset", "settings", "system", "levels", "scorer", "mask")
"""What a run that goes on must ask as before."""


@dataclass(frozen=True, slots=True)
class Questions(ToDict):
    """A data set in the record: `items` are all that it has, and the same `sha256` means the same ones."""

    name: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    items: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ServerTape(ToDict):
    """The tape of the server's own host, and how many seconds at most the clocks of the two hosts are apart."""

    path: str
    skew_s: float


@dataclass(frozen=True)
class LlmPlan(ToDict):
    """One run. It has no secret in it.

    client     what the client says of itself; `client` in it is its name
    mask       records keep hashes instead of prompts, references, columns and answers
    no_energy  why there can be no energy; None where it is measured
    boundary   whose energy it is: `server` or `machine`; covered: the same of an imported profile
    facts      what is known of model and hardware
    """

    JSON = (
        "schema kind model base_url client client_params timeouts_s dataset max_queries settings system scorer mask "
        "server_tape levels loads no_energy server_pids boundary scoring facts serve imported_from covered warnings"
    )
    schema: ClassVar[str] = SCHEMA
    kind: ClassVar[str] = "llm-plan"

    model: str = ""
    base_url: str = ""
    client: Mapping[str, Any] = field(default_factory=lambda: {"client": "unknown"})
    client_params: Mapping[str, str] = field(default_factory=dict)
    timeouts_s: tuple[float, ...] = ()
    dataset: Questions = Questions()
    max_queries: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    scorer: str | None = None
    mask: bool = False
    server_tape: ServerTape | None = None
    loads: tuple[Level, ...] = ()
    no_energy: str | None = None
    server_pids: tuple[int, ...] = ()
    boundary: str = "server"
    scoring: Mapping[str, Any] = field(default_factory=dict)
    facts: Facts = Facts()  # noqa: RUF009 - it is frozen
    serve: str | None = None
    imported_from: str | None = None
    covered: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def levels(self) -> list[str]:
        return [level.label for level in self.loads]

    @property
    def model_name(self) -> str:
        """What to call the model: servers of files call it by the whole path."""
        name = self.model or str(self.client["client"])
        return name.rpartition("/")[2] or name if name.startswith("/") else name

    @property
    def dataset_name(self) -> str:
        """What to call the data set: a file by its name alone."""
        return self.dataset.name.rpartition("/")[2] or self.dataset.name

    def as_before(self, old: LlmPlan) -> LlmPlan:
        """This plan for a run that goes on: what is not given again is as the old one has it."""
        if old.imported_from:
            raise UsageError(
                f"That run was imported from {old.imported_from} and cannot be resumed.",
                cure="everywatt report RUN, or everywatt bench leaderboard RUN",
            )
        asked = self.dataset
        return replace(
            self,
            client=old.client if self.client["client"] == "openai" else self.client,
            dataset=Questions(asked.name or old.dataset.name, asked.params or old.dataset.params),
            loads=self.loads or old.loads,
            facts=old.facts,
            **{name: getattr(self, name) or getattr(old, name) for name in KEPT},
        )

    def continued(self, new: LlmPlan, name: str) -> LlmPlan:
        """The plan of a run that goes on as `new` asks: whose energy it is was settled when it began; what became
        known since is taken over. UsageError where `new` asks something else."""
        wrong = [one for one in SAME if getattr(self, one) != getattr(new, one)]
        if wrong:
            raise UsageError(f"{name} used other options: {', '.join(wrong)} differ.")
        return replace(self, facts=new.facts, scoring=new.scoring, server_tape=new.server_tape)

    def again(self, name: str) -> str:
        """The command that resumes this run. A server that it started is named again, as no command of a run folder is
        executed."""
        return f"everywatt bench llm --resume {name}" + (f" --serve {shlex.quote(self.serve)}" if self.serve else "")

    def write(self, folder: Path) -> None:
        """Keep it beside the tape, readable by its owner alone: a system prompt may be in it."""
        with replacing(folder / PLAN) as part:
            part.touch(mode=0o600)
            part.write_text(dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> LlmPlan:
        """What a run asked; UsageError where it is not a run of a language model."""
        try:
            data = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UsageError(f"{folder.name} is not a run of `bench llm`.", cure="everywatt list") from None
        try:
            return cls._from_dict(data)
        except (TypeError, KeyError, AttributeError):
            raise UsageError(f"{folder.name}/{PLAN} is damaged.") from None

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> LlmPlan:
        """Files of older versions know less."""
        known = {one.name: data[one.name] for one in fields(cls) if data.get(one.name) is not None}
        for name in ("timeouts_s", "server_pids", "warnings"):
            known[name] = tuple(known.get(name, ()))
        known["loads"] = tuple(Level(**one) for one in known.get("loads", ()))
        known["dataset"] = Questions(**known.get("dataset", {}))
        known["facts"] = Facts.from_dict(known.get("facts", {}))
        tape = known.get("server_tape")
        return cls(**{**known, "server_tape": None if tape is None else ServerTape(**tape)})
