"""Reading a peer's error, in either envelope, into one of our error classes.

The text that is shown has passed :mod:`cleaning`; the original belongs into the record. What the error is
to our caller is decided by its code alone (``errors.classify_native``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from passerelle.a2a_mapping.cleaning import clean_text
from passerelle.a2a_mapping.errors import ROWS, ErrorKind, classify_native
from passerelle.a2a_mapping.identity import Relabel
from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.errors import InvalidAgentResponse, PeerRefused
from passerelle.core.json import Json, JsonObject

SENTENCES: Final[dict[ErrorKind, str]] = {
    ErrorKind.TASK_NOT_FOUND: "the agent does not know the task",
    ErrorKind.TASK_NOT_CANCELABLE: "the agent cannot cancel the task",
    ErrorKind.PUSH_NOTIFICATION_NOT_SUPPORTED: "the agent has no push notifications",
    ErrorKind.UNSUPPORTED_OPERATION: "the agent does not support the operation",
    ErrorKind.CONTENT_TYPE_NOT_SUPPORTED: "the agent does not take this content type",
    ErrorKind.INVALID_AGENT_RESPONSE: "the agent answered with an internal error",
    ErrorKind.EXTENDED_AGENT_CARD_NOT_CONFIGURED: "the agent has no extended card",
    ErrorKind.EXTENSION_SUPPORT_REQUIRED: "the agent requires an extension",
    ErrorKind.VERSION_NOT_SUPPORTED: "the agent does not speak this protocol version",
    ErrorKind.INVALID_REQUEST: "the agent refused the request",
    ErrorKind.INVALID_PARAMS: "the agent refused the parameters",
}
"""What a caller reads when the peer's own text cannot be shown; every kind of ``classify_native`` is here."""

_TEXT_LIMIT: Final = 2000
_CODES: Final = {kind.value: row.jsonrpc for kind, row in ROWS.items()}


@dataclass(frozen=True, slots=True)
class NativeError:
    """A peer's error as it said it: its JSON-RPC code, and its own text, which nobody outside may see."""

    code: int
    message: str


def read_native_error(value: Json) -> NativeError | None:
    """The ``error`` member of a JSON-RPC response or of a Google ``Status``; None when it is no A2A error."""
    code = _read_code(value) if isinstance(value, dict) else None
    if code is None or not isinstance(value, dict):
        return None
    return NativeError(code, text_at(value, "message")[:_TEXT_LIMIT])


def make_refusal(
    native: NativeError, ids: Relabel, own: Collection[str] = ()
) -> PeerRefused | InvalidAgentResponse:
    """What our caller is told of a peer's error.

    ``own`` are tokens that the caller sent and may read again, such as its message id.
    """
    kind = classify_native(native.code)
    text = clean_text(native.message, ids, SENTENCES[kind], own).text or SENTENCES[kind]
    if kind is ErrorKind.INVALID_AGENT_RESPONSE:
        return InvalidAgentResponse(text, native_code=native.code)
    return PeerRefused(text, native.code)


def _read_code(error: JsonObject) -> int | None:
    code = error.get("code")
    if not isinstance(code, int) or isinstance(code, bool):
        return None
    if code < 0:
        return code
    # A Status has the HTTP status as its code: the reason in the details says which error it is.
    reasons = [text_at(detail, "reason") for detail in objects_at(error, "details")]
    return next((_CODES[reason] for reason in reasons if reason in _CODES), None)
