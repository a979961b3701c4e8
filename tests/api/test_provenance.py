"""The state of a git repository, as every tape keeps it."""

import subprocess
from pathlib import Path

import pytest

from everywatt.api.provenance import git_state


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=trunk")
    return subprocess.run(["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "deeper").mkdir(parents=True)
    git(folder, "init")
    (folder / "file").write_text("one")
    git(folder, "add", "file")
    git(folder, "commit", "-m", "one")
    return folder


def test_commit_branch_and_changes(repository) -> None:
    commit = git(repository, "rev-parse", "HEAD").strip()
    (repository / "untracked").write_text("does not count")
    assert git_state(repository / "deeper") == {"commit": commit, "branch": "trunk", "dirty": False}
    (repository / "file").write_text("two")
    assert git_state(repository) == {"commit": commit, "branch": "trunk", "dirty": True}
    git(repository, "checkout", "--detach")
    assert git_state(repository) == {"commit": commit, "branch": "HEAD", "dirty": True}


def test_a_repository_without_work_tree_or_commit_and_none(repository, tmp_path) -> None:
    git(tmp_path, "clone", "--bare", str(repository), "bare.git")
    commit = git(repository, "rev-parse", "HEAD").strip()
    assert git_state(tmp_path / "bare.git") == {"commit": commit, "branch": "trunk", "dirty": None}
    (tmp_path / "young").mkdir()
    git(tmp_path / "young", "init")
    assert git_state(tmp_path / "young") is None
    assert git_state(tmp_path) is None
