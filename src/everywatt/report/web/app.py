"""The routes of `everywatt serve`: pages, the list of runs, reports, live events; reads only. And its server process,
ended in order by a signal, at once by a second one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from everywatt.core.errors import EverywattError, RunNotFound
from everywatt.core.jsonio import document, dumps
from everywatt.footprint.carbon import Factors
from everywatt.net.guard import LOGIN_PATH, OPEN_FOLDER, Access, App, Guard, ServerLimits
from everywatt.net.server import HttpServer
from everywatt.net.tls import server_context
from everywatt.report.html.figures import shown_energy
from everywatt.report.live.snapshot import LiveSource
from everywatt.report.live.tape_source import TapeSource
from everywatt.report.web.assets import ICON, JSON, Asset, assets, fingerprint, shell
from everywatt.report.web.live import INTERVAL_S, EventStream, Hubs
from everywatt.report.web.runs import MOST_RUNS, Documents, RunIndex, close_run, open_run
from everywatt.report.web.slurm import Refused, SlurmPages

LIST_BUDGET_S = 0.25
MACHINE = ""  # no run is called that
HTML = "text/html; charset=utf-8"


@dataclass(slots=True)
class Site:
    """What the pages are about. `machine` opens the live source of this machine, `slurm` has the pages of a site.

    Where a proxy says who looks, runs and this machine are for administrators.
    """

    index: RunIndex
    access: Access
    machine: Callable[[], LiveSource]
    factors: Factors | None = None
    slurm: SlurmPages | None = None
    hubs: Hubs = field(default_factory=Hubs)
    documents: Documents = field(init=False)

    def __post_init__(self) -> None:
        self.documents = Documents(self.factors)

    def app(self) -> App:
        """The ASGI application, guarded."""
        routes: list[BaseRoute] = [
            Route("/", self.page),
            Route("/live", self.page),
            Route("/compare", self.page),
            Route("/run/{name:path}", self.run_page),
            Route("/login", self.login_page),
            Route(LOGIN_PATH, self.login),
            Route("/api/runs", self.runs),
            Route("/api/window", self.window),
            Route("/api/report", self.report),
            Route("/api/live", self.live),
            Route("/static/{name}", self.static),
            Route("/favicon.ico", self.icon),
        ]
        if self.slurm is not None:
            if self.slurm.proxy is not None:
                routes = [Route(one.path, self._for_admins(one.endpoint)) for one in routes if isinstance(one, Route)]
            routes += self.slurm.routes()
        app = Starlette(routes=routes, exception_handlers={404: self.missing, EverywattError: _trouble})
        app.router.redirect_slashes = False  # an address is right or it is not
        return Guard(app, self.access)

    def _for_admins(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Any]:
        """A page that only administrators see; files of pages, which say nothing, are for all."""

        async def answer(request: Request) -> Response:
            if self.slurm is not None and not request.url.path.startswith(OPEN_FOLDER):
                try:
                    if not self.slurm.viewer(request).admin:
                        return PlainTextResponse("Your jobs are at /slurm\n", 303, headers={"location": "/slurm"})
                except Refused as refusal:
                    return PlainTextResponse(f"{refusal.text}\n", refusal.status)
            return await endpoint(request)

        return answer

    async def fill(self) -> None:
        """Read the list ahead, a little at a time, so that the first who asks need not wait."""
        pending = 1
        with contextlib.suppress(OSError):  # an unreadable folder is the list's to tell
            while pending:
                _, pending = await asyncio.to_thread(self.index.rows, LIST_BUDGET_S)
                await asyncio.sleep(0.01)

    async def page(self, request: Request) -> Response:
        """The list, the machine, a comparison: scripts see from the address which."""
        return self._shell()

    def _shell(self, status: int = 200) -> Response:
        return Response(shell(slurm=self.slurm is not None), status, media_type=HTML)

    async def run_page(self, request: Request) -> Response:
        try:
            await asyncio.to_thread(self.index.path_of, request.path_params["name"])
        except RunNotFound:  # the page says so, with a way back
            return self._shell(404)
        return self._shell()

    async def missing(self, request: Request, error: Exception) -> Response:
        if request.url.path.startswith(("/api/", "/static/")):
            return PlainTextResponse("There is nothing here.\n", 404)
        return self._shell(404)

    async def window(self, request: Request) -> Response:
        """The energy of a window of a run, with its interval: `run`, and `a` and `b` in seconds after its start."""
        asked = request.query_params
        try:
            window = (float(asked["a"]), float(asked["b"]))
        except (KeyError, ValueError):
            window = (0.0, 0.0)
        if not (all(map(math.isfinite, window)) and 0 <= window[0] < window[1] and asked.get("run")):
            return JSONResponse({"error": "Give run, a and b, with a before b.", "cure": None}, 400)
        path = await asyncio.to_thread(self.index.path_of, asked["run"])
        found = await asyncio.to_thread(_window_energy, path, window)
        return JSONResponse(document("window", {"run": path.name, "between": list(window), "energy": found}))

    async def login_page(self, request: Request) -> Response:
        return Response(shell(login=True), media_type=HTML)

    async def login(self, request: Request) -> Response:
        """The cookie, for a client that sent the token in the header (checked by the guard)."""
        # Behind a proxy the token is the proxy's, and no browser gets anything that could stand for it.
        alone = self.slurm is None or self.slurm.proxy is None
        headers = {"set-cookie": self.access.cookie()} if self.access.token is not None and alone else {}
        return Response(status_code=204, headers=headers)

    async def runs(self, request: Request) -> Response:
        """The list as JSON. `pending` rows are not read yet: ask again."""
        rows, pending = await asyncio.to_thread(self.index.rows, LIST_BUDGET_S)
        data = {"home": str(self.index.home), "pending": pending, "token": self.access.token is not None, "runs": rows}
        body = dumps(document("runs", data)).encode("utf-8", "replace")
        return _conditional(request, Asset(body, JSON, fingerprint(body)))

    async def report(self, request: Request) -> Response:
        """The document of a report over one or several runs."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not names or len(names) > MOST_RUNS:
            return JSONResponse({"error": f"Request between one and {MOST_RUNS} runs.", "cure": None}, 400)
        paths = [await asyncio.to_thread(self.index.path_of, name) for name in names]
        return _conditional(request, await self.documents.of(paths))

    async def live(self, request: Request) -> Response | EventStream:
        """Events of this machine, or of the run that is asked for."""
        names = request.query_params.getlist("run")
        make, key = self.machine, MACHINE
        if names:
            path = await asyncio.to_thread(self.index.path_of, names[0])
            make, key = _tape(path), path.name
        joined = self.hubs.join(key, make)
        if joined is None:
            answer = {"error": "Too many viewers are connected.", "cure": "close other tabs"}
            return JSONResponse(answer, 503, headers={"retry-after": "10"})
        return EventStream(*joined)

    async def static(self, request: Request) -> Response:
        found = assets().get(request.path_params["name"])
        return PlainTextResponse("There is no such file.\n", 404) if found is None else _conditional(request, found)

    async def icon(self, request: Request) -> Response:
        """The mark, for browsers that ask for one by themselves."""
        return _conditional(request, assets()[ICON.rpartition("/")[2]])


