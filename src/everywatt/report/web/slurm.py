"""Pages of a Slurm site: jobs, users, accounts, nodes, months. The figures are those of `everywatt slurm jobs`.

Pages are plain HTML without scripts or forms. The viewer is named by a reverse proxy that is configured as trusted, in
a header of a request that comes from its address and carries the server's token: a user sees their own jobs, an
administrator all of them. Without such a proxy the token alone is asked for, and shows what the server may read.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from everywatt.core.errors import EverywattError, UsageError
from everywatt.core.format import format_duration, format_percent
from everywatt.core.jsonio import document, dumps
from everywatt.core.tables import Table
from everywatt.footprint.carbon import Factors
from everywatt.report.html.figures import table_html
from everywatt.report.html.page import card, framed
from everywatt.report.html.site import FOOTER, month_cards, nodes_note
from everywatt.report.web.assets import ICON
from everywatt.slurm.site.detail import Detail, find, hints
from everywatt.slurm.site.figures import (
    amount,
    cells,
    columns,
    group_of,
    job_of,
    nodes_of,
    percent,
    short,
)
from everywatt.slurm.site.monthly import month_bounds_s, period_of_site
from everywatt.slurm.site.store import Store
from everywatt.slurm.site.totals import GROUPS, SORTS, Wanted, jobs, node_sums, shown_id, sums
from everywatt.slurm.site.users import is_name

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
PERIODS: Final = {"1d": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days", "365d": "a year"}
USUAL: Final = "7d"
DAY_S: Final = 86_400.0
LISTED: Final = 200  # jobs on a page
MOST: Final = 10_000  # jobs of one answer of the API
AT_ONCE: Final = 2  # queries: each uses all cores
KEPT_S: Final = 30.0
KEPT: Final = 64  # answers
VIEWS: Final = {"users": "user", "accounts": "account", "nodes": "node", "months": "month"}
PLACES: Final = {"jobs": "Jobs", "users": "Users", "accounts": "Accounts", "nodes": "Nodes", "months": "Months"}
_SORTS: Final = {name: None for name in SORTS if name != "end"}  # pages begin with the latest job
FILTERS: Final = ("user", "account", "state", "partition", "node")


class Refused(Exception):
    """A request that gets no page: status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks: a user, or an administrator, who sees all jobs."""

    name: str
    admin: bool


@dataclass(frozen=True, slots=True)
class Proxy:
    """The reverse proxy that says who looks: its addresses, its header, the token that it sends, who administrates."""

    addresses: frozenset[str]
    header: str
    token: str
    admins: frozenset[str] = frozenset()

    def viewer(self, request: Request) -> Viewer:
        """Who a request is of. Refused where it does not come from the proxy, or the proxy does not say it clearly.

        The token has to be in the request itself: a cookie of a browser, or a user of this machine who reaches the
        port, is not the proxy.
        """
        peer = request.client.host if request.client else ""
        shown = request.headers.getlist("authorization")
        known = len(shown) == 1 and hmac.compare_digest(shown[0].encode(), f"Bearer {self.token}".encode())
        if not known or _address(peer) not in self.addresses:
            raise Refused(403, "These pages are only served through the site's proxy.")
        names = request.headers.getlist(self.header)
        if len(names) != 1 or not is_name(names[0]):
            raise Refused(403, "The proxy did not say who you are.")
        return Viewer(names[0], names[0] in self.admins)


def trusted_addresses(texts: Iterable[str]) -> frozenset[str]:
    """Addresses of proxies. UsageError where one is not an address: a name could be made to mean another machine."""
    for text in texts:
        if _address(text) is None:
            raise UsageError(f"'{text}' is not an IP address.", cure="--trusted-proxy 127.0.0.1")
    return frozenset(found for text in texts if (found := _address(text)) is not None)


def _address(text: str) -> str | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None)  # a socket for both families calls IPv4 so
    return str(mapped or found)


@dataclass(slots=True)
class SlurmPages:
    """The pages of one store. Without a proxy whoever has the token sees what the store has."""

    store: Store
    factors: Factors
    notes: Sequence[str] = ()  # which factors were used
    proxy: Proxy | None = None
    clock: Callable[[], float] = time.time
    _kept: dict[tuple[Any, ...], tuple[float, Response]] = field(default_factory=dict)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/slurm", self._answer(self._jobs)),
            Route("/slurm/jobs", self._answer(self._jobs)),
            *(Route(f"/slurm/{view}", self._answer(self._sums)) for view in VIEWS),
            Route("/slurm/month/{month}", self._answer(self._month)),
            Route("/slurm/job/{job}", self._answer(self._job)),
            Route("/api/slurm/jobs", self._answer(self._api_jobs)),
            Route("/api/slurm/sums", self._answer(self._api_sums)),
        ]

    def viewer(self, request: Request) -> Viewer:
        """Who looks. Refused where that is not sure."""
        return Viewer("", admin=True) if self.proxy is None else self.proxy.viewer(request)

    def _answer(self, make: Callable[[Request, Viewer], Response]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            viewer = None
            try:
                viewer = self.viewer(request)
                key = (viewer, request.url.path, request.url.query)
                kept = self._kept.get(key)
                if kept is not None and 0 <= self.clock() - kept[0] < KEPT_S:
                    return kept[1]
                async with self._slots:
                    response = await asyncio.to_thread(make, request, viewer)
                while len(self._kept) >= KEPT:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[key] = self.clock(), response
                return response
            except Refused as refusal:
                return self._refusal(request, viewer, refusal.text, refusal.status)
            except UsageError as error:
                return self._refusal(request, viewer, error.message, 400)
            except EverywattError as error:
                return self._refusal(request, viewer, error.message, 503)

        return answer

    def _refusal(self, request: Request, viewer: Viewer | None, text: str, status: int) -> Response:
        """A page with a way back for a browser whose user is known; a line of text for others."""
        if viewer is None or "text/html" not in request.headers.get("accept", "") or "/api/" in request.url.path:
            return PlainTextResponse(f"{text}\n", status)
        title = "Not found" if status == 404 else "No answer"
        page = self._page("", title, {}, viewer, f'<p class="warnings" role="note">{html.escape(text)}</p>')
        page.status_code = status
        return page

    def _wanted(self, words: Mapping[str, str], viewer: Viewer) -> Wanted:
        """What a request asks for; a user's own jobs only, unless it is an administrator's."""
        since_s, until_s = self._bounds(words)
        user, account, state, partition, node = (words.get(name) for name in FILTERS)
        return Wanted(since_s, until_s, user if viewer.admin else viewer.name, account, state, partition, node)

    def _bounds(self, words: Mapping[str, str]) -> tuple[float, float]:
        if "month" in words:
            return month_bounds_s(words["month"])
        now_s = self.clock()
        if "since" in words or "until" in words:
            return _moment(words.get("since"), 0.0), _moment(words.get("until"), now_s)
        period = words.get("period", USUAL)
        if period not in PERIODS:
            raise UsageError(f"'{period}' is not a period.", cure=f"one of: {', '.join(PERIODS)}")
        return now_s - int(period[:-1]) * DAY_S, now_s

    def _jobs(self, request: Request, viewer: Viewer) -> Response:
        wanted, sort = self._wanted(request.query_params, viewer), request.query_params.get("sort", "latest")
        if sort not in SORTS:
            raise UsageError(f"Jobs cannot be sorted by '{sort}'.")
        rows = jobs(self.store, wanted, sort, LISTED + 1)
        words = _words(request, viewer)
        head = f"<p>{_filters(words)} {_choices(words, 'sort', _SORTS, 'latest', 'sorted by')}</p>"
        more = f'<p class="notes">Only {LISTED} jobs are listed.</p>' if len(rows) > LISTED else ""
        content = head + _job_table(rows[:LISTED], viewer) + more + self._nodes_line(wanted, viewer)
        return self._page("jobs", "Jobs", words, viewer, card("Jobs", content))

    def _sums(self, request: Request, viewer: Viewer) -> Response:
        view = request.url.path.rpartition("/")[2]
        by = VIEWS[view]
        words = {**({"period": "365d"} if view == "months" else {}), **_words(request, viewer)}
        wanted = self._wanted(words, viewer)
        rows = sums(self.store, wanted, by)
        table = _sum_table(by, rows, {key: text for key, text in words.items() if key not in (by, "sort")})
        content = f"<p>{_filters(words)}</p>{table}{self._nodes_line(wanted, viewer)}"
        return self._page(view, PLACES[view], words, viewer, card(PLACES[view], content))

    def _month(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["month"]
        user = None if viewer.admin else viewer.name
        month = period_of_site(self.store, month_bounds_s(name), name, self.factors, user=user)
        content = month_cards(month, self.notes, self.factors.currency)
        return self._page("months", f"Jobs of {name}", {"month": name}, viewer, content)

    def _job(self, request: Request, viewer: Viewer) -> Response:
        text = request.path_params["job"]
        user = None if viewer.admin else viewer.name
        found = [job for job in find(self.store, text) if user in (None, job.first.user)]
        if not found:
            raise Refused(404, f"There is no job {text[:40]}.")  # also for a job of another user
        content = "".join(_detail(job, viewer) for job in found[:LISTED])
        return self._page("jobs", f"Job {text}", {}, viewer, content)

    def _api_jobs(self, request: Request, viewer: Viewer) -> Response:
        wanted = self._wanted(request.query_params, viewer)
        limit = request.query_params.get("limit", "1000")
        if not (limit.isascii() and limit.isdecimal() and 0 < int(limit) <= MOST):
            raise UsageError(f"limit is a number up to {MOST}.")
        rows = jobs(self.store, wanted, request.query_params.get("sort", "end"), int(limit))
        return _json("slurm-jobs", {"jobs": [job_of(row) for row in rows], **self._nodes(wanted, viewer)})

    def _api_sums(self, request: Request, viewer: Viewer) -> Response:
        wanted, by = self._wanted(request.query_params, viewer), request.query_params.get("by", "user")
        if by not in GROUPS:
            raise UsageError(f"Jobs cannot be added up by '{by[:40]}'.")
        groups = [group_of(row) for row in sums(self.store, wanted, by)]
        return _json("slurm-sums", {"by": by, "groups": groups, **self._nodes(wanted, viewer)})

    def _nodes(self, wanted: Wanted, viewer: Viewer) -> dict[str, Any]:
        """The total of each node, for administrators only: it includes other users' jobs."""
        if not viewer.admin:
            return {}
        return {"nodes": nodes_of(node_sums(self.store, wanted.since_s, wanted.until_s, wanted.node))}

    def _nodes_line(self, wanted: Wanted, viewer: Viewer) -> str:
        if not viewer.admin:
            return ""
        drawn = node_sums(self.store, wanted.since_s, wanted.until_s, wanted.node)
        return nodes_note(drawn, wanted.node)

    def _page(self, place: str, title: str, words: Mapping[str, str], viewer: Viewer, content: str) -> Response:
        period = {name: words[name] for name in ("period", "month", "since", "until") if name in words}
        links = [_link(name, f"/slurm/{key}{_query(period)}", key == place) for key, name in PLACES.items()]
        who = f"{viewer.name}{' (administrator)' if viewer.admin else ''}" if viewer.name else "all jobs"
        choices = _choices(words, "period", PERIODS, USUAL if place != "months" else "365d")
        times = f"<p>{choices}</p>" if place in PLACES and title == PLACES[place] and "month" not in words else ""
        links += [_link("Runs", "/")] if viewer.admin else []  # others are sent back to their jobs
        heads = [
            f'<link rel="icon" type="image/svg+xml" href="/static/{ICON.rpartition("/")[2]}">',
            *(f'<link rel="stylesheet" href="/static/{name}.css">' for name in ("page", "serve")),
        ]
        top = f"""<a class="skip" href="#main">To the content</a>
<header class="top served">
<a class="brand" href="/slurm"><span class="mark"></span>everywatt</a>
<nav class="places" aria-label="Pages">{"".join(links)}</nav>
<div class="tools">{html.escape(who)}</div>
<h1>{html.escape(title)}</h1>
</header>"""
        return Response(framed(title, heads, top, f"{times}\n{content}\n{FOOTER}"), media_type=HTML)


