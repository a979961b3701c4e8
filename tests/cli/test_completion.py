"""The completion scripts, tried in a real shell where there is one."""

import os
import shutil
import subprocess
import sys

import pytest

from everywatt.cli.config import SHELLS
from everywatt.cli.main import COMMANDS, main


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_calls_everywatt(shell, capsys):
    assert main(["completion", shell]) == 0
    out, err = capsys.readouterr()
    assert f"_EVERYWATT_COMPLETE={shell}_complete" in out and err == ""


def complete(words: str, at: int) -> list[str]:
    environ = {**os.environ, "_EVERYWATT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    command = [sys.executable, "-m", "everywatt"]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=240)
    return [line.split(",", 1)[1] for line in result.stdout.splitlines()]


def test_words_are_completed():
    assert complete("everywatt ", 1) == list(COMMANDS)
    assert complete("everywatt sen", 1) == ["sensors"]
    assert complete("everywatt config ", 2) == ["show"]
    assert "--json" in complete("everywatt sensors --", 2)
    assert complete("everywatt completion f", 2) == ["fish"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_takes_the_script(tmp_path):
    program = tmp_path / "everywatt"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m everywatt "$@"\n')
    program.chmod(0o755)
    script = """
    eval "$(everywatt completion bash)"
    COMP_WORDS=(everywatt compl) COMP_CWORD=1
    _everywatt_completion everywatt
    echo "${COMPREPLY[@]}"
    """
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, timeout=240)
    assert (result.stdout, result.stderr) == ("completion\n", "")
