"""What local web servers share: sockets, names, origins."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("starlette")

from starlette.datastructures import Headers

from fewcal.apply.web import Proxy, announced_too_large, bound_socket, has_token, is_own_address
from fewcal.errors import InputError


def test_bound_socket_names_its_protocol_so_that_asyncio_sets_nodelay() -> None:
    with bound_socket("127.0.0.1", 0) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_bound_socket_on_a_port_in_use_names_a_remedy() -> None:
    with bound_socket("127.0.0.1", 0) as listening:
        listening.listen()
        with pytest.raises(InputError, match="choose another --host or --port"):
            bound_socket("127.0.0.1", listening.getsockname()[1])


@pytest.mark.parametrize(
    "address", ["hub", "ftp://hub", "https://", "https://hub/?a=b", "http://[::1", "https://u:p@hub"]
)
def test_proxy_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="is no address of a page; give one such as https://hub"):
        Proxy.parse(address)


def test_proxy_has_the_origin_that_browsers_send() -> None:
    assert Proxy.parse("https://Hub.example.org/") == Proxy("https://hub.example.org")
    assert Proxy.parse("http://[::1]:8000/a/b/") == Proxy("http://[::1]:8000", "/a/b")


@pytest.mark.parametrize(
    ("length", "too_large"), [(None, False), ("10", False), ("11", True), ("-1", True), ("²", True), ("9" * 5000, True)]
)
def test_announced_length_beyond_the_limit_or_no_number_is_too_large(length: str | None, too_large: bool) -> None:
    assert announced_too_large(length, 10) is too_large


def test_has_token_compares_the_whole_token() -> None:
    given = [has_token(Headers({"authorization": value}), "abc") for value in ("Bearer abc", "Bearer ab", "Basic abc")]
    assert given == [True, False, False]
    assert not has_token(Headers({}), "abc")


def test_is_own_address_takes_the_address_of_the_connection_alone() -> None:
    scope = {"type": "http", "server": ("::ffff:10.0.0.1", 80)}
    assert is_own_address("10.0.0.1:80", scope)
    assert not is_own_address("10.0.0.2:80", scope)
    assert not is_own_address("", {"type": "http"})
