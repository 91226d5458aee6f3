"""What every request passes before a route sees it: who asks, from which page, with which type.

A page on another site can make a browser send requests to this machine. So the host must be one of this server's names
(else a name that was pointed at this machine after the page was loaded would do), a page's origin must be this server
itself, and what changes anything must be JSON, which no form of another site can send.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "regard-token"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Refuses what is not meant for this server.

    Args:
        app: What answers.
        hosts: Names with ports that this server is asked under: ``127.0.0.1:8421``.
        policy: Content security policy of every answer.
        token: What a request has to know, as a cookie or once as ``?token=``; None where only this machine can ask.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], policy: str, token: str | None) -> None:
        self._app, self._hosts, self._policy, self._token = app, hosts, policy, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", self._policy.encode())
                message = {**message, "headers": [*message.get("headers", ()), policy, *_HEADERS]}
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = _single(scope["headers"])
        if headers is None:
            return refuse(400, "format", "a header is there twice, or is not ASCII")
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return refuse(403, "host", f"this server is not {host[:80]!r}; open it as http://{min(self._hosts)}/")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in {f"http://{name}" for name in self._hosts}:
            return refuse(403, "origin", f"pages of {origin[:80]!r} may not ask this server")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return refuse(403, "origin", "pages of other sites may not ask this server")
        if self._token is not None and (refusal := self._check_token(scope, headers)):
            return refusal
        if scope["method"] not in ("GET", "HEAD"):
            kind = headers.get("content-type", "").split(";")[0].strip().lower()
            if kind != "application/json":
                return refuse(415, "format", f"a request of the type {kind[:80]!r}; it is application/json")
        return None

    def _check_token(self, scope: Scope, headers: Mapping[str, str]) -> ASGIApp | None:
        assert self._token is not None
        try:
            cookie = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return refuse(400, "format", "a cookie that cannot be read")
        if COOKIE in cookie and secrets.compare_digest(cookie[COOKIE].value.encode(), self._token.encode()):
            return None
        given = parse_qs(scope["query_string"].decode("ascii", "replace")).get("token", [""])[0]
        if (
            scope["method"] == "GET"
            and scope["path"] == "/"
            and secrets.compare_digest(given.encode(), self._token.encode())
        ):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        return refuse(401, "token", "this server wants the token that was printed where it was started")


def _single(headers: list[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """Read headers; None where one that is checked here is there twice, so that two readers cannot differ."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = name.decode("latin-1").lower()
        if key in found and key in ("host", "origin", "content-type", "content-length", "sec-fetch-site", "cookie"):
            return None
        if not value.isascii():
            continue
        found[key] = value.decode("ascii")
    return found


def refuse(status: int, code: str, message: str, field: str | None = None) -> JSONResponse:
    """Answer with an error.

    Args:
        status: HTTP status.
        code: Its kind, one word.
        message: One line: what is wrong, where, how to mend it.
        field: Which field of the request it concerns.

    Returns:
        The answer.
    """
    return JSONResponse({"code": code, "message": message, "field": field}, status)
