"""From the head of a request to credentials, the same for HTTP, WebSockets and gRPC metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope

API_KEY_HEADER: Final = "x-api-key"
_SCHEME: Final = "bearer "
_ALWAYS_READ: Final = frozenset({b"authorization", API_KEY_HEADER.encode(), b"origin"})


@dataclass(frozen=True, slots=True)
class CredentialReader:
    """``certificate_header`` is the lower-case name of the header in which a proxy says whose certificate it saw."""

    certificate_header: str | None = None

    def read(
        self, headers: Mapping[str, str], address: str | None, device: str | None = None
    ) -> Credentials:
        """What stands in headers (or metadata) with lower-case names, and where the socket comes from."""
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
    """The other end of the socket; None where the server does not know it, as on a unix socket."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else None


def read_bearer(authorization: str | None) -> str | None:
    """The token of an ``Authorization`` header, or None where there is no bearer in it."""
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return authorization[len(_SCHEME) :].strip() or None
