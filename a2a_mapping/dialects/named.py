"""The ids in an agent's questions: what an answer has to name exactly as the agent wrote it."""

from __future__ import annotations

from typing import Final

from passerelle.a2a_mapping.dialects.pause import AgentPause
from passerelle.a2a_mapping.dialects.registry import DIALECTS
from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.wire.json import JsonObject

ID_MEMBERS: Final = frozenset({
    "action_id", "callId", "digest", "expires_at", "id", "interruptId", "option_id"
})  # fmt: skip
"""The members of questions that hold what ``find_named`` returns."""


def find_named(answer: JsonObject) -> frozenset[str]:
    """The ids, digests, option ids and times of all questions in an agent's answer (a Task, a Message or an update)."""
    task = object_at(answer, "task")
    artifacts = [*objects_at(task, "artifacts")]
    if part := object_at(object_at(answer, "artifactUpdate"), "artifact"):
        artifacts.append(part)
    messages = [
        object_at(object_at(task, "status"), "message"),
        object_at(object_at(object_at(answer, "statusUpdate"), "status"), "message"),
        *objects_at(task, "history"),
    ]
    pauses = [_make_pause(message, ()) for message in messages if message]
    pauses += [_make_pause({}, (artifact,)) for artifact in artifacts]
    return frozenset(text for pause in pauses for text in _list_named(pause) if text)


def _make_pause(message: JsonObject, artifacts: tuple[JsonObject, ...]) -> AgentPause:
    return AgentPause("", "", "", "TASK_STATE_INPUT_REQUIRED", message, artifacts=artifacts)


def _list_named(pause: AgentPause) -> list[str]:
    found: list[str] = []
    for dialect in DIALECTS:
        for prompt in dialect.detect(pause):
            # Several members may be joined by blanks, or the id have a kind before it.
            found += [*(prompt.native_id or "").split(), *(one.option_id for one in prompt.options)]
    for part in objects_at(pause.message, "parts"):
        found.append(text_at(object_at(object_at(part, "data"), PERMISSION), "expires_at"))
    return found
