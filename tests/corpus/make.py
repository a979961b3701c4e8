"""Record the inputs of the corpus: tapes, stores, states and journals, on simulated machines.

    python tests/corpus/make.py --repo CHECKOUT --python CHECKOUT/.venv/bin/python OUT [SCENE...]

The committed files in `data/` were made this way with the commit in `benchmarks/BASE`, and are never made again: they
stand for what users have on disk. The script says how each file came about, and makes a similar set with any version.
Recordings are of real time on a simulated machine, so two runs of it differ in every tick.

It needs root, for namespaces of its own: the host is called `node1`, its only user is `user`, no other process is
visible, `/tmp` is empty and the code is in `/opt/everywatt`. So nothing of the machine that made the corpus is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CODE = Path("/opt/everywatt")
PLACE = Path("/tmp/corpus")
RUNS = PLACE / "runs"
OUT = PLACE / "out"
EVERYWATT = [str(CODE / ".venv/bin/python"), "-m", "everywatt"]
SCENES: dict[str, Callable[[], None]] = {}

INSIDE = """
set -e
mount -t tmpfs none /opt
mkdir /opt/everywatt /opt/tests /opt/out
mount --bind "$1" /opt/everywatt
mount --bind "$2" /opt/tests
mount --bind "$3" /opt/out
mount -t tmpfs none /tmp
hostname node1
printf 'user:x:0:0::/tmp/corpus/home:/bin/sh\\nada:x:1000:1000::/home/ada:/bin/sh\\n' > /opt/passwd
mount --bind /opt/passwd /etc/passwd
mkdir -p /tmp/corpus/home
cd /tmp/corpus
python=$4
shift 4
exec env -i PATH="/opt/everywatt/.venv/bin:/usr/bin:/bin" HOME=/tmp/corpus/home USER=user LANG=C.UTF-8 TZ=UTC \\
    PYTHONPATH=/opt/everywatt/src "$python" /opt/tests/corpus/make.py --inside "$@"
"""


def scene(function: Callable[[], None]) -> Callable[[], None]:
    SCENES[function.__name__] = function
    return function


# How things are run.


def everywatt(*words: object, env: Mapping[str, str] | None = None, code: int | None = 0, cwd: Path = PLACE) -> str:
    """Run a command of everywatt; gives what it printed."""
    done = subprocess.run(
        [*EVERYWATT, *map(str, words)], env=env or os.environ, cwd=cwd, capture_output=True, text=True, timeout=300
    )
    if code is not None and done.returncode != code:
        raise SystemExit(f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def sim(*machine: str, command: list[object], code: int | None = 0) -> str:
    """Run a command of everywatt inside a simulated machine."""
    return everywatt("sim", *machine, "--", *EVERYWATT, *command, code=code)


def keep(name: str, run: str | None = None) -> Path:
    """Give the newest run (or the named one) the name that the cases use."""
    found = sorted((path for path in RUNS.iterdir() if path.is_dir()), key=lambda path: path.stat().st_ctime_ns)
    newest = next(path for path in reversed(found) if path.name[:8].isdigit()) if run is None else RUNS / run
    newest.rename(RUNS / name)
    return RUNS / name


def python(name: str, text: str) -> str:
    """Write a small program; gives its path."""
    path = PLACE / name
    path.write_text(text, encoding="utf-8")
    return str(path)


BURN = """
import os, sys, time
from everywatt.sim.loads import use_gpu

def burn(share, seconds, gpu=None):
    end = time.monotonic() + seconds
    with use_gpu(share, memory_bytes=2**28, gpu=gpu) if gpu is not None else open(os.devnull):
        while time.monotonic() < end:
            busy = time.monotonic() + 0.02 * share
            while time.monotonic() < busy:
                pass
            time.sleep(0.02 * (1 - share))

if os.fork() == 0:
    burn(0.3, 2.0, 0)
    os._exit(0)
if os.fork() == 0:
    burn(0.7, 1.5)
    os._exit(0)
burn(0.2, 2.5, 1)
os.wait()
os.wait()
"""

SPANS = """
import time
import everywatt

with everywatt.Meter("train", tags={"project": "beta", "kind": "spans"}, note="a note of the user") as meter:
    for number in range(2):
        with meter.span("epoch", number=number):
            everywatt.log(loss=1.0 / (number + 1), step=number)
            with everywatt.span("evaluate", split="validation"):
                time.sleep(0.3)
            time.sleep(0.2)
    first, second = meter.open_span("request", id=1), meter.open_span("request", id=2)
    time.sleep(0.3)
    first.close()
    time.sleep(0.2)
    second.close()
