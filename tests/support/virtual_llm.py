"""A language-model server on a virtual card, whose every joule and token is known: continuous batching, two models.

Steps follow one another: the prefill of one request, or one token for each request that is under way. What a step draws
above idle is the truth of its models, by tokens times their cost.
"""

from __future__ import annotations

import bisect
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import virtual_machine
from virtual_machine import machine

from everywatt.core.channels import Cadence, GroupInfo
from everywatt.core.clocks import NS

IDLE_W, PREFILL_W, DECODE_W, STREAM_W = 60.0, 330.0, 180.0, 1.5
COSTS = {"small": 1.0, "large": 2.0}  # of a token, relative
PREFILL_S, STEP_S, TOKEN_S = 0.0005, 0.02, 0.0004  # by prompt token; of a decode step; more for each of its tokens
PHASES = ("prefill", "decode")


@dataclass
class Request:
    model: str
    prompt: int
    left: int
    tokens: int = 0
    sent_s: float = 0.0
    began_s: float = 0.0
    first_s: float = 0.0
    pieces_s: list[float] = field(default_factory=list)  # what its client sees; the first comes with the prefill
    joules: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))  # above idle

    @property
    def ended_s(self) -> float:
        return self.pieces_s[-1]


@dataclass
class VirtualServer:
    """`streams` clients from `start_s` to `end_s`, each with one request after another. A curve, too."""

    streams: int
    start_s: float = 25.0
    end_s: float = 205.0
    models: Sequence[str] = ("small", "large")
    flavour: str = "vllm"
    restart_s: float = float("inf")
    drains: bool = False  # answers what is under way at the end
    ends_s: list[float] = field(default_factory=lambda: [0.0])  # of steps
    watts: list[float] = field(default_factory=lambda: [IDLE_W])
    before_j: list[float] = field(default_factory=lambda: [0.0])
    counters: list[dict[tuple[str, str], float]] = field(default_factory=lambda: [{}])
    running: list[int] = field(default_factory=lambda: [0])
    ended: list[Request] = field(default_factory=list)
    low_w: float = IDLE_W
    high_w: float = 600.0
    text: str = "virtual server"

    def __post_init__(self) -> None:
        self._step(self.start_s, IDLE_W, {})
        chance = random.Random(self.streams)
        waiting = [self._request(chance, self.start_s) for _ in range(self.streams)]
        active: list[Request] = []
        now: dict[tuple[str, str], float] = {}
        while self.ends_s[-1] < self.end_s or (self.drains and (active or waiting)):
            at_s = self.ends_s[-1]
            now = dict(now)
            if waiting:
                one = waiting.pop()
                one.began_s = at_s
                seconds = one.prompt * PREFILL_S * COSTS[one.model]
                one.first_s = at_s + seconds
                one.pieces_s.append(one.first_s)
                one.joules["prefill"] = (PREFILL_W - IDLE_W) * seconds
                active.append(one)
                self._add(now, one.model, "prompt", one.prompt)
                self._charge(now, "prefill", seconds, PREFILL_W - IDLE_W, {one.model: 1.0})
                self._step(seconds, PREFILL_W, now, len(active))
                continue
            work = {model: COSTS[model] * sum(one.model == model for one in active) for model in self.models}
            seconds = STEP_S + TOKEN_S * sum(work.values())
            watts = DECODE_W + STREAM_W * len(active)
            self._charge(now, "decode", seconds, watts - IDLE_W, work)
            for one in list(active):
                one.tokens += 1
                one.left -= 1
                one.pieces_s.append(at_s + seconds)
                one.joules["decode"] += (watts - IDLE_W) * seconds * COSTS[one.model] / sum(work.values())
                self._add(now, one.model, "generated", 1)
                if not one.left:
                    active.remove(one)
                    self.ended.append(one)
                    self._add(now, one.model, "ended prompt", one.prompt)
                    self._add(now, one.model, "ended", one.tokens)
                    self._add(now, one.model, "prefill time", one.first_s - one.began_s)
                    self._add(now, one.model, "decode time", at_s + seconds - one.first_s)
                    if not self.drains or at_s + seconds < self.end_s:
                        waiting.append(self._request(chance, at_s + seconds))
            self._step(seconds, watts, now, len(active))
        self._step(1e6, IDLE_W, {**now})

    def _request(self, chance: random.Random, sent_s: float) -> Request:
        return Request(chance.choice(self.models), chance.randint(50, 400), chance.randint(20, 120), sent_s=sent_s)

    def _add(self, now: dict[tuple[str, str], float], model: str, what: str, amount: float) -> None:
        now[model, what] = now.get((model, what), 0.0) + amount

    def _charge(self, now: Any, phase: str, seconds: float, above_w: float, work: dict[str, float]) -> None:
        self._add(now, "", f"{phase} engine", seconds)
        for model, amount in work.items():
            self._add(now, model, f"{phase} joules", above_w * seconds * amount / sum(work.values()))

    def _step(self, seconds: float, watts: float, now: dict[tuple[str, str], float], running: int = 0) -> None:
        self.before_j.append(self.before_j[-1] + watts * seconds)
        self.ends_s.append(self.ends_s[-1] + seconds)
        self.watts.append(watts)
        self.counters.append(now)
        self.running.append(running)

    # A curve.

    def energy_j(self, a_s: float, b_s: float, limit_w: float = 0.0) -> float:
        return self._joules(b_s) - self._joules(a_s)

    def _joules(self, at_s: float) -> float:
        step = bisect.bisect_left(self.ends_s, max(at_s, 0.0))
        return self.before_j[step] - self.watts[step] * (self.ends_s[step] - max(at_s, 0.0))

    def power_w(self, t_s: float, limit_w: float = 0.0) -> float:
        return self.watts[bisect.bisect_left(self.ends_s, t_s)]

    # Counters.

    def at(self, at_s: float) -> tuple[dict[tuple[str, str], float], int]:
        """Counters after the last step that ended by then, and how many requests are under way."""
        step = bisect.bisect_right(self.ends_s, at_s) - 1
        return self.counters[step], self.running[step]

    def truth_j(self, model: str, a_s: float, b_s: float, phases: Sequence[str] = PHASES) -> float:
        """Active joules of a model between two instants, to the step."""
        (a, _), (b, _) = self.at(a_s), self.at(b_s)
        return sum(b.get((model, f"{phase} joules"), 0.0) - a.get((model, f"{phase} joules"), 0.0) for phase in phases)

    def metrics(self, at_s: float) -> str:
        """What its /metrics says."""
        now, running = self.at(at_s)
        before = self.at(self.restart_s)[0] if at_s >= self.restart_s else {}

        def value(model: str, what: str) -> float:
            return now.get((model, what), 0.0) - before.get((model, what), 0.0)

        lines = []
        if self.flavour == "vllm":
            for model in self.models:
                label = f'{{engine="0",model_name="{model}"}}'
                lines += [
                    f"vllm:prompt_tokens_total{label} {value(model, 'prompt')}",
                    f"vllm:generation_tokens_total{label} {value(model, 'generated')}",
                    f"vllm:request_prefill_time_seconds_sum{label} {value(model, 'prefill time')}",
                    f"vllm:request_decode_time_seconds_sum{label} {value(model, 'decode time')}",
                ]
            lines.append(f"vllm:num_requests_running {running}")
        else:
            (model,) = self.models
            lines = [
                f"tgi_request_input_length_sum {value(model, 'ended prompt')}",
                f"tgi_request_generated_tokens_sum {value(model, 'ended')}",
                f'tgi_batch_inference_duration_sum{{method="prefill"}} {value("", "prefill engine")}',
                f'tgi_batch_inference_duration_sum{{method="decode"}} {value("", "decode engine")}',
                f"tgi_batch_current_size {running}",
            ]
        return "\n".join(lines) + "\n"


