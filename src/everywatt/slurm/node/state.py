"""What a node knows of its jobs and has not recorded yet: one file beside the spool, replaced whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from everywatt.core.errors import EverywattError
from everywatt.core.files import replace_text
from everywatt.ledger.idle import Idle
from everywatt.slurm.node.account import Account
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.schema import NodeHour

STATE: Final = "node.json"


@dataclass(slots=True)
class State:
    """What a node knows of its jobs; `booked_s` is the UTC time up to which the tape was charged."""

    jobs: list[NodeJob] = field(default_factory=list)
    accounts: dict[str, Account] = field(default_factory=dict)
    booked_s: float | None = None
    hours: list[NodeHour] = field(default_factory=list)
    boot: str = ""
    seen_s: float = 0.0
    idle: dict[str, Idle] = field(default_factory=dict)
    uuids: dict[str, str] = field(default_factory=dict)
    folder: str = ""  # the tapes that were booked last: of a recorder that was killed their end is still to come
    recorded: list[str] = field(default_factory=list)  # runs of jobs that are in the store, the last ones
    late: dict[str, Account] = field(default_factory=dict)  # of jobs (by id) of which no hook has told yet

    @classmethod
    def read(cls, path: Path) -> State:
        """From disk; a state that is broken is put aside and begun anew. EverywattError where the file cannot be read:
        to begin anew would forget what jobs have used so far.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                [NodeJob(**job) for job in data["jobs"]],
                {key: Account.of_dict(account) for key, account in data["accounts"].items()},
                data["booked_s"],
                [NodeHour(**hour) for hour in data["hours"]],
                data["boot"],
                data["seen_s"],
                {label: Idle(**idle) for label, idle in data["idle"].items()},
                data.get("uuids", {}),
                data.get("folder", ""),
                data.get("recorded", []),
                {job_id: Account.of_dict(account) for job_id, account in data.get("late", {}).items()},
            )
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise EverywattError(f"{path} cannot be read: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError):
            path.replace(path.with_suffix(".bad"))
            return cls()

    def write(self, path: Path) -> None:
        """To disk, whole or not at all."""
        data: dict[str, Any] = {
            "jobs": [job.to_dict() for job in self.jobs],
            "accounts": {key: account.to_dict() for key, account in self.accounts.items()},
            "booked_s": self.booked_s,
            "hours": [asdict(hour) for hour in self.hours],
            "boot": self.boot,
            "seen_s": self.seen_s,
            "idle": {label: asdict(idle) for label, idle in self.idle.items()},
            "uuids": self.uuids,
            "folder": self.folder,
            "recorded": self.recorded,
            "late": {job_id: account.to_dict() for job_id, account in self.late.items()},
        }
        replace_text(path, json.dumps(data), durable=True)
