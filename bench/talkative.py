"""A verbose agent: ``python -m bench.talkative`` listens on loopback and prints one JSON line with its URL.

For ``SendStreamingMessage`` it sends status updates until it is cancelled: ``kb=2`` sets the size of each,
``every_ms=5`` the interval; without it they are sent as fast as they are read. To ``SendMessage`` it answers a
Message at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

import orjson

from bench.http_connection import AgentConnection, serve_agent
from bench.light_tasks import CANCELED, WORKING, refuse
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.server import run

NAME: Final = "talkative"
_KB: Final = 1024
_NO_TASK: Final = -32001
_NO_STREAM: Final = -32004


@dataclass(slots=True)
class TalkingTask:
    """One task, which runs until it is cancelled."""

    task_id: str
    context_id: str
    kb: int
    every_s: float
    state: str = WORKING

    def show(self) -> JsonObject:
        """The Task."""
        return {
            "id": self.task_id,
            "contextId": self.context_id,
            "status": {"state": self.state},
        }

    def say(self, number: int) -> JsonObject:
        """A status update; all differ, since equal ones would be dropped."""
        text = f"{number:08d}" + "y" * (self.kb * _KB - 8)
        message: JsonObject = {
            "messageId": f"{self.task_id}-{number}",
            "role": "ROLE_AGENT",
            "parts": [{"text": text}],
        }
        return self._update({"state": WORKING, "message": message})

    def end(self) -> JsonObject:
        """The final update."""
        return self._update({"state": self.state})

    def _update(self, status: JsonObject) -> JsonObject:
        ids: JsonObject = {"taskId": self.task_id, "contextId": self.context_id}
        return {"statusUpdate": {**ids, "status": status}}


@dataclass(slots=True)
class TalkativeAgent:
    """State shared by all connections."""

    card: bytes
    talks: dict[str, TalkingTask] = field(default_factory=dict[str, TalkingTask])
    streams: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def begin(self, message: JsonObject) -> TalkingTask:
        """The update size and interval that a message requests."""
        said = " ".join(text_at(part, "text") for part in objects_at(message, "parts"))
        numbers = dict(one.split("=", 1) for one in said.split() if "=" in one)
        name = f"talk-{len(self.talks) + 1}"
        context = text_at(message, "contextId") or f"context-{name}"
        every_s = float(numbers.get("every_ms", 0)) / 1000
        talk = self.talks[name] = TalkingTask(name, context, int(numbers.get("kb", 2)), every_s)
        return talk


class TalkativeConnection(AgentConnection):
    """One connection. While the other side does not read, nothing is sent."""

    def __init__(self, agent: TalkativeAgent) -> None:
        super().__init__()
        self._agent = agent
        self._may_write = asyncio.Event()
        self._may_write.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def on_closed(self, error: Exception | None) -> None:  # noqa: ARG002  the reason does not matter
        self._may_write.set()

    def take(self, body: bytes) -> None:
        if self.method == b"GET":
            self.answer(self._agent.card)
            return
        call = cast("JsonObject", orjson.loads(body))
        method, params = text_at(call, "method"), object_at(call, "params")
        if method == "SendStreamingMessage":
            talk = self._agent.begin(object_at(params, "message"))
            stream = asyncio.get_running_loop().create_task(self._talk(call, talk))
            self._agent.streams.add(stream)
            stream.add_done_callback(self._agent.streams.discard)
            return
        self.answer_call(call, self._find_answer(method, params))

    def _find_answer(self, method: str, params: JsonObject) -> JsonObject:
        if method == "SendMessage":
            message: JsonObject = {
                "messageId": "heard",
                "role": "ROLE_AGENT",
                "parts": [{"text": "heard"}],
            }
            return {"result": {"message": message}}
        talk = self._agent.talks.get(text_at(params, "id"))
        if talk is None:
            return refuse(_NO_TASK, "there is no such task")
        if method == "SubscribeToTask":
            return refuse(_NO_STREAM, "what was said is not said again")
        if method == "CancelTask":
            talk.state = CANCELED
        return {"result": talk.show()}

    async def _talk(self, call: JsonObject, talk: TalkingTask) -> None:
        self.open_stream()
        self.send_event(call, {"task": talk.show()})
        for number in itertools.count(1):
            if talk.state != WORKING or not self.is_open:
                break
            self.send_event(call, talk.say(number))
            await asyncio.sleep(talk.every_s)
            await self._may_write.wait()
        self.send_last_event(call, talk.end())


def _prepare(card: bytes) -> Callable[[], TalkativeConnection]:
    agent = TalkativeAgent(card)
    return lambda: TalkativeConnection(agent)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run(serve_agent(NAME, _prepare))
