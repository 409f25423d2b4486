"""Reads the bytes of a peer's answer as outcomes. Pure: bytes in, a value out.

What may follow a call depends on whether the peer may have accepted it, so only this module judges that:
``RefusedByPeer`` means that it did not, ``Unknown`` that it may have. If both are possible, it is ``Unknown``.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.peer import Answered, Malformed, PeerOutcome, RefusedByPeer, Unknown
from passerelle.core.wire.json import DEPTH_LIMIT, is_too_deep

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

OK: Final = int(HTTPStatus.OK)
METHOD_NOT_FOUND: Final = -32601
INTERNAL_ERROR: Final = -32603
VERSION_NOT_SUPPORTED: Final = -32009

_RAW_BYTES: Final = 4096
_RECORD_SEPARATOR: Final = b"\x1e"
"""Begins each text of a JSON text sequence (RFC 7464): VoltAgent sends it in each event."""
MESSAGE_CHARS: Final = 2000
_MAX_RETRY_AFTER_S: Final = 86_400
_MOST_DETAILS: Final = 8
# A client error means that the request was not served, except for these two: a proxy sends them when it
# times out, or its caller leaves, with a request that may already be on its way.
_UNSURE_4XX: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, 499})
# Sent before any work on the request; another 5xx may replace an answer that was lost.
_REFUSING_5XX: Final = frozenset(
    {
        HTTPStatus.NOT_IMPLEMENTED,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
    }
)
# 303 is left out: it may answer a request that was executed.
_MOVED: Final = frozenset(
    {
        HTTPStatus.MOVED_PERMANENTLY,
        HTTPStatus.FOUND,
        HTTPStatus.TEMPORARY_REDIRECT,
        HTTPStatus.PERMANENT_REDIRECT,
    }
)


class NotJson(Exception):
    """The bytes are not JSON, or nested deeper than allowed; the text states which."""


def parse_json(raw: bytes) -> Json:
    """Parses JSON bytes.

    Raises:
        NotJson: malformed, or nested deeper than ``DEPTH_LIMIT``.
    """
    try:
        value: Json = orjson.loads(raw.lstrip(_RECORD_SEPARATOR))
    except orjson.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg}") from None
    if is_too_deep(raw, value):
        raise NotJson(f"nested deeper than {DEPTH_LIMIT}")
    return value


def read_envelope(raw: bytes, request_id: int | None, http_status: int = 200) -> PeerOutcome:
    """The outcome of a JSON-RPC 2.0 response.

    ``request_id`` is the id that was sent. A response without an id answers the only request of its exchange, as
    clients of all SDKs have it. With None any id does: an event belongs to the request of its stream, and some agents
    number the events.
    """
    try:
        envelope = parse_json(raw)
    except NotJson as fault:
        return reject(str(fault), raw)
    if not isinstance(envelope, dict) or envelope.get("jsonrpc") != "2.0":
        return reject("not a JSON-RPC 2.0 response", raw)
    answered, result, error = envelope.get("id"), envelope.get("result"), envelope.get("error")
    if answered is not None and request_id is not None and answered != request_id:
        return reject("a JSON-RPC response to another request", raw)
    if error is None and isinstance(result, dict):
        return Answered(result)
    if result is None and isinstance(error, dict):
        return _read_error(error, http_status, raw)
    return reject("a JSON-RPC response without a result object or an error", raw)


def _read_error(error: JsonObject, http_status: int, raw: bytes) -> RefusedByPeer | Malformed:
    match error:
        case {"code": int() as code, "message": str() as message}:
            details = list_given(error.get("data"))
            return RefusedByPeer(code, message[:MESSAGE_CHARS], http_status, details=details)
        case _:
            return reject("a JSON-RPC error without code or message", raw)


def list_given(data: Json) -> tuple[JsonObject, ...]:
    """The first typed details of an error."""
    given = data if isinstance(data, list) else []
    typed = (one for one in given if isinstance(one, dict) and isinstance(one.get("@type"), str))
    return tuple(islice(typed, _MOST_DETAILS))


def read_response(status: int, retry_after: str | None, raw: bytes, request_id: int) -> PeerOutcome:
    """The outcome of a whole HTTP response with body ``raw``."""
    outcome = read_envelope(raw, request_id, status)
    if isinstance(outcome, RefusedByPeer):
        wait_s = read_retry_after(retry_after)
        return replace(outcome, retry_after_s=wait_s)
    return outcome if is_success(status) else read_bare_status(status, retry_after, raw)


def is_success(status: int) -> bool:
    """Whether the request was served: some agents answer 201 for what they created, or 202 for what they started."""
    return OK <= status < HTTPStatus.MULTIPLE_CHOICES


def read_document(raw: bytes) -> PeerOutcome:
    """The outcome of a body that is the result itself."""
    try:
        value = parse_json(raw)
    except NotJson as fault:
        return reject(str(fault), raw)
    return Answered(value) if isinstance(value, dict) else reject("not a JSON object", raw)


def read_bare_status(status: int, retry_after: str | None, raw: bytes) -> PeerOutcome:
    """The outcome of a response whose status is all that is known."""
    if status in _MOVED:
        text = f"HTTP {status}: redirects are not followed"
        return RefusedByPeer(INTERNAL_ERROR, text, status, is_bare=True)
    client_fault = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    if status in _REFUSING_5XX or (client_fault and status not in _UNSURE_4XX):
        wait_s = read_retry_after(retry_after)
        return RefusedByPeer(INTERNAL_ERROR, f"HTTP {status}", status, wait_s, is_bare=True)
    if status in _UNSURE_4XX or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unknown(f"HTTP {status}", status)
    return reject(f"HTTP {status} without an A2A answer", raw)


def judge_send(outcome: PeerOutcome) -> PeerOutcome:
    """The outcome of a send: 500 means that the agent received it and failed.

    A query that gets it may be repeated; 502 and 504 come from proxies, which do not know whether the agent got it.
    """
    if isinstance(outcome, Unknown) and outcome.http_status == HTTPStatus.INTERNAL_SERVER_ERROR:
        text = outcome.message or outcome.reason
        return RefusedByPeer(INTERNAL_ERROR, text, outcome.http_status, is_bare=not outcome.message)
    return outcome


def read_retry_after(value: str | None) -> int | None:
    """Whole seconds, at most a day; the date form is ignored, since it needs synchronized clocks."""
    if value is None or not (value.isascii() and value.strip().isdigit()):
        return None
    return int(min(value.strip()[:9], str(_MAX_RETRY_AFTER_S), key=int))


def reject(reason: str, raw: bytes, *, too_long: bool = False) -> Malformed:
    """The outcome for an answer that is not A2A, with its first bytes for the record."""
    return Malformed(reason, raw[:_RAW_BYTES], too_long)
