"""The resume extension: what a reader asks for that comes back to a stream, and the mark on what it is shown.

The rules are numbered in ``docs/protocol/resume.md``. A mark is metadata under the URI of the extension, since the
schema of the protocol is closed; it says the generation of a task and the cursor to come back with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.members import object_at

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from passerelle.core.wire.json import JsonObject

LAST_EVENT_ID: Final = "Last-Event-ID"
LAST_EVENT_ID_QUERY: Final = "lastEventId"
SNAPSHOT: Final = "A2A-Stream-Snapshot"
"""Also the name of the query parameter."""
ALWAYS: Final = "always"
RESUMED: Final = "A2A-Stream-Resumed"
"""The header of a response that says how a cursor was answered."""
_MARKED: Final = ("task", "statusUpdate", "artifactUpdate")


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """``after`` is the cursor as the reader sent it. ``snapshot``: the Task comes first in any case."""

    after: str
    snapshot: bool = False


def read_resume_request(
    headers: Mapping[str, str], query: Mapping[str, str], extensions: Collection[str]
) -> ResumeRequest | None:
    """What a subscriber asks for, or None for one that wants what A2A 1.0 says (resume.md R3 and R4).

    ``headers`` have lower-case names. A header alone asks for nothing: libraries for server-sent events send it by
    themselves. It wins over the query, which a browser repeats as it was when it connects again.
    """
    asked = query.get(LAST_EVENT_ID_QUERY, "")
    if RESUME not in extensions and not asked:
        return None
    after = headers.get(LAST_EVENT_ID.lower(), "") or asked
    if not after:
        return None
    snapshot = headers.get(SNAPSHOT.lower()) or query.get(SNAPSHOT, "")
    return ResumeRequest(after, snapshot.strip().lower() == ALWAYS)


def write_resumed(*, resumed: bool | None) -> dict[str, str]:
    """The header that says how a cursor was answered; none where none was to be (R6, R7)."""
    if resumed is None:
        return {}
    return {RESUMED: "true" if resumed else "gap"}


def mark(holder: JsonObject, generation: int, cursor: str | None) -> JsonObject:
    """A copy of a Task or an event with its generation and the cursor behind it in the metadata."""
    said: JsonObject = {}
    if generation:
        said["generation"] = str(generation)
    if cursor is not None:
        said["cursor"] = cursor
    return {**holder, "metadata": {**object_at(holder, "metadata"), RESUME: said}}


def mark_frame(frame: bytes, generation: int, cursor: str) -> bytes:
    """A StreamResponse with its Task or event marked; a Message belongs to no task and stays as it is."""
    response: JsonObject = orjson.loads(frame)
    for name in _MARKED:
        if name in response:
            marked = mark(object_at(response, name), generation, cursor)
            return orjson.dumps({**response, name: marked})
    return frame