"""

AGENT_STEPS = """
import time
import everywatt
from everywatt.bench.llm.agents import model_call, tool_call, turn
with everywatt.measure("agent"):
    for number in (1, 2):
        with turn(number):
            with model_call("tiny") as call:
                time.sleep(0.2)
                call.attributes["gen_ai.usage.input_tokens"] = 10
                call.attributes["gen_ai.usage.output_tokens"] = 5
            with tool_call("search"):
                time.sleep(0.1)
"""


# Tapes.


@scene
def square() -> None:
    """A sealed tape with counters of a package and its parts, the platform, a card with a counter, and idle first."""
    sim(
        "--gpu", "square:100W,300W,0.7s", "--package", "square:40W,90W,0.9s", "--sensor",
        "package.core=0.6,package.uncore=0.1,package.dram=0.2,psys=30W,counter_period=20ms,utilisation=70%",
        command=["run", "--idle", "1s", "--tag", "project=alpha", "--tag", "size=small", "--note", "a first try",
                 "--", "sleep", "2"],
    )  # fmt: skip
    keep("square")


@scene
def truth() -> None:
    """The exact joules of a simulated machine."""
    machine = ["--gpu", "square:100W,300W,0.7s", "--gpu", "telegraph:50W,90W,100ms,3", "--package", "constant:60W"]
    everywatt("sim", *machine, "--truth", OUT / "truth.json", "--", "sleep", "2")


@scene
def owners() -> None:
    """Power that follows processes: three of them, two on cards."""
    burn = python("burn.py", BURN)
    sim(
        "--gpu", "load:20W,220W", "--gpus", "2", "--package", "load:10W,50W", "--package", "load:12W,60W",
        command=["run", "--idle", "1s", "--memory", "pss", "--tag", "project=alpha", "--", EVERYWATT[0], burn],
    )  # fmt: skip
    keep("owners")


@scene
def spans() -> None:
    """Nested and overlapping spans, logged points, tags and a note, by the Python API; steps of an agent."""
    for name, text in (("spans", SPANS), ("steps", AGENT_STEPS)):
        everywatt(
            "sim", "--package", "constant:50W", "--gpu", "sine:150W,100W,1s", "--",
            EVERYWATT[0], python(f"{name}.py", text),
        )  # fmt: skip
        keep(name)


@scene
def gaps() -> None:
    """A counter that wraps, one that starts again at 0, a card that is lost and comes back, a gauge that drops."""
    sim(
        "--package", "constant:150W", "--package", "constant:80W", "--gpu", "constant:120W", "--gpu", "constant:90W",
        "--sensor", "package.0.wrap=300J,package.0.start=150J,package.1.reset_at=2s,gpu.0.lost_at=2s,gpu.0.back_at=3s",
        "--sensor", "gpu.1.drop=0.3,gpu.1.jitter=20ms,gpu.1.unsupported=nvmlDeviceGetTotalEnergyConsumption+field:83",
        command=["run", "--", "sleep", "3.5"],
    )  # fmt: skip
    keep("gaps")


@scene
def gauge() -> None:
    """A card without a counter: power alone, a window shorter than its period, gain and offset."""
    sim(
        "--gpu", "telegraph:80W,280W,150ms,7", "--sensor",
        "unsupported=nvmlDeviceGetTotalEnergyConsumption+field:83,period=100ms,window=25ms,gain=0.96,offset=-2W,"
        "name='NVIDIA A100-SXM4-40GB'",
        command=["run", "--", "sleep", "2"],
    )  # fmt: skip
    keep("gauge")


@scene
def mig() -> None:
    """A card with MIG instances and GPM metrics, and processes in them."""
    sim(
        "--gpu", "square:100W,300W,1s", "--sensor",
        "mig=1g.5gb+3g.20gb,gpm=1,processes=0:1GiB:40%:0+0:2GiB:60%:1",
        command=["run", "--", "sleep", "1.5"],
    )  # fmt: skip
    keep("mig")


@scene
def smi() -> None:
    """The same by nvidia-smi."""
    sim(
        "--gpu", "square:100W,300W,1s",
        command=["run", "--sensors", "nvidia-smi,use", "--", "sleep", "2.5"],
    )  # fmt: skip
    keep("smi")


@scene
def jetson() -> None:
    """A board by hwmon, by iio and by tegrastats."""
    from everywatt.sim.jetson import Board

    rails = {"VDD_IN": "square:4W,12W,1s", "VDD_CPU_GPU_CV": "constant:2W", "VDD_SOC": "constant:1W"}
    for layout in ("hwmon", "iio", "tegrastats"):
        with Board(PLACE / layout, rails, layout=layout) as board:
            everywatt("run", "--sensors", "jetson,tegrastats,use", "--", "sleep", "2.5", env=board.environment())
        keep(f"jetson-{layout}")


@contextmanager
def files(values: Mapping[str, str]):
    """A /sys of files that do not move."""
    root = PLACE / "files"
    for name, text in values.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    yield os.environ | {"EVERYWATT_SYS": str(root / "sys"), "EVERYWATT_RUNTIME_DIR": str(PLACE / "r")}
    shutil.rmtree(root)


@scene
def node_sensors() -> None:
    """A node by Cray's counters, chips by hwmon, and a command and a file that print numbers."""
    cray, hwmon = "sys/cray/pm_counters/", "sys/class/hwmon/hwmon0/"
    with files({f"{cray}{name}": f"{value} J 1734094386462336 us" for name, value in
                {"energy": 10000, "cpu_energy": 4000, "accel0_energy": 3000}.items()}) as env:  # fmt: skip
        everywatt("run", "--sensors", "cray,use", "--", "sleep", "1.2", env=env)
        keep("cray")
    chip = {"name": "amd_energy", "energy1_label": "Ecore000", "energy1_input": "1000",
            "energy2_label": "Esocket0", "energy2_input": "9000000"}  # fmt: skip
    power = {"name": "power_meter", "power1_average": "120000000", "power1_label": "Total"}
    second = hwmon.replace("hwmon0", "hwmon1")
    chips = {f"{hwmon}{key}": text for key, text in chip.items()}
    with files(chips | {f"{second}{key}": text for key, text in power.items()}) as env:
        everywatt("run", "--sensors", "hwmon,use", "--", "sleep", "1.2", env=env)
        keep("hwmon")
    told = json.dumps({"exec": {"command": "echo 12500 mW", "unit": "mW", "gain_pct": 1}})
    with files({"sys/none": ""}) as env:
        everywatt("run", "--sensors", "exec,use", "--", "sleep", "1.5", env=env | {"EVERYWATT_SENSOR": told})
        keep("exec")