def _words(request: Request, viewer: Viewer) -> dict[str, str]:
    """What was asked for, to make links of; whose jobs is only an administrator's to ask."""
    return {key: text for key, text in request.query_params.items() if viewer.admin or key != "user"}


def _moment(text: str | None, otherwise: float) -> float:
    """Unix seconds, or ISO 8601 in UTC unless it has a zone."""
    if text is None:
        return otherwise
    try:
        if text.replace(".", "", 1).isdecimal() and text.isascii():
            return float(text)
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"'{text[:40]}' is not a time.", cure="2026-11-15T10:00, or unix seconds") from None


def _json(kind: str, data: Mapping[str, Any]) -> Response:
    return Response(dumps(document(kind, data)), media_type=JSON)


def _query(words: Mapping[str, str]) -> str:
    return f"?{urlencode(words)}" if words else ""


def _link(text: str, href: str, here: bool = False) -> str:
    current = ' aria-current="page"' if here else ""
    return f'<a href="{html.escape(href)}"{current}>{html.escape(text)}</a>'


def _choices(
    words: Mapping[str, str], name: str, choices: Mapping[str, str | None], usual: str, about: str = ""
) -> str:
    """Links that choose one value of a word, the present one marked: none where a window of time was given."""
    now = words.get(name, "" if name == "period" and {"since", "until"} & words.keys() else usual)
    rest = {key: text for key, text in words.items() if key not in (name, "since", "until")}
    links = (_link(text or key, _query({**rest, name: key}), key == now) for key, text in choices.items())
    return f"{about} " + " · ".join(links)


