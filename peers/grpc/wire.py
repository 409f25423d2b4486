"""Converts between protobuf messages and JSON.

Protobuf keeps every number of a ``Struct`` as a double. A whole number becomes an integer again, as JSON readers
expect; beyond 2**53 the caller's library has already lost digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, cast

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError, SerializeToJsonError

from passerelle.core.errors import InvalidAgentResponse, InvalidInput

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from passerelle.core.wire.json import Json, JsonObject

M = TypeVar("M", bound="Message")
_EXACT: Final = 2**53


def to_json(message: Message) -> JsonObject:
    """The ProtoJSON form of a request.

    Raises:
        InvalidInput: it has a number that JSON does not support.
    """
    try:
        value = cast("JsonObject", MessageToDict(message))
    except (SerializeToJsonError, ValueError) as error:
        raise InvalidInput("request", f"has no JSON form: {error}") from None
    return {name: _restore(child) for name, child in value.items()}


def to_message(value: JsonObject, kind: type[M]) -> M:
    """An answer as a protobuf message; unknown members are dropped.

    Raises:
        InvalidAgentResponse: the agent sent a known member in a form that the protocol does not have.
    """
    try:
        return ParseDict(value, kind(), ignore_unknown_fields=True)
    except ParseError as error:
        raise InvalidAgentResponse(f"has no protobuf form: {error}") from None


def _restore(value: Json) -> Json:
    match value:
        case float() if value.is_integer() and abs(value) <= _EXACT:
            return int(value)
        case dict():
            return {name: _restore(child) for name, child in value.items()}
        case list():
            return [_restore(child) for child in value]
        case _:
            return value