@scene
def wall() -> None:
    """A Shelly plug over HTTP."""
    sys.path.insert(0, str(TESTS / "support"))
    from webserver import Server

    status = {"switch:0": {"id": 0, "output": True, "apower": 61.5, "aenergy": {"total": 46791.262}}}
    with Server({"/shelly": {"gen": 2, "model": "SNPL"}, "/rpc/Shelly.GetStatus": status}) as server:
        told = json.dumps({"shelly": {"url": server.url, "timeout_s": 1}})
        with files({"sys/none": ""}) as env:
            everywatt("run", "--sensors", "shelly,use", "--", "sleep", "2.5", env=env | {"EVERYWATT_SENSOR": told})
    keep("wall")


@scene
def modelled() -> None:
    """No sensor at all: the built-in estimate; and a model that was fitted to recorded load."""
    with files({"sys/none": ""}) as env:
        everywatt("run", "--tag", "project=gamma", "--", "sleep", "1.5", env=env)
        keep("modelled")
    sim(
        "--package", "load:20W,70W",
        command=["model", "collect", "--time", "50s", "--steps", "16", "--seed", "3", "--period", "200ms"],
    )  # fmt: skip
    keep("collected")
    (OUT / "models").mkdir(parents=True)
    everywatt(
        "model", "fit", RUNS / "collected", "--target", "cpu.0.package.power", "--no-plot",
        "-o", OUT / "models/live.json",
    )  # fmt: skip
    with files({"sys/none": ""}) as env:
        shutil.copy(OUT / "models/live.json", PLACE / "live.json")
        everywatt("run", "--model", "live.json", "--", "sleep", "1.5", env=env)
        keep("by-model")
    extract = TESTS / "models" / "xeon_e5_2667v3_extract.csv"
    everywatt(
        "model", "fit", extract, "--target", "package_power", "--ignore", "dram_power", "--no-plot",
        "-o", OUT / "models/xeon.json",
    )  # fmt: skip


def _recorders() -> list[int]:
    found = Path("/proc").glob("[0-9]*/cmdline")
    return [int(path.parent.name) for path in found if b"everywatt/recorder/__main__.py" in path.read_bytes()]


