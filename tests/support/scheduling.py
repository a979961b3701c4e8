"""How tests are dealt out to the workers of pytest-xdist.

A file stays on one worker, so that what its fixtures make is made once. Files that use the same real server or browser
stay together, so that it is started once. The longest begin first, so that no worker is left alone with one of them.
"""

from __future__ import annotations

from fnmatch import fnmatch

from xdist.scheduler.loadscope import LoadScopeScheduling

# One Slurm cluster with accounting, one Chromium, one start of the time-series engines: pattern → name.
TOGETHER = {
    "tests/real/test_prometheus.py": "engines",
    "tests/real/test_stored_models.py": "engines",
    "tests/real/test_slurm_series.py": "engines",
    "tests/real/test_slurm_*": "slurm",
    "tests/real/test_batch_on_slurm.py": "slurm",
    "tests/real/*_browser.py": "browser",
    "tests/real/test_llm_server.py": "browser",
    "tests/benchmarks/test_honesty.py": "honesty",  # one fixture computes for all its cases, most of a minute
}

# Files whose tests share nothing and take long: each test goes where there is room.
APART = (
    "tests/batch/test_batch.py",
    "tests/benchmarks/*",
    "tests/cli/test_bench_llm.py",
    "tests/cli/test_bench_precision*.py",
    "tests/cli/test_compare.py",
    "tests/cli/test_monitor.py",
    "tests/cli/test_run*.py",
    "tests/deploy/test_ansible.py",
    "tests/models/test_whole_table.py",
    "tests/recorder/test_fault_plans.py",
    "tests/test_examples.py",
)

# Longest first; every file that takes more than about ten seconds.
ORDER = (
    "tests/real/test_slurm_*",
    "tests/real/test_batch_on_slurm.py",
    "tests/real/*_browser.py",
    "tests/real/test_llm_server.py",
    "tests/real/test_model_pipeline.py",
    "tests/models/test_whole_table.py",
    "tests/test_examples.py",
    "tests/cli/test_bench_precision_torch.py",
    "tests/cli/test_bench_train.py",
    "tests/models/test_collect.py",
    "tests/deploy/test_ansible.py",
    "tests/corpus/test_upgrade.py",
    "tests/benchmarks/*",
    "tests/real/test_*",
    "tests/integrations/test_*",
    "tests/fleet/test_agent.py",
    "tests/cli/test_bench_*",
    "tests/cli/test_compare.py",
    "tests/batch/*",
    "tests/cli/test_monitor.py",
    "tests/cli/test_run_faults.py",
    "tests/cli/test_run.py",
    "tests/slurm/node/test_recorder.py",
    "tests/energy/test_paths.py",
    "tests/recorder/test_io_sweep.py",
    "tests/fleet/test_failing_calls.py",
    "tests/slurm/site/*",
    "tests/recorder/test_fault_plans.py",
    "tests/models/test_*",
    "tests/recorder/test_recording.py",
    "tests/fleet/test_sender.py",
    "tests/sim/test_*",
    "tests/cli/test_*",
    "tests/report/live/test_*",
    "tests/stress/*",
    "tests/test_*",
)


def path_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def place(nodeid: str) -> int:
    """Of a test in the queue."""
    return next((number for number, pattern in enumerate(ORDER) if fnmatch(path_of(nodeid), pattern)), len(ORDER))


def unit(nodeid: str) -> str:
    """The tests with the same answer run on one worker, one after the other."""
    path = path_of(nodeid)
    for pattern, name in TOGETHER.items():
        if fnmatch(path, pattern):
            return name
    return nodeid if any(fnmatch(path, pattern) for pattern in APART) else path


class LongestFirst(LoadScopeScheduling):
    """Deals out units in the order in which the workers collected them."""

    def __init__(self, config, log=None) -> None:
        config.option.loadscopereorder = False  # else units with many tests come first, however short they are
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
