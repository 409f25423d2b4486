"""Frames of the WebSocket binding (docs/protocol/a2a-websocket.md): JSON-RPC requests and their additions.

A frame is a JSON-RPC 2.0 request of A2A 1.0. Its service parameters, which are headers over HTTP, may be in the
metadata of its params. ``cancelStream`` is no method of A2A: it ends the reading of a stream, never a task.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.members import check_depth, object_at
from passerelle.a2a_mapping.resume import LAST_EVENT_ID, RESUMED
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.a2a_mapping.rpc import RpcId
    from passerelle.core.wire.json import Json, JsonObject

BINDING: Final = "urn:passerelle:binding:websocket:1"
"""``protocolBinding`` on a card (A2A 1.0 section 5.8)."""
SUBPROTOCOL: Final = "a2a.v1"
PATH: Final = "/ws"
"""Path below the address of an agent."""
SERVICE_PARAMETERS: Final = "a2a-service-parameters"
CANCEL_STREAM: Final = "cancelStream"
_METADATA: Final = "metadata"
_AFTER: Final = "after"
_PARAMETERS: Final = frozenset(
    {
        "a2a-version",
        "a2a-extensions",
        "a2a-stream-snapshot",
        "idempotency-key",
        "traceparent",
        "tracestate",
    }
)
"""Service parameters of a call. The caller authenticates once, in the handshake."""


@frozen
class CallFrame:
    """A request. ``body`` is JSON-RPC as for any binding; ``headers`` are its service parameters, lower case."""

    id: RpcId
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@frozen
class CancelFrame:
    """The client no longer reads the stream of a request."""

    id: RpcId


@frozen
class RefusedFrame:
    """A request that is nested too deep, or has a service parameter that no header could have."""

    id: RpcId
    error: InvalidInput


def read_frame(text: str) -> CallFrame | CancelFrame | RefusedFrame:
    """A client frame. Anything but a JSON-RPC request passes unchanged, for the request checks."""
    body = text.encode()
    try:
        value: Json = orjson.loads(body)
    except orjson.JSONDecodeError:
        return CallFrame(None, body)
    if not isinstance(value, dict):
        return CallFrame(None, body)
    params = object_at(value, "params")
    if value.get("method") == CANCEL_STREAM:
        return CancelFrame(_read_id(params))
    rpc_id = _read_id(value)
    try:
        check_depth(body, value)
        if _AFTER not in params and SERVICE_PARAMETERS not in object_at(params, _METADATA):
            return CallFrame(rpc_id, body)
        headers = _take_parameters(params)
    except InvalidInput as error:
        return RefusedFrame(rpc_id, error)
    return CallFrame(rpc_id, orjson.dumps({**value, "params": params}), headers)


def write_item(event: bytes, cursor: str, headers: Mapping[str, str], *, is_first: bool) -> str:
    """One item of a stream: a JSON-RPC response, with the members for a later resume.

    ``event`` is the response as in a server-sent event, an object.
    """
    extra = b""
    if RESUME in headers.get("a2a-extensions", ""):
        extra = b',"cursor":%b' % orjson.dumps(cursor)
        resumed = headers.get(RESUMED.lower())
        if is_first and resumed is not None:
            extra += b',"resumed":%b' % orjson.dumps(resumed)
    return (event[:-1] + extra + b"}").decode()


def write_end(rpc_id: RpcId) -> str:
    """The end of a stream."""
    return orjson.dumps({"jsonrpc": "2.0", "id": rpc_id, "streamEnd": True}).decode()


def _take_parameters(params: JsonObject) -> dict[str, str]:
    """Removes the service parameters of a call, and returns them as headers. One that is null is absent.

    Raises:
        InvalidInput: a value that no header could have. Without its key a call might take effect twice.
    """
    metadata = dict(object_at(params, _METADATA))
    said, after = metadata.pop(SERVICE_PARAMETERS, None), params.pop(_AFTER, None)
    field = f"{_METADATA}.{SERVICE_PARAMETERS}"
    if not isinstance(said, dict | None):
        raise InvalidInput(field, "must be an object")
    headers = {
        name.lower(): _read_header(f"{field}.{name}", value)
        for name, value in (said or {}).items()
        if name.lower() in _PARAMETERS and value is not None
    }
    if after is not None:
        headers[LAST_EVENT_ID.lower()] = _read_header(_AFTER, after)
    params.pop(_METADATA, None)
    if metadata:
        params[_METADATA] = metadata
    return headers


def _read_header(field: str, value: Json) -> str:
    if not isinstance(value, str) or not value.isprintable() or max(value, default="") > "\xff":
        raise InvalidInput(field, "must be a text of printable Latin-1 characters")
    return value


def _read_id(holder: JsonObject) -> RpcId:
    value = holder.get("id")
    return value if isinstance(value, str) or type(value) is int else None
