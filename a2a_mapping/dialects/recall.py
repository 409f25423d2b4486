"""Waiting tasks without their question: some agents show a question once, and later only the waiting state.

Such a status is no new question. It repeats the earlier one, unless the agent has begun to wait since. Agents of
LangGraph leave the question out of every later answer, and those of gemini-cli out of a Task without a history. The
Python SDKs move it from the status into the history with the next message that they receive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from passerelle.a2a_mapping.dialects import gemini_cli, langgraph, plain_text
from passerelle.a2a_mapping.dialects.pause import read_pause
from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.frames import ROLE_AGENT
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.core.payloads.approval import RemotePause
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import parse_ms

_SHOW_ONCE: Final = frozenset({gemini_cli.NAME, langgraph.NAME})


def recall(task: JsonObject, asked: Iterable[RemotePause]) -> frozenset[str]:
    """Occurrences of those asked questions in whose pause the agent's task still is.

    Empty if the task waits with a message or artifacts: then they contain the question.
    """
    pause = read_pause("", task)
    if pause is None or pause.message or pause.artifacts:
        return frozenset()
    return frozenset(
        one.occurrence
        for one in asked
        if (one.dialect in _SHOW_ONCE or _has_moved(task, one))
        and one.native_status == pause.native_status
        and not _is_later(pause.at, one.said_at)
    )


def restate(
    task: JsonObject, asked: RemotePause, shown: JsonObject, known_as: str
) -> JsonObject | None:
    """The agent's task as it was when it asked ``asked``; None if its message is no longer available.

    ``shown`` is the Task that callers see: there the status message of the question has the id ``known_as``, and its
    parts come after the gateway's form.
    """
    own = _find(task, asked.message_id or "")
    message = own or _find(shown, known_as)
    if not asked.message_id or message is None:
        return None
    parts = objects_at(message, "parts")
    forms = [place for place, part in enumerate(parts) if PERMISSION in object_at(part, "data")]
    if own is None and forms:
        parts = parts[forms[-1] + 1 :]
    said: JsonObject = {**message, "messageId": asked.message_id, "parts": as_list(parts)}
    status: JsonObject = {
        **object_at(task, "status"),
        "state": asked.native_status,
        "message": said,
    }
    return {**task, "status": status}


def _has_moved(task: JsonObject, asked: RemotePause) -> bool:
    """Whether a typed request is the last message of the agent in the history.

    Words are no such request: what the agent waits for without words is answered by words as well.
    """
    said = [one for one in objects_at(task, "history") if text_at(one, "role") == ROLE_AGENT]
    return (
        asked.dialect != plain_text.NAME
        and bool(said)
        and text_at(said[-1], "messageId") == asked.message_id
    )


def _find(task: JsonObject, message_id: str) -> JsonObject | None:
    """The agent's message of that id in the history."""
    return next(
        (
            one
            for one in objects_at(task, "history")
            if text_at(one, "messageId") == message_id and text_at(one, "role") == ROLE_AGENT
        ),
        None,
    )


def _is_later(at: str, known: str | None) -> bool:
    """Whether the agent began to wait after ``known``; without a time nothing is new."""
    try:
        return known is not None and parse_ms(at) > parse_ms(known)
    except ValueError:
        return False