@scene
def torn() -> None:
    """A tape that is being written (its log beside it), one whose recorder was killed, one whose run was killed too."""
    machine = [*EVERYWATT, "sim", "--gpu", "square:100W,300W,0.7s", "--package", "constant:60W", "--"]
    for name in ("unsealed", "recorder-killed", "killed"):
        child = subprocess.Popen([*machine, *EVERYWATT, "run", "--quiet", "--", "sleep", "4"], cwd=PLACE)
        time.sleep(3.2)
        recorder = max(_recorders())  # one of an earlier machine may not have left yet
        if name == "unsealed":
            os.kill(recorder, signal.SIGSTOP)
            (run,) = (path for path in RUNS.iterdir() if path.name[:8].isdigit())
            shutil.copytree(run, RUNS / name)
            os.kill(recorder, signal.SIGCONT)
            child.wait(30)
            shutil.rmtree(run)
            continue
        os.kill(recorder, signal.SIGKILL)
        if name == "killed":
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                if b"run\0--quiet" in path.read_bytes() and int(path.parent.name) != child.pid:
                    os.kill(int(path.parent.name), signal.SIGKILL)
        child.wait(30)
        keep(name)
    cut = RUNS / "broken.tape"
    data = next((RUNS / "square").glob("*.tape")).read_bytes()
    cut.write_bytes(data[: len(data) // 2])
    (RUNS / "not-a-tape.tape").write_bytes(b"this is not a tape")


@scene
def hosts() -> None:
    """One run with tapes of two hosts."""
    sim("--package", "constant:60W", command=["run", "--tag", "project=beta", "--", "sleep", "1"])
    run = keep("hosts")
    subprocess.run(["hostname", "node2"], check=True)
    try:
        sim("--gpu", "constant:200W", command=["run", "--append", run, "--", "sleep", "1"])
    finally:
        subprocess.run(["hostname", "node1"], check=True)


# Trials and journals.


@scene
def trials() -> None:
    """A comparison of two commands, and a sweep over power limits."""
    few = ["--trials", "3", "--warmup", "0", "--idle", "0.5s", "--no-cooldown"]
    sim("--package", "constant:60W", command=["compare", *few, "--name", "short", "--name", "long",
                                              "sleep 0.2", "sleep 0.4"])  # fmt: skip
    keep("compared")
    work = python("work.py", "from everywatt.testing import gpu_work\ngpu_work(0.2)\n")
    sim("--gpu", "load:50W,250W", "--sensor", "power_limit=250W",
        command=["sweep", "--power-limit", "150W,250W", "--trials", "2", "--warmup", "0", "--idle", "0.5s",
                 "--no-cooldown", "--", EVERYWATT[0], work])  # fmt: skip
    keep("swept")


@scene
def batches() -> None:
    """Batches on one card and on two, with an item that fails; one that was killed before its end."""
    (PLACE / "items.txt").write_text("".join(f"i{n}\n" for n in range(6)))
    body = "sleep 0.3; case $1 in i3) exit 4;; i5) sleep 1;; esac"
    machine = ["--gpu", "constant:100W", "--gpus", "2"]
    for name, gpus in (("batch-one", "0"), ("batch-two", "0,1")):
        words = ["batch", "--max-retries", "0", "--gpus", gpus, "--quiet", "items.txt", "--", "sh", "-c", body, "x",
                 "{input}"]  # fmt: skip
        sim(*machine, command=words, code=1)
        keep(name)
    words = [*EVERYWATT, "sim", *machine, "--", *EVERYWATT, "batch", "--quiet", "--gpus", "0", "items.txt", "--",
             "sh", "-c", "sleep 0.5", "x", "{input}"]  # fmt: skip
    child = subprocess.Popen(words, cwd=PLACE)
    time.sleep(3.0)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if b"\0batch\0" in path.read_bytes() and b"\0sim\0" not in path.read_bytes():
            os.kill(int(path.parent.name), signal.SIGKILL)
    child.wait(30)
    keep("batch-killed")


MODELS = """
import time

def good(prompt, **settings):
    for word in ("The", "answer", "is", str(eval_sum(prompt))):
        time.sleep(0.01)
        yield word + " "

def slow(prompt, **settings):
    for word in ("I", "think", "that", "it", "is", "42"):
        time.sleep(0.02)
        yield word + " "

def eval_sum(prompt):
    import re
    numbers = [int(n) for n in re.findall(r"\\d+", prompt)]
    return sum(numbers[:2]) if len(numbers) >= 2 else 0
"""


@scene
def llm() -> None:
    """Two models on the same questions, one of them at two loads, one by a command."""
    python("tiny_models.py", MODELS)
    env = os.environ | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}:{PLACE}"}

    def ask(name: str, *more: str) -> None:
        words = ["bench", "llm", "--dataset", "arithmetic", "--max-queries", "12", "--idle", "0.5s", "--warmup", "1"]
        everywatt("sim", "--package", "load:20W,60W", "--", *EVERYWATT, *words, *more, env=env)
        keep(name)

    ask("llm-good", "--client", "python", "--client-param", "call=tiny_models:good", "--model", "good")
    ask("llm-slow", "--client", "python", "--client-param", "call=tiny_models:slow", "--model", "slow")
    ask(
        "llm-sweep",
        "--client",
        "python",
        "--client-param",
        "call=tiny_models:good",
        "--model",
        "good",
        "--sweep",
        "1,2",
    )
    ask("llm-command", "--client", "command", "--client-param", "run=echo 42", "--model", "echo")


@scene
def llm_server() -> None:
    """A model behind a server that tells its tokens, asked two at a time."""
    sys.path.insert(0, str(TESTS / "support"))
    from sse_server import running

    with running(PLACE, tokens=6, gap_ms=10, burn_ms=2) as server:
        words = ["--base-url", server.url, "--model", "scripted", "--dataset", "arithmetic", "--max-queries", "14",
                 "--idle", "0.5s", "--warmup", "1", "--set", "temperature=0", "--concurrency", "2"]  # fmt: skip
        sim("--package", "load:20W,60W", command=["bench", "llm", *words])
    keep("llm-server")


ENTRY = """
import torch

def build():
    torch.manual_seed(0)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(linear(64, 64), relu(), linear(64, 2))
"""


@scene
def precision() -> None:
    """A small network in two precisions, and its training."""
    import numpy as np

    python("entries.py", ENTRY)
    inputs = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    np.savez(PLACE / "data.npz", inputs=inputs, labels=np.arange(64) % 2)
    env = os.environ | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}:{PLACE}"}
    mine = ["--entry", "entries:build", "--data", "data.npz", "--device", "cpu", "--idle", "0.2s"]
    machine = ["sim", "--package", "load:20W,60W", "--", *EVERYWATT, "bench"]
    everywatt(*machine, "precision", *mine, "--precisions", "fp32,int8", "--loop", "0.2s", "--trials", "2", "--layers",
              "--no-cooldown", env=env)  # fmt: skip
    keep("precision")
    everywatt(*machine, "train", *mine, "--precisions", "fp32", "--epochs", "2", "--limit", "32", env=env)
    keep("train")


