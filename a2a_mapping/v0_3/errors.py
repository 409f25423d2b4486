"""Errors of HTTP+JSON for callers of 0.3, which never said how one looks.

Clients of 0.3 read ``type`` and ``message`` at the top, as the SDK for Python does; the Google ``Status`` of 1.0 stands
beside them, so that nothing is lost. JSON-RPC errors are the same in both versions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.envelopes import ErrorAnswer, render_status
from passerelle.a2a_mapping.errors import ROWS, classify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.errors import PasserelleError

TYPES: Final[Mapping[int, str]] = {
    -32001: "TaskNotFoundError",
    -32002: "TaskNotCancelableError",
    -32003: "PushNotificationNotSupportedError",
    -32004: "UnsupportedOperationError",
    -32005: "ContentTypeNotSupportedError",
    -32006: "InvalidAgentResponseError",
    -32007: "AuthenticatedExtendedCardNotConfiguredError",
    -32008: "ExtensionSupportRequiredError",
    -32009: "VersionNotSupportedError",
    -32600: "InvalidRequestError",
    -32601: "MethodNotFoundError",
    -32602: "InvalidParamsError",
    -32603: "InternalError",
    -32700: "JSONParseError",
}
"""By JSON-RPC code."""


def name_type(error: PasserelleError) -> str:
    """The name that clients of 0.3 know the error by."""
    return TYPES[ROWS[classify(error)].jsonrpc]


def render_legacy_status(error: PasserelleError) -> ErrorAnswer:
    """An error of HTTP+JSON below ``/v1``."""
    answer = render_status(error)
    return replace(answer, body={"type": name_type(error), "message": error.message, **answer.body})
