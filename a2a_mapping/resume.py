"""The resume extension: requests of readers that return to a stream, and the marks on its events.

The rules are numbered in ``docs/protocol/resume.md``. A mark is metadata under the URI of the extension, since the
schema of the protocol is closed; it has the generation of a task and the cursor to return with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.members import object_at
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from passerelle.core.wire.json import JsonObject

LAST_EVENT_ID: Final = "Last-Event-ID"
LAST_EVENT_ID_QUERY: Final = "lastEventId"
SNAPSHOT: Final = "A2A-Stream-Snapshot"
"""Also the name of the query parameter."""
ALWAYS: Final = "always"
RESUMED: Final = "A2A-Stream-Resumed"
"""The response header with the result for a cursor."""
_MARKED: Final = ("task", "statusUpdate", "artifactUpdate")


@frozen
class ResumeRequest:
    """``after`` is the reader's cursor. ``snapshot``: always send the Task first."""

    after: str
    snapshot: bool = False


def read_resume_request(
    headers: Mapping[str, str], query: Mapping[str, str], extensions: Collection[str]
) -> ResumeRequest | None:
    """The resume request of a subscriber, or None for plain A2A 1.0 (resume.md R3 and R4).

    ``headers`` have lower-case names. A header alone is no request: libraries for server-sent events send it
    automatically. It takes precedence over the query, which a browser repeats unchanged when it reconnects.
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
    """The header with the result for a cursor; empty without one (R6, R7)."""
    if resumed is None:
        return {}
    return {RESUMED: "true" if resumed else "gap"}


def mark(holder: JsonObject, generation: int, cursor: str | None) -> JsonObject:
    """A copy of a Task or an event with its generation and the cursor after it in the metadata."""
    said: JsonObject = {}
    if generation:
        said["generation"] = str(generation)
    if cursor is not None:
        said["cursor"] = cursor
    return {**holder, "metadata": {**object_at(holder, "metadata"), RESUME: said}}


def mark_frame(frame: bytes, generation: int, cursor: str) -> bytes:
    """A StreamResponse with its Task or event marked; a Message belongs to no task and stays unchanged."""
    response: JsonObject = orjson.loads(frame)
    for name in _MARKED:
        if name in response:
            marked = mark(object_at(response, name), generation, cursor)
            return orjson.dumps({**response, name: marked})
    return frame