@scene
def stressed() -> None:
    """A load program whose steps are spans."""
    sim("--package", "load:20W,60W", command=["stress", "--cpu", "1", "--time", "2s", "--steps", "2", "--shape",
                                              "ramp", "--seed", "1"])  # fmt: skip
    keep("stressed")


# Services.


@scene
def agent() -> None:
    """What an agent leaves after an orderly end and what it leaves when it is killed, and what it told."""
    sys.path.insert(0, str(TESTS / "support"))
    machine = ["--gpu", "square:100W,300W,2s", "--package", "constant:60W", "--sensor", "package.dram=0.2"]
    env = os.environ | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}:{TESTS / 'support'}"}
    for name, number in (("agent", signal.SIGTERM), ("agent-killed", signal.SIGKILL)):
        words = [*EVERYWATT, "sim", *machine, "--", *EVERYWATT, "agent", "--listen", "127.0.0.1:9876", "--period",
                 "0.5s", "--rotate", "3s", "--retention", "1h", "--jobs", "lab_jobs:Provider", "--compat",
                 "kepler,dcgm,jetson", "--state", str(OUT / name)]  # fmt: skip
        child = subprocess.Popen(words, cwd=PLACE, env=env, stderr=subprocess.DEVNULL)
        time.sleep(8.0)
        with urllib.request.urlopen("http://127.0.0.1:9876/metrics", timeout=10) as answer:
            (OUT / f"{name}-metrics.txt").write_bytes(answer.read())
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words_of = path.read_bytes()
            if b"\0agent\0" in words_of and b"\0sim\0" not in words_of:
                os.kill(int(path.parent.name), number)
        child.wait(30)


SLURM_T0 = 1_700_000_000.0


def _drop(spool: Path, kind: str, job: int, at: float, **values: object) -> None:
    """What a hook writes."""
    lines = {"event": kind, "job_id": job, **values, "whole": "yes"}
    path = spool / "events" / f"{kind}-{job}-{at}.event"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    os.utime(path, (SLURM_T0 + at, SLURM_T0 + at))


