"""Servers of language models: their token counters, and which processes or cards they run on.

One thread asks every server once an interval; whatever a server does, recording goes on. Ollama has no /metrics of its
own unless it was started with OLLAMA_METRICS, which is proposed and not released; proxies that count its tokens use
other names, which are known here too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from everywatt.core.clocks import NS, Clock, Task
from everywatt.core.errors import NetworkError, UsageError
from everywatt.fleet.metrics import samples
from everywatt.net.client import Client, Limits
from everywatt.net.server_processes import forwarder, is_here, listeners
from everywatt.net.url import Url

EVERY_S: Final = 5.0  # between two scrapes of a server
LOOK_NS: Final = 60 * NS  # how long a server's processes are not looked for again while it answers
MOST_MODELS: Final = 32  # of one server, so that labels cannot fill a store
MOST_NAME: Final = 200  # characters of a model's name
LIMITS: Final = Limits(connect_s=2.0, silence_s=3.0, total_s=5.0, body_bytes=8 << 20, redirects=2)
LAUNCHERS: Final = ("text-generation",)  # programs whose children listen and work; the kernel keeps 15 letters


class Metric(NamedTuple):
    """A metric's name, and the label that a sample of it must have."""

    name: str
    label: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """What one kind of server exports.

    prompt, generated    token counters
    prefill_s, decode_s  seconds spent in each phase; None if the server does not report them
    running              requests in progress
    model                label with the model's name; "" where the server has one model
    about                path and keys that give that model's name
    at_end               tokens are counted when their request ends, and not as they are made
    exclusive            the seconds are the engine's own, and not summed over requests that overlap
    """

    name: str
    prompt: Metric
    generated: Metric
    prefill_s: Metric | None = None
    decode_s: Metric | None = None
    running: Metric | None = None
    model: str = ""
    about: tuple[str, Sequence[str | int]] | None = None
    at_end: bool = True
    exclusive: bool = False


def _engine(name: str, *metrics: str | Metric | None, **more: Any) -> Engine:
    return Engine(name, *(Metric(one) if isinstance(one, str) else one for one in metrics), **more)  # type: ignore[arg-type]


_TGI_TIME: Final = "tgi_batch_inference_duration_sum"
ENGINES: Final = (
    _engine(
        "vllm", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_prefill_time_seconds_sum",
        "vllm:request_decode_time_seconds_sum", "vllm:num_requests_running", model="model_name", at_end=False,
    ),
    _engine(
        "sglang", "sglang:prompt_tokens_total", "sglang:generation_tokens_total", None, None,
        "sglang:num_running_reqs", model="model_name",
    ),
    _engine(
        "tgi", "tgi_request_input_length_sum", "tgi_request_generated_tokens_sum",
        Metric(_TGI_TIME, "method", "prefill"), Metric(_TGI_TIME, "method", "decode"), "tgi_batch_current_size",
        about=("/info", ("model_id",)), exclusive=True,
    ),
    _engine(
        "llama.cpp", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:prompt_seconds_total",
        "llamacpp:tokens_predicted_seconds_total", "llamacpp:requests_processing",
        about=("/v1/models", ("data", 0, "id")),
    ),
    _engine(
        "ollama", "ollama_prompt_tokens_total", "ollama_generated_tokens_total",
        "ollama_prompt_eval_duration_seconds_total", "ollama_eval_duration_seconds_total", model="model",
    ),
    _engine(
        "ollama", "ollama_tokens_processed_total", "ollama_tokens_generated_total",
        "ollama_prompt_eval_duration_seconds_sum", "ollama_eval_duration_seconds_sum", model="model",
    ),
)  # fmt: skip
HINTS: Final = {
    404: "it has no /metrics (llama.cpp needs --metrics, SGLang --enable-metrics, Ollama a proxy that counts)",
    501: "its /metrics is switched off (llama.cpp: start it with --metrics)",
    401: "it requires a token (--llm-token-file FILE)",
    403: "it refuses access (--llm-token-file FILE)",
}


