"""The AsyncAPI 3.0 document of the channel, generated from the frame codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frame_codec import FrameCodec
from passerelle.protocol.frames import SUBPROTOCOL
from passerelle.protocol.wire import CLIENT_CODECS, SERVER_CODECS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.core.wire.json import Json, JsonObject

PATH: Final = "/v1/channel"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_ABOUT: Final = (
    "A text message holds one or more of these objects, separated by a line feed. Receivers pass over members that "
    "they do not know, and clients over types that they do not know: inside one version only additions happen."
)


def render_asyncapi(version: str) -> JsonObject:
    """The document; ``version`` is that of the product."""
    messages = {**_draw_messages(CLIENT_CODECS.values()), **_draw_messages(SERVER_CODECS.values())}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Passerelle channel", "version": version, "description": _ABOUT},
        "defaultContentType": "application/json",
        "channels": {
            "channel": {
                "address": PATH,
                "description": f"A WebSocket with the subprotocol `{SUBPROTOCOL}`.",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
                "bindings": {"ws": {"method": "GET"}},
                "x-close-codes": {str(code.value): code.name.lower() for code in CloseCode},
            }
        },
        "operations": {
            "send": _draw_operation("receive", CLIENT_CODECS, "What a client may send."),
            "receive": _draw_operation("send", SERVER_CODECS, "What the gateway sends."),
        },
        "components": {
            "messages": messages,
            "schemas": {**_draw_schemas(CLIENT_CODECS), **_draw_schemas(SERVER_CODECS)},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def render_frame_schema() -> JsonObject:
    """JSON Schema of both directions: ``client`` and ``server`` are what each side may send."""
    definitions = {**_draw_schemas(CLIENT_CODECS), **_draw_schemas(SERVER_CODECS)}
    return {
        "$schema": _DIALECT,
        "title": f"Frames of {SUBPROTOCOL}",
        "description": _ABOUT,
        "anyOf": [{"$ref": "#/$defs/client"}, {"$ref": "#/$defs/server"}],
        "$defs": {
            "client": {"oneOf": [_point("#/$defs/", codec) for codec in CLIENT_CODECS.values()]},
            "server": {"oneOf": [_point("#/$defs/", codec) for codec in SERVER_CODECS.values()]},
            **definitions,
        },
    }


def _draw_messages(codecs: Iterable[FrameCodec[Any]]) -> JsonObject:
    return {
        _name(codec): {
            "name": codec.kind.TAG,
            "payload": _point("#/components/schemas/", codec),
        }
        for codec in codecs
    }


def _draw_operation(action: str, codecs: Mapping[str, FrameCodec[Any]], summary: str) -> JsonObject:
    messages: list[Json] = [_point("#/channels/channel/messages/", it) for it in codecs.values()]
    return {
        "action": action,
        "summary": summary,
        "channel": {"$ref": "#/channels/channel"},
        "messages": messages,
    }


def _draw_schemas(codecs: Mapping[str, FrameCodec[Any]]) -> JsonObject:
    return {_name(codec): codec.make_schema() for codec in codecs.values()}


def _point(prefix: str, codec: FrameCodec[Any]) -> JsonObject:
    return {"$ref": prefix + _name(codec)}


def _name(codec: FrameCodec[Any]) -> str:
    return codec.kind.__name__
