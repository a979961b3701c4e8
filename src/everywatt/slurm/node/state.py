"""What a node knows of its jobs: the account of each, the state file, replaced whole, and the record for the store."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from everywatt.core.budget import Bound, Budget, Term
from everywatt.core.device import is_gpu
from everywatt.core.energy import join_labels
from everywatt.core.errors import EverywattError
from everywatt.core.files import replace_text
from everywatt.ledger.engine import UJ
from everywatt.ledger.idle import Idle
from everywatt.slurm.node.node_jobs import NodeJob
from everywatt.slurm.node.spool import STATE as STATE
from everywatt.slurm.schema import DeviceEnergy, GpuUse, JobOnNode, NodeHour, StepEnergy


def _zeros() -> defaultdict[str, float]:
    return defaultdict(float)


@dataclass(slots=True)
class Account:
    """What one job owes so far on this node."""

    own_uj: Counter[str] = field(default_factory=Counter)
    idle_uj: Counter[str] = field(default_factory=Counter)
    steps_uj: Counter[str] = field(default_factory=Counter)
    steps_s: dict[str, list[float]] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    idle_budgets: dict[str, Budget] = field(default_factory=dict)  # of its share of idle, by device
    steps_budgets: dict[str, Budget] = field(default_factory=dict)
    observed_s: float = 0.0
    covered_s: float = 0.0
    unseen_s: defaultdict[str, float] = field(default_factory=_zeros)  # by device, of the time that the job was there
    cpu_s: float | None = None
    memory_peak_bytes: int | None = None
    gpu_busy_s: defaultdict[str, float] = field(default_factory=_zeros)
    gpu_known_s: defaultdict[str, float] = field(default_factory=_zeros)
    gpu_memory_bytes: dict[str, int] = field(default_factory=dict)  # the most
    memory_byte_s: float | None = None  # bytes times seconds, for the mean
    gpu_memory_byte_s: dict[str, list[float]] = field(default_factory=dict)  # the same by GPU, and the seconds
    pedigree: str = ""
    hours_uj: Counter[str] = field(default_factory=Counter)  # by hour and device; of a job that nothing is known of yet
    hours_low_uj: Counter[str] = field(default_factory=Counter)
    hours_high_uj: Counter[str] = field(default_factory=Counter)
    charged_s: float = 0.0  # up to when (UTC) that was charged

    def charge(self, device: str, uj: int, budget: Budget) -> None:
        """Add what the job used of a device, with what is not sure of it."""
        self.own_uj[device] += uj
        self.doubt(device, budget)

    def doubt(self, device: str, budget: Budget) -> None:
        """Add what is not sure of what the job used of a device."""
        _add(self.budgets, device, budget)

    def charge_idle(self, device: str, uj: int, budget: Budget) -> None:
        """Add the job's share of the idle energy of a device."""
        self.idle_uj[device] += uj
        _add(self.idle_budgets, device, budget)

    def charge_step(self, step: str, uj: int, budget: Budget) -> None:
        """Add what a step of the job used."""
        self.steps_uj[step] += uj
        _add(self.steps_budgets, step, budget)

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        for name in BUDGETS:
            data[name] = {
                key: {
                    "terms": [[*t[:3], *([t.freedom] if t.freedom < math.inf else [])] for t in budget.terms],
                    "bounds": [[b.source, b.key, b.below, b.above] for b in budget.bounds],
                }
                for key, budget in data[name].items()
            }
        return data

    @classmethod
    def of_dict(cls, data: Mapping[str, Any]) -> Account:
        account = cls()
        for name in (name for name in cls.__slots__ if name in data and name not in BUDGETS):
            there = getattr(account, name)
            if isinstance(there, dict):
                there.update(data[name])
            else:
                setattr(account, name, data[name])
        for name in BUDGETS:
            for key, budget in data.get(name, {}).items():
                terms = tuple(Term(*term) for term in budget["terms"])
                getattr(account, name)[key] = Budget(terms, tuple(Bound(*bound) for bound in budget["bounds"]))
        return account

    def adopt(self, late: Account) -> None:
        """Take over what was charged before it was known whose it is."""
        self.own_uj.update(late.own_uj)
        for step, uj in late.steps_uj.items():
            self.charge_step(step, uj, late.steps_budgets.get(step, Budget()))
        for step, (start_s, end_s) in late.steps_s.items():
            there = self.steps_s.get(step, [start_s, end_s])
            self.steps_s[step] = [min(there[0], start_s), max(there[1], end_s)]
        for device, budget in late.budgets.items():
            self.doubt(device, budget)
        if late.cpu_s is not None:
            self.cpu_s = (self.cpu_s or 0.0) + late.cpu_s
        self.memory_peak_bytes = max(self.memory_peak_bytes or 0, late.memory_peak_bytes or 0) or None
        self.pedigree = join_labels(label for label in (self.pedigree, late.pedigree) if label)


BUDGETS: Final = ("budgets", "idle_budgets", "steps_budgets")


