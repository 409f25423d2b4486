"""How records describe a message: its turn, title and preview, and the digest that distinguishes requests."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import objects_at
from passerelle.a2a_mapping.outbound import RemoteAddress, address_send
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.session.thread import SubmitMessage
from passerelle.core.wire.record import value
from passerelle.runtime.records.blob_overflow import BlobOverflow, hold
from passerelle.runtime.records.task_fields import SendOptions, TurnInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.commands import SubmitTurn
    from passerelle.core.facts import Scope
    from passerelle.core.wire.json import Json, JsonObject

TITLE_LENGTH: Final = 80
_OBJECTIVE_LENGTH: Final = 2000
_PREVIEW_LENGTH: Final = 200
_ANSWER_LENGTH: Final = 4000
_OTHER_KINDS: Final = ("data", "raw", "url")
_SHOWN_PARTS: Final = 32


@value
class MessageSummary:
    """Text derived from a message to describe its task and turn."""

    objective: str
    title: str
    preview: str


def submit(
    command: SubmitTurn,
    scope: Scope,
    spill: BlobOverflow,
    extensions: Iterable[str] = (),
    kept: str | None = None,
) -> SubmitMessage:
    """The turn of a message; a message over the size limit is referenced by ``refs.input``.

    The options of a further message are stored with its turn; those of a first message are in its run. ``kept``: why
    the message is not sent.
    """
    ref = hold(spill, command.message)
    options = read_options(command)
    aside = hold(spill, options) if options else None
    submitted = TurnSubmitted(
        message_id=str(command.message["messageId"]),
        agent=command.agent,
        source=command.source,
        preview=describe(command).preview,
        message=None if ref else command.message,
        streams=True if command.task is not None and command.wait == "stream" else None,
        options=None if aside else options,
        extensions=tuple(sorted(extensions)) or None,
        kept=kept,
        sealed=command.sealed,
    )
    return SubmitMessage(
        session_id=scope.session_id,
        turn_id=scope.turn_id or "",
        task_id=scope.task_id or "",
        submitted=submitted,
        refs={name: one for name, one in (("input", ref), ("options", aside)) if one},
    )


def read_input(command: SubmitTurn, extensions: Iterable[str]) -> TurnInput:
    """A further message in the form in which it is read from its stored turn."""
    options, names = read_options(command) or {}, tuple(sorted(extensions))
    return TurnInput(
        command.message, SendOptions(command.wait == "stream", options, names, command.sealed)
    )


def read_options(command: SubmitTurn) -> JsonObject | None:
    """The options of a further message for its agent; options for the gateway are left out."""
    if command.task is None or not command.params:
        return None
    options = address_send({**command.params, "message": {}}, RemoteAddress())
    del options["message"]
    return options or None


def describe(command: SubmitTurn) -> MessageSummary:
    """Describes a message for the records."""
    text = read_text(command.message)
    first = text.strip()[:TITLE_LENGTH].splitlines()
    title = command.title or (first[0] if first else command.agent[:TITLE_LENGTH])
    return MessageSummary(text[:_OBJECTIVE_LENGTH], title, text[:_PREVIEW_LENGTH])


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


def describe_answer(message: JsonObject) -> JsonObject:
    """The answer to an approval as people see it: its text, and the kinds of its other parts."""
    described: JsonObject = {"text": read_text(message)[:_ANSWER_LENGTH]}
    kinds: list[Json] = [
        name for part in objects_at(message, "parts") for name in _OTHER_KINDS if name in part
    ]
    return {**described, "parts": kinds[:_SHOWN_PARTS]} if kinds else described


def digest_request(command: SubmitTurn) -> str:
    """A digest that distinguishes requests under the same idempotency key."""
    named: list[Json] = [
        command.agent,
        command.message,
        command.task,
        command.context_id,
        command.session_id,
    ]
    if command.thread_id is not None:
        named.append(command.thread_id)
    if command.when_same is not None:
        named.append(command.when_same)
    if command.after:
        named.append([*command.after])
    if command.params is not None and command.source != "a2a":
        named.append(command.params)
    return hashlib.sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hexdigest()