def _filters(words: Mapping[str, str]) -> str:
    """What is filtered by, each with a link that ends it."""
    shown = []
    for name in FILTERS:
        if name in words:
            rest = {key: text for key, text in words.items() if key != name}
            shown.append(f"{name} {html.escape(words[name])} ({_link('all', _query(rest) or '?')})")
    return ", ".join(shown)


def _job_table(rows: Sequence[Mapping[str, Any]], viewer: Viewer) -> str:
    if not rows:
        return "<p>No job ended in that period.</p>"
    who = [*(["user"] if viewer.admin else []), "energy", "time", "state"]  # what a phone shows without scrolling
    figures = ["account", "nodes", "idle share", "waste", "CPU", "GPU", "name"]
    shown = []
    for row in rows:
        end = f"{datetime.fromtimestamp(row['end_s'], UTC):%Y-%m-%d %H:%M}"
        shown.append([*cells(row, ["job", *who]), end, *cells(row, figures)])
    table = Table.of(*columns("job", *who), "end", *columns(*figures), rows=shown, title="List of jobs")
    return table_html(table, [f"/slurm/job/{quote(shown_id(row))}" for row in rows])


def _sum_table(by: str, rows: Sequence[Mapping[str, Any]], words: Mapping[str, str]) -> str:
    if not rows:
        return "<p>No job ended in that period.</p>"
    heads = ("energy", "jobs", "refused", "time", "idle share", "waste", "CPU")  # energy where a phone shows it
    shown, links = [], []
    for row in rows:
        name = str(row["group"] or "")
        href = f"/slurm/month/{quote(name)}" if by == "month" else _jobs_of({**words, by: name})
        links.append(href if name else "")
        shown.append([name or "(none)", *cells(row, heads)])
    named = (replace(one, name="without energy") if one.name == "refused" else one for one in columns(*heads))
    return table_html(Table.of(by, *named, rows=shown, title=f"Energy by {by}"), links)


