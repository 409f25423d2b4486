"""What the end of a gRPC call means, as outcomes. Pure: names of codes and a rich status as JSON go in.

A rich status was written by the agent itself: it answered. Without one a code may stand for a connection that broke on
the way, and nobody knows whether the agent has the request. UNKNOWN with words of the agent is what servers make of a
program that raises, as HTTP has 500.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.errors import A2A_DOMAIN, ROWS, ErrorKind
from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.a2a_mapping.v0_3.errors import TYPES
from passerelle.core.peer import Malformed, Refused, Unknown
from passerelle.peers.answers import INTERNAL_ERROR, MESSAGE_CHARS, list_given

if TYPE_CHECKING:
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.wire.json import JsonObject

OK: Final = HTTPStatus.OK
_BY_REASON: Final = {
    kind.value: row.jsonrpc for kind, row in ROWS.items() if row.domain == A2A_DOMAIN
}
_BY_TYPE: Final = {name: code for code, name in TYPES.items()}
# Codes that only an application gives, or a server before it runs anything.
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
# What the library says itself of a call that ended without a status, as UNKNOWN.
_OF_THE_LIBRARY: Final = ("No status received", "Stream removed", "Received http2 header")


def read_end(code: str, text: str, rich: JsonObject | None) -> PeerOutcome:
    """The outcome of a call that ended with ``code``; ``rich`` is its rich status, where there is one."""
    message = text[:MESSAGE_CHARS]
    details = list_given((rich or {}).get("details"))
    for detail in objects_at(rich or {}, "details"):
        if (native := _BY_REASON.get(text_at(detail, "reason"))) is not None:
            return Refused(native, message, details=details)
    named, _, said = message.partition(": ")
    if (native := _BY_TYPE.get(named)) is not None:
        # Agents of 0.3 say the class of an error in its text, as the SDK for Python writes it.
        return Refused(native, said, details=details)
    if code in _REFUSING:
        native, status = _REFUSING[code]
        return Refused(native, message, status, details=details)
    if code == "RESOURCE_EXHAUSTED" and _TOO_LARGE in text:
        # Said by our own side of the connection.
        return Malformed("a message over its limit", b"", too_long=True)
    if rich is not None:
        wait_s = next(
            (wait for one in objects_at(rich, "details") if (wait := _read_wait(one))), None
        )
        return Refused(INTERNAL_ERROR, message, _BUSY.get(code, OK), wait_s, details)
    if code == "UNKNOWN" and message and not message.startswith(_OF_THE_LIBRARY):
        return Unknown(f"gRPC {code}", HTTPStatus.INTERNAL_SERVER_ERROR, message)
    return Unknown("no answer in time" if code == "DEADLINE_EXCEEDED" else f"gRPC {code}")


def _read_wait(detail: JsonObject) -> int | None:
    """Whole seconds of a ``RetryInfo``, one at least."""
    digits = text_at(detail, "retryDelay").removesuffix("s").partition(".")[0]
    return max(1, int(digits[:6])) if digits.isdigit() else None
