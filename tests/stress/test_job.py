"""The Kubernetes job: valid for the API server, one pod, and its command and program are ones that exist."""

import importlib.util
from pathlib import Path

import pytest
from loads import needed

from everywatt.cli.stress import command
from everywatt.stress import load_program
from everywatt.stress.playing import needed_bytes

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "stress"
GIB = 2**30


@pytest.fixture(scope="module")
def job():
    needed(importlib.util.find_spec("yaml"), "pyyaml is not installed")
    import yaml

    return yaml.safe_load((FOLDER / "job.yaml").read_text())


def test_the_api_server_would_take_it(job):
    needed(importlib.util.find_spec("kubernetes_validate"), "kubernetes-validate is not installed")
    import kubernetes_validate

    kubernetes_validate.validate(job, "1.30", strict=True)
    job["spec"]["template"]["spec"]["nonsense"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.30", strict=True)


def test_one_pod_that_ends(job):
    spec = job["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (1, 1, 0)
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never" and len(pod["containers"]) == 1
    assert load_program(FOLDER / "program.toml").duration_s < spec["activeDeadlineSeconds"]


def test_its_command_is_one(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["everywatt", "stress"]
    words = [word if word != "/program/program.toml" else "program.toml" for word in container["command"][2:]]
    parsed = command.make_context("stress", list(words))
    assert parsed.params["record"] is False and parsed.params["disk_folder"] == "/scratch"


def test_its_program_fits_into_its_limits(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    program = load_program(FOLDER / "program.toml")
    assert program.duration_s == pytest.approx(390.0)
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "2Gi", "ephemeral-storage": "1Gi"}
    assert max(step.cpu.cores for step in program.steps) == 2
    assert needed_bytes(program) < 1.75 * GIB, "also where the caches are as large as they get"
