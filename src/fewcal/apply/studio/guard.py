"""Who may ask a studio, and how much: a pure ASGI layer around the application.

- **Token.** The link that the server prints carries a token; opening it sets a cookie, and every other request needs
  the cookie or the header `Authorization: Bearer TOKEN`.
- **Host.** Names other than those the server was bound to, and the address a connection came in at, are refused: a
  foreign name that resolves to this machine (DNS rebinding) is none of them.
- **Origin.** A request that changes something must come from a page of this server (scheme, name and port), or carry
  the token in its header. The server speaks HTTP; behind a proxy it would refuse the name in Host already.
- **Size.** A body beyond the limit is refused as soon as that is known.
- **Headers.** No scripts but our own, no frames, nothing cached, no sniffing of types.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fewcal.apply.web import SECURITY_HEADERS, announced_too_large, is_own_address, limited, refused, with_headers

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = ("GET", "HEAD", "OPTIONS")
NO_TOKEN = "the token is missing; open the link that the server printed"
# For a person. It refers to nothing, for nothing else is answered either, and says nothing of the project.
NO_TOKEN_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>fewcal studio: open the printed link</title>
<h1>This studio opens by its link</h1>
<p>Open the whole link that <code>fewcal studio</code> printed where it was started. It ends in
<code>?token=…</code>, which is the key to the project; each start makes a new one.</p>
</html>
"""


@dataclass(frozen=True)
class Access:
    """What a server lets in: `hosts` as they stand in the Host header (with the port), the token, bytes of a body."""

    hosts: frozenset[str]
    token: str
    most_bytes: int

    @property
    def cookie(self) -> str:
        """A name of its own for each port: browsers send the cookies of one port to all ports of a host."""
        port = next(iter(sorted(self.hosts))).rpartition(":")[2]
        return f"fewcal-studio-{port}"

    def knows(self, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())


class Guard:
    """The ASGI layer; see the module."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets
            return

        secured = with_headers(send, SECURITY_HEADERS | {"content-security-policy": CONTENT_POLICY})
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, secured)
            return
        await self.app(scope, limited(receive, self.access.most_bytes), secured)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self.access.hosts and not is_own_address(host, scope):
            return refused(403, "this name of the server is not allowed; use the link that the server printed")
        method, bearer = scope["method"], _bearer(headers)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [None])[0]
        if scope["path"] == "/" and self.access.knows(given):
            response = RedirectResponse("/", status_code=303)
            # Lax: a link that is clicked on another page (a notebook, a chat) ends at ours, where a strict cookie would
            # be held back. What changes something is asked for its origin below.
            response.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="lax", path="/")
            return response
        if not (self.access.knows(bearer) or self.access.knows(_cookie(headers, self.access.cookie))):
            person = "text/html" in headers.get("accept", "").lower()
            return HTMLResponse(NO_TOKEN_PAGE, 401) if person else refused(401, NO_TOKEN)
        if method not in _SAFE and not self.access.knows(bearer):
            own = f"{scope.get('scheme', 'http')}://{host}"
            if headers.get("origin", "").lower() != own:
                return refused(403, f"this request comes from another page than {own}")
        if announced_too_large(headers.get("content-length"), self.access.most_bytes):
            return refused(413, f"too large; at most {self.access.most_bytes:,} bytes are taken")
        return None


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else None


def _cookie(headers: Headers, name: str) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if found is None else found.value
