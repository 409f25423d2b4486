"""Requests of callers, checked and made into small values.

The caller's params object is kept, so that unknown fields reach the agent. Known fields may come in camelCase or
snake_case, as ProtoJSON parsers accept both; they are kept in camelCase. Nothing below ``metadata`` or inside a data
part is changed (A2A 1.0 section 5.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from passerelle.a2a_mapping.extensions import AFTER, APPROVAL, NAMED
from passerelle.a2a_mapping.members import (
    explain_missing,
    object_at,
    read_flag,
    read_text,
    read_texts,
    read_time_ms,
    read_whole,
    require_text,
)
from passerelle.a2a_mapping.states import PEER_STATES, UNSPECIFIED
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import value

ROLE_USER: Final = "ROLE_USER"
CONTENT_FIELDS: Final = ("text", "raw", "url", "data")
_NOT_ONE: Final = f"must have exactly one of {', '.join(CONTENT_FIELDS)}"
PAGE_SIZE_DEFAULT: Final = 50
PAGE_SIZE_MAX: Final = 100
MOST_NAMED: Final = 8
"""Names of artifacts in one message."""

_MESSAGE_NAMES: Final = {
    "message_id": "messageId",
    "context_id": "contextId",
    "task_id": "taskId",
    "reference_task_ids": "referenceTaskIds",
}
_PART_NAMES: Final = {"media_type": "mediaType"}
_CONFIGURATION_NAMES: Final = {
    "accepted_output_modes": "acceptedOutputModes",
    "history_length": "historyLength",
    "return_immediately": "returnImmediately",
    "task_push_notification_config": "taskPushNotificationConfig",
}
_TASK_NAMES: Final = {"history_length": "historyLength"}
_LIST_NAMES: Final = {
    "context_id": "contextId",
    "page_size": "pageSize",
    "page_token": "pageToken",
    "history_length": "historyLength",
    "status_timestamp_after": "statusTimestampAfter",
    "include_artifacts": "includeArtifacts",
}


@value
class SendRequest:
    """A message to an agent; ``params`` is the caller's whole request, in camelCase.

    ``push`` is its push notification config, if any.
    """

    params: JsonObject
    message: JsonObject
    message_id: str
    task_id: str | None
    context_id: str | None
    reference_task_ids: tuple[str, ...]
    extensions: tuple[str, ...]
    accepted_output_modes: tuple[str, ...]
    history_length: int | None
    return_immediately: bool
    push: JsonObject | None

    @property
    def blocking(self) -> bool:
        """Whether the caller waits until the task has ended or asks for input: the default."""
        return not self.return_immediately


@frozen
class _Configuration:
    """The configuration of a message."""

    accepted_output_modes: tuple[str, ...] = ()
    history_length: int | None = None
    return_immediately: bool = False
    push: JsonObject | None = None


_NO_CONFIGURATION: Final = _Configuration()


@frozen
class _MessageRefs:
    """References of a message; most open a context and have none."""

    task_id: str | None = None
    context_id: str | None = None
    reference_task_ids: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


_NO_REFS: Final = _MessageRefs()
_REF_MEMBERS: Final = frozenset({"taskId", "contextId", "referenceTaskIds", "extensions"})


@frozen
class TaskReference:
    """GetTask, CancelTask or SubscribeToTask: one task, named by its facade id."""

    id: str
    history_length: int | None
    metadata: JsonObject


@frozen
class ListRequest:
    """ListTasks. ``after_ms``: only tasks whose status is newer; ``page_token`` is opaque here."""

    context_id: str | None
    state: str | None
    page_size: int
    page_token: str | None
    history_length: int | None
    after_ms: int | None
    include_artifacts: bool


def read_send(params: JsonObject) -> SendRequest:
    """The params of SendMessage and SendStreamingMessage, or the body of their HTTP+JSON form.

    Raises:
        InvalidInput: a required field is missing or a field is malformed; naming it.
    """
    message = read_message(params)
    configuration = _NO_CONFIGURATION
    whole: JsonObject = {**params, "message": message}
    if given := "configuration" in params and _read_object(params, "configuration", ""):
        whole["configuration"] = given = _rename(given, _CONFIGURATION_NAMES, "configuration.")
        configuration = _parse_configuration(given)
    message_id = require_text(message, "messageId", "message.")
    refs = _NO_REFS if _REF_MEMBERS.isdisjoint(message) else _read_refs(message)
    return SendRequest(
        whole,
        message,
        message_id,
        # Keyword arguments take twice the time.
        refs.task_id,
        refs.context_id,
        refs.reference_task_ids,
        refs.extensions,
        configuration.accepted_output_modes,
        configuration.history_length,
        configuration.return_immediately,
        configuration.push,
    )


def read_message(params: JsonObject) -> JsonObject:
    """The message of a request, in camelCase; its ids and references are not checked.

    Raises:
        InvalidInput: there is none, or a field is malformed; naming it.
    """
    value = params.get("message")
    if not isinstance(value, dict):
        missing = explain_missing(params, "message")
        raise InvalidInput("message", missing if value is None else "must be an object")
    message = _rename(value, _MESSAGE_NAMES, "message.")
    role = message.get("role")
    if role == 1 and type(role) is int:
        # ProtoJSON parsers accept an enum by its number too.
        message["role"] = role = ROLE_USER
    if role != ROLE_USER:
        raise InvalidInput("message.role", f"must be {ROLE_USER}")
    parts = message.get("parts")
    if not isinstance(parts, list) or not (parts or _is_metadata_decision(message)):
        raise InvalidInput("message.parts", "must be a list with at least one part")
    message["parts"] = [
        _read_part(part, f"message.parts[{index}]") for index, part in enumerate(parts)
    ]
    if "metadata" in message:
        _read_object(message, "metadata", "message.")
    return message


def read_configuration(given: JsonObject) -> None:
    """Checks the configuration of a message.

    Raises:
        InvalidInput: a field is malformed; named as in ``given``.
    """
    _parse_configuration(_rename(given, _CONFIGURATION_NAMES, ""), "")


def read_after(message: JsonObject) -> tuple[str, ...]:
    """The tasks that must complete before a message is sent, as its caller names them.

    Raises:
        InvalidInput: not a list of ids.
    """
    metadata = object_at(message, "metadata")
    return read_texts(metadata, AFTER, "message.metadata.") if AFTER in metadata else ()


def read_named(message: JsonObject) -> tuple[str, ...]:
    """The names of artifacts that a message refers to, each once, as its caller writes them.

    Raises:
        InvalidInput: not a list of texts, more than :data:`MOST_NAMED`, or one is empty.
    """
    metadata = object_at(message, "metadata")
    if NAMED not in metadata:
        return ()
    names = tuple(dict.fromkeys(read_texts(metadata, NAMED, "message.metadata.")))
    if len(names) > MOST_NAMED or not all(names):
        raise InvalidInput(f"message.metadata.{NAMED}", f"at most {MOST_NAMED} names, none empty")
    return names


def read_task(params: JsonObject) -> TaskReference:
    """The params of GetTask, CancelTask and SubscribeToTask.

    Raises:
        InvalidInput: no id, or a field is malformed; naming it.
    """
    params = _rename(params, _TASK_NAMES, "")
    return TaskReference(
        id=require_text(params, "id"),
        history_length=read_whole(params, "historyLength"),
        metadata=_read_object(params, "metadata", ""),
    )


def read_list(params: JsonObject) -> ListRequest:
    """The params of ListTasks.

    Raises:
        InvalidInput: a field is malformed or out of bounds; naming it.
    """
    params = _rename(params, _LIST_NAMES, "")
    size = read_whole(params, "pageSize", low=1, high=PAGE_SIZE_MAX)
    return ListRequest(
        context_id=read_text(params, "contextId"),
        state=_read_state(params),
        page_size=PAGE_SIZE_DEFAULT if size is None else size,
        page_token=read_text(params, "pageToken"),
        history_length=read_whole(params, "historyLength"),
        after_ms=read_time_ms(params, "statusTimestampAfter"),
        include_artifacts=read_flag(params, "includeArtifacts"),
    )


def read_query(query: Mapping[str, str]) -> JsonObject:
    """The query parameters of HTTP+JSON as params; an empty one is absent."""
    return {name: value for name, value in query.items() if value != ""}


def _is_metadata_decision(message: JsonObject) -> bool:
    """Whether it is a decision in the form of AgentStack, which has no parts."""
    metadata = message.get("metadata")
    return isinstance(metadata, dict) and APPROVAL in metadata


def _read_part(value: Json, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise InvalidInput(path, "must be an object")
    part = _rename(value, _PART_NAMES, f"{path}.")
    given = ""
    for name in CONTENT_FIELDS:
        # Null is a value of a data part, and means absent for the other three.
        if name in part and (name == "data" or part[name] is not None):
            if given:
                raise InvalidInput(path, _NOT_ONE)
            given = name
    if not given:
        raise InvalidInput(path, _NOT_ONE)
    if given != "data" and not isinstance(part[given], str):
        raise InvalidInput(f"{path}.{given}", "must be a text")
    return part


def _read_refs(message: JsonObject) -> _MessageRefs:
    path = "message."
    return _MessageRefs(
        read_text(message, "taskId", path),
        read_text(message, "contextId", path),
        read_texts(message, "referenceTaskIds", path),
        read_texts(message, "extensions", path),
    )


def _parse_configuration(configuration: JsonObject, path: str = "configuration.") -> _Configuration:
    return _Configuration(
        read_texts(configuration, "acceptedOutputModes", path),
        read_whole(configuration, "historyLength", path),
        read_flag(configuration, "returnImmediately", path),
        _read_object(configuration, "taskPushNotificationConfig", path) or None,
    )


def _read_state(params: JsonObject) -> str | None:
    state = read_text(params, "status")
    if state is None or state == UNSPECIFIED:
        return None
    if state not in PEER_STATES:
        raise InvalidInput("status", f"must be one of {', '.join(PEER_STATES)}")
    return state


def _read_object(holder: JsonObject, name: str, path: str) -> JsonObject:
    value = holder.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(path + name, "must be an object")
    return value


def _rename(holder: JsonObject, names: Mapping[str, str], path: str) -> JsonObject:
    """A copy of ``holder`` with the known snake_case names in camelCase."""
    for name in names:
        if name in holder:
            break
    else:
        return {**holder}
    renamed: JsonObject = {}
    for name, member in holder.items():
        wire = names.get(name, name)
        if wire in renamed:
            raise InvalidInput(path + wire, "is given twice")
        renamed[wire] = member
    return renamed
