"""A peer's error as our caller may see it.

The text that is shown has passed :mod:`cleaning`; the original belongs into the record. What the error is
to our caller is decided by its code alone (``errors.classify_native``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from passerelle.a2a_mapping.cleaning import clean_text
from passerelle.a2a_mapping.errors import ErrorKind, classify_native
from passerelle.a2a_mapping.identity import Relabel
from passerelle.core.errors import InvalidAgentResponse, PeerRefused

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


@dataclass(frozen=True, slots=True)
class NativeError:
    """A peer's error as it said it: its JSON-RPC code, and its own text, which nobody outside may see."""

    code: int
    message: str


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
