"""The output forms of ``-o``: JSON, YAML, or only the ids."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Final, Literal, assert_never

from passerelle.a2a_mapping.members import object_at, objects_at, text_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

OutputForm = Literal["json", "yaml", "name"]
_LISTS: Final = {
    "subagents": "subagentId",
    "tasks": "taskId",
    "sessions": "sessionId",
    "threads": "threadId",
    "actions": "actionId",
    "pending": "actionId",
    "closed": "actionId",
    "jobs": "jobId",
    "schedules": "scheduleId",
    "deliveries": "delivery",
    "grants": "grantId",
    "devices": "deviceId",
    "agents": "name",
    "mutes": "peer",
    "turns": "turnId",
    "items": "taskId",
}
"""The id member of the items of each list."""
_ONE: Final = ("task", "action", "session", "grant", "device", "job", "schedule", "subagent")
_WHOLE: Final = ("jobId", "scheduleId", "subagentId")
"""Ids of responses that are one object with lists in it."""
_IDS: Final = (
    *_WHOLE,
    "actionId",
    "taskId",
    "grantId",
    "deviceId",
    "threadId",
    "sessionId",
    "name",
)
"""Id members of a single object; the first present one counts."""


def render_answer(answer: JsonObject, form: OutputForm) -> str:
    """Returns the text of a response, without a final newline."""
    match form:
        case "json":
            return json.dumps(answer, indent=2)
        case "yaml":
            import yaml  # --help loads no YAML

            return yaml.safe_dump(answer, sort_keys=False, allow_unicode=True).rstrip()
        case "name":
            return "\n".join(list_names(answer))
        case _:
            assert_never(form)


def list_names(answer: JsonObject) -> Iterator[str]:
    """Yields the ids of the listed items, or the id of a single object."""
    lists = {} if any(text_at(answer, name) for name in _WHOLE) else _LISTS
    for listed, name in lists.items():
        if isinstance(answer.get(listed), list):
            yield from filter(None, (text_at(one, name) for one in objects_at(answer, listed)))
            return
    one = next((object_at(answer, name) for name in _ONE if object_at(answer, name)), answer)
    found = next((text_at(one, name) for name in _IDS if text_at(one, name)), "")
    if found:
        yield found


def write_any_text() -> None:
    """Escapes characters that the encoding of the terminal or pipe cannot represent."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
