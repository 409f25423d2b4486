"""A caller over the gRPC binding of A2A 0.3 (``a2a.v1``): tasks are named by their path, and agents not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import grpc.aio
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from tests.conformance.callers import Json
from tests.conformance.grpc_caller import GrpcCaller

_REQUESTS: Final[Mapping[str, type[Message]]] = {
    "SendMessage": a2a_v0_3_pb2.SendMessageRequest,
    "SendStreamingMessage": a2a_v0_3_pb2.SendMessageRequest,
    "GetTask": a2a_v0_3_pb2.GetTaskRequest,
    "CancelTask": a2a_v0_3_pb2.CancelTaskRequest,
    "SubscribeToTask": a2a_v0_3_pb2.TaskSubscriptionRequest,
}


class OlderGrpcCaller(GrpcCaller):
    """Calls over one channel; params are the ProtoJSON of 0.3, with the ``id`` of a task in the form of 1.0."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Mapping[str, str]) -> None:
        super().__init__(channel, "", metadata)
        stub = cast("Any", a2a_v0_3_pb2_grpc.A2AServiceStub(channel))  # type: ignore[no-untyped-call]  # generated code
        stub.SubscribeToTask = stub.TaskSubscription
        self._stub = stub

    def _compose(self, operation: str, params: Json) -> Message:
        rest = {name: value for name, value in params.items() if name != "id"}
        named = {"name": f"tasks/{params['id']}"} if "id" in params else {}
        return ParseDict({**rest, **named}, _REQUESTS[operation]())


def read_sent(body: bytes) -> tuple[Message, Json]:
    """A received message, and its ProtoJSON with the members that protobuf omits."""
    request = a2a_v0_3_pb2.SendMessageRequest.FromString(body)
    said = MessageToDict(request)
    if request.HasField("configuration"):
        said["configuration"]["blocking"] = request.configuration.blocking
    return request, said