def _add(budgets: dict[str, Budget], key: str, more: Budget) -> None:
    budgets[key] = budgets.get(key, Budget()) + more


def ends_uj(uj: int, budget: Budget) -> tuple[int, int]:
    """The ends of the 95 % interval of an amount, in microjoules."""
    below_j, above_j = budget.sides()
    return max(uj - round(below_j * UJ), 0), uj + round(above_j * UJ)


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
    folders: list[str] = field(default_factory=list)  # of tapes, oldest first: what is not booked yet is in them
    recorded: list[str] = field(default_factory=list)  # runs of jobs that are in the store, the last ones
    late: dict[str, Account] = field(default_factory=dict)  # of jobs (by id) that no hook has reported yet

    @classmethod
    def read(cls, path: Path) -> State:
        """From disk; a state that is broken is put aside, and an empty one given. EverywattError where the file cannot
        be read: an empty one would forget what jobs have used so far.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            made = {
                "jobs": [NodeJob(**job) for job in data["jobs"]],
                "hours": [NodeHour(**hour) for hour in data["hours"]],
                "idle": {label: Idle(**idle) for label, idle in data["idle"].items()},
                "accounts": {key: Account.of_dict(account) for key, account in data["accounts"].items()},
                "late": {key: Account.of_dict(account) for key, account in data.get("late", {}).items()},
                "folders": data.get("folders", [data.get("folder", "")]),  # an earlier version kept one
            }
            return cls(**{name: data[name] for name in cls.__slots__ if name in data} | made)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise EverywattError(f"{path} cannot be read: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError):
            path.replace(path.with_suffix(".bad"))
            return cls()

    def write(self, path: Path) -> None:
        """To disk, whole or not at all."""
        data = {name: getattr(self, name) for name in self.__slots__} | {
            "jobs": [job.to_dict() for job in self.jobs],
            "hours": [asdict(hour) for hour in self.hours],
            "idle": {label: asdict(idle) for label, idle in self.idle.items()},
            "accounts": {key: account.to_dict() for key, account in self.accounts.items()},
            "late": {key: account.to_dict() for key, account in self.late.items()},
        }
        replace_text(path, json.dumps(data), durable=True)


# What a record has of its job as it is.
COPIED: Final = tuple(
    f.name for f in fields(JobOnNode) if f.name in NodeJob.__slots__ and f.name not in ("end_s", "gpus")
)
NOT_SEEN: Final = (
    "none of its processes was observed, and it used no GPU: too short, recorded by nothing while it ran, "
    "or its processes are not in a Slurm cgroup"
)
NOTHING: Final = "nothing was recorded while it ran"
MOST_POWER: Final = 2.0  # of its mean while it was observed: what a job may have drawn while it was not


def record(
    job: NodeJob,
    account: Account | None,
    devices: Mapping[str, tuple[str, str]],
    scope: str,
    uuids: Mapping[str, str] | None = None,
) -> JobOnNode:
    """The row of a job that has ended. `devices` gives domain and source of each, `scope` what they cover.

    `uuids` names GPUs; one of unknown UUID goes by its number.
    """
    uuids = uuids or {}
    end_s = job.end_s if job.end_s is not None else job.start_s
    length_s = max(end_s - job.start_s, 0.0)
    account = _with_unseen(_without_suspension(job, account or Account()), length_s)
    own_uj = sum(account.own_uj.values())
    refused = None
    if not account.observed_s and not own_uj:
        refused = NOTHING  # what its processes were charged with is its own, also where its start was not reported
    elif not account.own_uj:
        refused = NOT_SEEN
    low_uj, high_uj = ends_uj(own_uj, Budget.sum(account.budgets.values()))
    idle_uj = sum(account.idle_uj.values())
    idle_low_uj, idle_high_uj = ends_uj(idle_uj, Budget.sum(account.idle_budgets.values()))
    cards = job.devices
    gpus = tuple(
        _gpu(card, uuids.get(card, card), account, length_s) for card in cards if account.gpu_known_s.get(card)
    )
    facts: dict[str, Any] = {name: getattr(job, name) for name in COPIED}
    return JobOnNode(
        **facts,
        end_s=end_s,
        gpus=(*(uuids.get(card, card) for card in cards), *job.slices),
        energy_uj=None if refused else own_uj,
        low_uj=None if refused else low_uj,
        high_uj=None if refused else high_uj,
        idle_uj=idle_uj if account.observed_s else None,
        idle_low_uj=idle_low_uj if account.observed_s else None,
        idle_high_uj=idle_high_uj if account.observed_s else None,
        coverage=min(account.covered_s / length_s, 1.0) if length_s else 0.0,
        pedigree=account.pedigree,
        scope=scope,
        refused=refused,
        devices=tuple(_device(name, account, devices) for name in sorted({*account.own_uj, *account.idle_uj})),
        cpu_s=account.cpu_s,
        memory_peak_bytes=account.memory_peak_bytes,
        gpu_use=gpus,
        steps=tuple(_step(step, uj, account) for step, uj in sorted(account.steps_uj.items())),
        waste_uj=_waste_uj(job, account, gpus, length_s) if account.observed_s else None,
        gpu_utilisation=sum(gpu.mean_utilisation for gpu in gpus) / len(gpus) if gpus else None,
        memory_mean_bytes=_mean(account.memory_byte_s, account.observed_s),
        gpu_memory_mean_bytes=_gpu_mean_bytes(account),
    )


def running(state: State, now_s: float) -> list[JobOnNode]:
    """Jobs of a node that run, as their records would be had they ended when the tape was last charged to them."""
    as_of_s = now_s if state.booked_s is None else min(now_s, state.booked_s)
    jobs = [replace(job, end_s=max(as_of_s, job.start_s)) for job in state.jobs if job.end_s is None]
    return [record(job, state.accounts.get(job.key), {}, "") for job in jobs]


def _mean(total: float | None, seconds: float) -> int | None:
    return None if total is None or seconds <= 0 else round(total / seconds)


def _gpu_mean_bytes(account: Account) -> int | None:
    means = [_mean(*held) for held in account.gpu_memory_byte_s.values()]
    known = [mean for mean in means if mean is not None]
    return sum(known) if known else None


def _waste_uj(job: NodeJob, account: Account, gpus: Sequence[GpuUse], length_s: float) -> int:
    """Idle power of what was allocated and not used: of CPUs by the CPU time that they did not give, of GPUs by the
    time that they were idle. Where use is not known nothing is called waste.
    """
    allocated_s = (job.cpus or 0.0) * length_s
    unused = 1.0 - min(account.cpu_s / allocated_s, 1.0) if account.cpu_s is not None and allocated_s else 0.0
    machine_uj = sum(uj for device, uj in account.idle_uj.items() if not is_gpu(device))
    return round(machine_uj * unused + sum(gpu.idle_uj * gpu.idle_s for gpu in gpus) / max(length_s, 1e-9))


def _device(name: str, account: Account, devices: Mapping[str, tuple[str, str]]) -> DeviceEnergy:
    own_uj, idle_uj = account.own_uj.get(name, 0), account.idle_uj.get(name, 0)
    own = (own_uj, *ends_uj(own_uj, account.budgets.get(name, Budget())))
    idle = (idle_uj, *ends_uj(idle_uj, account.idle_budgets.get(name, Budget())))
    return DeviceEnergy(name, *devices.get(name, ("", "")), *own, *idle)


def _step(step: str, own_uj: int, account: Account) -> StepEnergy:
    start_s, end_s = account.steps_s[step]
    return StepEnergy(step, start_s, end_s, own_uj, *ends_uj(own_uj, account.steps_budgets.get(step, Budget())))


def _gpu(name: str, uuid: str, account: Account, length_s: float) -> GpuUse:
    """How a card was used; what is known of a part of the time is taken for all of it."""
    share = min(account.gpu_busy_s[name] / account.gpu_known_s[name], 1.0)
    peak_bytes = account.gpu_memory_bytes.get(name)
    return GpuUse(uuid, share, length_s * (1.0 - share), account.idle_uj.get(name, 0), peak_bytes)


def _with_unseen(account: Account, length_s: float) -> Account:
    """The account, its interval wide enough for what no sensor saw: none of it, or at twice the power of the rest."""
    missed_s = max(length_s - account.observed_s, 0.0)
    longest_s = max(account.unseen_s.values(), default=0.0)  # of a step it is not known which devices it used

    def widened(amounts_uj: Mapping[str, int], budgets: Mapping[str, Budget], steps: bool = False) -> dict[str, Budget]:
        found = dict(budgets)
        for key, uj in amounts_uj.items():
            unseen_s = (longest_s if steps else account.unseen_s.get(key, 0.0)) + missed_s
            if uj > 0 and unseen_s > 0 and length_s > unseen_s:
                _add(found, key, unseen_budget(key, uj, length_s - unseen_s, unseen_s))
        return found

    return replace(
        account,
        budgets=widened(account.own_uj, account.budgets),
        idle_budgets=widened(account.idle_uj, account.idle_budgets),
        steps_budgets=widened(account.steps_uj, account.steps_budgets, steps=True),
    )


def unseen_budget(key: str, uj: int, seen_s: float, unseen_s: float) -> Budget:
    """What an amount of some time may have been more, if nothing is known of some more time."""
    return Budget((), (Bound("unseen", f"{key} unseen", 0.0, MOST_POWER * uj / UJ / seen_s * unseen_s),))


def _without_suspension(job: NodeJob, account: Account) -> Account:
    """While a job is suspended its CPUs and GPUs are others' to use: their idle power is not the job's then."""
    length_s = (job.end_s or job.start_s) - job.start_s
    if not job.suspended_s or length_s <= 0:
        return account
    share = max(1.0 - job.suspended_s / length_s, 0.0)
    idle_uj = Counter({device: round(uj * share) for device, uj in account.idle_uj.items()})
    budgets = {device: budget.scaled(share) for device, budget in account.idle_budgets.items()}
    return replace(account, idle_uj=idle_uj, idle_budgets=budgets)
