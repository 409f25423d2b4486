"""Faults that no SDK produces, injected between the conformance agent and its caller.

The agent writes a marker word into a status message or a data part. Where a chunk of a response contains that word,
this middleware replaces the chunk by the fault. A streamed event is one chunk, so the other events stay intact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BIG_INTEGER: Final = 9_007_199_254_740_993
"""2**53 + 1: a reader that parses numbers as floats loses it."""


class WireFault(StrEnum):
    """A fault, with its marker word."""

    BIG_INTEGER = "psl:big-integer"
    LATER_FIELD = "psl:later-field"
    DROP = "psl:drop"
    TWICE = "psl:twice"
    MALFORMED = "psl:malformed"
    UNKNOWN_STATE = "psl:unknown-state"
    BARE_MESSAGE = "psl:bare-message"


class ConnectionCut(Exception):
    """Ends the response before it is complete, which a server shows as a broken connection."""


_UPDATE: Final = b'"statusUpdate"'
_LATER: Final = re.compile(rb'\{"text": ?(?="psl:later-field")')


def inject(piece: bytes) -> Iterator[bytes]:
    """The replacement of one chunk of a response. Most faults affect one event of a stream.

    Raises:
        ConnectionCut: the connection ends here.
    """
    piece = piece.replace(f'"{WireFault.BIG_INTEGER}"'.encode(), str(BIG_INTEGER).encode())
    piece = _LATER.sub(b'{"newInSomeLaterVersion":true,"text":', piece)
    match _find(piece) if _UPDATE in piece else None:
        case WireFault.DROP:
            raise ConnectionCut
        case WireFault.TWICE:
            yield piece + piece
        case WireFault.MALFORMED:
            yield b"data: {this is not JSON\n\n"
        case WireFault.UNKNOWN_STATE:
            yield piece.replace(b"TASK_STATE_WORKING", b"TASK_STATE_DREAMING")
        case WireFault.BARE_MESSAGE:
            yield _make_bare_message(piece)
        case _:
            yield piece


def _make_bare_message(piece: bytes) -> bytes:
    """The status message of an update as a separate Message, with or without a JSON-RPC envelope."""
    event = orjson.loads(piece.partition(b"data:")[2])
    holder = event.get("result", event)
    holder["message"] = holder.pop("statusUpdate")["status"]["message"]
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _find(piece: bytes) -> WireFault | None:
    return next((fault for fault in WireFault if f'"{fault}"'.encode() in piece), None)


def put_faults_on_the_wire(app: ASGIApp) -> ASGIApp:
    """The application, with marker words replaced by their faults."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            if message["type"] != "http.response.body" or not message.get("body"):
                await send(drop_length(message))
                return
            for piece in inject(message["body"]):
                await send({**message, "body": piece})

        await app(scope, receive, pass_on)

    return serve


def drop_length(message: Message) -> Message:
    """The response head without its length, which a fault may change."""
    if message["type"] != "http.response.start":
        return message
    kept = [(name, value) for name, value in message["headers"] if name != b"content-length"]
    return {**message, "headers": kept}
