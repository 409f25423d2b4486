"""Finds the client of a forwarded request, from the header that trusted proxies set.

Only configured proxies are trusted, and each appends the address it saw. So hops are read from the nearest one on: the
first that is not a trusted proxy is the client. The client may have forged everything before it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

AddressHeader: TypeAlias = Literal["Forwarded", "X-Forwarded-For"]

_FORWARDED: Final = "forwarded"
_PAIR: Final = re.compile(r'\s*(?:([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]*))?\s*([;,]|$)')
"""A pair of RFC 7239 section 4 and its separator; list members may be empty (RFC 9110 section 5.6.1)."""
_PORT: Final = re.compile(r"^(?:\[([0-9A-Fa-f:.]+)\](?::\w+)?|([0-9.]+):\w+)$")


class Proxies:
    """Trusted proxies by the networks that they connect from; without a ``header`` they name no client."""

    def __init__(
        self,
        networks: Iterable[IPv4Network | IPv6Network] = (),
        header: AddressHeader | None = None,
    ) -> None:
        self._networks = tuple(networks)
        self._header = header.lower().encode() if header else None
        self._read = read_forwarded if header and header.lower() == _FORWARDED else _read_list
        self.trusts = lru_cache(maxsize=1024)(self._is_trusted)
        """``trusts(address)``: whether a trusted proxy connects from there."""

    def is_exempt(self, address: str) -> bool:
        """Whether connections from there are not limited: it is a proxy, or this machine."""
        found = _parse(address)
        return found is not None and (found.is_loopback or self.trusts(address))

    def forwards(self, address: str | None) -> bool:
        """Whether a connection from there names the client of each request."""
        return self._header is not None and address is not None and self.trusts(address)

    def find_client(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """The client's address in a request that ``forwards``; None if the proxies do not name it.

        Header names are lower case.
        """
        lines = [value.decode("latin-1") for name, value in headers if name == self._header]
        for hop in self._read(", ".join(lines)):
            found = _parse(_PORT.sub(r"\1\2", hop))
            if found is None:
                return None
            if not self.trusts(str(found)):
                return str(found)
        return None

    def _is_trusted(self, text: str) -> bool:
        address = _parse(text)
        return address is not None and any(address in network for network in self._networks)


def read_forwarded(header: str) -> list[str]:
    """The ``for`` value of each element of a ``Forwarded`` header, the nearest first; "" if an element has none.

    Returns nothing if a part of the header cannot be parsed: the rest might not be what the proxy meant.
    """
    hops: list[str] = []
    hop, is_empty, position = "", True, 0
    while position <= len(header):
        match = _PAIR.match(header, position)
        if match is None:
            return []
        if match[1]:
            is_empty = False
            if match[1].lower() == "for":
                hop = match[2]
        if match[3] != ";" and not is_empty:
            hops.append(re.sub(r"\\(.)", r"\1", hop[1:-1]) if hop.startswith('"') else hop)
            hop, is_empty = "", True
        if not match[3]:
            break
        position = match.end()
    hops.reverse()
    return hops


def _read_list(header: str) -> Iterator[str]:
    """The members of an ``X-Forwarded-For``, the nearest first; parses only as far as it is consumed."""
    end = len(header)
    while end >= 0:
        start = header.rfind(",", 0, end)
        hop = header[start + 1 : end].strip()
        if hop:
            yield hop
        end = start


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # A dual-stack socket shows an IPv4 address as an IPv6 one.
    return getattr(address, "ipv4_mapped", None) or address
