"""Faults that no SDK writes, put on the wire between the conformance agent and whoever calls it.

The agent says a word in a status message or a data part. Where a piece of a response holds that word, this
middleware turns the piece into the fault. A streamed event is one piece, so the events around it stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BIG_INTEGER: Final = 9_007_199_254_740_993
"""2**53 + 1: lost by whoever reads numbers as floats."""


class Fault(StrEnum):
    """What goes wrong, as the word that stands for it."""

    BIG_INTEGER = "psl:big-integer"
    LATER_FIELD = "psl:later-field"
    DROP = "psl:drop"
    TWICE = "psl:twice"
    MALFORMED = "psl:malformed"
    UNKNOWN_STATE = "psl:unknown-state"
    BARE_MESSAGE = "psl:bare-message"


class ConnectionCut(Exception):
    """Ends the response without its end, which a server shows as a broken connection."""


_UPDATE: Final = b'"statusUpdate"'
_LATER: Final = re.compile(rb'\{"text": ?(?="psl:later-field")')


def spoil(piece: bytes) -> Iterator[bytes]:
    """What leaves in place of one piece of a response. Most faults are those of one event of a stream.

    Raises:
        ConnectionCut: nothing may follow.
    """
    piece = piece.replace(f'"{Fault.BIG_INTEGER}"'.encode(), str(BIG_INTEGER).encode())
    piece = _LATER.sub(b'{"newInSomeLaterVersion":true,"text":', piece)
    match _find(piece) if _UPDATE in piece else None:
        case Fault.DROP:
            raise ConnectionCut
        case Fault.TWICE:
            yield piece + piece
        case Fault.MALFORMED:
            yield b"data: {this is not JSON\n\n"
        case Fault.UNKNOWN_STATE:
            yield piece.replace(b"TASK_STATE_WORKING", b"TASK_STATE_DREAMING")
        case Fault.BARE_MESSAGE:
            yield _say_bare(piece)
        case _:
            yield piece


def _say_bare(piece: bytes) -> bytes:
    """The status message of an update as a Message of its own, with or without a JSON-RPC envelope."""
    event = orjson.loads(piece.partition(b"data:")[2])
    holder = event.get("result", event)
    holder["message"] = holder.pop("statusUpdate")["status"]["message"]
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _find(piece: bytes) -> Fault | None:
    return next((fault for fault in Fault if f'"{fault}"'.encode() in piece), None)


def put_faults_on_the_wire(app: ASGIApp) -> ASGIApp:
    """The application, with its words turned into faults."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            if message["type"] != "http.response.body" or not message.get("body"):
                await send(drop_length(message))
                return
            for piece in spoil(message["body"]):
                await send({**message, "body": piece})

        await app(scope, receive, pass_on)

    return serve


def drop_length(message: Message) -> Message:
    """The head of a response without its length, which a fault may change."""
    if message["type"] != "http.response.start":
        return message
    kept = [(name, value) for name, value in message["headers"] if name != b"content-length"]
    return {**message, "headers": kept}
