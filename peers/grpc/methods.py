"""The served gRPC services as tables: the operation of each method, and its message types.

The service name determines the protocol version, so both share one port.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from a2a.compat.v0_3 import a2a_v0_3_pb2 as v0
from a2a.types import a2a_pb2 as v1
from google.protobuf.empty_pb2 import Empty

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from passerelle.a2a_mapping.version import Version


@frozen
class GrpcMethod:
    """One method with its request and response types."""

    method: Method
    request: type[Message]
    response: type[Message]


@frozen
class GrpcService:
    """One service with its full name."""

    name: str
    version: Version
    rows: Mapping[str, GrpcMethod]


_PUSH: Final = v1.TaskPushNotificationConfig
V1: Final = GrpcService(
    "lf.a2a.v1.A2AService",
    "1.0",
    {
        row.method.value: row
        for row in (
            GrpcMethod(Method.SEND_MESSAGE, v1.SendMessageRequest, v1.SendMessageResponse),
            GrpcMethod(Method.SEND_STREAMING_MESSAGE, v1.SendMessageRequest, v1.StreamResponse),
            GrpcMethod(Method.GET_TASK, v1.GetTaskRequest, v1.Task),
            GrpcMethod(Method.LIST_TASKS, v1.ListTasksRequest, v1.ListTasksResponse),
            GrpcMethod(Method.CANCEL_TASK, v1.CancelTaskRequest, v1.Task),
            GrpcMethod(Method.SUBSCRIBE_TO_TASK, v1.SubscribeToTaskRequest, v1.StreamResponse),
            GrpcMethod(Method.CREATE_PUSH_CONFIG, _PUSH, _PUSH),
            GrpcMethod(Method.GET_PUSH_CONFIG, v1.GetTaskPushNotificationConfigRequest, _PUSH),
            GrpcMethod(
                Method.LIST_PUSH_CONFIGS,
                v1.ListTaskPushNotificationConfigsRequest,
                v1.ListTaskPushNotificationConfigsResponse,
            ),
            GrpcMethod(
                Method.DELETE_PUSH_CONFIG, v1.DeleteTaskPushNotificationConfigRequest, Empty
            ),
            GrpcMethod(Method.GET_EXTENDED_CARD, v1.GetExtendedAgentCardRequest, v1.AgentCard),
        )
    },
)
_LEGACY_PUSH: Final = v0.TaskPushNotificationConfig
V0_3: Final = GrpcService(
    "a2a.v1.A2AService",
    "0.3",
    {
        "SendMessage": GrpcMethod(
            Method.SEND_MESSAGE, v0.SendMessageRequest, v0.SendMessageResponse
        ),
        "SendStreamingMessage": GrpcMethod(
            Method.SEND_STREAMING_MESSAGE, v0.SendMessageRequest, v0.StreamResponse
        ),
        "GetTask": GrpcMethod(Method.GET_TASK, v0.GetTaskRequest, v0.Task),
        "CancelTask": GrpcMethod(Method.CANCEL_TASK, v0.CancelTaskRequest, v0.Task),
        "TaskSubscription": GrpcMethod(
            Method.SUBSCRIBE_TO_TASK, v0.TaskSubscriptionRequest, v0.StreamResponse
        ),
        "CreateTaskPushNotificationConfig": GrpcMethod(
            Method.CREATE_PUSH_CONFIG, v0.CreateTaskPushNotificationConfigRequest, _LEGACY_PUSH
        ),
        "GetTaskPushNotificationConfig": GrpcMethod(
            Method.GET_PUSH_CONFIG, v0.GetTaskPushNotificationConfigRequest, _LEGACY_PUSH
        ),
        "ListTaskPushNotificationConfig": GrpcMethod(
            Method.LIST_PUSH_CONFIGS,
            v0.ListTaskPushNotificationConfigRequest,
            v0.ListTaskPushNotificationConfigResponse,
        ),
        "DeleteTaskPushNotificationConfig": GrpcMethod(
            Method.DELETE_PUSH_CONFIG, v0.DeleteTaskPushNotificationConfigRequest, Empty
        ),
        "GetAgentCard": GrpcMethod(Method.GET_EXTENDED_CARD, v0.GetAgentCardRequest, v0.AgentCard),
    },
)
"""It has no tenant, so its calls go to the default agent."""
SERVICES: Final = (V1, V0_3)
