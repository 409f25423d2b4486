"""The SDK's own conversions between the versions, from JSON to JSON: the gateway's must agree with them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from a2a.compat.v0_3 import a2a_v0_3_pb2 as older
from a2a.compat.v0_3 import conversions, proto_utils, types
from a2a.types import a2a_pb2 as newer
from google.protobuf.json_format import MessageToDict, ParseDict

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from pydantic import BaseModel

    from passerelle.core.wire.json import Json, JsonObject


def _dump(model: BaseModel) -> JsonObject:
    return cast("JsonObject", model.model_dump(mode="json", by_alias=True, exclude_none=True))


def to_dict(message: Message) -> JsonObject:
    """ProtoJSON."""
    return cast("JsonObject", MessageToDict(message))


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> str:
    return base64.b64decode(text).decode()


def _map_bytes(value: JsonObject, change: Callable[[str], str]) -> JsonObject:
    """The SDK puts the text of base64 where the protobuf has bytes, so on the wire it is encoded twice; we do not."""

    def walk(item: Json) -> Json:
        if isinstance(item, list):
            return [walk(one) for one in item]
        if not isinstance(item, dict):
            return item
        return {
            key: change(one) if key == "fileWithBytes" and isinstance(one, str) else walk(one)
            for key, one in item.items()
        }

    return cast("JsonObject", walk(value))


def write_kind(response: JsonObject) -> JsonObject:
    """A 1.0 StreamResponse in the spelling of JSON-RPC."""
    core = ParseDict(response, newer.StreamResponse())
    return _dump(conversions.to_compat_stream_response(core, 1).result)


def write_proto(response: JsonObject) -> JsonObject:
    """A 1.0 StreamResponse in the spelling of the protobuf."""
    core = ParseDict(response, newer.StreamResponse())
    result = conversions.to_compat_stream_response(core, 1).result
    return _map_bytes(to_dict(proto_utils.ToProto.stream_response(result)), _decode)


def read_kind(result: JsonObject) -> JsonObject:
    """A result of JSON-RPC 0.3 as a 1.0 StreamResponse."""
    whole = {"jsonrpc": "2.0", "id": 1, "result": result}
    model = types.SendStreamingMessageSuccessResponse.model_validate(whole)
    return to_dict(conversions.to_core_stream_response(model))


def read_proto(response: JsonObject) -> JsonObject:
    """A StreamResponse of the 0.3 protobuf as a 1.0 one."""
    message = ParseDict(_map_bytes(response, _encode), older.StreamResponse())
    result = proto_utils.FromProto.stream_response(message)
    model = types.SendStreamingMessageSuccessResponse(id=1, result=result)
    return to_dict(conversions.to_core_stream_response(model))


def read_send(params: JsonObject) -> JsonObject:
    """Params of ``message/send`` as those of 1.0."""
    whole = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
    model = types.SendMessageRequest.model_validate(whole)
    return to_dict(conversions.to_core_send_message_request(model))


def write_send(params: JsonObject) -> JsonObject:
    """1.0 params of SendMessage as those of ``message/send``."""
    core = ParseDict(params, newer.SendMessageRequest())
    return _dump(conversions.to_compat_send_message_request(core, 1).params)


def write_config(config: JsonObject) -> JsonObject:
    """A 1.0 TaskPushNotificationConfig in the spelling of JSON-RPC."""
    core = ParseDict(config, newer.TaskPushNotificationConfig())
    return _dump(conversions.to_compat_task_push_notification_config(core))


def read_config(config: JsonObject) -> JsonObject:
    """A TaskPushNotificationConfig of JSON-RPC 0.3 as that of 1.0."""
    model = types.TaskPushNotificationConfig.model_validate(config)
    return to_dict(conversions.to_core_task_push_notification_config(model))
