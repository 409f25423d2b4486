"""What a ref of the archive names: a session that has left memory, whole (TEV-17)."""

from __future__ import annotations

from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class ArchiveContent:
    """The session of a ref, with the tasks that its reader sees, and a page of the facts up to ``sequence``.

    ``tasks`` are as they stand by now, on the first page alone. ``after`` reads the next page; without it this is the
    last one. ``in_memory``: somebody has gone on with the session.
    """

    ref: str
    session_id: str
    sequence: int
    in_memory: bool
    tasks: tuple[JsonObject, ...]
    events: tuple[JsonObject, ...]
    after: int | None = None
