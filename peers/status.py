"""Errors of the HTTP+JSON binding as JSON-RPC error codes, and names of outcomes in metrics. Pure.

1.0 sends the error as a Google ``Status`` with an ``ErrorInfo``. 0.3 left the form open: agents send the class name of
the error, or repeat the JSON-RPC code. Of a body with neither only its HTTP status counts.

The outcome names of agent calls in metrics and spans are a small closed set.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.errors import A2A_DOMAIN, ROWS, ErrorKind
from passerelle.a2a_mapping.members import object_at, objects_at, text_at, whole_at
from passerelle.core.peer import Answered, Closed, Malformed, RefusedByPeer, Unknown, Unreached
from passerelle.peers import answers

if TYPE_CHECKING:
    from passerelle.core.peer import PeerOutcome, StreamOutcome
    from passerelle.core.wire.json import JsonObject
    from passerelle.peers.call import AgentReply, Operation

_BY_REASON: Final = {
    kind.value: row.jsonrpc for kind, row in ROWS.items() if row.domain == A2A_DOMAIN
}
_BY_NAME: Final = {
    "TaskNotFoundError": ErrorKind.TASK_NOT_FOUND,
    "TaskNotCancelableError": ErrorKind.TASK_NOT_CANCELABLE,
    "PushNotificationNotSupportedError": ErrorKind.PUSH_NOTIFICATION_NOT_SUPPORTED,
    "UnsupportedOperationError": ErrorKind.UNSUPPORTED_OPERATION,
    "ContentTypeNotSupportedError": ErrorKind.CONTENT_TYPE_NOT_SUPPORTED,
    "InvalidAgentResponseError": ErrorKind.INVALID_AGENT_RESPONSE,
    "AuthenticatedExtendedCardNotConfiguredError": ErrorKind.EXTENDED_AGENT_CARD_NOT_CONFIGURED,
    "VersionNotSupportedError": ErrorKind.VERSION_NOT_SUPPORTED,
    "InvalidRequestError": ErrorKind.INVALID_REQUEST,
    "InvalidParamsError": ErrorKind.INVALID_PARAMS,
    "MethodNotFoundError": ErrorKind.METHOD_NOT_FOUND,
    "JSONParseError": ErrorKind.PARSE_ERROR,
}
_BY_STATUS: Final = {
    "INTERNAL": ErrorKind.INTERNAL,
    "INVALID_ARGUMENT": ErrorKind.INVALID_PARAMS,
    "UNIMPLEMENTED": ErrorKind.METHOD_NOT_FOUND,
}
_BY_HTTP: Final[dict[int, ErrorKind]] = {
    HTTPStatus.UNPROCESSABLE_ENTITY: ErrorKind.INVALID_PARAMS,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: ErrorKind.CONTENT_TYPE_NOT_SUPPORTED,
    HTTPStatus.CONFLICT: ErrorKind.TASK_NOT_CANCELABLE,
    HTTPStatus.INTERNAL_SERVER_ERROR: ErrorKind.INTERNAL,
}
"""Agents of 0.3 send some errors as a message and a status only, as the Python SDK does."""
_OF_TASKS: Final = frozenset[str](
    {"GetTask", "CancelTask", "SubscribeToTask", "CreateTaskPushNotificationConfig"}
)


def read_status_body(operation: Operation, reply: AgentReply) -> PeerOutcome:
    """The outcome of an unsuccessful response; ``operation`` decides what a bare NOT_FOUND refers to."""
    try:
        value = answers.parse_json(reply.raw)
    except answers.NotJson:
        value = None
    if not isinstance(value, dict):
        return answers.read_bare_status(reply.status, reply.retry_after, reply.raw)
    error = object_at(value, "error") or value
    code = _find_code(operation, error)
    if code is None and value.keys() == {"message"} and reply.status in _BY_HTTP:
        code = ROWS[_BY_HTTP[reply.status]].jsonrpc
    if code is None:
        return answers.read_bare_status(reply.status, reply.retry_after, reply.raw)
    text = text_at(error, "message")[: answers.MESSAGE_CHARS]
    wait_s = answers.read_retry_after(reply.retry_after)
    details = answers.list_given(error.get("details"))
    return RefusedByPeer(code, text, reply.status, wait_s, details)


def _find_code(operation: Operation, error: JsonObject) -> int | None:
    for detail in objects_at(error, "details"):
        if (code := _BY_REASON.get(text_at(detail, "reason"))) is not None:
            return code
    native = whole_at(error, "code")
    if native is not None and native < 0:
        return native
    status = text_at(error, "status")
    kind = _BY_NAME.get(text_at(error, "type")) or _BY_STATUS.get(status)
    if kind is None and status == HTTPStatus.NOT_FOUND.name and operation in _OF_TASKS:
        kind = ErrorKind.TASK_NOT_FOUND
    return ROWS[kind].jsonrpc if kind is not None else None


def name_outcome(outcome: StreamOutcome) -> str:
    """The name of an outcome; ``breaker`` and ``limit`` were rejected here, so the agent did not receive them."""
    match outcome:
        case Answered() | Closed():
            return "answered"
        case RefusedByPeer():
            return "refused"
        case Unreached(why=why):
            return "unreached" if why == "connection" else why
        case Unknown():
            return "unknown"
        case Malformed():
            return "malformed"
        case _:
            assert_never(outcome)
