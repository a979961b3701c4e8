"""The Ansible collection, played for real on this machine, each host in a folder of its own."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from loads import needed

import everywatt
from everywatt.doctor.permissions import TMPFILES_PATH, TMPFILES_TEXT, UDEV_PATH, UDEV_TEXT
from everywatt.fleet.options import combine
from everywatt.slurm.node.hooks import NAME, agent_unit

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.timeout(900)  # a play starts some dozens of programs, whatever else the machine does
ROOT = Path(__file__).resolve().parents[2]
PLAIN_PYTHON = getattr(
    sys, "_base_executable", sys.executable
)  # modules start it dozens of times, and need no packages
ANSIBLE = ROOT / "deploy" / "ansible"
COLLECTION = ANSIBLE / "ansible_collections" / "everywatt" / "fleet"
ROLE = COLLECTION / "roles" / "node"
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())


class Fleet:
    """Hosts that are folders below `folder`, and plays on them."""

    def __init__(self, folder: Path) -> None:
        playbook = Path(sys.executable).with_name("ansible-playbook")
        needed(playbook.exists(), "ansible-core is not installed")
        self.folder = folder
        self.playbook = playbook
        self.hosts: dict[str, dict] = {}

    def add(self, name: str, **variables) -> Path:
        root = self.folder / name
        self.hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": PLAIN_PYTHON,
            "everywatt_root": str(root),
            **variables,
        }
        return root

    def run(self, *words: str, expect: int = 0) -> str:
        inventory = self.folder / "inventory.yml"
        inventory.write_text(yaml.safe_dump({"everywatt": {"hosts": self.hosts}}))
        env = {
            **os.environ,
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "ANSIBLE_REMOTE_TMP": str(self.folder / "remote"),
            "ANSIBLE_NOCOLOR": "1",
            "EVERYWATT_HOME": str(self.folder / "runs"),
            "HOME": str(self.folder),
        }
        done = subprocess.run(
            [self.playbook, "-i", inventory, *words, ANSIBLE / "site.yml"],
            env=env, cwd=ANSIBLE, capture_output=True, text=True, timeout=800,
        )  # fmt: skip
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + done.stderr

    def play(self, *words: str) -> dict[str, int]:
        """How many things changed, by host."""
        told = self.run(*words)
        recap = told.rpartition("PLAY RECAP")[2]
        return {
            name: int(count) for name, count in re.findall(r"^(\S+)\s+: ok=\d+ +changed=(\d+)", recap, re.MULTILINE)
        }


@pytest.fixture
def fleet(tmp_path):
    return Fleet(tmp_path)


@pytest.fixture
def command(tmp_path):
    """everywatt as an earlier installation left it."""
    path = tmp_path / "installed" / "everywatt"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m everywatt "$@"\n')
    path.chmod(0o755)
    return {"everywatt_install": "existing", "everywatt_command": str(path)}


@pytest.mark.parametrize("broken", ["node", pytest.param("other", marks=pytest.mark.long)])
def test_a_play_mends_what_is_missing_and_nothing_else(fleet, command, tmp_path, broken):
    """A play starts dozens of programs on each host: a second host is for the long tests."""
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: []\n")
    root = fleet.add(
        "node", **command, everywatt_slurm=True, everywatt_remote_write_token="s3cret",
        everywatt_agent_options={"owners": 50, "compat": ["dcgm"]},
        everywatt_agent_sensors={"shelly": {"url": "http://plüg"}},
        everywatt_prometheus=True, everywatt_prometheus_rules=[str(rules)],
        everywatt_scrape=[{"targets": ["gpu01:9876"], "ca": "/etc/everywatt/ca.pem", "token_file": "/etc/token"}],
    )  # fmt: skip
    if broken == "other":
        fleet.add("other", **command, everywatt_slurm=False)
    first = fleet.play()
    assert first["node"] >= 8 and first[broken] >= 5
    check_node(root)
    check_store(root, tmp_path)
    rule = fleet.folder / broken / "etc" / UDEV_PATH
    rule.unlink()
    assert fleet.play() == dict.fromkeys(fleet.hosts, 0) | {broken: 1}, "one file was deleted on one of them"
    assert rule.read_text() == UDEV_TEXT


def check_node(root: Path) -> None:
    assert (root / "etc" / UDEV_PATH).read_text() == UDEV_TEXT
    assert (root / "etc" / TMPFILES_PATH).read_text() == TMPFILES_TEXT
    config = root / "etc/everywatt/agent.toml"
    options = combine({"state": root / "state"}, config)
    assert options.remote_write_token_file == Path("/etc/everywatt/remote-write.token")
    assert (options.owners, options.compat, options.jobs, options.period_s) == (50, ("dcgm",), ("slurm", "cgroup"), 2)
    assert options.sensor_options == {"shelly": {"url": "http://plüg"}}
    token = root / "etc/everywatt/remote-write.token"
    assert token.read_text() == "s3cret\n" and stat.S_IMODE(token.stat().st_mode) == 0o640
    assert (root / "etc/everywatt/slurm/prolog.sh").stat().st_mode & 0o111
    unit = (root / "etc/systemd/system" / NAME).read_text()
    assert "--jobs slurm,cgroup" in unit, "from everywatt slurm install, and not written twice"
    assert (
        "ExecStart=\nExecStart=/usr/local/bin/everywatt agent"
        in (root / "etc/systemd/system" / f"{NAME}.d" / "site.conf").read_text()
    )
    link = root / "usr/local/bin/everywatt"
    assert link.is_symlink() and link.exists()


def check_store(root: Path, tmp_path: Path) -> None:
    config = (root / "etc/prometheus/prometheus.yml").read_text()
    jobs = {job["job_name"]: job for job in yaml.safe_load(config)["scrape_configs"]}
    assert jobs["everywatt"]["static_configs"][0]["targets"] == ["127.0.0.1:9876"]
    assert jobs["everywatt-1"]["scheme"] == "https"
    assert jobs["everywatt-1"]["authorization"]["credentials_file"] == "/etc/token"
    assert set(jobs) == {"everywatt", "everywatt-1"}
    assert "127.0.0.1:9090" in (root / "etc/default/prometheus").read_text()
    if shutil.which("promtool"):
        here = tmp_path / "prometheus.yml"
        here.write_text(config.replace("/etc/prometheus/", f"{root}/etc/prometheus/"))
        done = subprocess.run(
            ["promtool", "check", "config", "--syntax-only", here], capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_node_of_slurm_in_check_mode(fleet, command, tmp_path):
    """Nothing is installed yet, so nothing can be asked; and nothing is written."""
    fleet.add(
        "fresh", everywatt_slurm=True, everywatt_agent=False, everywatt_rapl=False, everywatt_python=sys.executable
    )
    fleet.add("there", **command, everywatt_slurm=True, everywatt_agent=False, everywatt_rapl=False)
    told = fleet.run("--check")
    assert not [name for name in fleet.hosts if (tmp_path / name).exists()], "nothing was written"
    assert "failed=0" in told and "failed=1" not in told


def test_grafana_and_k3s_in_check_mode(fleet, command, tmp_path):
    """Shown in full, written nowhere; a store of each other kind, and a Nano."""
    (tmp_path / "dashboards").mkdir()
    (tmp_path / "dashboards" / "fleet.json").write_text("{}")
    off = {**command, "everywatt_agent": False, "everywatt_rapl": False}
    fleet.add("mimir", **off, everywatt_mimir=True, everywatt_grafana=True,
              everywatt_dashboards=str(tmp_path / "dashboards"), everywatt_k3s="server",
              everywatt_nvidia_runtime=True, everywatt_k3s_token="s3cret")  # fmt: skip
    fleet.add("victoria", **off, everywatt_victoriametrics=True, everywatt_cadvisor=True,
              everywatt_node_exporter=True)  # fmt: skip
    fleet.add("nano", **command, everywatt_profile="small", everywatt_remote_write="http://store.example:8428/api/v1/write",
              everywatt_rapl=False)  # fmt: skip
    told = fleet.run("--check", "--diff")
    assert not [name for name in fleet.hosts if (tmp_path / name).exists()], "nothing was written"
    for line in (
        "+    url: http://127.0.0.1:9009/prometheus",
        "+  http_listen_address: 127.0.0.1",
        "+handler: nvidia",
        "+ExecStart=/usr/local/bin/k3s server",
        "+Environment=GF_SERVER_HTTP_ADDR=127.0.0.1",
        '+profile = "small"',
        '+remote-write = "http://store.example:8428/api/v1/write"',
    ):
        assert line in told, line
    assert (
        "-httpListenAddr=127.0.0.1:8428" in told and "+ExecStart=/usr/local/bin/cadvisor -listen_ip=127.0.0.1" in told
    )
    assert 'targets: ["127.0.0.1:8080"]' in told and "--web.listen-address=127.0.0.1:9100" in told
    assert "fleet.json" in told
    assert "s3cret" not in told, "a secret is not shown"


@pytest.mark.long
def test_everywatt_gets_to_a_host_whose_python_is_too_old(fleet, tmp_path):
    """As on a JetPack: a standalone Python is unpacked, a virtual environment made of it, and wheels installed."""
    wheels = tmp_path / "wheels"
    make_wheel(wheels)
    archive = tmp_path / "python.tar.gz"
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec {Path(sys.base_prefix) / "bin" / "python3"} "$@"\n')
    program.chmod(0o755)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(program, "python/bin/python3")
    root = fleet.add(
        "jetson", everywatt_agent=True, everywatt_rapl=False, everywatt_python="/usr/bin/python3.6-of-jetpack-4",
        everywatt_wheels=str(wheels), everywatt_requirement=f"everywatt=={everywatt.__version__}",
        everywatt_python_archive=str(archive),
    )  # fmt: skip
    assert fleet.play()["jetson"] >= 5
    installed = root / "usr/local/bin/everywatt"
    version = subprocess.run([installed, "--version"], capture_output=True, text=True, timeout=240).stdout
    assert version == f"everywatt {everywatt.__version__}\n"
    assert installed.resolve().is_relative_to(root / "opt/everywatt")
    assert fleet.play() == {"jetson": 0}
    assert (root / "etc/systemd/system" / NAME).read_text() == agent_unit()


def make_wheel(folder: Path) -> None:
    """This tree as a wheel without dependencies: a wheel is a zip, and building one needs no tool."""
    folder.mkdir()
    version = everywatt.__version__
    info = f"everywatt-{version}.dist-info"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    with zipfile.ZipFile(folder / f"everywatt-{version}-py3-none-any.whl", "w") as wheel:
        for path in sorted((ROOT / "src" / "everywatt").rglob("*.py")):
            wheel.write(path, path.relative_to(ROOT / "src"))
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: everywatt\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        lines = "".join(f"{name} = {place}\n" for name, place in scripts.items())
        wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{lines}")
        wheel.writestr(f"{info}/RECORD", "")


REFUSED = {
    "small": ({"everywatt_profile": "small"}, "The small profile wants everywatt_remote_write"),
    "tiny": ({"everywatt_profile": "tiny"}, "value of everywatt_profile must be one of: normal, small, got: tiny"),
    "k3s": ({"everywatt_k3s": "agent"}, "a k3s agent wants everywatt_k3s_server"),
    "stores": ({"everywatt_mimir": True, "everywatt_prometheus": True}, "one store at most"),
    "old": (
        {"everywatt_install": "pip", "everywatt_python": "/usr/bin/python3.6"},
        "There is no Python 3.11 or later on old. Set everywatt_python",
    ),
}


def test_what_cannot_work_is_refused(fleet, command):
    for name, (variables, _) in REFUSED.items():
        fleet.add(name, **{**command, **variables})
    told = fleet.run(expect=2)
    said = dict(re.findall(r"^fatal: \[(\w+)\]: FAILED! => (.*)$", told, re.MULTILINE))
    assert set(said) == set(REFUSED)
    for name, (_, why) in REFUSED.items():
        assert why in said[name], said[name]
        assert not (fleet.folder / name / "etc").exists()


def test_the_syntax_is_right_and_the_example_has_hosts(fleet):
    fleet.add("node")
    fleet.run("--syntax-check")
    groups = yaml.safe_load((ANSIBLE / "inventory.example.yml").read_text())["everywatt"]

    def variables(group):
        yield from group.get("vars", {})
        for host in group.get("hosts", {}).values():
            yield from host or {}
        for child in group.get("children", {}).values():
            yield from variables(child)

    assert {name for name in variables(groups) if not name.startswith("ansible_")} <= set(DEFAULTS)


def test_only_modules_that_come_with_ansible():
    def tasks(entries):
        for entry in entries:
            yield entry
            yield from tasks(entry.get("block", ()))

    words = {"name", "when", "vars", "loop", "loop_control", "register", "changed_when", "failed_when", "check_mode",
             "no_log", "block", "tags"}  # fmt: skip
    play = yaml.safe_load((ANSIBLE / "site.yml").read_text())[0]
    found = list(tasks(play["pre_tasks"]))
    for path in (ROLE / "tasks").glob("*.yml"):
        found += tasks(yaml.safe_load(path.read_text()))
    assert len(found) > 25
    for task in found:
        modules = set(task) - words
        assert "block" in task or len(modules) == 1, task["name"]
        assert all(module.startswith("ansible.builtin.") for module in modules), modules
    assert yaml.safe_load((COLLECTION / "galaxy.yml").read_text())["dependencies"] == {}


def test_variables_have_types_and_versions_are_enforced():
    spec = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert set(spec) == set(DEFAULTS)
    kinds = {"bool": bool, "int": int, "dict": dict, "list": list, "str": str}
    for name, value in DEFAULTS.items():
        assert type(value) is kinds[spec[name]["type"]], name
    wanted = yaml.safe_load((COLLECTION / "meta" / "runtime.yml").read_text())["requires_ansible"]
    oldest = yaml.safe_load((ROLE / "meta" / "main.yml").read_text())["galaxy_info"]["min_ansible_version"]
    assert wanted == f">={oldest}.0"
    assert f"version('{oldest}', '>=')" in (ROLE / "tasks" / "main.yml").read_text()
    assert "collections_on_ansible_version_mismatch = error" in (ANSIBLE / "ansible.cfg").read_text()


def test_manifests_are_the_same_in_both_places():
    overlay = ROOT / "deploy/kubernetes/agent/overlays/nvidia/runtimeclass.yaml"
    assert (ROLE / "templates" / "runtimeclass.yaml").read_text() == overlay.read_text()
