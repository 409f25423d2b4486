"""Writes the items of the scripted peer's transcript to the wire: one JSON answer, or server-sent events."""

from __future__ import annotations

from copy import deepcopy

import orjson
from aiohttp import web

from passerelle.core.wire.json import Json, JsonObject
from tests.support.scripted_tasks import (
    Drop,
    End,
    Raw,
    ScriptedFault,
    ScriptedFrame,
    ScriptedItem,
    Transcript,
    Turn,
    ends,
    rests,
)


async def answer_unary(
    request: web.Request, call_id: Json, turn: Turn, *, at_once: bool
) -> web.StreamResponse:
    """Waits for a Message, or for a task that ended or waits; with ``at_once`` only for the task."""
    position = turn.start
    while True:
        item = await turn.transcript.read(position)
        position += 1
        match item:
            case ScriptedFrame(result={"message": _} as result):
                return send_result(call_id, result)
            case ScriptedFrame(result=result):
                if turn.task is not None and (at_once or rests(result)):
                    return send_result(call_id, {"task": deepcopy(turn.task.record)})
            case Raw(content):
                return web.Response(body=content, content_type="application/json")
            case ScriptedFault(code, message):
                return send_error(call_id, code, message)
            case Drop():
                raise _abort(request)
            case End():
                if turn.task is None:
                    return send_error(call_id, -32603, "the script gave no answer")
                return send_result(call_id, {"task": deepcopy(turn.task.record)})


async def answer_stream(
    request: web.Request,
    call_id: Json,
    transcript: Transcript,
    position: int,
    ends_at: set[type[ScriptedItem]],
    *,
    first: ScriptedFrame | None = None,
) -> web.StreamResponse:
    """Writes items as server-sent events until the task ends, or an item of a kind in ``ends_at``."""
    item: ScriptedItem = first or await transcript.read(position)
    if isinstance(item, ScriptedFault):
        return send_error(call_id, item.code, item.message)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    position += first is None
    while True:
        match item:
            case ScriptedFrame(result):
                await response.write(_write_event(call_id, {"result": result}))
            case Raw(content):
                await response.write(content)
            case ScriptedFault(code, message):
                error: JsonObject = {"code": code, "message": message}
                await response.write(_write_event(call_id, {"error": error}))
            case Drop():
                raise _abort(request)
            case End():
                pass
        if type(item) in ends_at or isinstance(item, ScriptedFault) or _is_last(item):
            return response
        item = await transcript.read(position)
        position += 1


def _is_last(item: ScriptedItem) -> bool:
    return isinstance(item, ScriptedFrame) and ends(item.result)


def _abort(request: web.Request) -> ConnectionError:
    """Cuts the connection of a request with a TCP reset."""
    if request.transport is not None:
        request.transport.abort()
    return ConnectionResetError("cut by the script")


def _write_event(call_id: Json, body: JsonObject) -> bytes:
    return b"data: " + orjson.dumps({"jsonrpc": "2.0", "id": call_id, **body}) + b"\n\n"


def send_result(call_id: Json, result: JsonObject) -> web.Response:
    body = orjson.dumps({"jsonrpc": "2.0", "id": call_id, "result": result})
    return web.Response(body=body, content_type="application/json")


def send_error(call_id: Json, code: int, message: str) -> web.Response:
    error: JsonObject = {"code": code, "message": message}
    body = orjson.dumps({"jsonrpc": "2.0", "id": call_id, "error": error})
    return web.Response(body=body, content_type="application/json")
