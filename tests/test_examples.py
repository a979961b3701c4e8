"""Every example runs as it stands, and ends with a figure that has an interval. The card is simulated: 100 W."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
PLAIN = ["plain.py", "command.sh"]
ML = ["torch_mlp.py", "keras_fit.py", "trainer.py", "lightning_fit.py", "mlflow_run.py", "chunked_inference.py"]
UNITS = {"mJ": 1e-3, "J": 1.0, "kJ": 1e3}
FIGURE = re.compile(
    r"^(?P<label>.+): (?:≈ )?(?P<joules>[\d.]+) (?P<unit>m?J|kJ) .*95 %\) · gpu · counter", re.MULTILINE
)


@pytest.fixture
def environment(sim_machine, tmp_path):
    """A machine with an exact card, runs in a folder of their own, and an `everywatt` on the path."""
    lab = sim_machine(gpus=["constant:100W"], sensor=["period=20ms"])
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in (("everywatt", "-m everywatt"), ("python3", "")):
        file = programs / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        file.chmod(0o755)
    env = lab.environment()
    return env | {
        "EVERYWATT_HOME": str(tmp_path / "runs"),
        "PATH": f"{programs}{os.pathsep}{env['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), env.get("PYTHONPATH", "")])),
        "HF_HUB_OFFLINE": "1",
        "KERAS_BACKEND": "torch",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16",
        "OMP_NUM_THREADS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }


def outcome(name, environment, tmp_path):
    command = ["sh"] if name.endswith(".sh") else [sys.executable]
    done = subprocess.run(
        [*command, str(EXAMPLES / name)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_every_example_is_tried():
    assert sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")) == sorted(PLAIN + ML)


def test_plain_python(environment, tmp_path):
    done = outcome("plain.py", environment, tmp_path)
    labels = [match["label"] for match in FIGURE.finditer(done.stdout)]
    assert labels == ["block", "one round in five", "decorated", "gathered"], done.stdout
    assert len(list((tmp_path / "runs").glob("*/*.tape"))) == 3


def test_a_command(environment, tmp_path):
    done = outcome("command.sh", environment, tmp_path)
    counted, figure = done.stdout.splitlines()
    assert counted == "counted to 200000"
    joules, low, high = map(float, re.findall(r"[\d.]+", figure))
    assert 0 <= low <= joules <= high and joules > 0
    assert "± " in done.stderr, "the summary of run is on stderr"


@pytest.mark.ml
@pytest.mark.parametrize("name", ML)
def test_with_a_framework(name, environment, tmp_path):
    done = outcome(name, environment, tmp_path)
    found = {m["label"]: float(m["joules"]) * UNITS[m["unit"]] for m in FIGURE.finditer(done.stdout)}
    assert found, done.stdout
    assert all(joules > 0 for joules in found.values())
    if "epoch 0" in found:
        assert sum(found[f"epoch {number}"] for number in range(3)) <= found["all"] * 1.05
    if name == "chunked_inference.py":
        assert set(found) == {"birds", "power", "all", "energy"}
        assert sum(found[chunk] for chunk in found if chunk not in ("all", "energy")) <= found["all"] * 1.05
        assert "is answered in the chunk: power" in done.stdout
