"""The JSON-RPC 2.0 envelope of a request, and the supported methods."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from passerelle.a2a_mapping.errors import InvalidRequest
from passerelle.a2a_mapping.members import read_json
from passerelle.core.errors import InvalidInput, UnknownMethod
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.near import find_near

RpcId: TypeAlias = str | int | None


class Method(StrEnum):
    """The eleven operations of A2A 1.0; gRPC uses the same names."""

    SEND_MESSAGE = "SendMessage"
    SEND_STREAMING_MESSAGE = "SendStreamingMessage"
    GET_TASK = "GetTask"
    LIST_TASKS = "ListTasks"
    CANCEL_TASK = "CancelTask"
    SUBSCRIBE_TO_TASK = "SubscribeToTask"
    CREATE_PUSH_CONFIG = "CreateTaskPushNotificationConfig"
    GET_PUSH_CONFIG = "GetTaskPushNotificationConfig"
    LIST_PUSH_CONFIGS = "ListTaskPushNotificationConfigs"
    DELETE_PUSH_CONFIG = "DeleteTaskPushNotificationConfig"
    GET_EXTENDED_CARD = "GetExtendedAgentCard"


_METHODS: Final[Mapping[str, Method]] = {method.value: method for method in Method}


def read_rpc(body: bytes) -> tuple[RpcId, str, JsonObject]:
    """Id, method and params of the request in ``body``; the method is not checked yet, since the version comes first.

    Raises:
        MalformedBody: not JSON.
        InvalidRequest: JSON, but not one JSON-RPC 2.0 request with an id; a batch is refused too.
        InvalidInput: ``params`` is not an object (A2A names every parameter).
    """
    value = read_json(body)
    if not isinstance(value, dict):
        is_batch = isinstance(value, list)
        reason = "batches are not supported" if is_batch else "must be a JSON object"
        raise InvalidRequest("body", reason)
    if "id" not in value:
        raise InvalidRequest("id", "is missing: every A2A method has an answer")
    rpc_id = value["id"]
    # A bool is an int in Python, and fractions do not compare reliably.
    if rpc_id is not None and not isinstance(rpc_id, str) and type(rpc_id) is not int:
        raise InvalidRequest("id", "must be a text, a whole number or null")
    if value.get("jsonrpc") != "2.0":
        raise InvalidRequest("jsonrpc", 'must be "2.0"', rpc_id)
    method = value.get("method")
    if not isinstance(method, str) or not method:
        raise InvalidRequest("method", "must be a text that is not empty", rpc_id)
    params = value.get("params")
    if params is None:
        params = {}
    elif not isinstance(params, dict):
        raise InvalidInput("params", "must be an object")
    return rpc_id, method, params


def read_method(name: str) -> Method:
    """The operation of that name.

    Raises:
        UnknownMethod: any other name, those of protocol 0.3 included.
    """
    method = _METHODS.get(name)
    if method is None:
        raise UnknownMethod(name, find_near(name, _METHODS))
    return method


def render_result(rpc_id: RpcId, result: Json) -> JsonObject:
    """A JSON-RPC success response."""
    return {"jsonrpc": "2.0", "id": rpc_id, "result": result}
