"""Writes the bytes of a request for our own HTTP connections. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from yarl import URL

from passerelle.peers.whole_answer import NotConnected

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNSENDABLE: Final = frozenset("\r\n\0")


def write_head(method: str, url: str, headers: Mapping[str, str]) -> bytes:
    """The request line and all headers except the body length. Asks for an uncompressed answer.

    Raises:
        NotConnected: a header cannot be sent.
    """
    host, target = _split(url)
    opening = _write(f"{method} {target} HTTP/1.1", f"Host: {host}", "User-Agent: passerelle")
    return opening + write_headers(headers) + b"Accept-Encoding: identity\r\n"


def write_headers(headers: Mapping[str, str]) -> bytes:
    """The lines of some headers.

    Raises:
        NotConnected: a header cannot be sent.
    """
    return _write(*[f"{name}: {value}" for name, value in headers.items()])


def close_head(head: bytes, body: bytes | None) -> bytes:
    """The whole request, from a head without a body length."""
    if body is None:
        return head + b"\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def _write(*lines: str) -> bytes:
    if not all(map(_UNSENDABLE.isdisjoint, lines)):
        raise NotConnected("a header has characters that cannot be sent")
    return "".join([f"{line}\r\n" for line in lines]).encode("latin-1", "replace")


@lru_cache(1024)
def _split(url: str) -> tuple[str, str]:
    """The Host header and the request target of a URL."""
    parsed = URL(url)
    return parsed.host_port_subcomponent or "", parsed.raw_path_qs
