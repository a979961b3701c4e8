"""Recording must start at once: what only questions need is not loaded for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_numpy_is_loaded_when_a_run_is_asked_and_not_before():
    code = (
        "import sys; from everywatt import Meter, log, measure, span; early = 'numpy' in sys.modules; "
        "from everywatt import Run, load; print(early, 'numpy' in sys.modules, Run.__name__, load.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["False", "True", "Run", "load"]


def test_the_summary_of_a_run_loads_nothing_that_takes_long_and_is_not_needed():
    # numpy.ma 9 ms (numpy.unique and numpy.median load it), shutil 2 ms: all of it after each measured command.
    tape = Path(__file__).parents[1] / "corpus" / "data" / "runs" / "batch-two"
    code = (
        "import sys; from everywatt import load; from everywatt.report.text import summary; "
        "lines = summary(load(sys.argv[1])); print(len(lines) > 5, *({'numpy.ma', 'shutil'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, tape], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["True"]
