"""A batch as a Slurm job array: each task works off its own part of the items and records itself.

In the run's folder, which has to be where all nodes see it:

    batch.jsonl                 the items; what became of them, once the parts were collected
    parts/1/array.sh            the script of the first submission; parts/2 is that of a resumed batch
    parts/1/job                 the array's job id
    parts/1/0/batch.jsonl       the journal of task 0, with its tapes and Slurm's output beside it

A task is `everywatt batch --resume` on its part, so one that is requeued goes on where it was.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from everywatt.batch.items import Item
from everywatt.batch.journal import JOURNAL, Journal
from everywatt.batch.plan import Pace, shares
from everywatt.core.errors import EverywattError, UsageError

PARTS, SCRIPT, JOB = "parts", "array.sh", "job"
WARNING_S = 30  # before a time limit
COMMAND_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Array:
    """How to submit: the number of tasks, options for sbatch, and further words of each task's `everywatt batch`."""

    tasks: int
    sbatch: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option in self.sbatch:
            if not option.startswith("-") or "\n" in option:
                raise UsageError(f"'{option}' is not an option of sbatch.", cure="--sbatch=--gres=gpu:1")


def parts(run: Path) -> list[Path]:
    """The submissions of a run, oldest first."""
    found = [path for path in (run / PARTS).glob("*") if path.name.isdigit() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def tasks(part: Path) -> list[Path]:
    """The folders of a submission's tasks, by number."""
    found = [path for path in part.glob("*") if path.name.isdigit() and (path / JOURNAL).exists()]
    return sorted(found, key=lambda path: int(path.name))


def prepare(run: Path, command: Sequence[str], items: Sequence[Item], array: Array, pace: Pace, cwd: Path) -> Path:
    """Make the folders of a submission, with each task's items and the script; gives its folder."""
    earlier = parts(run)
    part = run / PARTS / str(int(earlier[-1].name) + 1 if earlier else 1)
    count = min(array.tasks, len(items))
    for share in shares(items, ["task"] * count, pace):
        folder = part / str(share.lane)
        folder.mkdir(parents=True)
        journal = Journal(folder)
        journal.batch(command, share.items, [], options={})
        if why := journal.close():
            raise EverywattError(why)
    file = part / SCRIPT
    file.write_text(script(part, array, count, cwd), encoding="utf-8")
    file.chmod(0o755)
    return part


def script(part: Path, array: Array, count: int, cwd: Path) -> str:
    place = part.resolve()
    if '"' in str(place) or "%" in str(place):
        raise UsageError(f'{place}: sbatch does not accept " or % in the path of a folder.', cure="set EVERYWATT_HOME")
    words = shlex.join([sys.executable, "-m", "everywatt", "batch", "--on-interrupt", "kill", *array.words])
    head = [
        "#!/bin/bash",
        "#SBATCH --job-name=everywatt-batch",
        f"#SBATCH --array=0-{count - 1}",
        f'#SBATCH --output="{place}/%a/slurm-%A_%a.out"',
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        f"#SBATCH --signal=B:TERM@{WARNING_S}",
        *(f"#SBATCH {option}" for option in array.sbatch),
    ]
    return (
        "\n".join(head) + "\n"
        "# Each task processes its own part of the items, with its own journal: a requeued task continues from "
        "there.\n"
        "set -euo pipefail\n"
        f"part={shlex.quote(str(place))}\n"
        f'printf \'%s\\n\' "${{SLURM_ARRAY_JOB_ID:?submit this with sbatch}}" > "$part/{JOB}"\n'
        f"cd -- {shlex.quote(str(cwd))}\n"
        "# A recorder of its own: Slurm ends everything that a task has started when the task ends.\n"
        f'EVERYWATT_RUNTIME_DIR=$(mktemp -d "${{TMPDIR:-/tmp}}/everywatt-XXXXXX")\n'
        "export EVERYWATT_RUNTIME_DIR\n"
        "trap 'rm -rf -- \"$EVERYWATT_RUNTIME_DIR\"' EXIT\n"
        f'{words} --resume "$part/$SLURM_ARRAY_TASK_ID" &\n'
        "work=$!\n"
        "trap 'kill -TERM \"$work\" 2>/dev/null || true' TERM INT\n"
        "code=0\n"
        'while :; do\n    wait "$work" && code=0 || code=$?\n    kill -0 "$work" 2>/dev/null || break\n'
        "done\n"
        'exit "$code"\n'
    )


def submit(part: Path) -> str:
    """Hand the script to sbatch; gives the job's id. What was prepared is taken back where it is refused."""
    try:
        said = _slurm("sbatch", "--parsable", str(part / SCRIPT))
    except EverywattError:
        shutil.rmtree(part)  # our own, made a moment ago, and nothing ran
        raise
    job = said.strip().split(";")[0]
    (part / JOB).write_text(f"{job}\n", encoding="utf-8")
    return job


def job_of(part: Path) -> str | None:
    """The array's job id; None where it has not been submitted yet."""
    try:
        return (part / JOB).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def in_queue(job: str) -> list[str]:
    """The states of the array's tasks that have not ended, as Slurm names them. EverywattError if squeue fails."""
    try:
        said = _slurm("squeue", "--noheader", f"--jobs={job}", "--array", "--format=%T")
    except EverywattError as error:
        if "Invalid job id" in str(error):
            return []  # forgotten, since it has ended some minutes ago
        raise
    return said.split()


def check_program(name: str) -> None:
    """UsageError where a program of Slurm is not on this machine."""
    if shutil.which(name) is None:
        raise UsageError(
            f"{name} is not installed here.", cure="--executor local, or submit from a node that has Slurm"
        )


def _slurm(program: str, *words: str) -> str:
    check_program(program)
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EverywattError(f"{program} failed: {error}.") from None
    if done.returncode:
        raise EverywattError(f"{program} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}.")
    return done.stdout


@dataclass(slots=True)
class Follow:
    """Counts what tasks have come to, reading only what their journals gained since the last look."""

    part: Path
    done: int = 0
    failed: int = 0
    _at: dict[Path, int] = field(default_factory=dict)

    def look(self) -> None:
        for task in tasks(self.part):
            path = task / JOURNAL
            with path.open("rb") as file:
                file.seek(self._at.get(path, 0))
                data = file.read()
            whole = data.rpartition(b"\n")[0]
            self._at[path] = self._at.get(path, 0) + len(whole) + (1 if whole else 0)
            for line in whole.split(b"\n"):
                if b'"kind": "end"' not in line[:20]:
                    continue
                with suppress(ValueError):
                    record = json.loads(line)
                    self.done += bool(record.get("final")) and record.get("status") == "done"
                    self.failed += bool(record.get("final")) and record.get("status") == "failed"
