"""An agent that sends the texts that it receives over HTTP.

``python -m bench.speaker`` listens on loopback and prints one JSON line with its URL. ``SendStreamingMessage`` opens
a task and its stream. The body of each ``POST /say`` becomes a chunk of its one artifact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

import orjson

from bench.http_connection import AgentConnection, serve_agent
from bench.light_tasks import WORKING
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.server import run

NAME: Final = "speaker"


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
        self.link.open_stream()
        task = {"id": self.ids["taskId"], "contextId": self.ids["contextId"]}
        self.link.send_event(self.call, {"task": {**task, "status": {"state": WORKING}}})

    def say(self, text: str) -> None:
        """Sends one chunk."""
        artifact: JsonObject = {"artifactId": "said", "parts": [{"text": text}]}
        self.link.send_event(
            self.call,
            {"artifactUpdate": {**self.ids, "artifact": artifact, "append": self.said > 0}},
        )
        self.said += 1


class SpeakerConnection(AgentConnection):
    """One connection."""

    def __init__(self, agent: SpeakerAgent) -> None:
        super().__init__()
        self._agent = agent

    def take(self, body: bytes) -> None:
        path, agent = self.take_path(), self._agent
        if self.method == b"GET":
            self.answer(agent.card)
        elif path == b"/say":
            for stream in agent.streams:
                stream.say(body.decode())
            self.answer(b"{}")
        else:
            self._begin(cast("JsonObject", orjson.loads(body)))

    def _begin(self, call: JsonObject) -> None:
        number = len(self._agent.streams) + 1
        message = object_at(object_at(call, "params"), "message")
        context = text_at(message, "contextId") or f"context-{number}"
        stream = SpeakerStream(self, call, {"taskId": f"{NAME}-{number}", "contextId": context})
        self._agent.streams.append(stream)
        stream.open()


def _prepare(card: bytes) -> Callable[[], SpeakerConnection]:
    agent = SpeakerAgent(card)
    return lambda: SpeakerConnection(agent)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run(serve_agent(NAME, _prepare))
