"""What the records say of a message: its turn, words that describe it, and what tells it from another one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.record import value
from passerelle.core.thread import SubmitMessage
from passerelle.gateway.delegation.spill import Spill, hold

if TYPE_CHECKING:
    from passerelle.core.commands import SubmitTurn
    from passerelle.core.facts import Scope
    from passerelle.core.json import JsonObject

TITLE_LENGTH: Final = 80
_OBJECTIVE_LENGTH: Final = 2000
_PREVIEW_LENGTH: Final = 200


@value
class Words:
    """What is read off a message to describe its task and its turn."""

    objective: str
    title: str
    preview: str


def submit(command: SubmitTurn, scope: Scope, spill: Spill) -> SubmitMessage:
    """The turn of a message; a message over the cap stands behind ``refs.input``."""
    ref = hold(spill, command.message)
    submitted = TurnSubmitted(
        message_id=str(command.message["messageId"]),
        agent=command.agent,
        source=command.source,
        preview=describe(command).preview,
        message=None if ref else command.message,
    )
    return SubmitMessage(
        session_id=scope.session_id,
        turn_id=scope.turn_id or "",
        task_id=scope.task_id or "",
        submitted=submitted,
        refs={"input": ref} if ref else {},
    )


def describe(command: SubmitTurn) -> Words:
    """What the records say of a message."""
    text = read_text(command.message)
    first = text.strip()[:TITLE_LENGTH].splitlines()
    title = first[0] if first else command.agent[:TITLE_LENGTH]
    return Words(text[:_OBJECTIVE_LENGTH], title, text[:_PREVIEW_LENGTH])


def read_text(message: JsonObject) -> str:
    """The text parts of a message, joined."""
    parts = message.get("parts")
    if not isinstance(parts, list):
        return ""
    texts = [
        text
        for part in parts
        if isinstance(part, dict) and isinstance(text := part.get("text"), str)
    ]
    return "\n".join(texts)


def digest_request(command: SubmitTurn) -> str:
    """Tells one request from another under the same idempotency key."""
    named = [command.agent, command.message, command.task, command.context_id, command.session_id]
    return hashlib.sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hexdigest()
