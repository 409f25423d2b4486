"""A parsed request head, and what our server offers a request beside the messages of ASGI.

A head says what is asked of whom, in which binding, by whoever shows what.

What is offered: a whole answer is one write, a body that is here needs no message, and who waits is called back when
its caller leaves. Where another server serves, or frames of a socket are served, nothing is offered and the messages
are used.
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
    """A call that was let in: the next one with the same head differs in its params only, which are left out here.

    It holds for the same principal, which a reload of the configuration makes anew, and the same ``method``.
    """

    method: Method
    call: OperationCall
    authorization: Secret | None

    def ask(self, params: JsonObject) -> OperationCall:
        """The next one."""
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
    """Holds for each request with this head, as long as the agents are those of ``names``.

    ``agent`` is the one that the path names, if it names one; ``is_served`` says whether it is one of ``names``.
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
"""The ASGI extension of a request under which its server gives its ``ServerExtensions``."""


class HeadCache:
    """What was made of a head, for further requests whose head is the same byte for byte."""

    __slots__ = ("parsed",)

    def __init__(self) -> None:
        self.parsed: ParsedHead | None = None


class ServerExtensions(Protocol):
    """For one request."""

    @property
    def kept(self) -> HeadCache:
        """Of its head, on its connection."""
        ...

    def take_body(self) -> bytes | None:
        """The whole body; None while something of it is missing, and then nothing was taken."""
        ...

    def write_at_once(self, status: int, lines: bytes, body: bytes) -> bool:
        """Writes a whole answer; False if it cannot now, and then nothing was written.

        ``lines`` are header lines without the length, which are written as they stand.
        """
        ...

    def watch(self, left: OnCallerLeft) -> Callable[[], object]:
        """Calls ``left`` once the caller has left; returns how to stop watching."""
        ...


SyncHandler: TypeAlias = "Callable[[ServerExtensions, bytes, Any, Any], bool]"
"""Takes a request by its body, and answers it by and by; False, and nothing is done: it has to be served.

Receive and send come last; a server has types of its own for them.
"""
AsyncHandler: TypeAlias = "Callable[[ServerExtensions, Any, Any, Any], Coroutine[Any, Any, None]]"
"""Serves a request as ``__call__`` does; the offer is given, since the scope is that of all requests with its head."""


@runtime_checkable
class CachedHeadApp(Protocol):
    """An application that keeps what it made of a head, and to whose further requests nothing stands before it."""

    @property
    def handle_sync(self) -> SyncHandler:
        """Tried first for requests of whose head it kept a ``parsed``, in a context of their own."""
        ...

    @property
    def handle_async(self) -> AsyncHandler:
        """For requests of whose head it kept a ``parsed``."""
        ...


def find_server_extensions(scope: Scope) -> ServerExtensions | None:
    """What the server of a request offers."""
    extensions = scope.get("extensions")
    offer: ServerExtensions | None = extensions.get(ASGI_EXTENSION) if extensions else None
    return offer