@scene
def slurm() -> None:
    """A site's store; a node's spool with events that were taken (and its state) and with ones that were not."""
    sys.path.insert(0, str(TESTS / "support"))
    import known_site
    from everywatt.slurm.hooks import make_spool
    from everywatt.slurm.store import Store
    from machines import Process, write_machine

    from everywatt.slurm.node import Node, tapes_in

    (OUT / "slurm").mkdir(parents=True)
    known_site.make(OUT / "slurm/site")
    tapes = OUT / "slurm/tape"
    tapes.mkdir()
    steps = {job: {"uid": 1000, "cgroup": f"/system.slice/slurmstepd.scope/job_{job}/step_batch/user/task_0"}
             for job in (1, 2)}  # fmt: skip
    processes = [
        Process(101, [1.0] * 12, extra=steps[1]),
        Process(102, [1.0] * 12, extra=steps[1]),
        Process(103, [1.0] * 12, extra=steps[2]),
        Process(104, [1.0] * 12, extra={"uid": 0, "cgroup": "/system.slice/sshd.service"}),
    ]
    watts = {"cpu.0": [60.0] * 12, "gpu.0": [40.0] * 6 + [160.0] * 6}
    write_machine(tapes / "n1-0001.tape", watts, processes, seconds=12, everything=True, host="n1")
    spool = OUT / "slurm/spool"
    make_spool(spool)

    def node(now: float) -> Node:
        return Node("n1", spool, Store(OUT / "slurm/store"), tapes_in(tapes), now_s=lambda: SLURM_T0 + now, boot="b",
                    ask=lambda jobs, *_: {job: {"account": "phys", "name": f"job {job}"} for job in jobs})  # fmt: skip

    for job, cpus in ((1, 2), (2, 1)):
        _drop(spool, "start", job, 1, node="n1", user="ada", uid=1000, cpus=cpus, cluster="c", period="2s")
    _drop(spool, "end", 2, 7, node="n1", exit_code="2:0")
    first = node(9)
    first.listen()
    first.settle()
    _drop(spool, "end", 1, 10, node="n1", exit_code="0:0")


@scene
def meters() -> None:
    """A recording of an Omegawatt in an archive, and the serial line of a simulated box captured into another one."""
    sys.path.insert(0, str(TESTS / "meters"))
    import boxes

    from everywatt.sim.omegawatt import OmegawattBox

    (PLACE / "wall.csv").write_text(boxes.text(400, 6))
    everywatt("meter", "import", "wall.csv", "--archive", OUT / "archive", "--meter", "rack1")
    box = OmegawattBox(count=300).start()
    everywatt("meter", "capture", box.path, "--archive", OUT / "captured", "--meter", "rack2", "--for", "4s")
    box.unplug()


@scene
def calibrations() -> None:
    """What is known of a card after a comparison with a meter."""
    data = TESTS / "energy" / "data" / "A100_step"
    options = ["--set", "card=NVIDIA A100-PCIE-40GB", "--set", "limit_w=250", "--set", "zone_h=1"]
    everywatt("import", "nvidia-smi", data / "nvidia_smi.csv.gz", *options, "-o", PLACE / "card.tape")
    columns = ["time=unix_s", "values=watts", "unit=W", "kind=gauge", "device=meter.0", "domain=gpu", "time_format=s"]
    sets = [word for pair in columns for word in ("--set", pair)]
    everywatt("import", "csv", data / "meter.csv.gz", *sets, "-o", PLACE / "meter.tape")
    everywatt("calibrate", "--from", PLACE / "card.tape", "--meter", PLACE / "meter.tape", "--uuid",
              "GPU-6e5e4d8f-2f2f-5c0e-9d2f-000000000001")  # fmt: skip
    (OUT / "home/.local/state/everywatt").mkdir(parents=True)
    kept = ".local/state/everywatt/calibrations.json"
    shutil.copy(Path.home() / kept, OUT / "home" / kept)


# Files of other tools, small and written by us, and what `export` writes.


def _smi_rows() -> str:
    head = "timestamp, index, name, power.draw [W], power.draw.instant [W], memory.used [MiB], utilization.gpu [%]\n"
    rows = [
        f"2026/06/24 10:26:{second:02d}.000, {card}, NVIDIA A100-SXM4-40GB, {90 + 10 * card + second % 7}.25 W, [N/A], "
        f"{200 + second} MiB, {second} %\n"
        for second in range(20)
        for card in (0, 1)
    ]
    return (
        head
        + "".join(rows)
        + head
        + "2026/06/24 10:26:20.000, 0, NVIDIA A100-SXM4-40GB, [Unknown Error], [N/A], 1 MiB, 0 %\n"
    )


def _aipowermeter(second: int, watts: float) -> str:
    cpu = {"intel_power": watts, "psys_power": -1, "total_dram_power": 2.0, "uncore_power": [0.5],
           "rel_intel_power": {"10": watts * 0.5}, "per_process_cpu_uses": {"10": 1.0}}  # fmt: skip
    gpu = {"nvidia_power": 100.0 + second, "nvidia_memory": 1000, "nvidia_use_rate": 50,
           "per_gpu_nvidia_power": {"0": 100.0 + second}, "per_gpu_nvidia_use_rate": {"0": 50},
           "per_gpu_nvidia_memory": {"0": 1000}}  # fmt: skip
    at = f"2026-11-15 10:00:{second:02d}.000000"
    return json.dumps({"date": at, "metrics": {"cpu": cpu, "gpu": gpu}})


