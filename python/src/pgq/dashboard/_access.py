"""Who may look and act: the ways to sign in, and what protects the forms.

A form is accepted with a token that only a page of the same user and browser holds, and never from
another site. All pages forbid inline scripts and styles, frames, and requests to elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who looks at the dashboard.

    Args:
        name: for the log of actions.
        may_act: False only shows; whoever may act still needs the privileges of the pool's role.
        may: tells for an action and a queue whether this user may do it there; None: all that the
            role may. The actions are cancel, move, pause, pause-schedule, purge, resume,
            resume-schedule, retry, run, run-schedule and unblock.
    """

    name: str
    may_act: bool = True
    may: Callable[[str, str], bool] | None = None


Answer: TypeAlias = User | Response | None
Authenticate: TypeAlias = Callable[[HTTPConnection], Answer | Awaitable[Answer]]

MIN_TOKEN: Final = 16
_SESSION_SECONDS: Final = 7 * 86400
_MOST_BYTES: Final = 1_000_000
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def anybody(connection: HTTPConnection) -> User:
    """Let everybody in who reaches the dashboard: for one that is mounted behind a sign-in."""
    del connection
    return User(name="anybody")


def by_header(name: str, proxies: Collection[str] | None = None) -> Authenticate:
    """Return an `Authenticate` that takes the user's name from a header of a proxy.

    Args:
        name: of the header; the proxy must set or remove it in every request.
        proxies: the addresses that requests must come from; None for any.
    """

    def authenticate(connection: HTTPConnection) -> User | None:
        client = connection.client
        if proxies is not None and (client is None or client.host not in proxies):
            return None
        user = connection.headers.get(name, "").strip()
        return User(name=user) if user else None

    return authenticate


class TokenAccess:
    """Lets in whoever knows a token: as a bearer token, by a form, or by `?token=` once.

    Args:
        token: of at least 16 characters.
    """

    def __init__(self, token: str) -> None:
        if len(token) < MIN_TOKEN:
            raise ValueError(f"the token has less than {MIN_TOKEN} characters")
        self._token = token
        self._key = hashlib.sha256(b"pgq dashboard session\0" + token.encode()).digest()
        self._cookie = f"pgq_session_{hashlib.sha256(self._key).hexdigest()[:8]}"

    def __call__(self, connection: HTTPConnection) -> Answer:
        """Return the user, the way to the form, or an answer that begins a session."""
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return User(name="token") if self.is_right(given) else None
        if self._is_session(connection.cookies.get(self._cookie, "")):
            return User(name="token")
        path, query = connection.url.path, connection.url.query
        pairs = parse_qsl(query, keep_blank_values=True)
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        here = path + (f"?{rest}" if rest else "")
        if connection.scope.get("method") == "POST":
            here = f"{base_of(connection)}/"  # a form that was not accepted has no page
        if self.is_right(dict(pairs).get("token", "")):
            return self.begin(connection, here)
        return RedirectResponse(
            f"{base_of(connection)}/login?{urlencode({'next': here})}", status_code=303
        )

    def is_right(self, given: str) -> bool:
        """Tell whether that is the token."""
        return hmac.compare_digest(given.encode(), self._token.encode())

    def begin(self, connection: HTTPConnection, path: str) -> Response:
        """Return an answer that begins a session and leads to a path of this site."""
        response = RedirectResponse(local_path(path) or f"{base_of(connection)}/", status_code=303)
        expires = str(int(time.time()) + _SESSION_SECONDS)
        value = f"{expires}.{self._signature(expires)}"
        set_cookie(response, connection, self._cookie, value, _SESSION_SECONDS)
        return response

    def end(self, connection: HTTPConnection) -> Response:
        """Return an answer that ends the session in this browser."""
        response = RedirectResponse(f"{base_of(connection)}/login", status_code=303)
        response.delete_cookie(self._cookie, path=f"{base_of(connection)}/")
        return response

    def _signature(self, expires: str) -> str:
        return hmac.new(self._key, expires.encode(), hashlib.sha256).hexdigest()

    def _is_session(self, value: str) -> bool:
        expires, _, signature = value.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(expires).encode()):
            return False
        return int(expires) > time.time()


async def answer_of(authenticate: Authenticate, connection: HTTPConnection) -> Answer:
    """Ask who that is."""
    answer = authenticate(connection)
    return await answer if inspect.isawaitable(answer) else answer


def base_of(connection: HTTPConnection) -> str:
    """Return the path at which the dashboard is mounted, without a slash at its end."""
    path: str = connection.scope.get("root_path", "")
    return path.rstrip("/")


def local_path(path: str) -> str | None:
    """Return a path of this site as it is, None for what leads elsewhere."""
    is_local = path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if is_local and path.isprintable() else None


def set_cookie(
    response: Response, connection: HTTPConnection, name: str, value: str, seconds: int
) -> None:
    """Set a cookie that scripts and other sites cannot use."""
    schemes = (connection.url.scheme, connection.headers.get("x-forwarded-proto"))
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=f"{base_of(connection)}/",
        secure="https" in schemes,
        httponly=True,
        samesite="lax",
    )


class Forms:
    """What makes sure that a form comes from a page of the dashboard.

    Args:
        secret: signs the tokens of the forms; None makes one.
    """

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def nonce_of(self, connection: HTTPConnection) -> str | None:
        """Return what the browser's cookie holds."""
        return connection.cookies.get("pgq_form")

    def token(self, nonce: str, user: User) -> str:
        """Return the token for the forms of a user in one browser."""
        text = f"{nonce}\0{user.name}".encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

    def set_nonce(self, response: Response, connection: HTTPConnection, nonce: str) -> None:
        """Let the browser keep a nonce."""
        set_cookie(response, connection, "pgq_form", nonce, _SESSION_SECONDS)

    def is_genuine(self, request: Request, given: str, user: User) -> bool:
        """Tell whether a form was sent by a page of this user, in this browser."""
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        nonce = self.nonce_of(request)
        return nonce is not None and hmac.compare_digest(
            given.encode(), self.token(nonce, user).encode()
        )


async def fields_of(request: Request) -> list[tuple[str, str]] | None:
    """Return the fields of a form; None if it is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            return None
    return parse_qsl(body.decode(errors="replace"), keep_blank_values=True)


class SecureHeaders:
    """Adds to every answer what forbids a browser to run or load anything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        await self._app(scope, receive, send_secured if scope["type"] == "http" else send)


def plain(value: Any) -> str:
    """Return a value without what would begin another line of a log."""
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in str(value))
