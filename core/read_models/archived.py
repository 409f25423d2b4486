"""The content of an archive ref: a whole session that is no longer in memory (TEV-17)."""

from __future__ import annotations

from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class ArchiveContent:
    """The session of a ref, with the tasks that its reader may see, and a page of the events up to ``sequence``.

    ``tasks`` are the current ones, on the first page only. ``after`` reads the next page; without it this is the last
    one. ``in_memory``: the session was resumed.
    """

    ref: str
    session_id: str
    sequence: int
    in_memory: bool
    tasks: tuple[JsonObject, ...]
    events: tuple[JsonObject, ...]
    after: int | None = None
