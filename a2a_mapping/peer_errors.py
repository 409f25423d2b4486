"""An agent's error as a caller may see it.

The shown text has passed ``clean_text``. The error kind for the caller depends only
on its code (``errors.classify_native``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from passerelle.a2a_mapping.clean_text import clean_text
from passerelle.a2a_mapping.envelopes import BAD_REQUEST, ERROR_INFO
from passerelle.a2a_mapping.errors import ErrorKind, classify_native
from passerelle.a2a_mapping.identity import Relabel
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.errors import PeerRefused
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject

SENTENCES: Final[dict[ErrorKind, str]] = {
    ErrorKind.TASK_NOT_FOUND: "the agent does not know the task",
    ErrorKind.TASK_NOT_CANCELABLE: "the agent cannot cancel the task",
    ErrorKind.PUSH_NOTIFICATION_NOT_SUPPORTED: "the agent has no push notifications",
    ErrorKind.UNSUPPORTED_OPERATION: "the agent does not support the operation",
    ErrorKind.CONTENT_TYPE_NOT_SUPPORTED: "the agent does not accept this content type",
    ErrorKind.INVALID_AGENT_RESPONSE: "the agent reports a response that is not A2A",
    ErrorKind.EXTENDED_AGENT_CARD_NOT_CONFIGURED: "the agent has no extended card",
    ErrorKind.EXTENSION_SUPPORT_REQUIRED: "the agent requires an extension",
    ErrorKind.VERSION_NOT_SUPPORTED: "the agent does not speak this protocol version",
    ErrorKind.INVALID_REQUEST: "the agent refused the request",
    ErrorKind.INVALID_PARAMS: "the agent refused the parameters",
    ErrorKind.INTERNAL: "the agent answered with an internal error",
}
"""Texts for callers if nothing of the agent's own text can be shown; covers every kind of ``classify_native``."""


@frozen
class NativeError:
    """An agent's error: its JSON-RPC code, and its own text and details, which callers must not see.

    ``http_status`` is set if the answer had only a status.
    """

    code: int
    message: str
    details: tuple[JsonObject, ...] = ()
    http_status: int | None = None


_STATUSES: Final[dict[int, str]] = {
    401: "agent {!r} did not accept the credential of the gateway (HTTP 401)",
    403: "agent {!r} does not allow the call (HTTP 403)",
}
_SERVER_ERROR: Final = 500
_VALUE_CHARS: Final = 500
_MOST_VALUES: Final = 16


def make_refusal(
    peer: str, native: NativeError, ids: Relabel, own: Collection[str] = ()
) -> PeerRefused:
    """The error for the caller, from the error of the agent ``peer``.

    ``own`` are tokens that the caller sent and may read again, such as its message id.
    """
    if native.http_status is not None:
        return PeerRefused(_describe_status(peer, native), native.code, native.http_status)
    kind = classify_native(native.code)
    text = clean_text(native.message, ids, own).text or SENTENCES[kind]
    given = (_clean_detail(one, kind, ids, own) for one in native.details)
    return PeerRefused(text, native.code, given=tuple(one for one in given if one is not None))


def _describe_status(peer: str, native: NativeError) -> str:
    """The text for an answer with only a status: its body is for people at the agent."""
    status = native.http_status or 0
    if status in _STATUSES:
        return _STATUSES[status].format(peer)
    if status >= _SERVER_ERROR:
        return f"agent {peer!r} failed with HTTP {status}"
    # The rest of the text was made by the gateway.
    why = native.message.partition(": ")[2]
    return f"agent {peer!r} refused the call with HTTP {status}" + (f": {why}" if why else "")


def _clean_detail(
    detail: JsonObject, kind: ErrorKind, ids: Relabel, own: Collection[str]
) -> JsonObject | None:
    """A typed detail without internal values of the agent; None if nothing remains that the gateway does not add."""

    def show(text: str) -> str:
        cleaned = clean_text(text[:_VALUE_CHARS], ids, own)
        return cleaned.text if cleaned.whole else ""

    match text_at(detail, "@type"):
        case _ as name if name == ERROR_INFO:
            reason, domain = (
                show(text_at(detail, "reason").replace("_", " ")),
                text_at(detail, "domain"),
            )
            values = list(object_at(detail, "metadata").items())[:_MOST_VALUES]
            metadata: JsonObject = {
                name: text for name, value in values if show(name) and (text := show(str(value)))
            }
            if not reason or (reason.replace(" ", "_") == kind.value and not metadata):
                return None
            shown: JsonObject = {
                "@type": ERROR_INFO,
                "reason": reason.replace(" ", "_"),
                "domain": show(domain),
            }
            if metadata:
                shown["metadata"] = metadata
            return shown
        case _ as name if name == BAD_REQUEST:
            violations: list[Json] = [
                {"field": field, "description": show(text_at(one, "description"))}
                for one in objects_at(detail, "fieldViolations")[:_MOST_VALUES]
                if (field := show(text_at(one, "field")))
            ]
            return {"@type": BAD_REQUEST, "fieldViolations": violations} if violations else None
        case _:
            return None
