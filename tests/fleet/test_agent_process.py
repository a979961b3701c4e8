"""The agent as a process: HTTP, TLS, signals, systemd, memory; and kills by the hundred."""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from agents import SRC, AgentProcess, Receiver, home_of, parse, told_on
from costs import only_in_ci
from webserver import certificate

from everywatt.fleet import state
from everywatt.fleet.segments import segments
from everywatt.tape.reader import Tape

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.realtime  # nothing asserted is nearer than a tenth of a second
ENERGY = "everywatt_energy_joules_total"
OWNERS = "everywatt_owner_energy_joules_total"


@pytest.fixture
def lab(sim_machine):
    return sim_machine(gpus=["square:100W,300W,2s"], packages=["constant:60W"], sensor=["package.dram=0.2"])


def key(device: str, domain: str) -> str:
    return f'{ENERGY}{{device="{device}",domain="{domain}",pedigree="counter"}}'


def grown(agent, first, devices):
    """What the agent tells, once every device has counted on. How exactly it counts is tested in virtual time."""
    values = agent.values()
    counted = (values[key(*device)][0] - first.get(key(*device), (0.0, None))[0] for device in devices)
    return values if all(joules > 5 for joules in counted) else None


def test_counters_go_up_and_owners_add_up(lab, tmp_path):
    with AgentProcess(
        home_of(tmp_path, lab.environment()), "--state", str(tmp_path / "s"), "--period", "0.2s"
    ) as agent:
        agent.wait_for(key("gpu.0", "gpu"))
        first = agent.values()
        devices = (("cpu.0", "package"), ("dram.0", "dram"), ("gpu.0", "gpu"))
        last = agent.until(lambda: grown(agent, first, devices), "five joules more of each device")
        for device, domain in devices:
            b_j = last[key(device, domain)][0]
            owned = sum(
                round(value * 1e6)
                for name, (value, _) in last.items()
                if name.startswith(OWNERS) and name.endswith(f'device="{device}"}}')
            )
            assert owned == round(b_j * 1e6), device
        assert last['everywatt_sensor_up{sensor="nvml"}'][0] == 1
        assert last['everywatt_power_watts{device="cpu.0",domain="package",pedigree="counter"}'][0] == pytest.approx(
            60, rel=0.2
        )
        assert not any("cmdline" in name or "-c " in name for name in last), "no command line is told"
        health = urllib.request.urlopen(agent.url.replace("/metrics", "/healthz"), timeout=60)
        assert health.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(agent.url.replace("/metrics", "/"), timeout=60)
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=agent.text().encode(), capture_output=True)
            assert (done.returncode, done.stderr) == (0, b"")
        assert agent.end() == 0
    # Sealed in order, and the tape's own joules are what was told.
    (path,) = segments(tmp_path / "s" / "tape")
    with Tape.open(path) as tape:
        assert tape.sealed and not tape.trouble
        told = told_on([path])
        for line, entry in tape.meta["agent"]["devices"].items():
            device, domain = line.split("|")
            labels = tuple(sorted({"device": device, "domain": domain, "pedigree": "counter"}.items()))
            newest = list(told[ENERGY, labels].values())[-1]
            assert newest == pytest.approx(
                state.tape_joules(tape, entry["group"], entry["channel"], entry["at_ns"]), abs=1e-5
            )


def _check_stored(found: list[Path]) -> None:
    """What is told on the tape is monotone, and is each tape's own energy on top of where it began."""
    for (name, labels), samples in told_on(found).items():
        if name in (ENERGY, OWNERS):
            values = [samples[at] for at in sorted(samples)]
            assert values == sorted(values), (name, labels)
    end: dict[str, int] = {}
    for path in found:
        if not path.stat().st_size:
            continue  # killed while it was made
        with Tape.open(path) as tape:
            for line, entry in tape.meta.get("agent", {"devices": {}})["devices"].items():
                if line in end:
                    assert abs(entry["uj"] - end[line]) <= 2, (path, line)
                end[line] = entry["uj"] + round(
                    state.tape_joules(tape, entry["group"], entry["channel"], entry["at_ns"]) * 1e6
                )


