"""An agent that sends the texts that it receives over HTTP.

``python -m bench.speaker`` listens on loopback and prints one JSON line with its URL. ``SendStreamingMessage`` opens
a task and its stream. The body of each ``POST /say`` becomes a chunk of its one artifact.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Final, cast

import orjson

from bench.http_connection import HttpConnection
from bench.light_tasks import WORKING, make_card
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.wire.json import JsonObject
from passerelle.demo.peers.serving import HOST
from passerelle.gateway.server import bind, run

NAME: Final = "speaker"
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@dataclass(slots=True)
class SpeakerAgent:
    """State shared by all connections: the card, and the open streams."""

    card: bytes
    streams: list[SpeakerStream] = field(default_factory=list["SpeakerStream"])


@dataclass(slots=True)
class SpeakerStream:
    """The stream of one task."""

    link: SpeakerConnection
    call: JsonObject
    ids: JsonObject
    said: int = 0

    def open(self) -> None:
        """Sends the Task."""
        self.link.write(_STREAM_HEAD)
        task = {"id": self.ids["taskId"], "contextId": self.ids["contextId"]}
        self._send_event({"task": {**task, "status": {"state": WORKING}}})

    def say(self, text: str) -> None:
        """Sends one chunk."""
        artifact: JsonObject = {"artifactId": "said", "parts": [{"text": text}]}
        self._send_event(
            {"artifactUpdate": {**self.ids, "artifact": artifact, "append": self.said > 0}}
        )
        self.said += 1

    def _send_event(self, result: JsonObject) -> None:
        answer = {"jsonrpc": "2.0", "id": self.call.get("id"), "result": result}
        event = b"data: " + orjson.dumps(answer) + b"\n\n"
        self.link.write(b"%x\r\n%b\r\n" % (len(event), event))


class SpeakerConnection(HttpConnection):
    """One connection."""

    def __init__(self, agent: SpeakerAgent) -> None:
        super().__init__(asks=False)
        self._agent = agent
        self._path = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def take(self, body: bytes) -> None:
        path, self._path = self._path, b""
        agent = self._agent
        if self.method == b"GET":
            self.write(_HEAD % (len(agent.card), agent.card))
        elif path == b"/say":
            for stream in agent.streams:
                stream.say(body.decode())
            self.write(_HEAD % (2, b"{}"))
        else:
            self._begin(cast("JsonObject", orjson.loads(body)))

    def _begin(self, call: JsonObject) -> None:
        number = len(self._agent.streams) + 1
        message = object_at(object_at(call, "params"), "message")
        context = text_at(message, "contextId") or f"context-{number}"
        stream = SpeakerStream(self, call, {"taskId": f"{NAME}-{number}", "contextId": context})
        self._agent.streams.append(stream)
        stream.open()


async def _serve() -> None:
    listener = bind(HOST, 0)
    card = orjson.dumps(make_card(listener.url, streams=True) | {"name": NAME})
    agent = SpeakerAgent(card)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SpeakerConnection(agent), sock=listener.socket)
    print(orjson.dumps({"agent": NAME, "url": listener.url}).decode(), flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run(_serve())
