"""The application: its addresses, and what is around each page."""

from __future__ import annotations

import contextlib
import inspect
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, TypeAlias, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pgq._errors import ConnectionLost, Error
from pgq._operate.client import SERVER_ERRORS
from pgq._version import PACKAGE
from pgq.dashboard import _pages
from pgq.dashboard._access import (
    Authenticate,
    Forms,
    SecureHeaders,
    TokenAccess,
    User,
    answer_of,
    base_of,
    fields_of,
    local_path,
    plain,
)
from pgq.dashboard._actions import (
    ACTIONS,
    STATES_OF,
    Audit,
    Entry,
    Meant,
    RefusedError,
    Run,
    Runs,
    Verb,
    destination,
    number_of,
    outcome_of,
    queue_of,
)
from pgq.dashboard._live import Live, reason
from pgq.dashboard._pages import NotFoundError
from pgq.dashboard._render import STATIC, environment, version_of_files
from pgq.dashboard._visit import Visit, asked, clean

Pairs: TypeAlias = list[tuple[str, str]]
Show: TypeAlias = Callable[[Visit], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]

_MOST_IDS: Final = 1000  # of a selection
_MOST_CHOSEN: Final = 100  # queues, groups or schedules of a selection
_SHOWN: Final = ("queue", "id", "group", "schedule")  # of a form that is refused
_MOST_SHOWN: Final = 200  # characters of each


def app(
    pool: asyncpg.Pool[Any],
    *,
    authenticate: Authenticate | None = None,
    token: str | None = None,
    schema: str | None = None,
    read_only: bool = False,
    title: str = "pgq",
    interval: timedelta = timedelta(seconds=2),
    secret: str | None = None,
) -> Starlette:
    """Return the dashboard as an ASGI application, to be served by itself or mounted.

    It shows and offers what the privileges of the pool's role allow, and takes at most three of
    its connections at a time. Give one of `authenticate` and `token`. The logger
    `pgq.dashboard.audit` tells who has changed what.

    Args:
        pool: of asyncpg; it needs no codec.
        authenticate: returns the `User` of a request, None for nobody, or an answer such as a
            redirect to your sign-in; `by_header` makes one for proxies, `anybody` lets all in.
        token: of at least 16 characters; who knows it may look and act.
        schema: where the pgq functions are; None (the default) leaves it to search_path.
        read_only: show, and change nothing.
        title: of the pages.
        interval: between two looks at the server.
        secret: signs forms; None makes one, and pages that were loaded before a restart have to
            be loaded again before their forms are accepted.

    Raises:
        ValueError: not exactly one of `authenticate` and `token`, or a token that is too short.
    """
    if (authenticate is None) == (token is None):
        raise ValueError("give one of authenticate and token")
    access = TokenAccess(token) if token is not None else None
    dashboard = _Dashboard(
        live=Live(pool, schema, interval.total_seconds()),
        authenticate=access or cast("Authenticate", authenticate),
        access=access,
        forms=Forms(secret.encode() if secret is not None else None),
        read_only=read_only,
        title=title,
    )
    return dashboard.starlette()


