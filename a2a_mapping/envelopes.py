"""The two envelopes of an error: the JSON-RPC response and the Google ``Status`` of HTTP+JSON.

Both carry the same typed details (A2A 1.0 sections 9.5 and 11.6), so a client reads the reason and the
field in the same place whichever binding it speaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from passerelle.a2a_mapping.errors import ROWS, ErrorKind, choose_code, classify
from passerelle.core.errors import (
    ContentTypeNotSupported,
    InvalidInput,
    Limited,
    PasserelleError,
    PeerRefused,
    RemoteError,
)
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject

ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST: Final = "type.googleapis.com/google.rpc.BadRequest"
RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"
_UNSUPPORTED_MEDIA_TYPE: Final = 415
_TRANSPORT_STATUSES: Final = frozenset({401, 403, 429, 503})


@frozen
class ErrorAnswer:
    """The response of an edge: HTTP status, JSON body and headers besides the content type."""

    http_status: int
    body: JsonObject
    headers: Mapping[str, str]


def render_rpc_error(error: PasserelleError, rpc_id: str | int | None) -> ErrorAnswer:
    """A JSON-RPC error response. HTTP 200, except for checks before the request is read (401, 403, 429, 503)."""
    row = ROWS[classify(error)]
    body: JsonObject = {
        "jsonrpc": "2.0",
        "id": rpc_id,
        "error": {
            "code": choose_code(error),
            "message": error.message,
            "data": list_details(error),
        },
    }
    status = row.http if row.http in _TRANSPORT_STATUSES else 200
    return ErrorAnswer(status, body, _retry_headers(error))


def render_status(error: PasserelleError) -> ErrorAnswer:
    """A Google ``Status``; its ``code`` equals the HTTP status."""
    row = ROWS[classify(error)]
    status = _UNSUPPORTED_MEDIA_TYPE if isinstance(error, ContentTypeNotSupported) else row.http
    body: JsonObject = {
        "error": {
            "code": status,
            "status": row.grpc,
            "message": error.message,
            "details": list_details(error),
        }
    }
    return ErrorAnswer(status, body, _retry_headers(error))


def list_details(error: PasserelleError) -> list[Json]:
    """The typed details: the error kind, for bad input the field, an agent's own details, and when a retry helps.

    A WebSocket has no header for the last one.
    """
    kind: ErrorKind = classify(error)
    metadata: JsonObject = {name: str(value) for name, value in error.details.items()}
    details: list[Json] = [
        {
            "@type": ERROR_INFO,
            "reason": kind.value,
            "domain": ROWS[kind].domain,
            "metadata": metadata,
        }
    ]
    if isinstance(error, InvalidInput):
        violation: JsonObject = {"field": error.field, "description": error.reason}
        details.append({"@type": BAD_REQUEST, "fieldViolations": [violation]})
    if isinstance(error, PeerRefused):
        details += error.given
    if (retry_after_s := find_retry(error)) is not None:
        details.append({"@type": RETRY_INFO, "retryDelay": f"{retry_after_s}s"})
    return details


def find_retry(error: PasserelleError) -> int | None:
    """After how many seconds the call may be repeated; None if that is unknown."""
    return error.retry_after_s if isinstance(error, RemoteError | Limited) else None


def _retry_headers(error: PasserelleError) -> dict[str, str]:
    retry_after_s = find_retry(error)
    return {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
