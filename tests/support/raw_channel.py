"""A channel client without the client library: tests write the frames and read everything that is received."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Self, cast

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin, Subprotocol

from passerelle.core.wire.json import JsonObject
from passerelle.protocol.frames import SUBPROTOCOL

# A frame, as tests read it: a missing member fails the test by itself.
ServerFrame = dict[str, Any]


class RawChannel:
    """One socket; ``frames`` are all received frames, ``sent`` all sent ones."""

    def __init__(self, socket: ClientConnection) -> None:
        self.frames: list[ServerFrame] = []
        self.sent: list[JsonObject] = []
        self._socket = socket
        self._seen = 0

    async def send(self, *frames: JsonObject) -> Self:
        """Sends frames in one message."""
        self.sent += frames
        await self._socket.send("\n".join(orjson.dumps(frame).decode() for frame in frames))
        return self

    async def send_text(self, text: str) -> None:
        """Sends any text, valid frame or not."""
        await self._socket.send(text)

    async def greet(self, token: str | None, device: str = "dev_raw") -> ServerFrame:
        """Says hello and returns the welcome."""
        hello: JsonObject = {
            "t": "hello",
            "v": 1,
            "device": device,
            "role": "ui",
            "sdk": "test",
            "caps": ["rpc"],
            "resume": None,
            "subs": [],
        }
        await self.send(hello if token is None else {**hello, "token": token})
        return await self.expect("welcome")

    async def expect(self, kind: str, **members: object) -> ServerFrame:
        """Reads until a frame of this type with these members arrives; returns the first one."""
        while True:
            for frame in self.frames:
                if frame["t"] == kind and members.items() <= frame.items():
                    return frame
            await self._read()

    async def read_more(self) -> None:
        """Waits for the next message."""
        await self._read()

    async def read_close(self) -> int:
        """The close code of the server."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._read()
        code = self._socket.close_code
        assert code is not None
        return code

    async def read(self) -> ServerFrame:
        """The next unread frame.

        Raises:
            ConnectionClosed: there are no more frames.
        """
        while self._seen == len(self.frames):
            await self._read()
        self._seen += 1
        return self.frames[self._seen - 1]

    def abort(self) -> None:
        """Aborts the connection without a close handshake."""
        self._socket.transport.abort()

    async def _read(self) -> None:
        message = await self._socket.recv()
        assert isinstance(message, str)
        self.frames += [cast("ServerFrame", orjson.loads(line)) for line in message.split("\n")]


@contextlib.asynccontextmanager
async def open_channel(url: str, origin: str | None = None) -> AsyncGenerator[RawChannel]:
    """An open socket before the hello; ``url`` is the gateway's, ``origin`` a web page's."""
    async with connect(
        f"{url.replace('http', 'ws', 1)}/v1/channel",
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        origin=Origin(origin) if origin else None,
        compression=None,
        proxy=None,
    ) as socket:
        yield RawChannel(socket)
