"""What imports share: where the run goes, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everywatt.api.run import Run, load
from everywatt.cli.common.output import Output, program
from everywatt.cli.common.progress import Tell, task
from everywatt.core.clocks import SystemClock
from everywatt.core.config import resolve
from everywatt.report.text import summary
from everywatt.tape.run_store import home as runs_home
from everywatt.tape.run_store import new_run

MANY = 10  # a summary looks at every device of every tape, several times


@contextmanager
def imported(output: Output, out: Path | None, name: str, what: str) -> Iterator[tuple[Path, Tell]]:
    """Yields where to write a tape and a function to report progress; then prints what the run contains.

    Without `out` it is a new run of that name, in a folder `out` that is there too. Where nothing comes of it, no
    empty run is left.
    """
    made = out is None or out.is_dir()
    if out is None:
        home = runs_home(resolve().home)
        if home.why:
            output.warn(home.why)
        folder = new_run(home.path, name, SystemClock.utc_ns())
    else:
        folder = new_run(out, name, SystemClock.utc_ns()) if made else out
    target = folder / "import-0001.tape" if made else folder
    try:
        with task(output, what) as tell:
            yield target, tell
    except BaseException:
        if made:
            folder.rmdir()  # nothing came of it, and an empty run would be `last`
        raise
    run = load(folder)
    energy, odd = run.energy(), _oddities(run)
    told = {"name": run.name, "path": str(run.path), "energy": energy.to_dict(), "oddities": odd}
    output.json("import", told)
    for sentence in odd:
        output.warn(sentence)
    output.text(str(folder))
    if len(run.tapes) > MANY:
        output.say(f"energy  {energy}")
        output.say(f"{len(run.tapes)} tapes; for details: {program()} show {folder if out else run.name}")
        return
    for line in summary(run):
        output.say(line)


def _oddities(run: Run) -> list[str]:
    """What the files held that did not become a number, or became another one, counted by whoever read them."""
    metas = [tape.meta for tape in run.tapes]
    torn = sum(int(meta.get("torn_lines", 0)) for meta in metas)
    torn += max((int(meta.get("odd_lines", 0)) for meta in metas), default=0)  # of all nodes' one file
    swapped = sum(int(meta.get("swapped_fields", 0)) for meta in metas)
    found = [sentence for meta in metas for sentence in meta.get("oddities", ())]
    if torn:
        found.append(f"{torn} line{'s' if torn > 1 else ''} could not be read and gave no readings")
    if swapped:
        found.append(f"utilisation and memory were swapped {swapped} times; corrected")
    return found
