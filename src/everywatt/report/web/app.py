"""The routes: pages, the list of runs, reports, live events. Reads only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from everywatt.core.errors import EverywattError, RunNotFound
from everywatt.core.jsonio import document, dumps
from everywatt.footprint.carbon import Factors
from everywatt.net.guard import LOGIN_PATH, OPEN_FOLDER, Access, App, Guard
from everywatt.report.live.sources import LiveSource
from everywatt.report.live.tape_source import TapeSource
from everywatt.report.web.assets import ICON, Asset, assets, shell
from everywatt.report.web.documents import MOST_RUNS, Documents
from everywatt.report.web.events import EventStream
from everywatt.report.web.live import INTERVAL_S, Hubs
from everywatt.report.web.runs import RunIndex, fingerprint
from everywatt.report.web.slurm import Refused, SlurmPages

LIST_BUDGET_S = 0.25
MACHINE = ""  # no run is called that
HTML = "text/html; charset=utf-8"
JSON = "application/json"


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

    def app(self) -> App:
        """The ASGI application, guarded."""
        documents = Documents(self.factors)
        routes: list[BaseRoute] = [
            Route("/", self.page),
            Route("/live", self.page),
            Route("/compare", self.page),
            Route("/run/{name:path}", self.run_page),
            Route("/login", self.login_page),
            Route(LOGIN_PATH, self.login),
            Route("/api/runs", self.runs),
            Route("/api/report", _Reports(self.index, documents).answer),
            Route("/api/live", self.live),
            Route("/static/{name}", self.static),
            Route("/favicon.ico", self.icon),
        ]
        if self.slurm is not None:
            if self.slurm.proxy is not None:
                routes = [Route(one.path, self._for_admins(one.endpoint)) for one in routes if isinstance(one, Route)]
            routes += self.slurm.routes()
        app = Starlette(routes=routes)
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
        while pending:
            _, pending = await asyncio.to_thread(self.index.rows, LIST_BUDGET_S)
            await asyncio.sleep(0.01)

    async def page(self, request: Request) -> Response:
        """The list, the machine, a comparison: scripts see from the address which."""
        return Response(shell(slurm=self.slurm is not None), media_type=HTML)

    async def run_page(self, request: Request) -> Response:
        """A run that there is."""
        try:
            await asyncio.to_thread(self.index.path_of, request.path_params["name"])
        except RunNotFound as error:
            return PlainTextResponse(f"{error.message}\n", 404)
        return Response(shell(slurm=self.slurm is not None), media_type=HTML)

    async def login_page(self, request: Request) -> Response:
        """Where a token can be given."""
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

    async def live(self, request: Request) -> Response:
        """Events of this machine, or of the run that is asked for."""
        names = request.query_params.getlist("run")
        make, key = self.machine, MACHINE
        if names:
            try:
                path = await asyncio.to_thread(self.index.path_of, names[0])
            except RunNotFound as error:
                return _trouble(error, 404)
            make, key = _tape(path), path.name
        joined = self.hubs.join(key, make)
        if joined is None:
            answer = {"error": "Too many viewers are connected.", "cure": "close other tabs"}
            return JSONResponse(answer, 503, headers={"retry-after": "10"})
        return _Stream(EventStream(*joined))

    async def static(self, request: Request) -> Response:
        """A file of the page, by its exact name."""
        found = assets().get(request.path_params["name"])
        return PlainTextResponse("There is no such file.\n", 404) if found is None else _conditional(request, found)

    async def icon(self, request: Request) -> Response:
        """The mark, for browsers that ask for one by themselves."""
        return _conditional(request, assets()[ICON.rpartition("/")[2]])


class _Reports:
    """Report documents by name."""

    def __init__(self, index: RunIndex, documents: Documents) -> None:
        self._index, self._documents = index, documents

    async def answer(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not names or len(names) > MOST_RUNS:
            return JSONResponse({"error": f"Request between one and {MOST_RUNS} runs.", "cure": None}, 400)
        try:
            paths = [await asyncio.to_thread(self._index.path_of, name) for name in names]
            found = await self._documents.of(paths)
        except RunNotFound as error:
            return _trouble(error, 404)
        except EverywattError as error:
            return _trouble(error, 422)
        return _conditional(request, Asset(found.body, JSON, found.etag))


class _Stream(Response):
    """Lets Starlette hand over to an event stream."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        await self._stream(scope, receive, send)  # type: ignore[arg-type]


def _tape(path: Path) -> Callable[[], LiveSource]:
    return lambda: TapeSource(path, INTERVAL_S)


def _conditional(request: Request, asset: Asset) -> Response:
    """The file, or that it has not changed."""
    headers = {"etag": asset.etag, "cache-control": "no-cache, private"}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.kind)


def _trouble(error: EverywattError, status: int) -> Response:
    return JSONResponse({"error": error.message, "cure": error.cure}, status)


async def until_filled(site: Site) -> None:
    """`Site.fill`, for a background task: an unreadable folder is the list's to tell."""
    with contextlib.suppress(OSError):
        await site.fill()