def kill_at_random(lab, tmp_path, times: int, seed: int) -> None:
    env, chance = home_of(tmp_path, lab.environment()), random.Random(seed)
    words = ("--state", str(tmp_path / "s"), "--period", "0.1s", "--rotate", "1s", "--retention", "1h")
    told: dict[str, float] = {}
    with Receiver() as receiver:
        for _ in range(times):
            with AgentProcess(env, *words, "--remote-write", receiver.url) as agent:
                values = agent.wait_for(key("gpu.0", "gpu"))
                time.sleep(chance.uniform(0, 0.6))  # a moment at random
                values = agent.values()
                for name, (value, _) in values.items():
                    if name.startswith((ENERGY, OWNERS)):
                        assert value >= told.get(name, 0.0), f"{name} went back after a kill"
                        told[name] = value
                agent.process.kill()
        with AgentProcess(env, *words, "--remote-write", receiver.url) as agent:
            agent.wait_for(key("gpu.0", "gpu"))
            assert agent.end() == 0
        found = segments(tmp_path / "s" / "tape")
        _check_stored(found)
        # What the receiver has is what the tapes have, to the last sample; what came twice is the same.
        sent = {
            (
                dict(labels)["__name__"],
                tuple((k, v) for k, v in labels if k not in ("__name__", "instance", "job")),
            ): dict(sample for sample in samples if sample[1] == sample[1])
            for labels, samples in receiver.samples.items()
        }
        for (name, labels), samples in told_on(found).items():
            if name in (ENERGY, OWNERS):
                assert sent[name, labels] == samples, (name, labels)


@pytest.mark.long
def test_killed_a_hundred_times(lab, tmp_path):
    kill_at_random(lab, tmp_path, 100, seed=2)


LOOSE_S = 0.6  # by how much the instant of a sample may be off while the period of a card is not known


@only_in_ci("it takes 20 s, and the same is tried in virtual time")
def test_no_joule_is_lost_by_real_kills_and_pauses(sim_machine, tmp_path):
    """All that counters counted, whoever was alive meanwhile; owners add up to it, and nothing goes back."""
    lab = sim_machine(gpus=["constant:100W", "square:50W,250W,3s"], packages=["constant:60W"])
    env, chance = home_of(tmp_path, lab.environment()), random.Random(5)
    tapes = tmp_path / "s" / "tape"
    for number in range(5):
        with AgentProcess(env, "--state", str(tmp_path / "s")) as agent:
            agent.wait_for(key("gpu.1", "gpu"))
            time.sleep(chance.uniform(0, 3))  # a moment at random
            if number < 4:
                agent.process.kill()
            else:
                assert agent.end() == 0
        time.sleep(chance.uniform(0, 2))  # nothing runs
    told = told_on(segments(tapes))
    utc_ns = time.time_ns() - time.monotonic_ns()
    for name, labels in told:
        values = [value for _, value in sorted(told[name, labels].items())]
        assert not name.startswith("everywatt_e") or values == sorted(values), name
    for device, domain, watts in (("cpu.0", "package", 60), ("gpu.0", "gpu", 100), ("gpu.1", "gpu", 250)):
        mine = tuple(sorted({"device": device, "domain": domain, "pedigree": "counter"}.items()))
        energy, low, high = (told[ENERGY.replace("_joules", f"{side}_joules"), mine] for side in ("", "_low", "_high"))
        first, last = min(energy), max(energy)
        truth = lab.truth(device, first * 10**6 - utc_ns, last * 10**6 - utc_ns)
        ends = low[last] - low[first], high[last] - high[first]
        assert ends[0] - LOOSE_S * watts <= truth <= ends[1] + LOOSE_S * watts, device
        owned = {who: s for (name, who), s in told.items() if name == OWNERS and ("device", device) in who}
        microjoules = {who: round(samples[max(samples)] * 1e6) for who, samples in owned.items()}
        # `rest` has what owners that ended had used.
        rest = sum(joules for who, joules in microjoules.items() if ("kind", "rest") in who)
        assert 0 <= sum(microjoules.values()) - round(energy[last] * 1e6) <= rest, device


