"""`everywatt batch --executor slurm`: what a task of the array is told. Real arrays are in tests/real."""

import shlex

from everywatt.cli.main import main


def test_a_model_of_power_goes_to_every_task_by_its_whole_path(own_home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.txt").write_text("a\nb\n")
    (tmp_path / "my model.json").touch()
    options = ["--model", "my model.json", "--tag", "who=me", "--no-estimate"]
    words = ["batch", "items.txt", "--executor", "slurm", "--print-script", *options, "--", "echo", "{input}"]
    assert main(words) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " batch " in line and "--model" in line]
    told = shlex.split(line)
    assert told[told.index("--model") + 1] == str(tmp_path / "my model.json")
    assert told[told.index("--tag") + 1] == "who=me" and "--no-estimate" in told
