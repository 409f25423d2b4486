"""What our server does for a request beside the messages of ASGI.

A whole answer is one write, a body that is here needs no message, and who waits is called back when its caller leaves.
Where another server serves, or frames of a socket are served, nothing is offered and the messages are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import Scope

    from passerelle.gateway.a2a.leaving import Left
    from passerelle.gateway.a2a.reading import Reading

OFFER: Final = "passerelle.offer"
"""The ASGI extension of a request under which its server gives an ``Offer``."""


class Kept:
    """What was made of a head, for further requests whose head is the same byte for byte."""

    __slots__ = ("reading",)

    def __init__(self) -> None:
        self.reading: Reading | None = None


class Offer(Protocol):
    """For one request."""

    @property
    def kept(self) -> Kept:
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

    def watch(self, left: Left) -> Callable[[], object]:
        """Calls ``left`` once the caller has left; returns how to stop watching."""
        ...


BeginOffered: TypeAlias = "Callable[[Offer, bytes, Any, Any], bool]"
"""Takes a request by its body, and answers it by and by; False, and nothing is done: it has to be served.

Receive and send come last; a server has types of its own for them.
"""
ServeOffered: TypeAlias = "Callable[[Offer, Any, Any, Any], Coroutine[Any, Any, None]]"
"""Serves a request as ``__call__`` does; the offer is given, since the scope is that of all requests with its head."""


@runtime_checkable
class KnowsHeads(Protocol):
    """An application that keeps what it made of a head, and to whose further requests nothing stands before it."""

    @property
    def begin_offered(self) -> BeginOffered:
        """Tried first for requests of whose head it kept a ``reading``, in a context of their own."""
        ...

    @property
    def serve_offered(self) -> ServeOffered:
        """For requests of whose head it kept a ``reading``."""
        ...


def find_offer(scope: Scope) -> Offer | None:
    """What the server of a request offers."""
    extensions = scope.get("extensions")
    offer: Offer | None = extensions.get(OFFER) if extensions else None
    return offer
