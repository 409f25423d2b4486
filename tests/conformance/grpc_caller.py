"""The gRPC binding (A2A 1.0 section 10) with the same JSON as the other callers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from passerelle.peers.grpc.status import DETAILS_KEY, parse_status
from tests.conformance.callers import GRPC, Answer, Caller, Json, Refusal, Stream

_Calling: TypeAlias = grpc.aio.UnaryStreamCall[Message, Message]
_EMPTY_PAGE: Final[Json] = {"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0}
_REQUESTS: Final[Mapping[str, type[Message]]] = {
    "SendMessage": a2a_pb2.SendMessageRequest,
    "SendStreamingMessage": a2a_pb2.SendMessageRequest,
    "GetTask": a2a_pb2.GetTaskRequest,
    "ListTasks": a2a_pb2.ListTasksRequest,
    "CancelTask": a2a_pb2.CancelTaskRequest,
    "SubscribeToTask": a2a_pb2.SubscribeToTaskRequest,
    "CreateTaskPushNotificationConfig": a2a_pb2.TaskPushNotificationConfig,
    "GetTaskPushNotificationConfig": a2a_pb2.GetTaskPushNotificationConfigRequest,
    "ListTaskPushNotificationConfigs": a2a_pb2.ListTaskPushNotificationConfigsRequest,
    "DeleteTaskPushNotificationConfig": a2a_pb2.DeleteTaskPushNotificationConfigRequest,
    "GetExtendedAgentCard": a2a_pb2.GetExtendedAgentCardRequest,
}


class GrpcCaller(Caller):
    """Calls over one channel; ``tenant`` is the one from the card that calls must carry."""

    binding = GRPC

    def __init__(self, channel: grpc.aio.Channel, tenant: str, metadata: Mapping[str, str]) -> None:
        self._stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated code
        self._tenant = tenant
        self._metadata = {name.lower(): value for name, value in metadata.items()}

    async def call(self, operation: str, params: Json | None = None, **headers: str) -> Answer:
        try:
            said = await getattr(self._stub, operation)(
                self._compose(operation, params or {}), metadata=self._with(headers), timeout=20
            )
        except grpc.aio.AioRpcError as error:
            return Answer(None, _read_refusal(error), raw=repr(error).encode())
        return Answer(_read(said), raw=said.SerializeToString())

    @asynccontextmanager
    async def stream(self, operation: str, params: Json, **headers: str) -> AsyncGenerator[Stream]:
        calling = getattr(self._stub, operation)(
            self._compose(operation, params), metadata=self._with(headers)
        )
        try:
            yield await _open(calling)
        finally:
            calling.cancel()

    def _compose(self, operation: str, params: Json) -> Message:
        request = ParseDict(params, _REQUESTS[operation]())
        request.tenant = self._tenant  # type: ignore[attr-defined]  # every request has one
        return request

    def _with(self, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        named = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        return list({"a2a-version": "1.0", **self._metadata, **named}.items())


def _read(said: Message) -> Json:
    """The message as JSON. A page gets all its members, since protobuf omits empty ones."""
    found = {} if isinstance(said, Empty) else MessageToDict(said)
    return {**_EMPTY_PAGE, **found} if isinstance(said, a2a_pb2.ListTasksResponse) else found


async def _open(calling: _Calling) -> Stream:
    """Reads the first item, since a refusal arrives in its place."""
    try:
        first = await calling.read()
    except grpc.aio.AioRpcError as error:
        return Stream(_read_rest(calling, []), _read_refusal(error))
    held = [first] if isinstance(first, Message) else []
    return Stream(_read_rest(calling, held))


async def _read_rest(calling: _Calling, held: list[Message]) -> AsyncGenerator[Json]:
    while held:
        yield MessageToDict(held.pop())
        if isinstance(item := await calling.read(), Message):
            held.append(item)


def _read_refusal(error: grpc.aio.AioRpcError) -> Refusal:
    status: Json = {}
    for name, value in error.trailing_metadata() or ():
        if name == DETAILS_KEY and isinstance(value, bytes):
            status = parse_status(value)
    return Refusal(error.code().name, error.details() or "", tuple(status.get("details", ())))
