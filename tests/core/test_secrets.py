"""Secrets in command lines are masked before they are stored, and nothing else is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from virtual_world import VirtualWorld

from everywatt.api.meter import Meter
from everywatt.recorder import channel

SECRET = "hunter2secret"
HIDDEN = [
    [f"--password={SECRET}"],
    ["--password", SECRET],
    ["--api-key", SECRET],
    [f"--apiKey={SECRET}"],
    ["-token", SECRET],
    [f"token={SECRET}"],
    ["env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "aws"],
    ["env", f"OPENAI_API_KEY={SECRET}"],
    ["sh", "-c", f"export DB_PASSWORD='{SECRET}'; ./run --token {SECRET} x"],
    [f"postgres://ada:{SECRET}@db.example/x"],
    [f"https://api.example/v1?model=a&access_token={SECRET}&n=1"],
    ["curl", "-H", f"Authorization: Bearer {SECRET}"],
    ["curl", "-H", f"X-Api-Key: {SECRET}"],
    ["login", "ghp_" + SECRET * 3],
    ["login", "sk-proj-" + SECRET * 3],
]
SHOWN = [
    ["python", "train.py", "--max-tokens=100", "--tokenizer", "gpt2", "--key", "a", "--epochs", "3"],
    ["--num_tokens", "5", "--author=ada", "--keyboard=de", "--monkey", "x"],
    ["git", "clone", "https://example.org/a@b", "git@example.org:a/b.git"],
    ["sort", "--key=2", "--token-file", "x"],
    ["--password"],
    ["--password", "--verbose"],
]


@pytest.mark.parametrize("words", HIDDEN, ids=str)
def test_secrets_are_masked(words: list[str]) -> None:
    from everywatt.core.secrets import mask_text, mask_words

    for found in (" ".join(mask_words(words)), mask_text(" ".join(words))):
        assert SECRET not in found and "***" in found
    assert len(mask_words(words)) == len(words)


@pytest.mark.parametrize("words", SHOWN, ids=str)
def test_what_is_no_secret_stays(words: list[str]) -> None:
    from everywatt.core.secrets import mask_text, mask_words

    assert mask_words(words) == words
    assert mask_text(" ".join(words)) == " ".join(words)


@pytest.mark.parametrize("kept", [False, True])
def test_a_run_keeps_secrets_only_where_a_setting_says_so(tmp_path: Path, kept: bool) -> None:
    import everywatt.api.meter as module
    from everywatt.api.provenance import provenance

    with VirtualWorld(tmp_path) as world:
        world.patch.setattr(module, "provenance", provenance)
        if kept:
            world.patch.setenv("EVERYWATT_MASK_SECRETS", "false")
        meter = Meter("work", sensors=["virtual"], estimate=False).start(command=["x", f"--password={SECRET}"])
        world.sleep(0.5)
        command = meter.stop().meta["command"]
        assert command == ["x", f"--password={SECRET}" if kept else "--password=***"]


def test_a_tape_that_a_program_writes_itself_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with VirtualWorld(tmp_path) as world:
            world.patch.setattr(channel, "start", lambda patience: (_ for _ in ()).throw(OSError("no process")))
            with Meter("work", sensors=["virtual"], estimate=False) as meter:
                world.sleep(0.5)
            (tape,) = meter.run.tapes
            assert stat.S_IMODE(tape.path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
