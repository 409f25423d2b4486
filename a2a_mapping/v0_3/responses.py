"""Responses and frames of A2A 0.3 in either form, by the four kinds of answer, and errors of its HTTP+JSON.

0.3 does not define the errors of HTTP+JSON. Its clients read ``type`` and ``message`` at the top level, as the Python
SDK does; the Google ``Status`` of 1.0 is included too, so that nothing is lost. JSON-RPC errors are the same in both
versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.envelopes import ErrorAnswer, render_status
from passerelle.a2a_mapping.errors import ROWS, classify
from passerelle.a2a_mapping.v0_3 import objects
from passerelle.a2a_mapping.v0_3.forms import Form
from passerelle.core.wire.json import JsonObject

if TYPE_CHECKING:
    from passerelle.core.errors import PasserelleError

_Change = Callable[[JsonObject, Form], JsonObject]
_WRITERS: Final[Mapping[str, _Change]] = {
    "task": objects.write_task,
    "message": objects.write_message,
    "statusUpdate": objects.write_status_event,
    "artifactUpdate": objects.write_artifact_event,
}
_READERS: Final[Mapping[str, tuple[str, _Change]]] = {
    "task": ("task", objects.read_task),
    "message": ("message", objects.read_message),
    "msg": ("message", objects.read_message),
    "status-update": ("statusUpdate", objects.read_status_event),
    "statusUpdate": ("statusUpdate", objects.read_status_event),
    "status_update": ("statusUpdate", objects.read_status_event),
    "artifact-update": ("artifactUpdate", objects.read_artifact_event),
    "artifactUpdate": ("artifactUpdate", objects.read_artifact_event),
    "artifact_update": ("artifactUpdate", objects.read_artifact_event),
}
_OWN_MEMBERS: Final[Mapping[str, str]] = {
    "artifact": "artifact-update",
    "parts": "message",
    "content": "message",
    "taskId": "status-update",
    "id": "task",
}
"""The first of these members of an object names its kind."""


def write_response(response: JsonObject, form: Form) -> JsonObject:
    """A SendMessageResponse or StreamResponse in 0.3; in JSON-RPC the object is not wrapped."""
    for name, write in _WRITERS.items():
        value = response.get(name)
        if isinstance(value, dict):
            written = write(value, form)
            return written if form is Form.KIND else {name: written}
    return dict(response)


def read_response(response: JsonObject, form: Form) -> JsonObject:
    """A 1.0 StreamResponse; any other object stays unchanged.

    The kind of one without ``kind`` is known by its members: some agents omit it, and clients of the SDKs accept that.
    """
    kind = response.get("kind")
    if isinstance(kind, str) and kind in _READERS:
        name, read = _READERS[kind]
        return {name: read(response, form)}
    for member, (name, read) in _READERS.items():
        value = response.get(member)
        if isinstance(value, dict):
            return {name: read(value, form)}
    for member, named in _OWN_MEMBERS.items():
        if member in response:
            name, read = _READERS[named]
            return {name: read(response, form)}
    return response


def ends_stream(frame: JsonObject, *, is_first: bool, follows_on: bool) -> bool:
    """Whether a stream of 0.3 ends with this 1.0 frame: with a message, and at the end of a turn.

    ``follows_on``: the task existed before the stream. Then the opening Task only shows the state at that time, so a
    waiting one does not end the stream.
    """
    if "message" in frame:
        return True
    for name in ("statusUpdate", "task"):
        value = frame.get(name)
        if isinstance(value, dict):
            return objects.ends_turn(value.get("status")) and not (is_first and follows_on)
    return False


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
    """The error name in 0.3."""
    return TYPES[ROWS[classify(error)].jsonrpc]


def render_legacy_status(error: PasserelleError) -> ErrorAnswer:
    """An error of HTTP+JSON below ``/v1``."""
    answer = render_status(error)
    return replace(answer, body={"type": name_type(error), "message": error.message, **answer.body})
