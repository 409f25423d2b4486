"""A2A errors as data, and their mapping from the gateway's errors (A2A 1.0 section 5.4).

Two tables: :data:`ROWS` has the form of each error kind in each binding, :data:`KINDS` the kind of each error class.
Errors of agents are in ``peer_errors``, the two envelopes in ``envelopes``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from passerelle.core import errors
from passerelle.core.frozen import frozen

A2A_DOMAIN: Final = "a2a-protocol.org"
OWN_DOMAIN: Final = "passerelle"


class InvalidRequest(errors.MalformedBody):
    """JSON, but not a JSON-RPC request; ``rpc_id`` is its id if it could be read."""

    code = "invalid_request"

    def __init__(self, field: str, reason: str, rpc_id: str | int | None = None) -> None:
        super().__init__(field, reason)
        self.rpc_id = rpc_id


class PushNotificationNotSupported(errors.UnsupportedOperation):
    """A push notification was requested, but the card announces none."""

    code = "push_notification_not_supported"


class ExtendedCardNotConfigured(errors.UnsupportedOperation):
    """The card announces an extended card, and none is configured for this agent."""

    code = "extended_card_not_configured"


class ExtensionRequired(errors.CallerError):
    """The agent demands a protocol extension that the caller did not declare; ``extension`` is its URI."""

    code = "extension_required"

    def __init__(self, extension: str) -> None:
        super().__init__(
            f"the agent requires the extension {extension[:200]!r}", extension=extension[:200]
        )


class ErrorKind(StrEnum):
    """The error kinds that callers of an A2A binding see; the value is the ``reason`` of the details."""

    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    TASK_NOT_CANCELABLE = "TASK_NOT_CANCELABLE"
    PUSH_NOTIFICATION_NOT_SUPPORTED = "PUSH_NOTIFICATION_NOT_SUPPORTED"
    UNSUPPORTED_OPERATION = "UNSUPPORTED_OPERATION"
    CONTENT_TYPE_NOT_SUPPORTED = "CONTENT_TYPE_NOT_SUPPORTED"
    INVALID_AGENT_RESPONSE = "INVALID_AGENT_RESPONSE"
    EXTENDED_AGENT_CARD_NOT_CONFIGURED = "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
    EXTENSION_SUPPORT_REQUIRED = "EXTENSION_SUPPORT_REQUIRED"
    VERSION_NOT_SUPPORTED = "VERSION_NOT_SUPPORTED"
    PARSE_ERROR = "PARSE_ERROR"
    INVALID_REQUEST = "INVALID_REQUEST"
    METHOD_NOT_FOUND = "METHOD_NOT_FOUND"
    INVALID_PARAMS = "INVALID_PARAMS"
    INTERNAL = "INTERNAL_ERROR"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    DENIED = "PERMISSION_DENIED"
    LIMITED = "RATE_LIMITED"
    UNAVAILABLE = "UNAVAILABLE"
    NOT_FOUND = "NOT_FOUND"
    CONFLICT = "CONFLICT"
    TOO_LARGE = "TOO_LARGE"


@frozen
class ErrorRow:
    """The form of one kind: JSON-RPC code, HTTP status, gRPC status name, domain of the details."""

    jsonrpc: int
    http: int
    grpc: str
    domain: str = A2A_DOMAIN


ROWS: Final[dict[ErrorKind, ErrorRow]] = {
    ErrorKind.TASK_NOT_FOUND: ErrorRow(-32001, 404, "NOT_FOUND"),
    ErrorKind.TASK_NOT_CANCELABLE: ErrorRow(-32002, 400, "FAILED_PRECONDITION"),
    ErrorKind.PUSH_NOTIFICATION_NOT_SUPPORTED: ErrorRow(-32003, 400, "FAILED_PRECONDITION"),
    ErrorKind.UNSUPPORTED_OPERATION: ErrorRow(-32004, 400, "FAILED_PRECONDITION"),
    ErrorKind.CONTENT_TYPE_NOT_SUPPORTED: ErrorRow(-32005, 400, "INVALID_ARGUMENT"),
    ErrorKind.INVALID_AGENT_RESPONSE: ErrorRow(-32006, 500, "INTERNAL"),
    ErrorKind.EXTENDED_AGENT_CARD_NOT_CONFIGURED: ErrorRow(-32007, 400, "FAILED_PRECONDITION"),
    ErrorKind.EXTENSION_SUPPORT_REQUIRED: ErrorRow(-32008, 400, "FAILED_PRECONDITION"),
    ErrorKind.VERSION_NOT_SUPPORTED: ErrorRow(-32009, 400, "FAILED_PRECONDITION"),
    ErrorKind.PARSE_ERROR: ErrorRow(-32700, 400, "INVALID_ARGUMENT"),
    ErrorKind.INVALID_REQUEST: ErrorRow(-32600, 400, "INVALID_ARGUMENT"),
    ErrorKind.METHOD_NOT_FOUND: ErrorRow(-32601, 404, "UNIMPLEMENTED"),
    ErrorKind.INVALID_PARAMS: ErrorRow(-32602, 400, "INVALID_ARGUMENT"),
    ErrorKind.INTERNAL: ErrorRow(-32603, 500, "INTERNAL"),
    ErrorKind.UNAUTHENTICATED: ErrorRow(-32603, 401, "UNAUTHENTICATED", OWN_DOMAIN),
    ErrorKind.DENIED: ErrorRow(-32603, 403, "PERMISSION_DENIED", OWN_DOMAIN),
    ErrorKind.LIMITED: ErrorRow(-32603, 429, "RESOURCE_EXHAUSTED", OWN_DOMAIN),
    ErrorKind.UNAVAILABLE: ErrorRow(-32603, 503, "UNAVAILABLE", OWN_DOMAIN),
    ErrorKind.NOT_FOUND: ErrorRow(-32603, 404, "NOT_FOUND", OWN_DOMAIN),
    ErrorKind.CONFLICT: ErrorRow(-32603, 409, "ABORTED", OWN_DOMAIN),
    ErrorKind.TOO_LARGE: ErrorRow(-32600, 413, "INVALID_ARGUMENT", OWN_DOMAIN),
}

KINDS: Final[dict[type[errors.PasserelleError], ErrorKind]] = {
    errors.PasserelleError: ErrorKind.INTERNAL,
    errors.CallerError: ErrorKind.INVALID_REQUEST,
    errors.InvalidInput: ErrorKind.INVALID_PARAMS,
    errors.MalformedBody: ErrorKind.PARSE_ERROR,
    InvalidRequest: ErrorKind.INVALID_REQUEST,
    errors.BadCursor: ErrorKind.INVALID_PARAMS,
    errors.GraphLimit: ErrorKind.INVALID_PARAMS,
    errors.InvalidContent: ErrorKind.INVALID_PARAMS,
    errors.UnknownOption: ErrorKind.INVALID_PARAMS,
    errors.TooLarge: ErrorKind.TOO_LARGE,
    errors.ArtifactTooLarge: ErrorKind.TOO_LARGE,
    errors.UnknownMethod: ErrorKind.METHOD_NOT_FOUND,
    errors.VersionNotSupported: ErrorKind.VERSION_NOT_SUPPORTED,
    errors.ContentTypeNotSupported: ErrorKind.CONTENT_TYPE_NOT_SUPPORTED,
    ExtensionRequired: ErrorKind.EXTENSION_SUPPORT_REQUIRED,
    errors.Unauthenticated: ErrorKind.UNAUTHENTICATED,
    errors.CredentialExpired: ErrorKind.UNAUTHENTICATED,
    errors.Forbidden: ErrorKind.DENIED,
    errors.Limited: ErrorKind.LIMITED,
    errors.NotFound: ErrorKind.NOT_FOUND,  # a task is TASK_NOT_FOUND, see classify
    errors.UnsupportedOperation: ErrorKind.UNSUPPORTED_OPERATION,
    ExtendedCardNotConfigured: ErrorKind.EXTENDED_AGENT_CARD_NOT_CONFIGURED,
    PushNotificationNotSupported: ErrorKind.PUSH_NOTIFICATION_NOT_SUPPORTED,
    errors.NotCancelable: ErrorKind.TASK_NOT_CANCELABLE,
    errors.WriteConflict: ErrorKind.CONFLICT,
    errors.VersionMismatch: ErrorKind.CONFLICT,
    errors.IdempotencyConflict: ErrorKind.CONFLICT,
    errors.ActionClosed: ErrorKind.UNSUPPORTED_OPERATION,
    errors.StaleAnswer: ErrorKind.CONFLICT,
    errors.StreamGap: ErrorKind.CONFLICT,
    errors.ConfigInvalid: ErrorKind.INTERNAL,
    errors.DirectoryInUse: ErrorKind.INTERNAL,
    errors.RemoteError: ErrorKind.UNAVAILABLE,
    errors.StoreUnavailable: ErrorKind.UNAVAILABLE,
    errors.ArchiveDamaged: ErrorKind.UNAVAILABLE,
    errors.RecordDamaged: ErrorKind.UNAVAILABLE,
    errors.EngineFailed: ErrorKind.UNAVAILABLE,
    errors.PeerUnavailable: ErrorKind.UNAVAILABLE,
    errors.PeerBusy: ErrorKind.LIMITED,
    errors.PeerRefused: ErrorKind.INTERNAL,  # refined by its native code
    errors.InvalidAgentResponse: ErrorKind.INVALID_AGENT_RESPONSE,
    errors.IssuerUnavailable: ErrorKind.UNAVAILABLE,
    errors.InstanceFull: ErrorKind.UNAVAILABLE,
    errors.Draining: ErrorKind.UNAVAILABLE,
}

_PASSED_ON: Final = {
    row.jsonrpc: kind
    for kind, row in ROWS.items()
    if row.domain == A2A_DOMAIN and kind not in {ErrorKind.PARSE_ERROR, ErrorKind.INTERNAL}
} | {
    # The method exists here, so "no such method" would be wrong for the called one.
    ROWS[ErrorKind.METHOD_NOT_FOUND].jsonrpc: ErrorKind.UNSUPPORTED_OPERATION
}


_RESERVED: Final = frozenset(range(-32768, -32099)) | frozenset(
    row.jsonrpc for row in ROWS.values()
)
"""Codes with a meaning in JSON-RPC or A2A."""
_AS_TASKS: Final = frozenset({"task", "push config"})
"""A2A has no own error for a missing push config."""


def classify_native(native_code: int) -> ErrorKind:
    """The kind of an agent's JSON-RPC code; an unknown code is an internal error of the agent."""
    return _PASSED_ON.get(native_code, ErrorKind.INTERNAL)


def choose_code(error: errors.PasserelleError) -> int:
    """The JSON-RPC code of the answer to ``error``; an agent's own code is passed on unchanged."""
    if isinstance(error, errors.PeerRefused) and error.native_code not in _RESERVED:
        return error.native_code
    return ROWS[classify(error)].jsonrpc


def classify(error: errors.PasserelleError) -> ErrorKind:
    """The kind of ``error``; an unlisted class has the kind of its nearest ancestor."""
    if isinstance(error, errors.PeerRefused):
        return classify_native(error.native_code)
    if isinstance(error, errors.NotFound) and error.kind in _AS_TASKS:
        return ErrorKind.TASK_NOT_FOUND
    return next(KINDS[ancestor] for ancestor in type(error).__mro__ if ancestor in KINDS)