class Tenants:
    """Who is on the card, busy while the server works: this process, and beside it whom `beside` names with its SM."""

    info = GroupInfo("virtual.tenants", "virtual", "gpu", (), cadence=Cadence.SLOW, table=True)
    beside: dict[int, float] = {}  # noqa: RUF012 - set by tests

    def __init__(self) -> None:
        self._s = 0.0

    def read_table(self) -> tuple[int, list[dict[str, Any]]]:
        at_ns = machine().read(self.info.name)
        now_s = (at_ns - machine().origin_ns) / NS
        above_j = machine().curves["gpu"].energy_j(self._s, now_s) - IDLE_W * (now_s - self._s)
        self._s = now_s
        shares = {os.getpid(): 90.0, **self.beside}
        busy = 1.0 if above_j > 1.0 else 0.0
        return at_ns, [{"gpu": 0, "pid": pid, "sm": sm * busy, "memory_bytes": 1e9} for pid, sm in shares.items()]

    def close(self) -> None: ...


class Sensors(virtual_machine.Sensors):
    """Those of the virtual machine with the processes on its card; this process is among the processes."""

    def groups(self) -> Sequence[Any]:
        groups = list(super().groups())
        groups[-1].pids.append(os.getpid())
        return [*groups, Tenants()]


class Endpoint:
    """`/metrics` of a virtual server over real HTTP, at the virtual time. `answer` may be replaced."""

    def __init__(self, answer) -> None:
        self.answer = answer
        self.heads: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                outer.heads.append({**dict(self.headers), "path": self.path})
                status, headers, text = outer.answer(self.path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *words) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
