"""The pause of an agent: the state, the status message and the ids that every dialect reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from passerelle.a2a_mapping.dialects.display import SAFE_INTEGER, escape_text
from passerelle.a2a_mapping.frames import ROLE_AGENT
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.states import INTERRUPTED_STATES
from passerelle.core.approval.prompt import PeerAnswer, PeerPrompt
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.wire.canonical import digest
from passerelle.core.wire.json import Json, JsonObject

LAST_SAID: Final = "said"
"""The member with the agent's last message, in an update that was made a Task: it has no history."""
_NAMESPACE: Final = hashlib.sha1(b"urn:passerelle:decision", usedforsecurity=False).digest()[:16]


@frozen
class AgentPause:
    """A waiting task of an agent. ``task`` and ``context`` are the agent's own ids."""

    peer: str
    task: str
    context: str
    native_status: str
    message: JsonObject
    at: str = ""
    """The time of the status by the agent's clock; empty if it sent none."""
    artifacts: tuple[JsonObject, ...] = ()
    said: JsonObject = field(default_factory=dict[str, "Json"])
    """The agent's last message: that of the status, or the one before a status without a message."""

    @property
    def message_id(self) -> str | None:
        """The id of the status message, if there is one."""
        return text_at(self.message, "messageId") or None

    @property
    def text(self) -> str:
        """The text parts of the status message, escaped, joined by line feeds."""
        texts = [text_at(part, "text") for part in objects_at(self.message, "parts")]
        return escape_text("\n".join(text for text in texts if text))


@frozen
class DecidedQuestion:
    """One decided question of a pause."""

    prompt: PeerPrompt
    answer: PeerAnswer
    decision_id: str
    native: JsonObject | None = None
    """The answer in the dialect's own form, if it was given so."""


def read_pause(peer: str, task: JsonObject) -> AgentPause | None:
    """The pause of an agent's Task (with the agent's ids), or None if it does not wait."""
    status = object_at(task, "status")
    state = text_at(status, "state")
    if state not in INTERRUPTED_STATES:
        return None
    return AgentPause(
        peer=peer,
        task=text_at(task, "id"),
        context=text_at(task, "contextId"),
        native_status=state,
        message=object_at(status, "message"),
        at=text_at(status, "timestamp"),
        artifacts=tuple(objects_at(task, "artifacts")),
        said=object_at(task, LAST_SAID) or find_last_said(task),
    )


def find_last_said(task: JsonObject) -> JsonObject:
    """The agent's last message of a Task, in its status or history; empty if there is none."""
    said = object_at(object_at(task, "status"), "message")
    if said:
        return said
    for one in reversed(objects_at(task, "history")):
        if text_at(one, "role") == ROLE_AGENT:
            return one
    return {}


def identify_occurrence(pause: AgentPause, native_id: str | None) -> str:
    """The key of one question, equal for every observation of it: stream, poll, or the agent's history.

    Derived from the agent's id of the question, else from the status message, else from content and time: an agent that
    waits again without a message has asked again.
    """
    by: tuple[str, ...]
    if native_id is not None:
        by = ("native", native_id)
    elif pause.message_id is not None:
        by = ("message", pause.message_id)
    else:
        by = ("content", _digest_content(pause), pause.at)
    return hashlib.sha256("\0".join((pause.peer, pause.task, *by)).encode()).hexdigest()


def is_lossy(value: Json) -> bool:
    """Whether digits may be lost: a number beyond 2^53, which a reader of floats cannot hold."""
    if isinstance(value, dict):
        return any(is_lossy(member) for member in value.values())
    if isinstance(value, list):
        return any(is_lossy(item) for item in value)
    return isinstance(value, int | float) and abs(value) >= SAFE_INTEGER


def make_reply(
    pause_ids: tuple[str, str], decision_ids: list[str], parts: list[Json]
) -> JsonObject:
    """The one message that answers a pause; its id is derived from the decisions, so a repeat has the same one."""
    task, context = pause_ids
    message: JsonObject = {
        "messageId": derive_message_id(decision_ids),
        "role": "ROLE_USER",
        "taskId": task,
        "parts": parts,
    }
    return {**message, "contextId": context} if context else message


def encode_parts(
    replies: Sequence[DecidedQuestion],
    pause_ids: tuple[str, str],
    write_part: Callable[[DecidedQuestion], JsonObject | None],
) -> JsonObject | None:
    """The reply with one part per answer; None if one answer has none: cancel the task."""
    parts: list[Json] = []
    for reply in replies:
        part = write_part(reply)
        if part is None:
            return None
        parts.append(part)
    return make_reply(pause_ids, [reply.decision_id for reply in replies], parts)


def require_all(prompts: Sequence[PeerPrompt | None]) -> list[PeerPrompt]:
    """All questions of a message; empty if one of them cannot be read, or two have the same id."""
    found = [prompt for prompt in prompts if prompt]
    ids = {prompt.native_id for prompt in found}
    return found if len(ids) == len(prompts) else []


def derive_message_id(decision_ids: list[str]) -> str:
    """A UUID, version 5, of one decision or of all decisions of a group, in any order."""
    name = ",".join(sorted(decision_ids)).encode()
    raw = bytearray(hashlib.sha1(_NAMESPACE + name, usedforsecurity=False).digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x50
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _digest_content(pause: AgentPause) -> str:
    try:
        return digest([pause.native_status, pause.message.get("parts")])
    except InvalidInput:
        return hashlib.sha256(repr(pause.message.get("parts")).encode()).hexdigest()
