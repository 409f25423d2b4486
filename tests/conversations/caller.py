"""A hand-written caller: each operation over JSON-RPC, HTTP+JSON and gRPC, in 1.0 and 0.3.

It returns answers unchanged; :mod:`tests.conversations.forms` parses them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import grpc.aio
import httpx
import orjson

from tests.conformance.callers import Refusal
from tests.conformance.grpc_caller import GrpcCaller
from tests.conversations.forms import Json, inner, name_method, name_path, several, write_params
from tests.conversations.older_grpc import OlderGrpcCaller
from tests.conversations.script import EXTENSION

_REASONS: Final[dict[object, str]] = {
    -32700: "PARSE",
    -32600: "INVALID_REQUEST",
    -32601: "METHOD_NOT_FOUND",
    -32602: "INVALID_PARAMS",
    -32603: "INTERNAL",
    -32001: "TASK_NOT_FOUND",
    -32002: "TASK_NOT_CANCELABLE",
    -32004: "UNSUPPORTED_OPERATION",
    -32005: "CONTENT_TYPE_NOT_SUPPORTED",
    -32006: "INVALID_AGENT_RESPONSE",
    "INTERNAL_ERROR": "INTERNAL",
    "INVALID_ARGUMENT": "INVALID_PARAMS",
    "NOT_FOUND": "TASK_NOT_FOUND",
    "UNKNOWN": "INTERNAL",
    400: "INVALID_PARAMS",
    404: "TASK_NOT_FOUND",
    422: "INVALID_PARAMS",
    500: "INTERNAL",
}
"""One name per error, whatever the binding calls it."""


class Refused(Exception):
    """An error of the other side: ``reason`` is the same for all bindings, ``words`` is its own text."""

    def __init__(self, code: object, words: str, details: Sequence[Json] = ()) -> None:
        named = [str(one["reason"]) for one in details if one.get("reason")]
        self.reason = _name(named[0] if named else code)
        self.words = words
        super().__init__(f"{self.reason}: {words}")


def _refuse(refusal: Refusal) -> Refused:
    return Refused(refusal.code, refusal.message, refusal.details)


def _name(code: object) -> str:
    if isinstance(code, int) and code not in _REASONS:
        return f"HTTP_{code}" if code > 0 else f"CODE_{-code}"
    return _REASONS.get(code, str(code))


@dataclass(slots=True)
class Conversant:
    """Calls one agent. ``activated`` are the extensions that the answers named as in use."""

    http: httpx.AsyncClient
    url: str
    binding: str
    version: str
    headers: dict[str, str]
    tenant: str = ""
    streams: bool = True
    channel: grpc.aio.Channel | None = None
    activated: set[str] = field(default_factory=set[str])

    async def call(self, operation: str, params: Json, key: str = "") -> Json:
        """One answer.

        Raises:
            Refused: the other side answers with an error.
        """
        named = self._name_headers(key)
        if self.binding == "GRPC":
            body = write_params(params, self.binding, self.version)
            answer = await self._open_grpc(named).call(operation, body)
            if answer.refusal is not None:
                raise _refuse(answer.refusal)
            return answer.said
        verb, url, said = self._compose(operation, params)
        response = await self.http.request(verb, url, json=said, headers=named)
        self._note(response)
        return self._read(response.status_code, response.content)

    async def stream(self, operation: str, params: Json, key: str = "") -> AsyncGenerator[Json]:
        """The items of a stream.

        Raises:
            Refused: the other side answers with an error, at once or as the last item.
        """
        named = self._name_headers(key)
        if self.binding == "GRPC":
            body = write_params(params, self.binding, self.version)
            async with self._open_grpc(named).stream(operation, body) as items:
                if items.refusal is not None:
                    raise _refuse(items.refusal)
                try:
                    async for item in items:
                        yield item
                except grpc.aio.AioRpcError as error:
                    raise Refused(error.code().name, error.details() or "") from None
            return
        verb, url, said = self._compose(operation, params)
        async with self.http.stream(verb, url, json=said, headers=named) as response:
            self._note(response)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                yield self._read(response.status_code, await response.aread())
                return
            async for name, data in _read_events(response):
                yield self._read(500 if name == "error" else 200, data)

    def _name_headers(self, key: str) -> dict[str, str]:
        extensions = "A2A-Extensions" if self.version == "1.0" else "X-A2A-Extensions"
        named = {**self.headers, "A2A-Version": self.version, extensions: EXTENSION}
        return named | ({"Idempotency-Key": key} if key else {})

    def _open_grpc(self, headers: dict[str, str]) -> GrpcCaller:
        assert self.channel is not None
        if self.version != "1.0":
            return OlderGrpcCaller(self.channel, headers)
        return GrpcCaller(self.channel, self.tenant, headers)

    def _compose(self, operation: str, params: Json) -> tuple[str, str, Json | None]:
        body = write_params(params, self.binding, self.version)
        if self.binding == "JSONRPC":
            method = name_method(operation, self.version)
            return "POST", self.url, {"jsonrpc": "2.0", "id": 7, "method": method, "params": body}
        verb, path = name_path(operation, params, self.version)
        return verb, self.url + path, None if verb == "GET" else body

    def _note(self, response: httpx.Response) -> None:
        said = (
            response.headers.get("A2A-Extensions") or response.headers.get("X-A2A-Extensions") or ""
        )
        self.activated |= {one.strip() for one in said.split(",") if one.strip()}

    def _read(self, status: int, content: bytes) -> Json:
        try:
            found: object = orjson.loads(content) if content else {}
        except orjson.JSONDecodeError:
            raise Refused(status, content.decode(errors="replace")[:200]) from None
        if not isinstance(found, dict):
            raise Refused(status, str(found)[:200])
        said = cast("Json", found)
        if self.binding == "JSONRPC" and said.get("error") is None and "result" in said:
            return inner(said, "result")
        error = inner(said, "error")
        if error:
            details = several(error, "data") or several(error, "details")
            raise Refused(error.get("code", status), str(error.get("message")), details)
        if status >= httpx.codes.BAD_REQUEST:
            raise Refused(status, str(said.get("message", said.get("detail"))))
        return said


async def _read_events(response: httpx.Response) -> AsyncGenerator[tuple[str, bytes]]:
    """Name and data of each event; data may span several lines."""
    name, data = "", list[str]()
    async for line in response.aiter_lines():
        member, _, value = line.partition(":")
        if member == "event":
            name = value.strip()
        elif member == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            yield name, "\n".join(data).encode()
            name, data = "", []