class Tokens(NamedTuple):
    """Counters of one model since its server started: tokens, and seconds of requests in each phase."""

    prompt: float = 0.0
    generated: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def since(self, before: Tokens) -> Tokens:
        """What was added since then."""
        return Tokens(*(now - then for now, then in zip(self, before, strict=True)))


class Scrape(NamedTuple):
    """What a server said, at `at_ns` give or take `half_ns`; or why it said nothing, in `trouble`."""

    at_ns: int
    half_ns: int = 0
    engine: Engine | None = None
    models: Mapping[str, Tokens] = {}
    running: float | None = None
    trouble: str = ""


def read_counters(text: str, model: str = "") -> tuple[Engine, dict[str, Tokens], float | None]:
    """Which server wrote a Prometheus text, the counters of its models, and how many requests it works on.

    `model` names the model of a server that does not. ValueError where the text has no token counters that are known.
    """
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in samples(text):
        if value >= 0.0:  # neither NaN
            found.setdefault(name, []).append((labels, value))
    engine = next((one for one in ENGINES if one.generated.name in found), None)
    if engine is None:
        raise ValueError("it exports no token counters that are known")
    kinds = (engine.prompt, engine.generated, engine.prefill_s, engine.decode_s)
    sums: dict[str, list[float]] = {}
    for place, metric in enumerate(kinds):
        for labels, value in found.get(metric.name, ()) if metric else ():
            assert metric is not None
            if metric.label and labels.get(metric.label) != metric.value:
                continue
            name = (labels.get(engine.model) or model)[:MOST_NAME]
            if name in sums or len(sums) < MOST_MODELS:
                sums.setdefault(name, [0.0] * len(kinds))[place] += value  # one engine of several, one reason of ends
    running = found.get(engine.running.name) if engine.running else None
    models = {name: Tokens(*values) for name, values in sums.items()}
    return engine, models, None if running is None else sum(value for _, value in running)


@dataclass(frozen=True, slots=True)
class Target:
    """A server to join: its name in series, where its counters are, and what it runs on where that is not its port.

    >>> parse_target("chat=http://127.0.0.1:8000#gpu.0,gpu.1").devices
    ('gpu.0', 'gpu.1')
    """

    name: str
    url: Url
    devices: tuple[str, ...] = ()
    port: int = 0


def parse_target(text: str) -> Target:
    """`[NAME=]URL[#gpu.0,gpu.1 or #PORT]`. UsageError if it is malformed."""
    head, equals, rest = text.partition("=")
    named = equals and "://" not in head
    address, _, beyond = (rest if named else text).partition("#")
    url = Url.parse(address if "://" in address else f"http://{address}")
    if not url.base:
        url = Url(url.scheme, url.host, url.port, "/metrics", url.query, url.login)
    parts = [part.strip() for part in beyond.split(",") if part.strip()]
    ports = [part for part in parts if part.isdecimal()]
    if (ports and len(parts) > 1) or (named and not head.strip()):
        raise UsageError(f"'{text}' is not a server to join.", cure="--llm NAME=http://127.0.0.1:8000#gpu.0,gpu.1")
    devices = () if ports else tuple(parts)
    return Target(head.strip() if named else url.netloc, url, devices, int(ports[0]) if ports else url.port)


