"""Connections and process of a local web server, on uvicorn: none holds a place in silence, and Ctrl-C ends it once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fewcal.apply.web import refused

INTERRUPTED = 130  # what shells expect after Ctrl-C


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with limits on connections.

    uvicorn's clock for silent connections (`timeout_keep_alive`) starts after an answer and stops at the next byte.
    Here it runs from the start until a whole header has arrived. Where a peer or all together have too many
    connections, the one that has been without a whole request for longest is closed for a new one; those that never
    sent one come first. Where all are at work, the new one gets 503. A client that does not read is cut off.
    """

    # Seconds for the first header, and for a client to read; open connections of one address, and of all.
    HEADER_S, READ_S = 10.0, 60.0
    PEER_LIMIT, LIMIT = 256, 512
    active_at = 0.0
    stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.active_at = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.HEADER_S, self.timeout_keep_alive_handler)
        everybody = [c for c in self.connections if isinstance(c, LimitedProtocol) and not c.transport.is_closing()]
        of_peer = [c for c in everybody if c.client and self.client and c.client[0] == self.client[0]]
        for among, limit in ((of_peer, self.PEER_LIMIT), (everybody, self.LIMIT)):
            if len(among) > limit:
                self._make_room([c for c in among if c is not self and not c.is_at_work])

    def data_received(self, data: bytes) -> None:
        # Unlike uvicorn's, it leaves the clock alone: `handle_events` stops it when there is a whole header.
        self.active_at = self.loop.time()
        self.conn.receive_data(data)
        self.handle_events()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled = self.loop.call_later(self.READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.stalled is not None:
            self.stalled.cancel()

    def shutdown(self) -> None:
        if self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete:
            self.transport.abort()  # the rest of this request may never come
        super().shutdown()

    @property
    def has_request(self) -> bool:
        """Whether a whole request has arrived, ever."""
        return self.cycle is not None and not self.cycle.more_body

    @property
    def is_at_work(self) -> bool:
        """Whether a whole request waits for its answer."""
        return self.has_request and not self.cycle.response_complete

    def _make_room(self, idle: list[LimitedProtocol]) -> None:
        if idle:
            min(idle, key=lambda c: (c.has_request, c.active_at)).transport.abort()
        else:
            answer = refused(503, "too many connections; try again in a moment")
            answer.headers["connection"] = "close"
            self.app = answer


def run_app(
    app: ASGIApp, listening: socket.socket, opened: Callable[[], None], stopping: Callable[[], None] = lambda: None
) -> None:
    """Serve an application until Ctrl-C or SIGTERM, and finish what is at work; a second Ctrl-C ends it at once.

    `opened` is called once the server listens, `stopping` before it waits for its connections.
    """

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                opened()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            stopping()
            await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit and sig == signal.SIGINT:
                os.write(2, b"fewcal: interrupted\n")
                os._exit(INTERRUPTED)  # private of os: it runs no code of the libraries
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        log_level="error",  # a request that is none is no event
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=30,
    )
    with listening, suppress(KeyboardInterrupt):  # uvicorn passes Ctrl-C on when all is closed
        Server(config).run([listening])
