"""The client of a request behind a proxy: the first hop that is no trusted proxy."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.gateway.proxies import AddressHeader, Proxies, read_forwarded

NETWORKS = [ip_network("10.0.0.0/8"), ip_network("2001:db8:1::/48")]
LIST: AddressHeader = "X-Forwarded-For"
ELEMENTS: AddressHeader = "Forwarded"


def find(header: AddressHeader, *lines: str) -> str | None:
    headers = [(header.lower().encode(), line.encode()) for line in lines]
    return Proxies(NETWORKS, header).find_client([(b"host", b"x"), *headers])


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        ([], None),
        ([""], None),
        (["192.0.2.1"], "192.0.2.1"),
        (["198.51.100.9, 192.0.2.1"], "192.0.2.1"),
        (["198.51.100.9", "192.0.2.1, 10.1.1.1"], "192.0.2.1"),
        (["198.51.100.9,192.0.2.1 , ,10.1.1.1,"], "192.0.2.1"),
        (["192.0.2.1:4711"], "192.0.2.1"),
        (["2001:db8::7"], "2001:db8::7"),
        (["[2001:db8::7]:4711"], "2001:db8::7"),
        (["2001:DB8:0::7, 2001:db8:1::1"], "2001:db8::7"),
        (["::ffff:192.0.2.1"], "192.0.2.1"),
        (["192.0.2.1, ::ffff:10.1.1.1"], "192.0.2.1"),
        (["10.2.2.2, 10.1.1.1"], None),
        (["192.0.2.1, unknown"], None),
        (["192.0.2.1, unknown, 10.1.1.1"], None),
    ],
)
def test_list_is_read_from_the_nearest_proxy_on(lines: list[str], client: str | None) -> None:
    assert find(LIST, *lines) == client


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        (["for=192.0.2.1"], "192.0.2.1"),
        (["For=192.0.2.1;proto=https;by=10.1.1.1"], "192.0.2.1"),
        (["for=198.51.100.9, for=192.0.2.1"], "192.0.2.1"),
        (["for=198.51.100.9", "for=192.0.2.1, for=10.1.1.1 , "], "192.0.2.1"),
        (['for="[2001:db8::7]:4711"'], "2001:db8::7"),
        (['for="192.0.2.1:_port"'], "192.0.2.1"),
        (['for=192.0.2.1, by="a,b";for="10.1.1.1"'], "192.0.2.1"),
        (["for=192.0.2.1, for=_hidden"], None),
        (["for=192.0.2.1, proto=https"], None),
        (['for=192.0.2.1, for="10.1.1.1'], None),
        (["for=192.0.2.1 for=10.1.1.1"], None),
    ],
)
def test_elements_are_read_from_the_nearest_proxy_on(lines: list[str], client: str | None) -> None:
    assert find(ELEMENTS, *lines) == client


@given(st.text(max_size=200))
def test_forwarding_headers_of_a_client_are_never_trusted(said: str) -> None:
    line = said.encode("latin-1", "replace").decode("latin-1")
    headers = [(b"x-forwarded-for", line.encode("latin-1")), (b"x-forwarded-for", b"192.0.2.1")]
    assert Proxies(NETWORKS, LIST).find_client(headers) == "192.0.2.1"


@given(st.text(max_size=200))
def test_elements_are_read_or_are_none(said: str) -> None:
    assert all(isinstance(hop, str) for hop in read_forwarded(said))


def test_only_a_configured_proxy_and_header_are_trusted() -> None:
    named = Proxies(NETWORKS, LIST)
    assert named.forwards("10.1.1.1")
    assert named.forwards("::ffff:10.1.1.1")
    assert not named.forwards("192.0.2.1")
    assert not named.forwards("127.0.0.1")
    assert not named.forwards(None)
    assert not Proxies(NETWORKS).forwards("10.1.1.1")
    assert Proxies(NETWORKS).is_exempt("::ffff:10.1.1.1")
    assert Proxies().is_exempt("127.0.0.1")
    assert not Proxies().is_exempt("unix")
