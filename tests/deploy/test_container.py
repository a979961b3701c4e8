"""The images cannot be built everywhere: what they copy exists, what they start exists, and the build asks for both."""

import fnmatch
import json
import re
import tomllib
from pathlib import Path

import pytest

import everywatt
from everywatt.cli.agent import command
from everywatt.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "deploy" / "container" / "Containerfile"
FILES = [AGENT, ROOT / "deploy" / "kubernetes" / "stress" / "Containerfile"]
KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "STOPSIGNAL", "ENTRYPOINT", "ARG", "CMD"}


def instructions(path: Path) -> list[tuple[str, str]]:
    """(word, rest) of each instruction, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def copies(path: Path) -> list[str]:
    """What is copied out of the source tree."""
    found = []
    for word, rest in instructions(path):
        if word == "COPY" and not rest.startswith("--from="):
            found += rest.split()[:-1]
    return found


def ignored(name: str) -> bool:
    """Whether the build would not see it: the last rule that fits decides, a leading `!` takes in again."""
    out = False
    for rule in AGENT.with_name("Containerfile.dockerignore").read_text().split():
        pattern = rule.removeprefix("!").removeprefix("**/")
        if fnmatch.fnmatch(name, pattern):
            out = not rule.startswith("!")
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_an_image_can_be_built(path):
    words = instructions(path)
    assert {word for word, _ in words} <= KNOWN
    assert words[0][0] == "FROM"
    for name in copies(path):
        assert (ROOT / name).exists(), name
    bases = [rest.split()[0] for word, rest in words if word == "FROM"]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for base in bases:
        version = re.fullmatch(r"python:(3\.\d+)-slim", base)
        assert version and tuple(map(int, version[1].split("."))) >= tuple(
            map(int, wanted.removeprefix(">=").split("."))
        )
    # What the build reads besides is copied too.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {project["project"]["readme"], *project["project"]["license-files"], "src"} <= set(copies(path))
    ((_, user),) = [entry for entry in words if entry[0] == "USER"]
    assert user == "65532:65532", "not root, in numbers, so that runAsNonRoot can be checked"


def test_the_agent_is_what_starts():
    words = dict(instructions(AGENT))
    assert json.loads(words["ENTRYPOINT"]) == ["everywatt"]
    verb, *arguments = json.loads(words["CMD"])
    assert verb in COMMANDS and verb == "agent"
    given = command.make_context("agent", list(arguments)).params
    made = next(rest for word, rest in instructions(AGENT) if word == "RUN" and "install -d" in rest)
    assert str(given["state"]) in made
    (install,) = [rest for word, rest in instructions(AGENT) if word == "RUN" and "pip install" in rest]
    extra = re.search(r"'\.\[(\w+)\]'", install)
    assert extra
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra[1] in project["optional-dependencies"]
    assert "-c constraints.txt" in install and "constraints.txt" in copies(AGENT)


def test_the_build_sees_what_it_copies_and_little_else():
    assert not [name for name in copies(AGENT) if ignored(name)]
    assert all(ignored(name) for name in (".git", "tests", "docs", "benchmarks", "deploy", "__pycache__"))


def test_versions_agree():
    version = everywatt.__version__
    assert f"everywatt-agent:{version}" in AGENT.read_text()
    yaml = pytest.importorskip("yaml")
    base = yaml.safe_load((ROOT / "deploy/kubernetes/agent/base/kustomization.yaml").read_text())
    assert [image["newTag"] for image in base["images"]] == [version]
    galaxy = ROOT / "deploy/ansible/ansible_collections/everywatt/fleet"
    assert yaml.safe_load((galaxy / "galaxy.yml").read_text())["version"] == version
    assert yaml.safe_load((galaxy / "roles/node/defaults/main.yml").read_text())["everywatt_version"] == version


def test_both_architectures_are_built_and_tried():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "images.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    job = workflow["jobs"]["image"]
    matrix = job["strategy"]["matrix"]
    assert matrix["arch"] == ["amd64", "arm64"]
    assert {ROOT / image["file"] for image in matrix["image"]} == set(FILES)
    for image in matrix["image"]:
        verb, *arguments = image["check"].split()
        assert verb == "--version" or command.make_context(verb, arguments).params["check"] is True
    steps = " ".join(step.get("run", "") for step in job["steps"])
    assert "--platform linux/${{ matrix.arch }}" in steps
    for use in re.findall(r"\$\{\{ matrix\.image\.(\w+) \}\}", steps):
        assert all(use in image for image in matrix["image"])
    pushed = [step for step in job["steps"] if step.get("name") == "Push"]
    assert pushed[0]["if"] == "startsWith(github.ref, 'refs/tags/v') && vars.IMAGE_REGISTRY != ''"
