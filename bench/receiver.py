"""The receiver of webhooks and hooks: it confirms every request and decides nothing.

``python -m bench.receiver`` listens on loopback and prints one JSON line with its URL.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import orjson

from bench.http_connection import HttpConnection
from passerelle.demo.peers.serving import HOST
from passerelle.gateway.server import bind, run

_BODY: Final = b'{"verdict":"silent"}'
_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_BODY), _BODY)
)


class ReceiverConnection(HttpConnection):
    """One connection."""

    def __init__(self) -> None:
        super().__init__(asks=False)

    def take(self, body: bytes) -> None:  # noqa: ARG002  whatever it says
        self.write(_ANSWER)


async def _serve() -> None:
    listener = bind(HOST, 0)
    server = await asyncio.get_running_loop().create_server(
        ReceiverConnection, sock=listener.socket
    )
    print(orjson.dumps({"url": listener.url}).decode(), flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run(_serve())