def test_a_lost_card_is_a_sensor_that_is_down(sim_machine, tmp_path):
    lab = sim_machine(gpus=["constant:100W"], packages=["constant:50W"], sensor=["fail_after=250,fail_code=15"])
    power, up = 'everywatt_power_watts{device="gpu.0"', 'everywatt_sensor_up{sensor="nvml"}'
    env = home_of(tmp_path, lab.environment())
    with AgentProcess(env, "--state", str(tmp_path / "s"), "--period", "0.1s") as agent:
        agent.wait_for(up)
        agent.until(lambda: agent.values()[up][0] == 0, "the card to be lost")
        agent.until(lambda: not any(name.startswith(power) for name in agent.values()), "the power to go")
        assert key("cpu.0", "package") in agent.values(), "the others go on"
        assert any("cannot be read" in line for line in agent.log)
        assert agent.end() == 0
    told = told_on(segments(tmp_path / "s" / "tape"))  # a slow test may have asked first when the card was lost
    works = told["everywatt_sensor_up", (("sensor", "nvml"),)]
    lost_ms = min(at for at, value in works.items() if value == 0)
    assert works[min(works)] == 1 and works[max(works)] == 0
    (watts,) = (found for (name, who), found in told.items() if name in power.split("{") and ("device", "gpu.0") in who)
    assert min(watts) < lost_ms


def test_nothing_measures_power(tmp_path):
    env = home_of(tmp_path, {"EVERYWATT_SYS": str(tmp_path / "none"), "PATH": "/nowhere", "PYTHONPATH": str(SRC)})
    words = [sys.executable, "-m", "everywatt", "agent", "--no-estimate", "--listen", "127.0.0.1:0"]
    words += ["--sensors", "rapl,use", "--state", str(tmp_path / "s")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 4
    assert "No sensor here measures power" in done.stderr


def test_another_machine_may_only_ask_with_tls_and_a_token(tmp_path, lab):
    env = {**home_of(tmp_path, lab.environment()), "PYTHONPATH": str(SRC)}
    cert, key_file = certificate(tmp_path)
    token = tmp_path / "token"
    token.write_text("s3cret-s3cret-s3cret\n")
    base = [sys.executable, "-m", "everywatt", "agent", "--listen", "0.0.0.0:0", "--state", str(tmp_path / "s")]
    tls = ["--cert", str(cert), "--key", str(key_file)]
    for words, lacking in (
        ([], "a token and TLS files"),
        (["--token-file", str(token)], "TLS files"),
        (tls, "a token"),
    ):
        done = subprocess.run([*base, *words], env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 2 and f"requires {lacking}" in done.stderr, done.stderr
    import ssl

    with AgentProcess(env, "--state", str(tmp_path / "s"), "--token-file", str(token), *tls) as agent:
        context = ssl.create_default_context(cafile=str(cert))
        request = urllib.request.Request(agent.url)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=60, context=context)
        request.add_header("Authorization", "Bearer s3cret-s3cret-s3cret")
        assert urllib.request.urlopen(request, timeout=60, context=context).status == 200
    with AgentProcess(env, "--state", str(tmp_path / "s2"), "--client-ca", str(cert), *tls) as agent:
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
            urllib.request.urlopen(agent.url, timeout=60, context=context)
        context.load_cert_chain(cert, key_file)
        assert urllib.request.urlopen(agent.url, timeout=60, context=context).status == 200


def test_two_agents_do_not_share_a_folder(tmp_path, lab):
    env = home_of(tmp_path, lab.environment())
    with AgentProcess(env, "--state", str(tmp_path / "s")) as agent:
        agent.wait_for("everywatt_build_info")
        second = [sys.executable, "-m", "everywatt", "agent", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "s")]
        done = subprocess.run(second, env={**env, "PYTHONPATH": str(SRC)}, capture_output=True, text=True, timeout=240)
        assert done.returncode == 2 and "Another agent is using" in done.stderr


