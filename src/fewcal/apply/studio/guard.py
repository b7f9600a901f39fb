"""Who may use a studio, and how much: a pure ASGI layer around the application.

- **Token.** The link that the server prints carries a token; opening it sets a cookie, and every other request needs
  the cookie or the header `Authorization: Bearer TOKEN`.
- **Host.** Only the names that the server was bound to, the address a connection came in at and the name of its proxy
  are taken. A foreign name that resolves to this machine (DNS rebinding) is refused.
- **Origin.** A request that changes something must come from a page of this server (scheme, name and port) or of its
  proxy, or carry the token in its header.
- **Size.** A body beyond the limit is refused as soon as it is announced or seen.
- **Headers.** No scripts but our own, no frames, nothing cached, no sniffing of types.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Scope

from fewcal.apply.web import Guard, Proxy, has_token, is_own_address, refused

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = ("GET", "HEAD", "OPTIONS")
NO_TOKEN = "the token is missing; open the link that the server printed"
# For a person. It refers to nothing, for nothing else is answered either, and holds nothing of the project.
NO_TOKEN_PAGE = (Path(__file__).parent / "static" / "no-token.html").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Access:
    """What a server lets in: Host headers (with the port), the token, bytes of a body, the proxy before it or None."""

    hosts: frozenset[str]
    token: str
    max_bytes: int
    proxy: Proxy | None = None

    @property
    def cookie(self) -> str:
        """A name of its own for each port: browsers send the cookies of one port to all ports of a host."""
        port = next(iter(sorted(self.hosts))).rpartition(":")[2]
        return f"fewcal-studio-{port}"

    def has_token(self, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())


class StudioGuard(Guard):
    """The ASGI layer; see the module."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        super().__init__(app, access.max_bytes, CONTENT_POLICY)
        self.access = access

    def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "").lower()
        proxy = self.access.proxy
        passed = proxy is not None and host == proxy.origin.partition("://")[2]
        if not (passed or host in self.access.hosts or is_own_address(host, scope)):
            return refused(403, "this name of the server is not allowed; use the link that the server printed")
        method, bearer = scope["method"], has_token(headers, self.access.token)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [None])[0]
        if scope["path"] == "/" and self.access.has_token(given):
            response = RedirectResponse("./", status_code=303)
            # Lax: from a link on another page (a notebook, a chat) browsers hold strict cookies back. What changes
            # something must show its origin below.
            response.set_cookie(
                self.access.cookie,
                self.access.token,
                path="/" if proxy is None else f"{proxy.path}/",
                secure=proxy is not None and proxy.origin.startswith("https:"),
                httponly=True,
                samesite="lax",
            )
            return response
        if not (bearer or self.access.has_token(HTTPConnection(scope).cookies.get(self.access.cookie))):
            person = "text/html" in headers.get("accept", "").lower()
            return HTMLResponse(NO_TOKEN_PAGE, 401) if person else refused(401, NO_TOKEN)
        if method not in _SAFE and not bearer:
            own = proxy.origin if proxy is not None and passed else f"{scope.get('scheme', 'http')}://{host}"
            # A proxy may put our own name into Host.
            if headers.get("origin", "").lower() not in (own, proxy and proxy.origin):
                return refused(403, f"this request comes from another page than {own}")
        return None
