"""An agent with outputs of any requested size: ``python -m tests.memory.agent``, a separate process.

The first word of a message selects the behaviour, ``name=number`` after it the amount. It keeps none of its output.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import orjson
from aiohttp import web

from tests.support.scripted_peer import make_card

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.wire.json import Json, JsonObject

NAME: Final = "abundant"
_KB: Final = 1024
_MB: Final = _KB * _KB
_STREAMS: Final = frozenset({"SendStreamingMessage", "SubscribeToTask"})


@dataclass(slots=True)
class Work:
    """One task: the request, and whether it was cancelled."""

    task_id: str
    context_id: str
    verb: str
    numbers: dict[str, int]
    state: str = "TASK_STATE_WORKING"
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def show(self) -> JsonObject:
        """The Task, without the streamed content."""
        return {
            "id": self.task_id,
            "contextId": self.context_id,
            "status": {"state": self.state},
        }

    def write_status(self, text: str = "") -> JsonObject:
        """A status update, with a message if there is a text."""
        status: JsonObject = {"state": self.state}
        if text:
            status["message"] = {
                "messageId": str(uuid.uuid4()),
                "role": "ROLE_AGENT",
                "parts": [{"text": text}],
            }
        ids: JsonObject = {"taskId": self.task_id, "contextId": self.context_id}
        return {"statusUpdate": {**ids, "status": status}}

    def write_chunk(
        self, text: str, *, is_first: bool, is_last: bool, name: str = "a-1"
    ) -> JsonObject:
        """A chunk of an artifact."""
        return {
            "artifactUpdate": {
                "taskId": self.task_id,
                "contextId": self.context_id,
                "artifact": {"artifactId": name, "parts": [{"text": text}]},
                "append": not is_first,
                "lastChunk": is_last,
            }
        }


class Agent:
    """The agent. ``go`` releases tasks that wait before they begin."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.works: dict[str, Work] = {}
        self.card: JsonObject = {}
        self.brought = 0
        """Bytes of endless output that were accepted."""

    async def serve_card(self, _request: web.Request) -> web.Response:
        return _answer(self.card)

    async def release(self, _request: web.Request) -> web.Response:
        # Tasks that hold later wait for the next event.
        self.go.set()
        self.go = asyncio.Event()
        return _answer({})

    async def show_brought(self, _request: web.Request) -> web.Response:
        return _answer({"bytes": self.brought})

    async def take(self, request: web.Request) -> web.StreamResponse:
        call = cast("JsonObject", orjson.loads(await request.read()))
        method, params = str(call["method"]), cast("JsonObject", call.get("params", {}))
        if method in _STREAMS:
            return await self._stream(request, call["id"], self._find(method, params))
        if method == "ListTasks":
            return await self._list(request, call["id"])
        work = self._find(method, params)
        if method == "SendMessage" and work.verb == "cut":
            # Its task is missing from the list.
            return _hang_up(request)
        if method == "SendMessage" and work.verb == "answer":
            del self.works[work.task_id]
            text = "x" * (work.numbers["mb"] * _MB)
            return await _answer_slowly(request, _wrap(call["id"], {"message": _say(work, text)}))
        if method == "SendMessage":
            del self.works[work.task_id]
            return _answer(_wrap(call["id"], {"message": _say(work, "heard")}))
        if method == "CancelTask":
            work.state = "TASK_STATE_CANCELED"
            work.stopped.set()
        return _answer(_wrap(call["id"], work.show()))

    def _find(self, method: str, params: JsonObject) -> Work:
        """The task of a call; a message creates one."""
        if method not in {"SendMessage", "SendStreamingMessage"}:
            return self.works[str(params["id"])]
        message = cast("JsonObject", params["message"])
        parts = cast("list[JsonObject]", message["parts"])
        verb, *said = str(parts[0].get("text", "")).split()
        numbers = {name: int(number) for name, _, number in (one.partition("=") for one in said)}
        context_id = str(message.get("contextId") or uuid.uuid4())
        work = Work(str(uuid.uuid4()), context_id, verb, numbers)
        self.works[work.task_id] = work
        return work

    async def _list(self, request: web.Request, call_id: Json) -> web.StreamResponse:
        """A large and slow answer without information, for a gateway that looks up an interrupted message."""
        megabytes = max((one.numbers.get("mb", 0) for one in self.works.values()), default=0)
        tasks: list[Json] = [
            {
                "id": str(uuid.uuid4()),
                "contextId": "none",
                "status": {"state": "TASK_STATE_WORKING"},
                "metadata": {"filling": filling},
            }
            for filling in ("x" * (megabytes * _MB), "x")
        ]
        listed: JsonObject = {"tasks": tasks, "nextPageToken": "", "pageSize": 2}
        return await _answer_slowly(request, _wrap(call_id, listed))

    async def _stream(self, request: web.Request, call_id: Json, work: Work) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def say(frame: JsonObject) -> None:
            await response.write(b"data: %b\n\n" % orjson.dumps(_wrap(call_id, frame)))

        await say({"task": work.show()})
        if "hold" in work.numbers:
            await self.go.wait()
        if work.verb == "artifact":
            await self._bring_artifact(work, say)
        elif work.verb == "event":
            await self._bring_event(response, call_id, work)
        elif work.verb == "endless":
            await self._send_output(work, say)
        if not work.stopped.is_set():
            work.state = "TASK_STATE_COMPLETED"
        await say(work.write_status())
        return response

    async def _bring_event(self, response: web.StreamResponse, call_id: Json, work: Work) -> None:
        """One large event, whose end is sent later."""
        text = "x" * (work.numbers["mb"] * _MB)
        raw = b"data: %b\n\n" % orjson.dumps(_wrap(call_id, work.write_status(text)))
        await _write_slowly(response, raw)

    async def _send_output(self, work: Work, say: Callable[[JsonObject], Awaitable[None]]) -> None:
        """Sends frames until it is cancelled: status messages, or a number of chunks per artifact."""
        size, number = work.numbers.get("kb", 2) * _KB, 0
        chunks = work.numbers.get("chunks", 0)
        while not work.stopped.is_set():
            # An equal frame would be dropped.
            text = f"{number:08d}" + "y" * (size - 8)
            if chunks:
                place, name = number % chunks, f"a-{number // chunks}"
                is_last = place == chunks - 1
                await say(work.write_chunk(text, is_first=place == 0, is_last=is_last, name=name))
            else:
                await say(work.write_status(text))
            self.brought += size
            number += 1

    async def _bring_artifact(
        self, work: Work, say: Callable[[JsonObject], Awaitable[None]]
    ) -> None:
        count, size = work.numbers["n"], work.numbers.get("kb", 1) * _KB
        for number in range(count):
            if work.stopped.is_set():
                return
            if number == work.numbers.get("pause"):
                await self.go.wait()
            # No two chunks are equal: equal ones would share storage.
            text = f"{number:08d}" + "z" * (size - 8)
            is_last = number == count - 1
            await say(work.write_chunk(text, is_first=number == 0, is_last=is_last))


