"""A hand-written agent over JSON-RPC in 1.0 and 0.3: where SDKs differ, its order decides.

It sends its whole Task again or only changes, keeps its question in its history or drops it, and streams or does not.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Final, cast

import orjson
from aiohttp import web

from tests.conversations.forms import Json, find_operation, read_part
from tests.conversations.forms import write_params as write_older
from tests.conversations.script import DONE, EXTENSION, FAULT, REFUSAL, SECOND
from tests.support.loopback_server import end_runner

_NUMBERS: Final = count(1)
_OVER: Final = frozenset({"COMPLETED", "CANCELED"})


class Refused(Exception):
    """An error of JSON-RPC."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


@dataclass
class Work:
    """One task: its order, the Task in the form of 1.0, and the number of answers."""

    order: Json
    task: Json
    turns: int = 0


@dataclass
class PlainAgent:
    """Both variants, at ``/s`` and ``/n``."""

    works: dict[str, Work] = field(default_factory=dict[str, Work])

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One JSON-RPC call."""
        streams = request.match_info["kind"] == "s"
        call = cast("Json", orjson.loads(await request.read()))
        version = "1.0" if call["method"][:1].isupper() else "0.3"
        operation, params = find_operation(call["method"]), cast("Json", call["params"])
        head = "A2A-Extensions" if version == "1.0" else "X-A2A-Extensions"
        echo = {head: EXTENSION} if EXTENSION in request.headers.get(head, "") else {}
        try:
            if operation in {"SendStreamingMessage", "SubscribeToTask"} and not streams:
                raise Refused(-32004, "This agent does not stream")
            frames = list(self._act(operation, params))
        except Refused as fault:
            error = {"code": fault.code, "message": str(fault)}
            return web.json_response({"jsonrpc": "2.0", "id": call["id"], "error": error})
        shown = [_show(frame, version) for frame in frames]
        if operation in {"SendStreamingMessage", "SubscribeToTask"}:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **echo})
            await response.prepare(request)
            for one in shown:
                event = orjson.dumps({"jsonrpc": "2.0", "id": call["id"], "result": one})
                await response.write(b"data: " + event + b"\n\n")
            return response
        result = shown[-1]
        if operation in {"GetTask", "CancelTask"} and version == "1.0":
            result = result["task"]
        said = {"jsonrpc": "2.0", "id": call["id"], "result": result}
        return web.json_response(said, headers=echo)

    def _act(self, operation: str, params: Json) -> Iterator[Json]:
        if operation in {"SendMessage", "SendStreamingMessage"}:
            yield from self._take(params["message"], whole=operation == "SendMessage")
            return
        work = self.works.get(params["id"])
        if work is None:
            raise Refused(-32001, "Task not found")
        if operation == "CancelTask":
            if work.task["status"]["state"] in _OVER:
                raise Refused(-32002, "Task cannot be canceled")
            _move(work.task, "CANCELED", None)
        elif operation == "SubscribeToTask" and work.task["status"]["state"] in _OVER:
            raise Refused(-32004, "The task has ended")
        yield {"task": work.task}

    def _take(self, message: Json, *, whole: bool) -> Iterator[Json]:
        """The frames for a message; ``whole`` omits the changes and ends with the Task."""
        message = _read(message)
        task_id = message.get("taskId")
        if task_id is None:
            work = self._begin(message)
            frames = [{"task": _copy(work.task)}, *self._ask(work, work.order["parts"])]
        else:
            frames = self._continue(str(task_id), message)
        if whole:
            yield {"task": self.works[str(message["taskId"])].task}
        else:
            yield from frames

    def _begin(self, message: Json) -> Work:
        number = next(_NUMBERS)
        message["taskId"] = f"plain-{number}"
        message.setdefault("contextId", f"context-{number}")
        order = json.loads(message["parts"][0]["text"].removeprefix("play "))
        task: Json = {
            "id": message["taskId"],
            "contextId": message["contextId"],
            "status": {"state": "SUBMITTED", "timestamp": _now()},
            "history": [message],
        }
        work = self.works[message["taskId"]] = Work(order, task)
        return work

    def _continue(self, task_id: str, message: Json) -> list[Json]:
        work = self.works.get(task_id)
        if work is None:
            raise Refused(-32001, "Task not found")
        if work.task["status"]["state"] in _OVER:
            raise Refused(-32004, "The task has ended")
        step = work.order["then"][min(work.turns, len(work.order["then"]) - 1)]
        work.turns += 1
        if step == "refuse":
            raise Refused(-32602, REFUSAL)
        if step == "raise":
            raise Refused(-32603, FAULT)
        if not work.order["stores"]:
            asked = work.task["status"].get("message")
            work.task["history"] += [asked] if asked else []
        message["contextId"] = work.task["contextId"]
        work.task["history"].append(message)
        frames = [{"task": _copy(work.task)}] if work.order["resends"] else []
        if step == "pass":
            return frames
        frames.append(_move(work.task, "WORKING", None))
        if step == "ask":
            return [*frames, *self._ask(work, [{"text": SECOND}])]
        artifact = {"artifactId": "artifact-1", "parts": [{"text": DONE}, *message["parts"]]}
        work.task["artifacts"] = [artifact]
        ids = {"taskId": work.task["id"], "contextId": work.task["contextId"]}
        frames.append({"artifactUpdate": {**ids, "artifact": artifact, "lastChunk": True}})
        return [*frames, _move(work.task, "COMPLETED", None)]

    def _ask(self, work: Work, parts: list[Json]) -> list[Json]:
        began = _move(work.task, "WORKING", None)
        ids = {"taskId": work.task["id"], "contextId": work.task["contextId"]}
        asked = {"messageId": f"q-{next(_NUMBERS)}", "role": "ROLE_AGENT", "parts": parts, **ids}
        if work.order["stores"]:
            work.task["history"].append(asked)
        return [began, _move(work.task, work.order["state"], asked)]


def _move(task: Json, state: str, message: Json | None) -> Json:
    status: Json = {"state": state, "timestamp": _now()}
    if message:
        status["message"] = message
    task["status"] = status
    return {
        "statusUpdate": {"taskId": task["id"], "contextId": task["contextId"], "status": status}
    }


def _copy(task: Json) -> Json:
    return cast("Json", orjson.loads(orjson.dumps(task)))


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _read(message: Json) -> Json:
    role = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}.get(message["role"], message["role"])
    parts = [read_part(part) for part in message["parts"]]
    rest = {name: value for name, value in message.items() if name != "kind"}
    return {**rest, "role": role, "parts": parts}


def _show(frame: Json, version: str) -> Json:
    """A frame with the states, and in 0.3 the kinds, of the version."""
    ((name, value),) = _copy(frame).items()
    status = value.get("status")
    if version == "1.0":
        if status:
            status["state"] = f"TASK_STATE_{status['state']}"
        return {name: value}
    kinds = {"task": "task", "statusUpdate": "status-update", "artifactUpdate": "artifact-update"}
    value["kind"] = kinds[name]
    if status:
        status["state"] = status["state"].lower().replace("_", "-")
        if "message" in status:
            status["message"] = _age(status["message"])
        if name == "statusUpdate":
            value["final"] = status["state"] not in {"submitted", "working"}
    value["history"] = [_age(one) for one in value.get("history", [])]
    for artifact in [
        *value.get("artifacts", []),
        *([value["artifact"]] if "artifact" in value else []),
    ]:
        artifact["parts"] = _age({"role": "ROLE_USER", "parts": artifact["parts"]})["parts"]
    return {key: one for key, one in value.items() if key != "history" or name == "task"}


def _age(message: Json) -> Json:
    """A message in the form of 0.3."""
    return cast("Json", write_older({"message": message}, "JSONRPC", "0.3")["message"])


@asynccontextmanager
async def run_plain_agent() -> AsyncGenerator[str]:
    """Serves the agent on a free loopback port; yields its URL without the variant."""
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{kind}/rpc", PlainAgent().answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{cast('tuple[str, int]', runner.addresses[0])[1]}"
    finally:
        await end_runner(runner)
