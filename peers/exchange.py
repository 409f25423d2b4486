"""One HTTP exchange with a peer: the request body, how much of the answer is read, and what a failure means."""

from __future__ import annotations

import errno
import os
import ssl
from io import BytesIO
from typing import TYPE_CHECKING, Final

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError

from passerelle.core.peer import Malformed, Unknown, Unreached
from passerelle.peers.whole_answer import MAX_HEADER_BYTES

if TYPE_CHECKING:
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.stream_room import StreamRoom

# aiohttp blocks the loop with larger bodies given as bytes, and warns.
_DIRECT_BODY_BYTES: Final = 1024 * 1024
_ASYNCIO: Final = ("Connect call failed", "Multiple exceptions")


class TooLong(Exception):
    """A body is longer than ``limit_bytes``; ``head`` is its first piece."""

    def __init__(self, limit_bytes: int, head: bytes) -> None:
        super().__init__(f"a body over {limit_bytes} bytes")
        self.head = head


def wrap_body(content: bytes | None) -> bytes | BytesIO | None:
    """The form in which aiohttp sends a body of that size without blocking the loop."""
    if content is None or len(content) <= _DIRECT_BODY_BYTES:
        return content
    return BytesIO(content)


def limit_time(config: PeerConfig, total_s: float | None) -> aiohttp.ClientTimeout:
    """Connecting gets at most half of the time, so that a connect failure is known as one."""
    connect_s = config.connect_timeout_s
    if total_s is not None:
        connect_s = min(connect_s, total_s / 2)
    return aiohttp.ClientTimeout(total=total_s, connect=connect_s, sock_connect=connect_s)


def has_long_headers(response: aiohttp.ClientResponse) -> bool:
    """Whether the header block is over its limit; the parser limits only lines and their number."""
    return (
        sum(len(name) + len(value) + 4 for name, value in response.raw_headers) > MAX_HEADER_BYTES
    )


async def read_body(
    response: aiohttp.ClientResponse, limit_bytes: int, room: StreamRoom | None = None
) -> bytes:
    """The whole body, decompressed piece by piece so that a small bomb cannot become a large one.

    Beyond the free part it reads only while there is ``room``.

    Raises:
        TooLong: it did not end within the limit.
    """
    pieces: list[bytes] = []
    size = 0
    while piece := await response.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > limit_bytes:
            response.close()
            raise TooLong(limit_bytes, pieces[0])
        if room is not None:
            await room.make(size)
    return b"".join(pieces)


def explain_failure(
    error: aiohttp.ClientError | TimeoutError,
) -> Unreached | Unknown | Malformed:
    """The outcome of a failed exchange.

    Only a connection that was never made, or closed before the request was sent, proves that nothing was accepted.
    """
    reason = describe(error)
    match error:
        case (
            aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError() | aiohttp.InvalidURL()
        ):
            return Unreached(reason)
        case aiohttp.ClientOSError() if _was_held_back(error):
            return Unreached(reason)
        case aiohttp.ClientPayloadError() if isinstance(error.__cause__, ContentEncodingError):
            return Malformed(f"a body that cannot be decompressed ({reason})", b"")
        case aiohttp.ClientPayloadError():
            return Unknown(reason, had_begun=True)
        case aiohttp.ClientResponseError():
            return Malformed(f"not HTTP ({error.message})", b"")
        case _:
            return Unknown(reason)


def describe_connect(error: OSError) -> str:
    """Why no connection was made; the text of asyncio has the error number and the address."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not valid: {error.verify_message}"
        case OSError(errno=errno.ECONNREFUSED):
            return "the connection was refused"
        case OSError(strerror=str(text), errno=int(number)):
            known = os.strerror(number) if text.startswith(_ASYNCIO) else text
            return f"cannot connect: {known}"
        case _:
            return f"cannot connect: {str(error) or type(error).__name__}"


def describe(error: Exception) -> str:
    """A readable reason; the library's own texts name its classes and internals."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its host name cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate is not valid: {error.certificate_error}"
        case aiohttp.ClientConnectorError(os_error=cause):
            return describe_connect(cause)
        case aiohttp.ConnectionTimeoutError():
            return "cannot connect in time"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed"
        case _:
            return f"{type(error).__name__}: {error}" if str(error) else "no answer in time"


def _was_held_back(error: aiohttp.ClientOSError) -> bool:
    """Whether the client held back bytes of the request, since the connection was closing already.

    A peer that restarts closes its idle connections, and the next request may use one of them. aiohttp reports this
    only in its text; with another text the outcome is Unknown, which is never wrong.
    """
    cause = error.__cause__
    closing = "Cannot write to closing transport"
    return isinstance(cause, aiohttp.ClientConnectionResetError) and str(cause) == closing
