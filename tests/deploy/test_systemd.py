"""The unit of the agent: one text in all places, taken by systemd, its options valid, its rights enough."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from agents import SRC, home_of, parse

from everywatt.cli.agent import command
from everywatt.fleet.options import combine
from everywatt.slurm.node.hooks import COMMAND, CONFIG, HARDENING, NAME, STATE, USER, Site, agent_unit, unit

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
ROLE = ROOT / "deploy" / "ansible" / "ansible_collections" / "everywatt" / "fleet" / "roles" / "node"


def settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def test_there_is_one_text():
    assert (SYSTEMD / NAME).read_text() == agent_unit()
    assert (ROLE / "templates" / NAME).read_text() == agent_unit()
    slurm = unit(NAME, Site())
    assert HARDENING in slurm and HARDENING in agent_unit()
    differ = set(slurm.splitlines()) ^ set(agent_unit().splitlines())
    assert {line.partition("=")[0] for line in differ} == {
        "ExecStart", "ExecStartPre", "User", "Group", "CapabilityBoundingSet", "Environment", "ReadWritePaths",
    }  # fmt: skip
    assert "{" not in slurm


def test_the_agent_is_a_plain_user_without_capabilities():
    given = settings(agent_unit())
    assert (given["User"], given["Group"], given["CapabilityBoundingSet"]) == (USER, USER, "")
    assert given["NoNewPrivileges"] == "yes" and given["ProtectSystem"] == "strict"
    assert f"/var/lib/{given['StateDirectory']}" == STATE
    assert given["Environment"] == f"EVERYWATT_RUNTIME_DIR=/run/{given['RuntimeDirectory']}"
    assert given["RuntimeDirectoryMode"] == "0700"
    # What would hide that which is measured: devices of GPUs and of others' processes.
    assert not {"PrivateDevices", "DeviceAllow", "ProtectClock", "ProtectProc", "PrivateNetwork"} & set(given)
    (line,) = [line for line in (SYSTEMD / "everywatt.sysusers").read_text().splitlines() if line.startswith("u ")]
    assert line.split()[1] == USER and f" {STATE} " in line


def test_its_options_are_ones(tmp_path):
    words = settings(agent_unit())["ExecStart"].split()
    assert words[:2] == [COMMAND, "agent"]
    given = command.make_context("agent", words[2:]).params
    assert str(given["config"]) == CONFIG
    options = combine({"state": tmp_path}, SYSTEMD / "agent.toml")
    assert options.listen == "127.0.0.1:9876" and options.remote_write is None
    filled = tmp_path / "agent.toml"  # what is commented out is an option too
    filled.write_text((SYSTEMD / "agent.toml").read_text().replace("# remote", "remote"))
    options = combine({"state": tmp_path}, filled)
    assert options.remote_write and options.remote_write_token_file


@pytest.mark.parametrize("kind", ["plain", "slurm", "short-lived.conf", "perf.conf"])
def test_systemd_takes_it(kind, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    text = unit(NAME, Site()) if kind == "slurm" else agent_unit()
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
    (tmp_path / NAME).write_text(text)
    if kind.endswith(".conf"):
        (tmp_path / f"{NAME}.d").mkdir()
        shutil.copy(SYSTEMD / f"{NAME}.d" / kind, tmp_path / f"{NAME}.d")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / NAME)], capture_output=True, text=True, timeout=240
    )
    told = [line for line in done.stderr.splitlines() if NAME in line]
    assert not told, told
    (tmp_path / NAME).write_text(text.replace("ProtectSystem=strict", "ProtectSystem=nonsense"))
    wrong = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / NAME)], capture_output=True, text=True, timeout=240
    )
    assert "nonsense" in wrong.stderr, "it would have said so"


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can give up capabilities")
def test_root_without_a_capability_reads_counters_that_are_roots(tmp_path, sim_machine):
    """As the DaemonSet's pod: user 0, nothing else."""
    lab = sim_machine(packages=["constant:60W"])
    env = {**home_of(tmp_path, lab.environment()), "PYTHONPATH": str(SRC)}
    counters = list(lab.folder.rglob("energy_uj"))
    for counter in counters:
        counter.chmod(0o400)
    words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    done = subprocess.run(
        [*words, sys.executable, "-m", "everywatt", "agent", "--check"], env=env, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values = parse(done.stdout)
    assert values['everywatt_energy_joules_total{device="cpu.0",domain="package",pedigree="counter"}'][0] > 0
    assert counters