def _others(job: Detail, viewer: Viewer) -> str:
    """Links to the other jobs of the month in which it ended, by what they have in common with it."""
    first, month = job.first, f"{datetime.fromtimestamp(job.first.end_s, UTC):%Y-%m}"
    same = [("user", first.user)] if viewer.admin else []
    same += [("account", first.account), ("partition", first.partition), *(("node", row.node) for row in job.rows)]
    links = [f"{name} {_link(value, _jobs_of({'month': month, name: value}))}" for name, value in same if value]
    return f'<p class="notes">Other jobs of {_link(month, _jobs_of({"month": month}))}: {", ".join(links)}</p>'


def _jobs_of(words: Mapping[str, str]) -> str:
    return f"/slurm/jobs{_query(words)}"


def _detail(job: Detail, viewer: Viewer) -> str:
    first, whole = job.first, job.whole
    energy = short(whole) if whole["energy_uj"] is not None else f"refused: {whole['refused'] or 'no figure'}"
    facts: list[list[str | float | None]] = [
        ["State", first.state],
        ["User", first.user],
        ["Account", first.account or None],
        ["Partition", first.partition or None],
        ["Nodes", ", ".join(row.node for row in job.rows)],
        ["Time", format_duration(job.elapsed_s)],
        ["Energy", energy],
        ["Idle share", amount(whole, "idle_uj")],
        ["At the wall", amount(whole, "wall_uj")],
        ["CPU", percent(whole["cpu_s"], whole["allocated_cpu_s"])],
        ["GPU", percent(whole["gpu_utilisation"], 1.0)],
        ["Scope", first.scope or None],
        ["Coverage", format_percent(whole["coverage"])],
    ]
    parts = [table_html(Table.of("", "", rows=facts))]
    for title, pairs, shown in job.parts():
        rows = [[name, shown[name]] for name, _ in pairs]
        parts.append(table_html(Table.of(title, "energy", rows=rows, right=(1,))))
    parts += [*(f"<p>{html.escape(hint)}</p>" for hint in hints(job)), _others(job, viewer)]
    again = f" (run {first.restart + 1})" if first.restart else ""
    return card(f"{first.name or 'Figures'} · {first.shown_id}{again}", "".join(parts))
