"""A2A 1.0 over HTTP+JSON (A2A 1.0 section 11). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never
from urllib.parse import quote, urlencode

import orjson

from passerelle.a2a_mapping.members import text_at
from passerelle.core.peer import Answered, RefusedByPeer
from passerelle.peers import answers
from passerelle.peers.call import AgentReply, PeerRequest
from passerelle.peers.status import read_status_body

if TYPE_CHECKING:
    from passerelle.core.peer import PeerOutcome
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.peers.call import PeerCall
    from passerelle.peers.interface import Interface


class HttpJson:
    """The wire format of HTTP+JSON 1.0; a tenant is the first part of the path."""

    def write(self, interface: Interface, call: PeerCall, call_id: int) -> PeerRequest:  # noqa: ARG002  # a connection answers in order
        base = interface.url.rstrip("/")
        if interface.tenant is not None:
            base = f"{base}/{quote(interface.tenant)}"
        return address(base, call, orjson.dumps(call.params))

    def read(self, call: PeerCall, call_id: int, reply: AgentReply) -> PeerOutcome:  # noqa: ARG002
        return read_reply(call, reply)

    def read_event(self, payload: bytes) -> PeerOutcome:
        return read_event(payload)


def address(base: str, call: PeerCall, body: bytes) -> PeerRequest:
    """Method and path of a call below ``base``; sends and push configs carry ``body``.

    The paths of 0.3 differ only in their base.
    """
    task = quote(text_at(call.params, "id"), safe="")
    match call.operation:
        case "SendMessage":
            return PeerRequest("POST", f"{base}/message:send", body)
        case "SendStreamingMessage":
            return PeerRequest("POST", f"{base}/message:stream", body)
        case "GetTask":
            rest = {name: value for name, value in call.params.items() if name != "id"}
            return PeerRequest("GET", f"{base}/tasks/{task}{_write_query(rest)}")
        case "ListTasks":
            return PeerRequest("GET", f"{base}/tasks{_write_query(call.params)}")
        case "CancelTask":
            return PeerRequest("POST", f"{base}/tasks/{task}:cancel", b"{}")
        case "SubscribeToTask":
            return PeerRequest("POST", f"{base}/tasks/{task}:subscribe", b"{}")
        case "CreateTaskPushNotificationConfig":
            task = quote(text_at(call.params, "taskId"), safe="")
            return PeerRequest("POST", f"{base}/tasks/{task}/pushNotificationConfigs", body)
        case "GetExtendedAgentCard":
            return PeerRequest("GET", f"{base}/extendedAgentCard")
        case _:
            assert_never(call.operation)


def _write_query(params: JsonObject) -> str:
    """Texts, numbers and booleans; empty values are omitted, since absence means the same."""
    pairs = [
        (name, _write_value(value)) for name, value in params.items() if value not in ("", None)
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def _write_value(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_reply(call: PeerCall, reply: AgentReply) -> PeerOutcome:
    """Reads a whole response."""
    if answers.is_success(reply.status):
        return answers.read_document(reply.raw)
    return read_status_body(call.operation, reply)


def read_event(payload: bytes) -> PeerOutcome:
    """Reads one event; an error in a stream is a Status body (A2A 1.0 section 11.7)."""
    outcome = answers.read_document(payload)
    if not (
        isinstance(outcome, Answered) and isinstance(error := outcome.result.get("error"), dict)
    ):
        return outcome
    failure = read_status_body("SendStreamingMessage", AgentReply(answers.OK, None, payload))
    if isinstance(failure, RefusedByPeer):
        return failure
    return RefusedByPeer(answers.INTERNAL_ERROR, text_at(error, "message")[: answers.MESSAGE_CHARS])