class _Files(StaticFiles):
    """Files whose addresses change with what is in them."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


class _Dashboard:
    def __init__(
        self,
        *,
        live: Live,
        authenticate: Authenticate,
        access: TokenAccess | None,
        forms: Forms,
        read_only: bool,
        title: str,
    ) -> None:
        self.live = live
        self.authenticate = authenticate
        self.access = access
        self.forms = forms
        self.read_only = read_only
        self.audit = Audit()
        self.runs = Runs(live, self.audit)
        self.templates = environment()
        values: dict[str, Any] = {
            "actions": ACTIONS,
            "files": version_of_files(),
            "has_sign_out": access is not None,
            "outcome_of": outcome_of,
            "package": PACKAGE,
            "title": title,
        }
        self.templates.globals.update(values)

    def starlette(self) -> Starlette:
        """Return the application."""
        page, post = self._page, self._post
        routes = [
            Route("/", page("overview", _pages.overview)),
            Route("/queue", page("queue", _pages.queue)),
            Route("/jobs", page("jobs", _pages.jobs)),
            Route("/job/{id}", page("job", _pages.job)),
            Route("/dead", page("dead", _pages.dead)),
            Route("/workers", page("workers", _pages.workers)),
            Route("/schedules", page("schedules", _pages.schedules)),
            Route("/actions", page("actions", self._actions)),
            Route("/runs/{id}", page("run", self._run)),
            Route("/search", self._guarded(self._search)),
            Route("/series", self._guarded(self._series)),
            Route("/events", self._guarded(self._events)),
            Route("/do", post(self._do), methods=["POST"]),
            Route("/runs", post(self._begin), methods=["POST"]),
            Route("/runs/{id}/start", post(self._start), methods=["POST"]),
            Route("/runs/{id}/stop", post(self._stop), methods=["POST"]),
            Mount("/static", _Files(directory=STATIC), name="static"),
        ]
        if self.access is not None:
            routes += [
                Route("/login", self._sign_in, methods=["GET", "POST"]),
                Route("/logout", post(self._sign_out), methods=["POST"]),
            ]
        made = Starlette(
            routes=routes,
            middleware=[Middleware(SecureHeaders)],
            lifespan=self._lifespan,
            exception_handlers={HTTPStatus.NOT_FOUND: self._no_page},
        )
        made.state.close = self.close
        made.state.live = self.live
        return made

    async def close(self) -> None:
        """End streams, looks and runs."""
        await self.runs.close()
        await self.live.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, made: Starlette) -> AsyncGenerator[None]:
        del made
        yield
        await self.close()

    # Around a page

    def _guarded(
        self, show: Callable[[Visit], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint for users only, which tells what has gone wrong."""

        async def endpoint(request: Request) -> Response:
            user = await answer_of(self.authenticate, request)
            if isinstance(user, Response):
                return user
            if user is None:
                return self._told(request, HTTPStatus.UNAUTHORIZED, "You are not signed in.")
            snapshot = await self.live.fresh()
            if snapshot is None:
                text = self.live.problem or "The dashboard has ended."
                return self._told(request, HTTPStatus.SERVICE_UNAVAILABLE, text)
            nonce = self.forms.nonce_of(request) or secrets.token_urlsafe(16)
            number = number_of(request.query_params.get("done", ""))
            entry = self.audit.entry(number) if number is not None else None
            visit = Visit(
                request=request,
                user=user,
                can_act=user.may_act and not self.read_only and not snapshot.server["in_recovery"],
                token=self.forms.token(nonce, user),
                live=self.live,
                snapshot=snapshot,
                done=entry if entry is not None and entry.user == user.name else None,
            )
            try:
                response = await show(visit)
            except NotFoundError as exc:
                return self._told(request, HTTPStatus.NOT_FOUND, str(exc), visit)
            except SERVER_ERRORS as exc:
                text = f"The server has not answered that: {reason(exc)}."
                return self._told(request, HTTPStatus.SERVICE_UNAVAILABLE, text, visit)
            if self.forms.nonce_of(request) is None:
                self.forms.set_nonce(response, request, nonce)
            return response

        return endpoint

    def _page(self, name: str, show: Show) -> Callable[[Request], Awaitable[Response]]:
        async def answer(visit: Visit) -> Response:
            shown = show(visit)
            values = await shown if inspect.isawaitable(shown) else shown
            return self._html(name, visit, HTTPStatus.OK, **values)

        return self._guarded(answer)

    def _html(self, template: str, visit: Visit, code: int, **values: Any) -> Response:
        text = self.templates.get_template(f"{template}.html").render(
            **values,
            page=template,
            visit=visit,
            base=visit.base,
            facts=visit.snapshot.facts,
            now=visit.snapshot.facts.now,
            problem=self.live.problem,
            read_only=self.read_only,
        )
        return HTMLResponse(text, code)

    def _told(
        self, request: Request, status: HTTPStatus, text: str, visit: Visit | None = None
    ) -> Response:
        """Return a page that only says something."""
        if visit is not None:
            return self._html("told", visit, status, text=text, status=status)
        # The answer to a form is not loaded again: that could send the form again.
        is_form = request.method == "POST"
        page = self.templates.get_template("bare.html").render(
            base=base_of(request),
            text=text,
            status=status,
            here=(not is_form and local_path(request.url.path)) or f"{base_of(request)}/",
        )
        returns = status == HTTPStatus.SERVICE_UNAVAILABLE and not is_form
        return HTMLResponse(page, status, {"Refresh": "5"} if returns else None)

    async def _no_page(self, request: Request, exc: Exception) -> Response:
        del exc
        return self._told(request, HTTPStatus.NOT_FOUND, "There is no such page.")

    # Pages that are about this process

    def _actions(self, visit: Visit) -> Mapping[str, Any]:
        return {"entries": list(self.audit.entries), "runs": self.runs.of(visit.user)}

    def _run(self, visit: Visit) -> Mapping[str, Any]:
        return {"run": self._run_of(visit)}

    def _run_of(self, visit: Visit) -> Run:
        run = self.runs.get(visit.request.path_params["id"], visit.user)
        if run is None:
            raise NotFoundError("There is no such action of yours, or it is long over.")
        return run

    # What is no page

    async def _search(self, visit: Visit) -> Response:
        """Lead to a job, a queue, or jobs with a text."""
        text = visit.param("q")
        if text.removeprefix("#").isdigit():
            path = f"/job/{text.removeprefix('#')}"
        elif visit.snapshot.queue(text) is not None:
            path = f"/queue?{urlencode({'name': text})}"
        else:
            path = f"/jobs?{urlencode({'text': text})}" if text else "/jobs"
        return RedirectResponse(visit.base + path, HTTPStatus.SEE_OTHER)

    async def _series(self, visit: Visit) -> Response:
        return JSONResponse(await _pages.series(visit))

    async def _events(self, visit: Visit) -> Response:
        return _Events(self.live, visit)

    # Signing in

    async def _sign_in(self, request: Request) -> Response:
        access = cast("TokenAccess", self.access)
        following = request.query_params.get("next", "")
        status, text = HTTPStatus.OK, None
        if request.method == "POST":
            given = dict(await fields_of(request) or [])
            if access.is_right(given.get("token", "")):
                return access.begin(request, given.get("next", ""))
            status, text = HTTPStatus.FORBIDDEN, "That is not the token."
            place = request.client.host if request.client is not None else "unknown"
            self.audit.note(
                User(name="nobody"), "sign in", {"from": place}, is_done=False, outcome=text
            )
            following = given.get("next", "")
        page = self.templates.get_template("login.html").render(
            base=base_of(request), next=local_path(following) or "", text=text
        )
        return HTMLResponse(page, status)

    async def _sign_out(self, visit: Visit, pairs: Pairs) -> Response:
        del pairs
        return cast("TokenAccess", self.access).end(visit.request)

    # Forms

    def _post(
        self, act: Callable[[Visit, Pairs], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint for the forms of the pages."""

        async def answer(visit: Visit) -> Response:
            request = visit.request
            pairs = await fields_of(request)
            if pairs is None:
                text = "That is more than a form may hold."
                return self._refused(visit, [], text, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            given = dict(pairs).get("form", "")
            if not self.forms.is_genuine(request, given, visit.user):
                text = "This form is not from a page of yours, or it is too old: load the page."
                return self._refused(visit, pairs, text, HTTPStatus.FORBIDDEN)
            if not visit.can_act and not request.url.path.endswith("/logout"):
                text = "You may look, and change nothing."
                return self._refused(visit, pairs, text, HTTPStatus.FORBIDDEN)
            return await act(visit, pairs)

        return self._guarded(answer)

    def _refused(
        self, visit: Visit, pairs: Pairs, text: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST
    ) -> Response:
        """Note that a form was refused, and tell why."""
        given = {name: clean(value)[:_MOST_SHOWN] for name, value in pairs}
        path = visit.request.url.path.rpartition("/")[2]
        action = given.get("action") or given.get("verb") or path
        target = {name: given[name] for name in _SHOWN if given.get(name)}
        self.audit.note(visit.user, action, target, is_done=False, outcome=f"refused: {text}")
        return self._told(visit.request, status, text, visit)

    async def _do(self, visit: Visit, pairs: Pairs) -> Response:
        """Change one thing, or each that is selected, and lead back to the page."""
        values = {name: clean(value) for name, value in pairs}
        name = values.get("action", "")
        action = ACTIONS.get(name)
        if action is None:
            return self._refused(visit, pairs, "No such action.")
        if any(not values.get(field) for field in action.fields):
            return self._refused(visit, pairs, "Nothing is selected.")
        last = action.fields[-1]
        chosen = list(dict.fromkeys(clean(value) for field, value in pairs if field == last))
        if len(chosen) > _MOST_CHOSEN:
            return self._refused(visit, pairs, f"Select at most {_MOST_CHOSEN}.")
        entries = [await self._do_one(visit, name, {**values, last: one}) for one in chosen]
        self.live.change()
        entry = entries[-1]
        if len(entries) > 1:
            left = [one.outcome for one in entries if not one.is_done]
            outcome = f"{len(entries) - len(left)} of {len(entries)} {last}s are done"
            entry = self.audit.note(
                visit.user,
                f"{name} many",
                {"selected": str(len(entries))},
                is_done=not left,
                outcome="; ".join([outcome, *left[:1]]),
            )
        return RedirectResponse(
            _back(visit, values.get("back", ""), entry.number), HTTPStatus.SEE_OTHER
        )

    async def _do_one(self, visit: Visit, name: str, values: Mapping[str, str]) -> Entry:
        """Change one thing, and note what has become of it."""
        action = ACTIONS[name]
        target = {field: values[field] for field in action.fields}
        target |= {name: values[name] for name in action.options if values.get(name)}
        try:
            async with self.live.call() as client:
                target["queue"] = await queue_of(client, target)
                visit.check(name, target["queue"])
                visit.check(name, target.get("to_queue", target["queue"]))
                outcome, is_done = await action.run(client, target), True
        except RefusedError as exc:
            outcome, is_done = str(exc), False
        except (ConnectionLost, TimeoutError) as exc:
            outcome, is_done = f"it may have been done or not: {reason(exc)}", False
        except (Error, *SERVER_ERRORS) as exc:
            outcome, is_done = reason(exc), False
        return self.audit.note(visit.user, name, target, is_done=is_done, outcome=plain(outcome))

    async def _begin(self, visit: Visit, pairs: Pairs) -> Response:
        """Look which jobs are meant, and lead to the page that shows them."""
        values = {name: clean(value) for name, value in pairs}
        try:
            meant = _meant(values, pairs)
            _check(visit, meant)
        except RefusedError as exc:
            return self._refused(visit, pairs, str(exc))
        run = self.runs.begin(visit.user, meant, lambda queue: visit.may(meant.verb, queue))
        return RedirectResponse(f"{visit.base}/runs/{run.id}", HTTPStatus.SEE_OTHER)

    async def _start(self, visit: Visit, pairs: Pairs) -> Response:
        run = self._run_of(visit)
        try:
            # What this user may do can have changed since the look.
            _check(visit, run.meant, {queue for queue, *_ in run.kinds})
        except RefusedError as exc:
            return self._refused(visit, pairs, str(exc))
        self.runs.start(run)
        return RedirectResponse(f"{visit.base}/runs/{run.id}", HTTPStatus.SEE_OTHER)

    async def _stop(self, visit: Visit, pairs: Pairs) -> Response:
        del pairs
        run = self._run_of(visit)
        self.runs.stop(run)
        return RedirectResponse(f"{visit.base}/runs/{run.id}", HTTPStatus.SEE_OTHER)


class _Events(StreamingResponse):
    """The stream of a viewer; the viewer is counted until it ends."""

    def __init__(self, live: Live, visit: Visit) -> None:
        del visit
        self._events = live.events()
        super().__init__(
            self._events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def __call__(self, *args: Any) -> None:
        async with contextlib.aclosing(self._events):
            await super().__call__(*args)


def _check(visit: Visit, meant: Meant, queues: Collection[str] = ()) -> None:
    """Refuse a run over jobs of queues where the user may not do that."""
    if meant.verb == "purge":
        visit.check("purge", meant.wanted.queue or "")
    for queue in sorted(queues):
        visit.check(meant.verb, queue)
    if meant.to_queue is not None:
        visit.check("move", meant.to_queue)


def _meant(values: Mapping[str, str], pairs: Pairs) -> Meant:
    """Read which jobs a form is about."""
    verb, _, scope = values.get("verb", "").partition(":")
    wanted = asked(pairs)
    possible = STATES_OF.get(cast("Verb", verb), ())
    states = tuple(one for one in wanted.states if one in possible)
    numbers = [number_of(value) for name, value in pairs if name == "id"]
    ids = tuple(one for one in numbers if one is not None)
    is_all = scope == "all"
    to_queue, to_priority = destination(values) if verb == "move" else (None, None)
    fault = None
    if not possible:
        fault = "No such action."
    elif wanted.problems:
        fault = "; ".join(wanted.problems)
    elif wanted.states and not states:
        fault = f"Of jobs that are {', '.join(wanted.states)}, none can be meant."
    elif verb == "purge" and not (wanted.wanted.queue and states):
        fault = "Name a queue and the states of the jobs."
    elif verb != "purge" and not is_all and not ids:
        fault = "No job is selected."
    elif len(ids) > _MOST_IDS:
        fault = f"Select at most {_MOST_IDS} jobs, or all that match the filter."
    if fault is not None:
        raise RefusedError(fault)
    return Meant(
        verb=cast("Verb", verb),
        wanted=replace(wanted.wanted, states=states or possible),
        ids=None if is_all or verb == "purge" else ids,
        kind=(values.get("task"), values["signature"]) if "signature" in values else None,
        force=values.get("force") == "yes",
        to_queue=to_queue,
        to_priority=to_priority,
    )


def _back(visit: Visit, path: str, number: int) -> str:
    """Return the path of a page, with the number of the action to be told there."""
    local = local_path(path)
    if local is None or not local.startswith(f"{visit.base}/"):
        local = f"{visit.base}/"
    parts = urlsplit(local)
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name != "done"]
    return f"{parts.path}?{urlencode([*kept, ('done', str(number))])}"
