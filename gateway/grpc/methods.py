"""The services that are served, as tables: which operation a method is, and how its messages look as JSON.

The name of a service says the version of the protocol, so both stand on one port.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from a2a.types import a2a_pb2 as v1
from google.protobuf.empty_pb2 import Empty

from passerelle.a2a_mapping.rpc import Method

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from passerelle.a2a_mapping.version import Version
    from passerelle.core.json import JsonObject

Form: TypeAlias = Callable[["JsonObject"], "JsonObject"]


def keep(value: JsonObject) -> JsonObject:
    """For a message whose JSON form is the one that everything else works with."""
    return value


@dataclass(frozen=True, slots=True)
class Row:
    """One method. ``read`` and ``write`` lead from and to the JSON of A2A 1.0."""

    method: Method
    request: type[Message]
    response: type[Message]
    read: Form = keep
    write: Form = keep


@dataclass(frozen=True, slots=True)
class Service:
    """One service under its full name."""

    name: str
    version: Version
    rows: Mapping[str, Row]


_PUSH: Final = v1.TaskPushNotificationConfig
V1: Final = Service(
    "lf.a2a.v1.A2AService",
    "1.0",
    {
        row.method.value: row
        for row in (
            Row(Method.SEND_MESSAGE, v1.SendMessageRequest, v1.SendMessageResponse),
            Row(Method.SEND_STREAMING_MESSAGE, v1.SendMessageRequest, v1.StreamResponse),
            Row(Method.GET_TASK, v1.GetTaskRequest, v1.Task),
            Row(Method.LIST_TASKS, v1.ListTasksRequest, v1.ListTasksResponse),
            Row(Method.CANCEL_TASK, v1.CancelTaskRequest, v1.Task),
            Row(Method.SUBSCRIBE_TO_TASK, v1.SubscribeToTaskRequest, v1.StreamResponse),
            Row(Method.CREATE_PUSH_CONFIG, _PUSH, _PUSH),
            Row(Method.GET_PUSH_CONFIG, v1.GetTaskPushNotificationConfigRequest, _PUSH),
            Row(
                Method.LIST_PUSH_CONFIGS,
                v1.ListTaskPushNotificationConfigsRequest,
                v1.ListTaskPushNotificationConfigsResponse,
            ),
            Row(Method.DELETE_PUSH_CONFIG, v1.DeleteTaskPushNotificationConfigRequest, Empty),
            Row(Method.GET_EXTENDED_CARD, v1.GetExtendedAgentCardRequest, v1.AgentCard),
        )
    },
)