def check_targets(texts: Sequence[str]) -> list[Target]:
    """The targets; UsageError where two have one name or one card."""
    targets = [parse_target(text) for text in texts]
    for what, names in (
        ("are called", [target.name for target in targets]),
        ("claim", [device for target in targets for device in target.devices]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"Two servers {what} {twice}.", cure="--llm NAME=URL, and each card once")
    return targets


def server_pids(target: Target, proc: Path = Path("/proc")) -> tuple[tuple[int, ...], str]:
    """The first processes of a server; without any, the reason. Reads /proc only."""
    if target.devices:
        return (), ""
    cure = f"name its cards: --llm {target.name}={target.url.origin}#gpu.0"
    if target.port == target.url.port and not is_here(target.url.origin):
        return (), "it runs on another machine: start an agent there"
    pids = listeners(target.port, proc)
    if not pids:
        return (), f"no process that this user may look at listens on port {target.port}; run as root, or {cure}"
    name = forwarder(pids, proc)
    if name is not None:
        return (), f"port {target.port} belongs to {name}, which only forwards requests; {cure}"
    return tuple(launcher_of(pid, proc) for pid in pids), ""


def launcher_of(pid: int, proc: Path) -> int:
    """The parent of a process where that is a launcher, whose other children do the work."""
    try:
        parent = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        return parent if (proc / str(parent) / "comm").read_text().startswith(LAUNCHERS) else pid
    except (OSError, ValueError, IndexError):
        return pid


@dataclass
class Server:
    """A target with what was found of it: written by the scraper's thread, read by the agent's."""

    target: Target
    client: Client
    pids: tuple[int, ...] = ()
    unknown: str = ""
    model: str = ""
    scrapes: deque[Scrape] = field(default_factory=lambda: deque(maxlen=64))
    _looked_ns: int | None = None

    def ask(self, clock: Clock, proc: Path) -> None:
        """Scrape once; the processes are looked for at first, after a failure, and every minute."""
        start_ns = clock.monotonic_ns()
        if self._looked_ns is None or start_ns - self._looked_ns >= LOOK_NS:
            self.pids, self.unknown = server_pids(self.target, proc)
            self._looked_ns = start_ns = clock.monotonic_ns()
        try:
            response = self.client.get()
            if response.status != 200:
                raise ValueError(HINTS.get(response.status, f"it answers {response.status} {response.reason}".strip()))
            at_ns = clock.monotonic_ns()
            engine, models, running = read_counters(response.text, self.model or self.target.name)
            if not self.model and engine.about is not None:
                self.model = self._name(engine) or self.target.name
                engine, models, running = read_counters(response.text, self.model)
            scrape = Scrape((start_ns + at_ns) // 2, (at_ns - start_ns) // 2, engine, models, running)
        except NetworkError as error:
            scrape = Scrape(start_ns, trouble=error.reason)
        except ValueError as error:
            scrape = Scrape(start_ns, trouble=str(error))
        if scrape.trouble:
            self._looked_ns, self.model = None, ""
        self.scrapes.append(scrape)

    def _name(self, engine: Engine) -> str:
        """The name of the only model, asked for once; empty if the server does not report it."""
        assert engine.about is not None
        path, keys = engine.about
        try:
            found = Client(self.client.url.origin, limits=LIMITS).get(path).json()
            for key in keys:
                found = found[key]
            return str(found).rstrip("/").rpartition("/")[2][:MOST_NAME]
        except (NetworkError, ValueError, LookupError, TypeError):
            return ""


class Scraper:
    """Asks servers until `close`, in a thread of its own."""

    def __init__(self, targets: Sequence[Target], clock: Clock, proc: Path, token: str | None) -> None:
        self.servers = [Server(one, Client(one.url, token=token, limits=LIMITS)) for one in targets]
        self._clock, self._proc = clock, proc
        self._ended = clock.event()
        self._thread: Task | None = None

    def start(self, say: Callable[[str], None]) -> None:
        """Start asking; a server without counters or processes is reported to `say` once for each reason."""
        self._thread = self._clock.spawn(lambda: self._run(say), "llm")

    def _run(self, say: Callable[[str], None]) -> None:
        said: dict[str, str] = {}
        while True:
            for server in self.servers:
                try:
                    server.ask(self._clock, self._proc)
                except Exception as error:  # noqa: BLE001 - whatever a server does, recording goes on
                    server.scrapes.append(
                        Scrape(self._clock.monotonic_ns(), trouble=f"{type(error).__name__}: {error}")
                    )
                name = server.target.name
                trouble = server.scrapes[-1].trouble or server.unknown
                if trouble != said.get(name, ""):
                    say(f"{name}: {trouble}." if trouble else f"{name}: its tokens are counted.")
                    said[name] = trouble
            if self._ended.wait(EVERY_S):
                return

    def close(self) -> None:
        """End; a request that is under way is not waited for."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1.0)
        for server in self.servers:
            server.client.close()
