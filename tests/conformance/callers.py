"""One caller for each binding of A2A 1.0, so that one test covers all of them.

Params, results and stream items are the JSON of the specification, whatever is on the wire. A refusal is a value:
:class:`Refusal` has its fields, and ``Answer.raw`` the bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import httpx
import orjson

Json: TypeAlias = dict[str, Any]
_Read: TypeAlias = "Callable[[httpx.Response], Answer]"
_Unwrap: TypeAlias = Callable[[Json], Json]
JSONRPC: Final = "JSONRPC"
HTTP_JSON: Final = "HTTP+JSON"
GRPC: Final = "GRPC"
WEBSOCKET: Final = "WEBSOCKET"
"""An error of this project; the kit does not test it."""
VERSION: Final = "A2A-Version"
EXTENSIONS: Final = "A2A-Extensions"
ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error: its code in the binding's own terms, and the reason that all bindings share, if any."""

    code: int | str
    message: str
    details: tuple[Json, ...] = ()

    @property
    def info(self) -> Json:
        """The ErrorInfo of the details; empty if there is none."""
        return next((one for one in self.details if one.get("@type") == ERROR_INFO), Json())

    @property
    def reason(self) -> str:
        """The name of the error, equal in all bindings; empty if it has none."""
        return str(self.info.get("reason", ""))


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer: a result or a refusal, the headers, and the bytes."""

    result: Json | None = None
    refusal: Refusal | None = None
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    raw: bytes = b""

    @property
    def said(self) -> Json:
        """The result of a call that must succeed."""
        assert self.result is not None, self.refusal
        return self.result

    @property
    def refused(self) -> Refusal:
        """The error of a call that must fail."""
        assert self.refusal is not None, self.result
        return self.refusal


class Stream:
    """A stream that has begun, or the refusal in its place."""

    def __init__(
        self,
        items: AsyncIterator[Json],
        refusal: Refusal | None = None,
        media_type: str = "",
        raw: list[bytes] | None = None,
    ) -> None:
        self._items = items
        self.refusal = refusal
        self.media_type = media_type
        self.raw = [] if raw is None else raw
        """The events received so far; grows while the stream is read."""

    def __aiter__(self) -> AsyncIterator[Json]:
        return self._items

    async def __anext__(self) -> Json:
        return await anext(self._items)

    async def collect(self) -> list[Json]:
        """All items to the end of the stream."""
        return [item async for item in self._items]


class Caller(ABC):
    """A caller of one agent over one binding."""

    binding: str

    @abstractmethod
    async def call(self, operation: str, params: Json | None = None, **headers: str) -> Answer:
        """One call; ``headers`` replace the default ones, an underscore means a hyphen."""

    @abstractmethod
    def stream(
        self, operation: str, params: Json, **headers: str
    ) -> AbstractAsyncContextManager[Stream]:
        """The items of a streaming call, as they arrive."""

    async def send(self, message: Json, **configuration: object) -> Json:
        """The result of a SendMessage that must succeed."""
        return (await self.call("SendMessage", make_params(message, **configuration))).said

    async def make_task(self, message: Json, **configuration: object) -> Json:
        """The Task of a SendMessage."""
        return cast("Json", (await self.send(message, **configuration))["task"])

    async def read_task(self, task_id: str, **members: object) -> Json:
        """The current Task."""
        return (await self.call("GetTask", {"id": task_id, **members})).said

    async def collect(self, message: Json) -> list[Json]:
        """The whole stream of a message."""
        async with self.stream("SendStreamingMessage", make_params(message)) as stream:
            assert stream.refusal is None, stream.refusal
            return await stream.collect()


def make_params(message: Json, **configuration: object) -> Json:
    """SendMessage params."""
    return {"message": message, **({"configuration": configuration} if configuration else {})}


@dataclass(slots=True)
class HttpCaller(Caller, ABC):
    """Shared by both bindings over HTTP."""

    http: httpx.AsyncClient
    url: str

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return {VERSION: "1.0", **named}


class JsonRpcCaller(HttpCaller):
    """A2A 1.0 section 9."""

    binding = JSONRPC

    async def call(self, operation: str, params: Json | None = None, **headers: str) -> Answer:
        body = {"jsonrpc": "2.0", "id": 7, "method": operation, "params": params or {}}
        return read_rpc(await self.post(orjson.dumps(body), **headers))

    async def post(self, body: bytes, **headers: str) -> httpx.Response:
        """Posts any body."""
        sent = {"Content-Type": "application/json", **self._headers(headers)}
        return await self.http.post(self.url, content=body, headers=sent)

    @asynccontextmanager
    async def stream(self, operation: str, params: Json, **headers: str) -> AsyncGenerator[Stream]:
        body = {"jsonrpc": "2.0", "id": 7, "method": operation, "params": params}
        async with self.http.stream(
            "POST", self.url, json=body, headers=self._headers(headers)
        ) as response:
            yield await _open(response, read_rpc, _unwrap)


class HttpJsonCaller(HttpCaller):
    """A2A 1.0 section 11."""

    binding = HTTP_JSON

    async def call(self, operation: str, params: Json | None = None, **headers: str) -> Answer:
        return read_http(await self.http.send(self._compose(operation, params or {}, headers)))

    @asynccontextmanager
    async def stream(self, operation: str, params: Json, **headers: str) -> AsyncGenerator[Stream]:
        request = self._compose(operation, params, headers)
        response = await self.http.send(request, stream=True)
        try:
            yield await _open(response, read_http, lambda event: event)
        finally:
            await response.aclose()

    def _compose(self, operation: str, params: Json, headers: Mapping[str, str]) -> httpx.Request:
        verb, path, rest = locate(operation, params)
        sent: Any = {"params": {k: _flatten(v) for k, v in rest.items()}} if verb == "GET" else {}
        if verb == "POST":
            sent = {"json": rest}
        return self.http.build_request(
            verb, self.url + path, headers=self._headers(headers), **sent
        )


_CONFIGS: Final = "/tasks/{taskId}/pushNotificationConfigs"
_PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"),
    "ListTasks": ("GET", "/tasks"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"),
    "CreateTaskPushNotificationConfig": ("POST", _CONFIGS),
    "ListTaskPushNotificationConfigs": ("GET", _CONFIGS),
    "GetTaskPushNotificationConfig": ("GET", _CONFIGS + "/{id}"),
    "DeleteTaskPushNotificationConfig": ("DELETE", _CONFIGS + "/{id}"),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
}


def locate(operation: str, params: Json) -> tuple[str, str, Json]:
    """Verb, path and remaining params of an operation (A2A 1.0 section 11.3)."""
    verb, path = _PLACES[operation]
    rest = {name: value for name, value in params.items() if f"{{{name}}}" not in path}
    return verb, path.format(**params), rest


def _flatten(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_rpc(response: httpx.Response) -> Answer:
    """The answer in a JSON-RPC response."""
    said = cast("Json", orjson.loads(response.content))
    if "error" not in said:
        return _answer(response, said["result"])
    error = said["error"]
    return _refuse(response, _read_refusal(error, "data"))


def read_http(response: httpx.Response) -> Answer:
    """The answer in an HTTP+JSON response."""
    said = cast("Json", orjson.loads(response.content)) if response.content else {}
    if response.is_success:
        return _answer(response, said)
    error = said["error"]
    return _refuse(response, _read_refusal(error, "details"))


def _read_refusal(error: Json, details: str) -> Refusal:
    listed: list[Json] = error.get(details) or []
    return Refusal(error["code"], error["message"], tuple(listed))


def _answer(response: httpx.Response, result: Json) -> Answer:
    return Answer(result, None, response.status_code, response.headers, response.content)


def _refuse(response: httpx.Response, refusal: Refusal) -> Answer:
    return Answer(None, refusal, response.status_code, response.headers, response.content)


def _unwrap(event: Json) -> Json:
    assert (event["jsonrpc"], event["id"]) == ("2.0", 7), event
    return cast("Json", event["result"])


async def _open(response: httpx.Response, read: _Read, unwrap: _Unwrap) -> Stream:
    media_type = response.headers.get("content-type", "")
    if not media_type.startswith("text/event-stream"):
        await response.aread()
        return Stream(_nothing(), read(response).refused, media_type)
    raw: list[bytes] = []
    return Stream(_read_events(response, raw, unwrap), None, media_type, raw)


async def _nothing() -> AsyncGenerator[Json]:
    for item in list[Json]():
        yield item


async def _read_events(
    response: httpx.Response, raw: list[bytes], unwrap: _Unwrap
) -> AsyncGenerator[Json]:
    async for line in response.aiter_lines():
        name, _, value = line.partition(":")
        if name == "data":
            raw.append(value.strip().encode())
            yield unwrap(orjson.loads(value))
