"""Callers that send the same requests in each binding and version, and read the answers back into one form.

A speaker takes an operation with 1.0 params, and returns 1.0 results or the reason of an error. A remaining difference
is one of the gateway, not of the protocol form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import grpc
import grpc.aio
import httpx
import orjson
from google.protobuf.json_format import MessageToDict, ParseDict

from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.v0_3.calls import NAMES, write_params
from passerelle.a2a_mapping.v0_3.forms import Form
from passerelle.a2a_mapping.v0_3.objects import read_task
from passerelle.a2a_mapping.v0_3.responses import read_response
from passerelle.a2a_mapping.version import Version
from passerelle.core.wire.json import JsonObject
from passerelle.peers.grpc.methods import SERVICES
from passerelle.peers.grpc.status import DETAILS_KEY, parse_status
from tests.integration.a2a.rig import OWNER, read_events

STREAMS = frozenset({Method.SEND_STREAMING_MESSAGE, Method.SUBSCRIBE_TO_TASK})
_TASKS = frozenset({Method.GET_TASK, Method.CANCEL_TASK})
Wire: TypeAlias = dict[str, Any]
Answer: TypeAlias = "list[JsonObject] | str"
"""The response, the frames of a stream, or the reason of an error."""


class Speaker(Protocol):
    """A caller in one binding and version."""

    version: Version

    async def call(self, method: Method, params: JsonObject) -> Answer: ...


def _read(value: JsonObject, method: Method, version: Version, form: Form) -> JsonObject:
    if version == "1.0":
        return value
    return read_task(value, form) if method in _TASKS else read_response(value, form)


def _write(method: Method, params: JsonObject, version: Version, form: Form) -> JsonObject:
    return params if version == "1.0" else write_params(method, params, form)


@dataclass
class RpcSpeaker:
    """JSON-RPC."""

    http: httpx.AsyncClient
    version: Version

    async def call(self, method: Method, params: JsonObject) -> Answer:
        name = method.value if self.version == "1.0" else NAMES[method]
        written = _write(method, params, self.version, Form.KIND)
        body = {"jsonrpc": "2.0", "id": 1, "method": name, "params": written}
        head = {"A2A-Version": self.version}
        async with self.http.stream("POST", "/agents/echo", json=body, headers=head) as response:
            if response.headers["content-type"] != "text/event-stream":
                return self._open(orjson.loads(await response.aread()), method)
            frames = list[Wire]()
            async for event in read_events(response):
                opened = self._open(orjson.loads(event.data), method)
                if isinstance(opened, str):
                    return opened
                frames += opened
            return frames

    def _open(self, answer: Wire, method: Method) -> Answer:
        if "error" in answer:
            return cast("str", answer["error"]["data"][0]["reason"])
        return [_read(answer["result"], method, self.version, Form.KIND)]


@dataclass
class HttpSpeaker:
    """HTTP+JSON."""

    http: httpx.AsyncClient
    version: Version

    async def call(self, method: Method, params: JsonObject) -> Answer:
        verb, path, rest = self._route(method, params)
        body = _write(method, rest, self.version, Form.PROTO) if verb == "POST" else None
        query = {name: str(value) for name, value in rest.items()} if verb == "GET" else None
        base = "/agents/echo" if self.version == "1.0" else "/agents/echo/v1"
        async with self.http.stream(
            verb, base + path, json=body, params=query, headers={"A2A-Version": self.version}
        ) as response:
            if response.headers["content-type"] == "text/event-stream":
                events = [orjson.loads(event.data) async for event in read_events(response)]
                return [_read(event, method, self.version, Form.PROTO) for event in events]
            answer = orjson.loads(await response.aread())
        if response.is_error:
            return cast("str", answer["error"]["details"][0]["reason"])
        return [_read(answer, method, self.version, Form.PROTO)]

    def _route(self, method: Method, params: JsonObject) -> tuple[str, str, JsonObject]:
        rest = {name: value for name, value in params.items() if name not in {"id", "taskId"}}
        match method:
            case Method.SEND_MESSAGE:
                return "POST", "/message:send", params
            case Method.SEND_STREAMING_MESSAGE:
                return "POST", "/message:stream", params
            case Method.GET_TASK:
                return "GET", f"/tasks/{params['id']}", rest
            case Method.LIST_TASKS:
                return "GET", "/tasks", params
            case Method.CANCEL_TASK:
                return "POST", f"/tasks/{params['id']}:cancel", rest
            case Method.SUBSCRIBE_TO_TASK:
                return "POST", f"/tasks/{params['id']}:subscribe", rest
            case _:
                return "GET", f"/tasks/{params['taskId']}/pushNotificationConfigs", rest


_GRPC_NAMES = {
    Method.SUBSCRIBE_TO_TASK: "TaskSubscription",
    Method.LIST_PUSH_CONFIGS: "ListTaskPushNotificationConfig",
}


@dataclass
class GrpcSpeaker:
    """gRPC. Calls go to the default agent."""

    channel: grpc.aio.Channel
    version: Version

    async def call(self, method: Method, params: JsonObject) -> Answer:
        service = next(one for one in SERVICES if one.version == self.version)
        legacy = self.version == "0.3"
        name = _GRPC_NAMES.get(method, method.value) if legacy else method.value
        row = service.rows[name]
        request = ParseDict(self._write(method, params), row.request())
        metadata = (("authorization", f"Bearer {OWNER}"), ("a2a-version", self.version))
        streams = method in STREAMS
        make = self.channel.unary_stream if streams else self.channel.unary_unary
        opened = cast("Any", make)(
            f"/{service.name}/{name}",
            request_serializer=row.request.SerializeToString,
            response_deserializer=row.response.FromString,
        )(request, metadata=metadata)
        try:
            answers = [one async for one in opened] if streams else [await opened]
        except grpc.aio.AioRpcError as error:
            packed = dict(error.trailing_metadata())[DETAILS_KEY]
            details = cast("list[Any]", parse_status(cast("bytes", packed))["details"])
            return cast("str", details[0]["reason"])
        return [_read(MessageToDict(one), method, self.version, Form.PROTO) for one in answers]

    def _write(self, method: Method, params: JsonObject) -> JsonObject:
        if self.version == "1.0":
            return params
        if "message" in params:
            return write_params(method, params, Form.PROTO)
        name = f"tasks/{params.get('id') or params.get('taskId')}"
        rest = {key: value for key, value in params.items() if key not in {"id", "taskId"}}
        return {**rest, "parent" if "taskId" in params else "name": name}
