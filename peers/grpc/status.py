"""Errors as gRPC statuses: writes those of the gateway, and reads the end of a call to an agent as an outcome.

The gateway's errors have the code of the A2A error table, and the same typed details as over HTTP. Reading the end of a
call is pure: its input is the code name and the rich status as JSON.

A rich status comes from the agent itself: it answered. Without one a code may be a broken connection, and it is unknown
whether the agent has the request. Servers send UNKNOWN with the agent's text when its program raises, like HTTP 500.
"""

from __future__ import annotations

from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

import grpc
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass

from passerelle.a2a_mapping.envelopes import find_retry, list_details
from passerelle.a2a_mapping.errors import A2A_DOMAIN, ROWS, ErrorKind, classify
from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.a2a_mapping.v0_3.responses import TYPES, name_type
from passerelle.a2a_mapping.version import CURRENT
from passerelle.core.frozen import frozen
from passerelle.core.peer import Malformed, RefusedByPeer, Unknown
from passerelle.peers.answers import INTERNAL_ERROR, MESSAGE_CHARS, list_given

if TYPE_CHECKING:
    from passerelle.a2a_mapping.version import Version
    from passerelle.core.errors import PasserelleError
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.wire.json import Json, JsonObject

DETAILS_KEY: Final = "grpc-status-details-bin"
_RETRY_KEY: Final = "retry-after"
# They have no types for a checker; once imported, their messages are found by name.
for _module in ("status_pb2", "error_details_pb2"):
    import_module(f"google.rpc.{_module}")
_STATUS: Final = GetMessageClass(Default().FindMessageTypeByName("google.rpc.Status"))


@frozen
class GrpcRefusal:
    """The end of a call: status code, text, and trailing metadata with the rich status (A2A 1.0 section 10.6)."""

    code: grpc.StatusCode
    message: str
    trailing: tuple[tuple[str, str | bytes], ...]


def render_refusal(error: PasserelleError, version: Version = CURRENT) -> GrpcRefusal:
    """The status for ``error``; clients of 0.3 read the class of an error from its text."""
    code = grpc.StatusCode[ROWS[classify(error)].grpc]
    details: list[Json] = list_details(error)
    trailing: list[tuple[str, str | bytes]] = []
    if (retry_after_s := find_retry(error)) is not None:
        trailing.append((_RETRY_KEY, str(retry_after_s)))
    status = {"code": code.value[0], "message": error.message, "details": details}
    trailing.append((DETAILS_KEY, ParseDict(status, _STATUS()).SerializeToString()))
    text = error.message if version == CURRENT else f"{name_type(error)}: {error.message}"
    return GrpcRefusal(code, text, tuple(trailing))


def parse_status(packed: bytes) -> JsonObject:
    """The rich status at the end of a call, as JSON."""
    return cast("JsonObject", MessageToDict(_STATUS.FromString(packed)))


OK: Final = HTTPStatus.OK
_BY_REASON: Final = {
    kind.value: row.jsonrpc for kind, row in ROWS.items() if row.domain == A2A_DOMAIN
}
_BY_TYPE: Final = {name: code for code, name in TYPES.items()}
# Codes that only an application sends, or a server before it runs anything.
_REFUSING: Final = {
    "INVALID_ARGUMENT": (ROWS[ErrorKind.INVALID_PARAMS].jsonrpc, OK),
    "NOT_FOUND": (ROWS[ErrorKind.TASK_NOT_FOUND].jsonrpc, OK),
    "FAILED_PRECONDITION": (ROWS[ErrorKind.UNSUPPORTED_OPERATION].jsonrpc, OK),
    "UNIMPLEMENTED": (INTERNAL_ERROR, HTTPStatus.NOT_FOUND),
    "UNAUTHENTICATED": (INTERNAL_ERROR, HTTPStatus.UNAUTHORIZED),
    "PERMISSION_DENIED": (INTERNAL_ERROR, HTTPStatus.FORBIDDEN),
}
_BUSY: Final = {
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
}
_TOO_LARGE: Final = "larger than max"
# The library's own texts for a call that ended without a status, as UNKNOWN.
_LIBRARY_TEXTS: Final = ("No status received", "Stream removed", "Received http2 header")


def read_end(code: str, text: str, rich: JsonObject | None) -> PeerOutcome:
    """The outcome of a call that ended with ``code``; ``rich`` is its rich status, if any."""
    message = text[:MESSAGE_CHARS]
    details = list_given((rich or {}).get("details"))
    for detail in objects_at(rich or {}, "details"):
        if (native := _BY_REASON.get(text_at(detail, "reason"))) is not None:
            return RefusedByPeer(native, message, details=details)
    waits = [wait for one in objects_at(rich or {}, "details") if (wait := _read_wait(one))]
    wait_s = waits[0] if waits else None
    named, _, said = message.partition(": ")
    if (native := _BY_TYPE.get(named)) is not None:
        # Agents of 0.3 put the class of an error into its text, as the Python SDK does.
        return RefusedByPeer(native, said, _BUSY.get(code, OK), wait_s, details)
    if code in _REFUSING:
        native, status = _REFUSING[code]
        return RefusedByPeer(native, message, status, details=details)
    if code == "RESOURCE_EXHAUSTED" and _TOO_LARGE in text:
        # Sent by our own end of the connection.
        return Malformed("a message over its limit", b"", too_long=True)
    if rich is not None:
        return RefusedByPeer(INTERNAL_ERROR, message, _BUSY.get(code, OK), wait_s, details)
    if code == "UNKNOWN" and message and not message.startswith(_LIBRARY_TEXTS):
        return Unknown(f"gRPC {code}", HTTPStatus.INTERNAL_SERVER_ERROR, message)
    return Unknown("no answer in time" if code == "DEADLINE_EXCEEDED" else f"gRPC {code}")


def _read_wait(detail: JsonObject) -> int | None:
    """Whole seconds of a ``RetryInfo``, at least one."""
    digits = text_at(detail, "retryDelay").removesuffix("s").partition(".")[0]
    return max(1, int(digits[:6])) if digits.isdigit() else None