def _powermetrics(second: int) -> str:
    return (
        f"*** Sampled system activity (Fri Nov  7 17:15:{second:02d} 2025 +0100) (1003.25ms elapsed) ***\n\n"
        "**** Processor usage ****\n\nE-Cluster HW active frequency: 1024 MHz\nCPU Power: 1500 mW\n"
        "GPU Power: 400 mW\nANE Power: 100 mW\nCombined Power (CPU + GPU + ANE): 2000 mW\n\n"
    )


def _ipmi(second: int) -> str:
    return (
        f"2026-11-15T10:00:{second:02d}+00:00\n"
        f"    Instantaneous power reading:                   {200 + second} Watts\n"
        "    Average power reading over sample period:      999 Watts\n"
        "    IPMI timestamp:                           Thu Jan  1 00:00:00 1970    Sampling period: 00000000 Seconds.\n"
        "    Power reading state is:                   activated\n"
    )


def _sage(second: int) -> str:
    rows = [("perf.sys.bus.i2c.vdd_in", 8.0, {}), ("tegra_wattage_current_milliwatts", 2000, {"sensor": "vdd_soc"}),
            ("env.temperature", 21.5, {"sensor": "bme680"})]  # fmt: skip
    at = f"2026-11-15T10:00:{second:02d}.000000001Z"
    lines = [
        {"timestamp": at, "name": name, "value": value, "meta": {"vsn": "W0", **more}} for name, value, more in rows
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def _sacct() -> str:
    columns = ("JobIDRaw|JobID|User|UID|Account|Partition|JobName|State|ExitCode|Submit|Start|End|ElapsedRaw|AllocCPUS|"
               "AllocTRES|NNodes|NodeList|Cluster|ConsumedEnergyRaw")  # fmt: skip
    t0 = 1_794_700_800
    rows = []
    for job, shown, state, start, end in (
        (1, "1", "COMPLETED", 36000, 39600),
        (9, "8_1", "CANCELLED by 1000", 40000, 40060),
    ):
        rows.append(f"{job}|{shown}|ada|1000|phys|p|train|{state}|0:0|{t0}|{t0 + start}|{t0 + end}|{end - start}|4|"
                    f"billing=4,cpu=4,gres/gpu=2,mem=2G,node=1|1|n1|c|1234")  # fmt: skip
    return "\n".join([columns, *rows]) + "\n"


TRACE = {
    "resourceSpans": [{"scopeSpans": [{"spans": [
        {"traceId": "a" * 32, "spanId": "b" * 16, "name": "chat tiny", "startTimeUnixNano": "0",
         "endTimeUnixNano": "1", "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]}]}]}]
}  # fmt: skip
MAP = '[[plug]]\nplug = 1\nnode = "n1"\nsupply = "left"\nphase = 1\n[[plug]]\nplug = 2\nnode = "n2"\nphase = 1\n'


@scene
def foreign() -> None:
    """One small file of each format that `import` reads."""
    sys.path.insert(0, str(TESTS / "meters"))
    import boxes

    place = OUT / "foreign"
    for name, text in {
        "smi.csv": _smi_rows(),
        "dmon.txt": "# gpu    pwr  gtemp     sm\n# Idx      W      C      %\n"
        + "".join(f"    {n % 2}    {100 + n}     {60 + n % 3}     90\n" for n in range(12))
        + "    1      -      -      0\n",
        "pmon.txt": "# gpu pid type sm mem command\n# Idx # C/G % % name\n" + " 0 11 C 60 1 a\n 0 12 C 30 1 b\n" * 3,
        "tegrastats.txt": "".join(
            f"07-09-2024 13:31:{s:02d} RAM 3168/6851MB (lfb 2x4MB) CPU [23%@1397] GR3D_FREQ 5% "
            f"VDD_IN {5000 + 10 * s}mW/1mW VDD_SOC 650mW/711mW\n"
            for s in range(30)
        ),
        "powermetrics.txt": "Machine model: Mac14,2\n\n" + "".join(map(_powermetrics, range(20))),
        "aipowermeter/power_metrics.json": "\n".join(_aipowermeter(s, 10.0 + s) for s in range(12))
        + '\n"END OF RECORDING SEGMENT"\n{"date": "2026-11-15 10:01',
        "aipowermeter/metadata.json": '{"description": "a try", "date": "2026"}',
        "labia/2026_11/ada/101/power_metrics.json": "\n".join(_aipowermeter(s, 10.0) for s in range(11)),
        "labia/2026_11/ada/101/meta_data.json": json.dumps(
            {"node_id": "n51", "jobid": "101", "job_name": "train", "start_date": "2026-11-15 10:00:00"}
        ),
        "labia/2026_11/bob/102/meta_data.json": "{}",
        "codecarbon.csv": "timestamp,project_name,run_id,duration,cpu_energy,gpu_energy,ram_energy\n"
        "2026-11-15T10:00:05,p,r1,5,0.0005,0.001,0.0001\n2026-11-15T10:00:10,p,r1,10,0.001,0.002,0.0002\n",
        "sage.ndjson": "".join(map(_sage, range(5))) + "not json\n",
        "ipmi.log": "".join(map(_ipmi, range(0, 40, 10))),
        "omegawatt.csv": boxes.text(200, 6),
        "any.csv": "when;power;other\n" + "".join(f"{1_700_000_000 + n};{50 + n % 5};x\n" for n in range(20)),
        "sacct.txt": _sacct(),
        "otel.jsonl": json.dumps(TRACE) + "\n",
        "map.toml": MAP,
        "intensity.csv": "time,g_per_kwh\n2026-11-14T00:00:00+00:00,40\n2026-11-18T00:00:00+00:00,60\n",
        "bad.txt": "to be or not to be,\nthat is the question\n",
        "program.toml": 'cpu = 2\ntime = "8s"\nshape = "ramp"\nsteps = 4\n',
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    shutil.copy(TESTS / "models" / "xeon_e5_2667v3_extract.csv", place / "xeon.csv")
    counter = "J 1734094386462336 us\n"
    for name, text in {
        "config/everywatt/config.toml": 'period = "250ms"\ncountry = "FR"\n[tag]\nteam = "blue"\n',
        "wrong-config/everywatt/config.toml": 'period = "a while"\nunknown = 1\n',
        "tree/sys/cray/pm_counters/energy": f"10000 {counter}",
        "tree/sys/cray/pm_counters/cpu_energy": f"4000 {counter}",
        "tree/sys/class/hwmon/hwmon1/name": "power_meter\n",
        "tree/sys/class/hwmon/hwmon1/power1_average": "120000000\n",
        "tree/proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
        "flags\t\t: fpu\n",
    }.items():
        (OUT / name).parent.mkdir(parents=True, exist_ok=True)
        (OUT / name).write_text(text, encoding="utf-8")


# Putting it together.


def collect(target: Path) -> None:
    """Copy what the scenes made to the folder outside."""
    if RUNS.exists():
        shutil.copytree(RUNS, target / "runs", dirs_exist_ok=True, ignore=shutil.ignore_patterns(".gitignore", ".lock"))
    if OUT.exists():
        shutil.copytree(OUT, target, dirs_exist_ok=True)


def write_manifest(folder: Path, out: Path) -> None:
    """Modes and times of all files, and the folders that are empty: what git does not keep."""
    rows = {}
    for path in sorted(folder.rglob("*")):
        about = path.stat()
        if path.is_file():
            rows[str(path.relative_to(folder))] = [about.st_mode & 0o777, about.st_mtime_ns]
        elif not any(path.iterdir()):
            rows[f"{path.relative_to(folder)}/"] = [0o755, about.st_mtime_ns]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    out.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def inside(names: list[str]) -> None:
    os.environ["EVERYWATT_HOME"] = str(RUNS)
    RUNS.mkdir(parents=True)
    OUT.mkdir()
    for name in names or SCENES:
        began = time.monotonic()
        SCENES[name]()
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    collect(Path("/opt/out"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--repo", type=Path, default=TESTS.parent, help="the checkout whose code records")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("scenes", nargs="*", help=", ".join(SCENES))
    options = parser.parse_args()
    if options.inside:
        inside(options.scenes if options.out is None else [str(options.out), *options.scenes])
        return
    options.out.mkdir(parents=True, exist_ok=True)
    namespaces = ["unshare", "--mount", "--uts", "--pid", "--cgroup", "--fork", "--mount-proc", "--kill-child"]
    words = [options.repo, TESTS, options.out.resolve(), CODE / ".venv/bin/python", *options.scenes]
    subprocess.run([*namespaces, "sh", "-c", INSIDE, "sh", *map(str, words)], check=True)
    write_manifest(options.out, options.out.with_name("manifest.json"))


if __name__ == "__main__":
    main()
