"""A small fleet on real engines: an agent with a card and jobs and one on a board, scraped and written, each once."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agents import AgentProcess, home_of
from engines import Engine, prometheus, victoria
from ports import free_port

from everywatt.sim.jetson import Board
from everywatt.sim.machine import SimMachine

ODD = 'he said "watt"\\\nœuvre'
RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "rules.yml"


@dataclass
class FleetLab:
    """What runs. `state` is the GPU node's folder; `lab` knows the truth of its devices."""

    prometheus: Engine
    victoria: Engine
    node: AgentProcess
    board: AgentProcess
    lab: object
    state: Path
    folder: Path


def config(node_port: int, board_port: int, rules: Path | None) -> str:
    return (
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
        + (f"rule_files: ['{rules}']\n" if rules else "")
        + "scrape_configs:\n"
        "  - job_name: everywatt\n    static_configs:\n"
        f"      - {{targets: ['127.0.0.1:{node_port}']}}\n"
        f"      - {{targets: ['127.0.0.1:{board_port}']}}\n"
    )


@contextmanager
def running(folder: Path, seconds: float = 12.0, rules: Path | None = RULES):
    """The fleet after it was scraped for so long."""
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        lab = stack.enter_context(
            SimMachine.of(
                gpus=["square:100W,300W,2s"], packages=["constant:60W"], replicate=None, sensor=["package.dram=0.2"]
            ).start()
        )
        rails = {"VDD_IN": "constant:8W", "VDD_CPU_GPU_CV": "constant:3W", "VDD_SOC": "constant:2W"}
        jetson = stack.enter_context(Board(folder / "board", rails, period_s=0.2))
        node_port, board_port = free_port(), free_port()
        engines = [
            prometheus(folder / "p", log, config(node_port, board_port, rules)),
            victoria(folder / "v", log),
        ]
        for engine in engines:
            stack.callback(engine.close)
        env = home_of(folder, lab.environment())
        load = [sys.executable, "-c", "import time\nwhile True:\n sum(range(20000)); time.sleep(0.02)"]
        job = subprocess.Popen(load)
        stack.callback(job.wait)
        stack.callback(job.kill)
        write = f"{engines[1].base}/api/v1/write"
        state = folder / "node"
        node = AgentProcess(
            env, "--listen", f"127.0.0.1:{node_port}", "--state", str(state), "--jobs", "lab_jobs:Provider",
            "--remote-write", write, "--instance", ODD, listen=False,
        )  # fmt: skip
        stack.enter_context(node)
        board_env = home_of(folder / "b", jetson.environment())
        words = ("--listen", f"127.0.0.1:{board_port}", "--state", str(folder / "board-state"))
        board = stack.enter_context(AgentProcess(board_env, *words, "--compat", "jetson", listen=False))
        wait = (
            'count(everywatt_owner_energy_joules_total{kind="job"}) and on() count(everywatt_power_watts{domain="soc"})'
        )
        node.until(lambda: engines[0].ask("/api/v1/query", query=wait), "the first scrapes")
        time.sleep(seconds)  # of readings in the stores
        yield FleetLab(*engines, node, board, lab, state, folder)
