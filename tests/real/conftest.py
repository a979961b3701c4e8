"""Real services that several tests share; each is started once."""

from __future__ import annotations

import os

import pytest
from slurm_cluster import Options, SlurmCluster, missing


def need_slurm() -> None:
    """Skip where Slurm is not installed; in CI, where it has to be, fail."""
    if absent := missing(accounting=True):
        reason = f"{', '.join(absent)} not installed (make system-packages)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """A Slurm cluster of two nodes with two pretend GPUs each, and accounting. Mark what uses it `serial`."""
    need_slurm()
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), Options(nodes=2, gpus=2, accounting=True)) as cluster:
        yield cluster