def test_a_reload_changes_what_it_may_and_systemd_hears_all(tmp_path, lab):
    config = tmp_path / "agent.toml"
    config.write_text("[agent]\nowners = 100\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, Receiver() as receiver:
        sock.bind(str(tmp_path / "n"))
        sock.settimeout(120)
        heard = []

        def hear():  # as systemd does: who does not read, stops an agent that has more to say than the queue takes
            while not heard or heard[-1] != b"STOPPING=1":
                heard.append(sock.recv(200))

        hearing = threading.Thread(target=hear, daemon=True)
        hearing.start()
        env = {**home_of(tmp_path, lab.environment()), "NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "1000000"}
        with AgentProcess(env, "--state", str(tmp_path / "s"), "--config", str(config), "--period", "0.2s") as agent:
            agent.wait_for(ENERGY)
            assert heard[0].startswith(b"READY=1")
            config.write_text(f'[agent]\nowners = 5\nrotate = "2h"\nremote-write = "{receiver.url}"\ncompat = "dcgm"\n')
            agent.process.send_signal(signal.SIGHUP)
            agent.until(lambda: len(receiver) > 0, "samples after the reload")
            agent.wait_for("DCGM_FI_DEV_POWER_USAGE")
            config.write_text("[agent]\nowners = 'x'\n")
            agent.process.send_signal(signal.SIGHUP)
            agent.until(lambda: any("is unchanged" in line for line in agent.log), "a refusal")
            assert "Restart the agent to change rotate_s." in agent.log
            assert agent.end() == 0
        hearing.join(120)
        assert b"WATCHDOG=1" in heard and any(one.startswith(b"RELOADING=1") for one in heard)
        assert heard[-1] == b"STOPPING=1"


@pytest.mark.serial  # the bound is for a quiet machine: 29 MB alone, once 44 MB beside all other tests
def test_small_sends_without_a_server_in_little_memory(tmp_path, lab):
    with Receiver() as receiver:
        env = home_of(tmp_path, lab.environment())
        words = ("--profile", "small", "--state", str(tmp_path / "s"), "--remote-write", receiver.url)
        with AgentProcess(env, *words, listen=False) as agent:
            agent.until(lambda: len(receiver) > 0, "the first samples", 40)
            status = Path(f"/proc/{agent.process.pid}/status").read_text().splitlines()
            rss_kb = int(next(line for line in status if line.startswith("VmRSS")).split()[1])
            loaded = Path(f"/proc/{agent.process.pid}/maps").read_text()
            assert "numpy" not in loaded
            assert rss_kb < 35_000
            assert agent.end() == 0
        names = {dict(labels)["__name__"] for labels in receiver.samples}
        assert {ENERGY, OWNERS, "everywatt_power_watts"} <= names


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_plain_user_can_run_it(tmp_path, lab):
    nobody = pwd.getpwnam("nobody")
    code = f"""
import os, sys
from pathlib import Path
from everywatt.fleet.agent import Agent
from everywatt.fleet.service import look
from everywatt.fleet.options import AgentOptions

def check(folder):
    return look(Agent(AgentOptions(state=Path(folder)), say=print), 2.5)

check({str(tmp_path / "root")!r})  # loads all modules while they can be read
folder = Path("/tmp") / f"everywatt-plain-{{os.getpid()}}"
folder.mkdir()
os.chown(folder, {nobody.pw_uid}, {nobody.pw_gid})
os.setgroups([])
os.setgid({nobody.pw_gid})
os.setuid({nobody.pw_uid})
print("PLAIN", os.getuid())
print(check(folder))
"""
    env = {**home_of(tmp_path, lab.environment()), "PYTHONPATH": str(SRC)}
    for folder in (lab.folder, *lab.folder.parents):  # as the machine's own /sys is
        if folder != Path("/") and folder.stat().st_uid == 0:
            folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    _, told = done.stdout.split(f"PLAIN {nobody.pw_uid}\n")
    values = parse("\n".join(line for line in told.splitlines() if line.startswith("everywatt_")))
    assert values[key("cpu.0", "package")][0] > 0


def test_check_prints_series_and_keeps_nothing(tmp_path, lab):
    env = {**home_of(tmp_path, lab.environment()), "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-m", "everywatt", "agent", "--check", "--compat", "kepler,dcgm,jetson"],
        env=env, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    values = parse(done.stdout)
    assert done.returncode == 0, done.stderr
    assert any(name.startswith("kepler_node_cpu_joules_total") for name in values)
    mj = next(value for name, (value, _) in values.items() if name.startswith("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"))
    assert mj == pytest.approx(values[key("gpu.0", "gpu")][0] * 1000, rel=1e-3)
    assert not (tmp_path / "xdg").exists()
