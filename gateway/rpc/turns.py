"""Reads a caller's message in the forms that ``/v1`` and channels accept."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.inbound import ROLE_USER, read_configuration, read_send
from passerelle.core.commands import SubmitTurn
from passerelle.core.errors import InvalidInput
from passerelle.gateway.rpc.forms import (
    SpawnSubagentParams,
    StartTaskParams,
    SubagentInputParams,
    SubmitTurnParams,
)

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.common.calls import Caller


_HANDLED_HERE: Final = (
    "historyLength",
    "history_length",
    "returnImmediately",
    "return_immediately",
    "taskPushNotificationConfig",
    "task_push_notification_config",
)
"""Members of A2A's ``configuration`` that the gateway handles itself."""


def read_turn(params: SubmitTurnParams, caller: Caller) -> SubmitTurn:
    """The turn to open.

    Raises:
        InvalidInput: the message is malformed, or names another task or context than the params.
    """
    extras = _read_extras(params)
    request = read_send({"message": compose_message(params, caller), **extras})
    _require_equal("taskId", params.task_id, request.task_id)
    _require_equal("contextId", params.context_id, request.context_id)
    named = request.task_id or request.context_id or params.thread_id
    if params.create == "always" and named is not None:
        raise InvalidInput("create", f"no thread is created for a message that names {named}")
    if params.when_same is not None and request.task_id is not None:
        raise InvalidInput("whenSame", f"a message to the task {request.task_id} opens no task")
    return SubmitTurn(
        agent=params.agent,
        message=request.message,
        source=caller.source,
        wait="none",
        task=request.task_id,
        context_id=request.context_id,
        session_id=params.session_id,
        params={name: request.params[name] for name in extras} or None,
        when_busy=params.when_busy,
        when_same=params.when_same,
        thread_id=params.thread_id,
        makes_thread=params.create != "never",
        after=tuple(params.after or ()),
        traceparent=caller.traceparent or params.traceparent,
        tracestate=caller.tracestate,
    )


def _read_extras(params: SubmitTurnParams) -> JsonObject:
    """What is sent to the agent in addition to the message, under its A2A names.

    Raises:
        InvalidInput: an option is malformed, or not one for the agent.
    """
    extras: JsonObject = {}
    if params.options is not None:
        try:
            read_configuration(params.options)
        except InvalidInput as error:
            raise InvalidInput(f"options.{error.field}", error.reason) from None
        for name in _HANDLED_HERE:
            if name in params.options:
                raise InvalidInput(
                    f"options.{name}", "is not an option of the agent: use the other calls"
                )
        extras["configuration"] = params.options
    if params.metadata is not None:
        extras["metadata"] = params.metadata
    return extras


def compose_message(
    params: SubmitTurnParams | StartTaskParams | SpawnSubagentParams | SubagentInputParams,
    caller: Caller,
) -> JsonObject:
    """The A2A message from any of its forms. Raises InvalidInput unless exactly one is given."""
    given = [name for name in ("message", "parts", "text") if getattr(params, name) is not None]
    if len(given) != 1:
        raise InvalidInput("message", "exactly one of message, parts and text is required")
    if params.message is not None:
        message: JsonObject = {"role": ROLE_USER, **params.message}
        if "messageId" not in message and "message_id" not in message:
            message["messageId"] = _derive_message_id(caller)
    else:
        parts: list[Json] = [*params.parts] if params.parts else [{"text": params.text}]
        if params.parts == []:
            raise InvalidInput("parts", "at least one part is required")
        message = {"role": ROLE_USER, "messageId": _derive_message_id(caller), "parts": parts}
    if isinstance(params, SubmitTurnParams) and params.task_id:
        message.setdefault("taskId", params.task_id)
    if isinstance(params, SubmitTurnParams) and params.context_id:
        message.setdefault("contextId", params.context_id)
    return message


def _derive_message_id(caller: Caller) -> str:
    """Derived from the idempotency key, so that a repeated request sends the same message."""
    if caller.idem is None:
        raise InvalidInput("messageId", "an idempotency key or a message with an id is required")
    name = f"{caller.principal.tenant}\0{caller.principal.id}\0{caller.idem}"
    return f"msg-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _require_equal(name: str, outside: str | None, inside: str | None) -> None:
    if outside is not None and outside != inside:
        raise InvalidInput(name, f"differs from message.{name}")
