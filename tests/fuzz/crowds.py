"""Crowds of connections that begin something and never continue; the gateway closes each within a time limit."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tests.fuzz.wire import Wire
from tests.memory.site import QUIET, write_call, write_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.memory.site import Site

GRPC: Final = "grpc"
HTTP: Final = "http"
SLACK_S: Final = 5.0
"""Tolerance for a loaded machine."""
_HEAD_S: Final = 15.0
_BODY_S: Final = 60.0
_HANDSHAKE_S: Final = 15.0
"""As docs/operate/README.md states, and decision 0119 for gRPC."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Crowd:
    """One way to stop half-way: the bytes and the port, and the maximum lifetime of the connection in seconds."""

    name: str
    port: str
    write: Callable[[Site, Random], bytes]
    within_s: float


def _send_nothing(_site: Site, _chance: Random) -> bytes:
    return b""


def _write_half_head(site: Site, chance: Random) -> bytes:
    head = write_request(site, "alice", 1).partition(_HEAD_END)[0]
    return head[: chance.randint(1, len(head))]


def _write_half_body(site: Site, chance: Random) -> bytes:
    # Also without a credential: an unknown client has no more time than a caller.
    raw = write_request(site, chance.choice(("alice", "nobody")), 1)
    return raw[: chance.randint(raw.index(_HEAD_END) + len(_HEAD_END), len(raw) - 1)]


def _write_half_chunks(site: Site, chance: Random) -> bytes:
    head, _, body = write_request(site, "alice", 1).partition(_HEAD_END)
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    lines.append(b"Transfer-Encoding: chunked")
    chunks = b"%x\r\n%b\r\n" % (len(body), body)
    return b"\r\n".join(lines) + _HEAD_END + chunks[: chance.randint(0, len(chunks))]


def _write_half_preface(_site: Site, chance: Random) -> bytes:
    return _PREFACE[: chance.randint(1, len(_PREFACE) - 1)]


def _write_preface(_site: Site, _chance: Random) -> bytes:
    return _PREFACE


CROWDS: Final = (
    Crowd("silent", HTTP, _send_nothing, _HEAD_S),
    Crowd("half a head", HTTP, _write_half_head, _HEAD_S),
    Crowd("half a body", HTTP, _write_half_body, _BODY_S),
    Crowd("half of the chunks", HTTP, _write_half_chunks, _BODY_S),
    Crowd("silent, gRPC", GRPC, _send_nothing, _HANDSHAKE_S),
    Crowd("half a preface, gRPC", GRPC, _write_half_preface, _HANDSHAKE_S),
    Crowd("preface alone, gRPC", GRPC, _write_preface, _HANDSHAKE_S),
)


def write_request(site: Site, caller: str, number: int, text: str = "echo") -> bytes:
    """A whole SendMessage to the quiet agent, with the JSON-RPC id ``number``."""
    body = write_call("SendMessage", write_message(text), number)
    return site.write_head(caller, len(body), f"/agents/{QUIET}") + body


async def run_connection(crowd: Crowd, site: Site, port: int, chance: Random) -> str:
    """Runs one connection until the gateway closes it; returns the fault, or nothing.

    A cancelled one disconnects.
    """
    wire = await Wire.open(port)
    began_s = time.monotonic()
    try:
        await wire.send(crowd.write(site, chance))
        async with asyncio.timeout(crowd.within_s + SLACK_S):
            said = await wire.read_end()
    except TimeoutError:
        return f"{crowd.name}: still open after {time.monotonic() - began_s:.0f} s"
    finally:
        wire.leave()
    if crowd.port == HTTP and said and not said.startswith(b"HTTP/1.1 4"):
        return f"{crowd.name}: ended with {said[:200]!r}"
    return ""
