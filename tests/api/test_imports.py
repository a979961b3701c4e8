"""Recording must start at once: what only questions need is not loaded for it."""

from __future__ import annotations

import subprocess
import sys


def test_numpy_is_loaded_when_a_run_is_asked_and_not_before():
    code = (
        "import sys; from everywatt import Meter, log, measure, span; early = 'numpy' in sys.modules; "
        "from everywatt import Run, load; print(early, 'numpy' in sys.modules, Run.__name__, load.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["False", "True", "Run", "load"]
