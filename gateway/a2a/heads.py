"""A parsed request head, and what our server offers a request in addition to ASGI messages.

A head determines agent, operation, binding and credentials.

The server's extensions: write a whole answer at once, take a body that has arrived without a message, and call back
when the caller leaves. Other servers, and frames of a socket, have none of them; then ASGI messages are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from passerelle.core.wire.record import value
from passerelle.gateway.a2a.operations import OperationCall

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import Scope

    from passerelle.a2a_mapping.rpc import Method
    from passerelle.core.credentials import Credentials
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.bindings import CallBinding
    from passerelle.gateway.a2a.http_request import Incoming, OnCallerLeft
    from passerelle.gateway.a2a.paths import A2aRoute, PathTarget
    from passerelle.runtime.common.secret import Secret


@value
class AuthorizedCall:
    """A call that was admitted: the next one with the same head differs only in its params, which are not kept here.

    It is valid for the same principal object, which a reload replaces, and the same ``method``.
    """

    method: Method
    call: OperationCall
    authorization: Secret | None

    def ask(self, params: JsonObject) -> OperationCall:
        """The next call with the same head."""
        call = self.call
        return OperationCall(
            call.principal,
            call.agent,
            params,
            call.version,
            call.asked,
            call.extensions,
            call.idem,
            call.traceparent,
            call.tracestate,
            call.wish,
            call.judge,
            call.own_url,
            call.in_pieces,
        )


@dataclass(slots=True)
class ParsedHead:
    """Valid for each request with this head, as long as the agents are those of ``names``.

    ``agent`` is the one that the path names, if any; ``is_served`` says whether it is one of ``names``.
    """

    incoming: Incoming
    names: tuple[str, ...]
    agent: str | None
    route: A2aRoute
    target: PathTarget | None
    binding: CallBinding
    shown: Credentials
    is_served: bool
    admitted: AuthorizedCall | None = None


ASGI_EXTENSION: Final = "passerelle.offer"
"""The ASGI extension under which our server passes its ``ServerExtensions``."""


class HeadCache:
    """What the application derived from a head, for later requests whose head is equal byte for byte."""

    __slots__ = ("parsed",)

    def __init__(self) -> None:
        self.parsed: ParsedHead | None = None


class ServerExtensions(Protocol):
    """The extensions of one request."""

    @property
    def kept(self) -> HeadCache:
        """The cache for its head, on its connection."""
        ...

    def take_body(self) -> bytes | None:
        """The whole body; None, and nothing is taken, while a part of it is missing."""
        ...

    def write_at_once(self, status: int, lines: bytes, body: bytes) -> bool:
        """Writes a whole answer; False, and nothing is written, if that is not possible now.

        ``lines`` are header lines without the length, written unchanged.
        """
        ...

    def watch(self, left: OnCallerLeft) -> Callable[[], object]:
        """Calls ``left`` once the caller has left; returns a function that stops watching."""
        ...


SyncHandler: TypeAlias = "Callable[[ServerExtensions, bytes, Any, Any], bool]"
"""Takes a request by its body, and answers it later; False, without effect: it has to be served.

Receive and send come last; a server has its own types for them.
"""
AsyncHandler: TypeAlias = "Callable[[ServerExtensions, Any, Any, Any], Coroutine[Any, Any, None]]"
"""Serves a request as ``__call__`` does; gets the extensions directly, since all requests with a head share a scope."""


@runtime_checkable
class CachedHeadApp(Protocol):
    """An application that caches parsed heads, and has no middleware in front for later requests with such a head."""

    @property
    def handle_sync(self) -> SyncHandler:
        """Called first for requests with a cached ``parsed`` head, in a context of their own."""
        ...

    @property
    def handle_async(self) -> AsyncHandler:
        """Called for the rest of the requests with a cached ``parsed`` head."""
        ...


def find_server_extensions(scope: Scope) -> ServerExtensions | None:
    """The server's extensions of a request; None if the server has none."""
    extensions = scope.get("extensions")
    offer: ServerExtensions | None = extensions.get(ASGI_EXTENSION) if extensions else None
    return offer
