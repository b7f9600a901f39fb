"""Connections of local servers: clocks, room for others, clients that do not read, Ctrl-C."""

from __future__ import annotations

import asyncio
import http.client
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from fewcal.apply.connections import LimitedProtocol
from fewcal.apply.serve.server import serve_model
from fewcal.apply.web import bound_socket
from fewcal.errors import InputError
from limits import PATIENCE
from services import live_service, npy, row_model, text_model

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Quick(LimitedProtocol):
    """The protocol with small limits."""

    HEADER_S, READ_S = 0.2, 0.2
    PEER_LIMIT, LIMIT = 4, 4


class Server:
    """A server in the loop of the test. `/` answers, POST reads the body, `/wait` waits, `/much` sends 50 MB."""

    def __init__(self) -> None:
        self.state, self.go = ServerState(), asyncio.Event()
        config = uvicorn.Config(
            self.answer, timeout_keep_alive=1000, log_level="critical", ws="none", interface="asgi3"
        )
        self.make = lambda: Quick(config, self.state, {})

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: Response = PlainTextResponse("done")
        if scope["method"] == "POST":
            await Request(scope, receive).body()
        elif scope["path"] == "/wait":
            await self.go.wait()
        elif scope["path"] == "/much":
            response = Response(bytes(50_000_000))
        await response(scope, receive, send)

    async def connect(self, data: bytes = b"") -> Client:
        reader, writer = await asyncio.open_connection(*self.place)
        writer.write(data)
        await writer.drain()
        return reader, writer

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Server]:
        listening = bound_socket("127.0.0.1", 0)
        self.place = listening.getsockname()
        server = await asyncio.get_running_loop().create_server(self.make, sock=listening)
        yield self
        self.go.set()
        server.close()
        for connection in list(self.state.connections):
            connection.transport.abort()


def scenario(test: Callable[[Server], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs beside a server."""

    async def run() -> None:
        async with asyncio.timeout(PATIENCE), Server().run() as server:
            await test(server)

    def run_test() -> None:
        asyncio.run(run())

    run_test.__name__, run_test.__doc__ = test.__name__, test.__doc__
    return run_test


async def status(client: Client) -> int:
    """Status of the next answer, whose body is skipped."""
    head = await client[0].readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    await client[0].readexactly(length)
    return int(head.split()[1])


async def is_closed(client: Client) -> bool:
    """Wait for the end of a connection."""
    try:
        return await client[0].read() == b""
    except ConnectionError:
        return True


@scenario
async def test_a_connection_without_a_whole_header_is_closed(server: Server) -> None:
    silent, half = await server.connect(), await server.connect(GET[:10])
    for _ in range(3):  # bytes that come in now and then do not help
        half[1].write(b"a")
        await asyncio.sleep(0.02)
    assert await is_closed(silent)
    assert await is_closed(half)


@scenario
async def test_a_kept_connection_answers_again_and_again(server: Server) -> None:
    client = await server.connect()
    for _ in range(3):
        client[1].write(GET)
        assert await status(client) == 200
    client[1].write(GET * 2)  # pipelined
    assert [await status(client), await status(client)] == [200, 200]


@scenario
async def test_silent_connections_make_room_before_kept_ones(server: Server) -> None:
    kept = await server.connect(GET)
    assert await status(kept) == 200
    unfinished = await server.connect(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc")
    silent = [await server.connect() for _ in range(10)]
    for _ in range(3):
        other = await server.connect(GET)
        assert await status(other) == 200
    assert await is_closed(silent[0])
    assert await is_closed(unfinished)
    kept[1].write(GET)
    assert await status(kept) == 200


@scenario
async def test_where_all_connections_are_at_work_a_new_one_is_put_off(server: Server) -> None:
    working = [await server.connect(GET.replace(b"/ ", b"/wait ", 1)) for _ in range(4)]
    while len(server.state.tasks) < 4:
        await asyncio.sleep(0)
    refused = await server.connect(GET)
    assert await status(refused) == 503
    assert await is_closed(refused)
    server.go.set()
    assert [await status(one) for one in working] == [200] * 4
    assert await status(await server.connect(GET)) == 200


@scenario
async def test_a_client_that_does_not_read_is_cut_off(server: Server) -> None:
    client = await server.connect(GET.replace(b"/ ", b"/much ", 1))
    assert await client[0].readexactly(4) == b"HTTP"
    while server.state.connections:
        await asyncio.sleep(0.01)


@scenario
async def test_a_server_that_stops_waits_for_answers_and_not_for_bodies(server: Server) -> None:
    unfinished = await server.connect(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc")
    working = await server.connect(GET.replace(b"/ ", b"/wait ", 1))
    while len(server.state.tasks) < 2:
        await asyncio.sleep(0)
    for connection in list(server.state.connections):
        connection.shutdown()
    assert await is_closed(unfinished)
    server.go.set()
    assert await status(working) == 200
    assert await is_closed(working)


def test_a_service_among_silent_connections_answers_others() -> None:
    body = npy([[0.5] * 16])
    with live_service("row") as service:
        kept = service.client()
        connections = [kept]
        silent = [service.connect() for _ in range(400)]
        for half in silent[::2]:
            half.sendall(b"POST /predict/embeddings HTTP/1.1\r\n")
        connections += [service.client() for _ in range(5)]
        for client in connections * 2:
            client.request("POST", "/predict/embeddings", body, {"content-type": "application/x-npy"})
            answer = client.getresponse()
            assert (answer.status, b"predictions" in answer.read()) == (200, True)
        for one in silent:
            one.close()


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"token": "a b"}, "the token must be ASCII letters, digits and signs without spaces"),
        ({"token": ""}, "the token must be ASCII"),
        ({"token": "é"}, "the token must be ASCII"),
        ({"behind_proxy": "hub"}, "'hub' is no address of a page"),
        ({"reject": 0.05}, "a bank or a class with two examples"),
    ],
)
def test_options_that_cannot_work_are_refused_before_the_service_starts(
    tmp_path: Path, option: dict[str, Any], problem: str
) -> None:
    model = text_model().classifier.save(tmp_path / "m.fewcal")
    with pytest.raises(InputError, match=problem):
        serve_model(model, port=0, **option)


@pytest.mark.parametrize(("times", "codes"), [(1, {0}), (2, {0, 130, -signal.SIGINT})])
def test_ctrl_c_ends_the_service_without_a_traceback(tmp_path: Path, times: int, codes: set[int]) -> None:
    row_model().classifier.save(tmp_path / "m.fewcal")
    command = [sys.executable, "-m", "fewcal", "serve", str(tmp_path / "m.fewcal"), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split("//")[1].split(";")[0]
    unfinished = http.client.HTTPConnection(address, timeout=PATIENCE)
    unfinished.putrequest("POST", "/predict/embeddings")
    unfinished.putheader("content-length", "100")
    unfinished.endheaders(b"{")
    for _ in range(times):
        server.send_signal(signal.SIGINT)
    _, errors = server.communicate(timeout=PATIENCE)
    assert server.returncode in codes
    assert errors in ("", "fewcal: interrupted\n")