def _window_energy(path: Path, window: tuple[float, float]) -> dict[str, Any]:
    run = open_run(path)
    try:
        return shown_energy(replace(run.energy(between=window), parts=()))
    finally:
        close_run(run)


def _tape(path: Path) -> Callable[[], LiveSource]:
    return lambda: TapeSource(path, INTERVAL_S)


def _conditional(request: Request, asset: Asset) -> Response:
    """The file, or that it has not changed."""
    headers = {"etag": asset.etag, "cache-control": "no-cache, private"}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.kind)


async def _trouble(request: Request, error: Any) -> Response:
    """Why there is no answer, for an EverywattError."""
    return JSONResponse({"error": error.message, "cure": error.cure}, 404 if isinstance(error, RunNotFound) else 422)


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Every open live page holds a request in flight.
LIMITS = ServerLimits(in_flight=120, idle_s=15, graceful_s=3.0)


def run(site: Site, sock: socket.socket, *, cert: Path | None = None, key: Path | None = None) -> None:
    """Serve until a signal says to end."""
    tls = None if cert is None or key is None else server_context(cert, key)
    try:
        asyncio.run(_serve(site, HttpServer(site.app(), sock, limits=LIMITS, tls=tls)))
    finally:
        sock.close()


async def _serve(site: Site, server: HttpServer) -> None:
    filling = asyncio.ensure_future(site.fill())
    try:
        with _ended_by_signals(server.stop):
            # Streams never end by themselves, and would keep the server from ending.
            await server.serve(site.hubs.close)
    finally:
        filling.cancel()


@contextlib.contextmanager
def _ended_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """A signal calls `stop` and is not passed on: the end was asked for, and is no failure."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in ENDING}
    caught = [number for number in ENDING if before[number] is not signal.SIG_IGN]
    for number in caught:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