async def _answer_slowly(request: web.Request, said: JsonObject) -> web.StreamResponse:
    body = orjson.dumps(said)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(body)
    await response.prepare(request)
    await _write_slowly(response, body)
    return response


async def _write_slowly(response: web.StreamResponse, raw: bytes) -> None:
    middle = len(raw) * 9 // 10
    await response.write(raw[:middle])
    # The duration is the point: many run concurrently.
    await asyncio.sleep(0.3)
    await response.write(raw[middle:])


def _say(work: Work, text: str) -> JsonObject:
    return {
        "messageId": str(uuid.uuid4()),
        "contextId": work.context_id,
        "role": "ROLE_AGENT",
        "parts": [{"text": text}],
    }


def _wrap(call_id: Json, result: JsonObject) -> JsonObject:
    return {"jsonrpc": "2.0", "id": call_id, "result": result}


def _answer(body: JsonObject) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def run() -> None:
    """Serves until it is ended; the first line of its output is its address."""
    agent = Agent()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/.well-known/agent-card.json", agent.serve_card)
    app.router.add_post("/go", agent.release)
    app.router.add_get("/brought", agent.show_brought)
    app.router.add_post("/", agent.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = cast("tuple[str, int]", runner.addresses[0])[1]
    agent.card = make_card(NAME, f"http://127.0.0.1:{port}/")
    print(f"agent at http://127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run())
