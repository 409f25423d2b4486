"""Errors as gRPC statuses: the code by the one table of A2A errors, the same typed details as over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

import grpc
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass

from passerelle.a2a_mapping.envelopes import list_details
from passerelle.a2a_mapping.errors import ROWS, classify
from passerelle.a2a_mapping.v0_3.errors import name_type
from passerelle.a2a_mapping.version import CURRENT
from passerelle.core.errors import Limited, RemoteError

if TYPE_CHECKING:
    from passerelle.a2a_mapping.version import Version
    from passerelle.core.errors import PasserelleError
    from passerelle.core.wire.json import Json, JsonObject

DETAILS_KEY: Final = "grpc-status-details-bin"
_RETRY_KEY: Final = "retry-after"
_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"
# They have no types for a checker to read; once they are loaded, their messages are found by name.
for _module in ("status_pb2", "error_details_pb2"):
    import_module(f"google.rpc.{_module}")
_STATUS: Final = GetMessageClass(Default().FindMessageTypeByName("google.rpc.Status"))


@dataclass(frozen=True, slots=True)
class Refusal:
    """What ends a call: status code, text, and trailing metadata with the rich status (A2A 1.0 section 10.6)."""

    code: grpc.StatusCode
    message: str
    trailing: tuple[tuple[str, str | bytes], ...]


def render_refusal(error: PasserelleError, version: Version = CURRENT) -> Refusal:
    """How a call that failed with ``error`` ends; clients of 0.3 read the class of an error from its text."""
    code = grpc.StatusCode[ROWS[classify(error)].grpc]
    details: list[Json] = list_details(error)
    trailing: list[tuple[str, str | bytes]] = []
    if isinstance(error, RemoteError | Limited) and error.retry_after_s is not None:
        trailing.append((_RETRY_KEY, str(error.retry_after_s)))
        details.append({"@type": _RETRY_INFO, "retryDelay": f"{error.retry_after_s}s"})
    status = {"code": code.value[0], "message": error.message, "details": details}
    trailing.append((DETAILS_KEY, ParseDict(status, _STATUS()).SerializeToString()))
    text = error.message if version == CURRENT else f"{name_type(error)}: {error.message}"
    return Refusal(code, text, tuple(trailing))


def parse_status(packed: bytes) -> JsonObject:
    """The rich status that came with the end of a call, as JSON."""
    return cast("JsonObject", MessageToDict(_STATUS.FromString(packed)))
