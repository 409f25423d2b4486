"""Reads credentials from a request head, the same for HTTP, WebSockets and gRPC metadata.

A trusted proxy passes a client certificate in a header. The header itself proves nothing: it only counts on a
connection from a proxy's address. That is the address of the socket; forwarding headers are ignored.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from passerelle.core.credentials import Credentials
from passerelle.core.frozen import frozen
from passerelle.gateway.auth.principals import make_client_principal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.types import Scope

    from passerelle.core.principal import Principal
    from passerelle.gateway.settings.callers import ClientSettings, ProxySettings

ENVOY_HEADER: Final = "x-forwarded-client-cert"
_PAIR: Final = re.compile(r'\s*([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^;,"]*)\s*([;,]|$)')
_IDENTITIES: Final = frozenset({"uri", "subject"})


class Certificates:
    """Clients that are identified by a certificate, and the proxy that checks it."""

    def __init__(self, proxy: ProxySettings, clients: Iterable[ClientSettings]) -> None:
        self._networks = proxy.addresses
        self._is_envoy = proxy.certificate_header.lower() == ENVOY_HEADER
        self._known = {
            client.certificate: make_client_principal(client)
            for client in clients
            if client.certificate
        }
        self._trusts = lru_cache(maxsize=1024)(self._is_trusted)

    def find(self, shown: Credentials) -> Principal | None:
        """The client whose certificate the proxy saw; None if it is unknown, or the request is not from the proxy."""
        if shown.certificate is None or shown.address is None or not self._trusts(shown.address):
            return None
        named = read_envoy(shown.certificate) if self._is_envoy else (shown.certificate.strip(),)
        return next((self._known[one] for one in named if one in self._known), None)

    def _is_trusted(self, text: str) -> bool:
        try:
            address = ip_address(text)
        except ValueError:
            return False
        carried = getattr(address, "ipv4_mapped", None) or address
        return any(carried in network for network in self._networks)


def read_envoy(header: str) -> tuple[str, ...]:
    """URIs and subject of the last element of an ``X-Forwarded-Client-Cert``: the one that the nearest proxy added.

    Returns nothing if a part of the header cannot be parsed: the rest might not be what the proxy meant.
    """
    found: list[str] = []
    position = 0
    while position < len(header):
        match = _PAIR.match(header, position)
        if match is None:
            return ()
        name, value, end = match[1].lower(), match[2], match[3]
        if name in _IDENTITIES:
            found.append(_unquote(value))
        if end == "," and match.end() < len(header):
            found.clear()
        position = match.end()
    return tuple(one for one in found if one)


def _unquote(value: str) -> str:
    if value.startswith('"'):
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return unquote(value)


API_KEY_HEADER: Final = "x-api-key"
_SCHEME: Final = "bearer "
_ALWAYS_READ: Final = frozenset({b"authorization", API_KEY_HEADER.encode(), b"origin"})


@frozen
class CredentialReader:
    """``certificate_header`` is the lower-case name of the header in which a proxy passes a client certificate."""

    certificate_header: str | None = None

    def read(
        self, headers: Mapping[str, str], address: str | None, device: str | None = None
    ) -> Credentials:
        """The credentials in headers (or metadata) with lower-case names, and the address of the socket."""
        certificate = headers.get(self.certificate_header) if self.certificate_header else None
        return Credentials(
            bearer=read_bearer(headers.get("authorization")),
            api_key=headers.get(API_KEY_HEADER),
            certificate=certificate,
            address=address,
            device=device,
            origin=headers.get("origin"),
        )

    def read_scope(self, scope: Scope, device: str | None = None) -> Credentials:
        """The same for an ASGI scope. Of several certificate headers the last counts: the nearest proxy added it."""
        pairs: list[tuple[bytes, bytes]] = scope["headers"]
        certificate = (self.certificate_header or "").encode()
        headers = {
            name.decode(): value.decode("latin-1")
            for name, value in pairs
            if name in _ALWAYS_READ or name == certificate
        }
        return self.read(headers, read_address(scope), device)


READER: Final = CredentialReader()
"""Reads no certificate header."""


def read_address(scope: Scope) -> str | None:
    """The address of the socket's other end; None if the server does not know it, as on a unix socket."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else None


def read_bearer(authorization: str | None) -> str | None:
    """The token of an ``Authorization`` header; None if it is not a bearer token."""
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return authorization[len(_SCHEME) :].strip() or None
